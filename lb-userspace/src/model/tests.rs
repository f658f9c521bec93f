//! One wrong field: one problem, and nothing else suffers.

use std::net::IpAddr;

use lb_common::scheduler::Scheduler;
use serde_saphyr::from_str;

use super::*;

mod changes;
mod lists;

const SOURCE: SourceId = SourceId::MANIFESTS;

const SERVICE: &str = r#"apiVersion: v1
kind: Service
metadata:
  name: web
  namespace: demo
  creationTimestamp: "2026-01-31T12:00:00Z"
  annotations:
    bpvs.io/scheduler: sh
    bpvs.io/scheduler-flags: sh-port, sh-fallback
    bpvs.io/weights: "pod-a=5, pod-b=0, zone/eu-1=3, node/n7=2147483647,"
spec:
  type: ClusterIP
  clusterIP: 10.96.0.1
  clusterIPs: [10.96.0.1, "fd00:96::1"]
  ipFamilies: [IPv4, IPv6]
  ports:
  - {name: http, port: 80, protocol: TCP}
  - {name: dns, port: 53, protocol: UDP}
"#;

const SLICE: &str = r#"apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata:
  name: web-1
  namespace: demo
  labels: {kubernetes.io/service-name: web}
  annotations: {bpvs.io/weight: "7"}
addressType: IPv4
ports:
- {name: http, port: 8080, protocol: TCP}
- {name: dns, port: 5353, protocol: UDP}
endpoints:
- addresses: [10.1.0.1]
  conditions: {ready: true, serving: true, terminating: false}
  nodeName: n0
  zone: eu-1
  targetRef: {kind: Pod, name: pod-a}
- addresses: [10.1.0.2]
"#;

fn object(yaml: &str) -> Object {
    let tree: tree::Tree = from_str(yaml).expect(yaml);
    let kind = Kind::of(tree.text("apiVersion").unwrap(), tree.text("kind").unwrap()).unwrap();
    let origin = Origin { file: Some("a.yaml".into()), document: 2, first_line: 101, line: 0 };
    Object::identify(kind, tree, origin).unwrap()
}

fn changed(yaml: &str, from: &str, to: &str) -> Object {
    assert!(yaml.contains(from), "{from}");
    object(&yaml.replacen(from, to, 1))
}

fn model(objects: impl IntoIterator<Item = Object>) -> Model {
    let mut model = Model::new();
    model.replace(SOURCE, List { objects: objects.into_iter().collect(), ..List::default() });
    model
}

fn service(model: &Model) -> Service {
    model.services().next().expect("a service").clone()
}

fn slice(model: &Model) -> EndpointSlice {
    model.slices().next().expect("a slice").clone()
}

#[test]
fn right_objects_are_read_without_a_problem() {
    let model = model([object(SERVICE), object(SLICE)]);
    assert_eq!(model.problems(), []);
    let service = service(&model);
    assert_eq!(service.addresses, ["10.96.0.1", "fd00:96::1"].map(|text| text.parse::<IpAddr>().unwrap()));
    assert_eq!(service.scheduler, Some(Scheduler::SourceHash));
    assert_eq!(
        service.flags,
        SchedulerFlags { scheduler: Some(Scheduler::SourceHash), hash_port: true, hash_fallback: true }
    );
    assert_eq!(service.created, Some(1_769_860_800));
    let weight = |pod, node, zone| service.weights.of(pod, node, zone);
    assert_eq!(weight(Some("pod-a"), Some("n7"), Some("eu-1")), Some(5));
    assert_eq!(weight(Some("pod-b"), Some("n7"), None), Some(0));
    assert_eq!(weight(Some("pod-c"), Some("n7"), Some("eu-1")), Some(i32::MAX));
    assert_eq!(weight(None, Some("n1"), Some("eu-1")), Some(3));
    assert_eq!(weight(None, None, None), None);
    let slice = slice(&model);
    assert_eq!((&*slice.service, slice.weight, slice.endpoints.len()), ("web", Some(7), 2));
    assert!(slice.endpoints[1].ready && slice.endpoints[1].serving && !slice.endpoints[1].terminating);
}

/// (what to replace, by what, field in the message, what the message says is allowed)
const WRONG_SERVICES: &[(&str, &str, &str, &str)] = &[
    (
        "scheduler: sh",
        "scheduler: fastest",
        "metadata.annotations[bpvs.io/scheduler]: \"fastest\"",
        "must be one of rr, wrr",
    ),
    ("scheduler: sh", "scheduler: WLC", "\"WLC\"", "must be one of"),
    ("scheduler: sh", "scheduler: 7", "[bpvs.io/scheduler]: 7", "must be one of"),
    ("sh-port, sh-fallback", "sh-port, flag-1", "[bpvs.io/scheduler-flags]: \"flag-1\"", "sh-port, sh-fallback"),
    ("sh-port, sh-fallback", "sh-port, mh-port", "[bpvs.io/scheduler-flags]: \"mh-port\"", "is a flag of mh, but the"),
    ("pod-a=5", "pod-a=-1", "[bpvs.io/weights]: \"pod-a=-1\"", "WEIGHT from 0 to 2147483647"),
    ("pod-a=5", "pod-a=3000000000", "\"pod-a=3000000000\"", "WEIGHT from 0 to 2147483647"),
    ("pod-a=5", "pod-a=+5", "\"pod-a=+5\"", "NAME=WEIGHT"),
    ("pod-a=5", "pod-a", "\"pod-a\"", "NAME=WEIGHT"),
    ("pod-a=5", "rack/a=5", "\"rack/a=5\"", "zone/NAME=WEIGHT"),
    ("pod-a=5", "pod-b=5", "\"pod-b=0\"", "stated twice"),
    ("\"pod-a=5, pod-b=0, zone/eu-1=3, node/n7=2147483647,\"", "7", "[bpvs.io/weights]: 7", "must be text"),
    ("port: 80,", "port: 0,", "spec.ports[0].port: 0", "from 1 to 65535"),
    ("port: 80,", "port: 70000,", "spec.ports[0].port: 70000", "from 1 to 65535"),
    ("port: 80,", "port: -1,", "spec.ports[0].port: -1", "from 1 to 65535"),
    ("port: 80,", "port: 99999999999999999999,", "spec.ports[0].port", "from 1 to 65535"),
    ("port: 80,", "port: 80.5,", "spec.ports[0].port: 80.5", "from 1 to 65535"),
    ("port: 80,", "port: http,", "spec.ports[0].port: \"http\"", "from 1 to 65535"),
    ("port: 80,", "", "spec.ports[0].port: missing", "from 1 to 65535"),
    ("protocol: UDP", "protocol: ICMP", "spec.ports[1].protocol: \"ICMP\"", "TCP, UDP or SCTP"),
    ("name: dns, port: 53, protocol: UDP", "name: b, port: 80", "spec.ports[1].port: 80", "stated twice"),
    ("name: dns, port: 53, protocol: UDP", "name: http, port: 81", "spec.ports[1].name", "different names"),
    ("- {name: dns, port: 53, protocol: UDP}", "- 53", "spec.ports[1]: 53", "must be a map"),
    (
        "clusterIPs: [10.96.0.1,",
        "clusterIPs: [10.96.0.400,",
        "spec.clusterIPs[0]: \"10.96.0.400\"",
        "usable IPv4 or IPv6",
    ),
    ("clusterIPs: [10.96.0.1,", "clusterIPs: [none,", "spec.clusterIPs[0]: \"none\"", "usable IPv4 or IPv6"),
    ("clusterIPs: [10.96.0.1,", "clusterIPs: [0.0.0.0,", "spec.clusterIPs[0]", "usable IPv4 or IPv6"),
    ("clusterIPs: [10.96.0.1,", "clusterIPs: [7,", "spec.clusterIPs[0]: 7", "usable IPv4 or IPv6"),
    ("clusterIP: 10.96.0.1", "clusterIP: 7", "spec.clusterIP: 7", "usable IPv4 or IPv6"),
    ("[IPv4, IPv6]", "[IPv6, IPv6]", "spec.clusterIPs[0]", "as spec.ipFamilies[0] says"),
    ("2026-01-31T12:00:00Z", "yesterday", "metadata.creationTimestamp: \"yesterday\"", "must be a time"),
    ("type: ClusterIP", "type: 7", "spec.type: 7", "must be ClusterIP"),
];

#[test]
fn a_wrong_part_of_a_service_is_one_problem_and_keeps_its_last_value() {
    for &(from, to, field, allowed) in WRONG_SERVICES {
        let mut model = model([object(SERVICE)]);
        let before = service(&model);
        model.apply(SOURCE, changed(SERVICE, from, to));
        let problems = model.problems();
        let [problem] = &problems[..] else { panic!("{to}: {problems:?}") };
        let text = problem.to_string();
        assert!(text.contains(field) && text.contains(allowed), "{to}: {text}");
        assert!(text.contains("Service demo/web") && text.contains("(document 2)"), "{text}");
        assert!(text.starts_with("a.yaml:1") && !text.contains('\n'), "{text}");
        let after = service(&model);
        assert_eq!(
            (after.scheduler, after.flags, &after.addresses),
            (before.scheduler, before.flags, &before.addresses)
        );
        assert_eq!(after.ports[0], before.ports[0], "{to}");
        if !allowed.contains("twice") {
            assert_eq!(
                after.weights.of(Some("pod-a"), None, None).is_some(),
                to != "pod-a" && to != "rack/a=5",
                "{to}"
            );
        }
        model.apply(SOURCE, object(SERVICE));
        assert_eq!(model.problems(), []);
        assert_eq!(service(&model), before);
    }
}

#[test]
fn a_wrong_part_that_never_was_right_is_left_out_or_default_and_the_rest_is_served() {
    for &(from, to, ..) in WRONG_SERVICES {
        let model = model([changed(SERVICE, from, to), object(SLICE)]);
        assert_eq!(model.problems().len(), 1, "{to}");
        assert!(!model.has_gaps());
        let service = service(&model);
        assert!(!service.ports.is_empty(), "{to}");
        if to != "clusterIP: 7" {
            assert!(!service.addresses.is_empty(), "{to}");
        }
    }
    let first_port_wrong = model([changed(SERVICE, "port: 80,", "port: 0,")]);
    assert_eq!(service(&first_port_wrong).ports.iter().map(|port| port.port).collect::<Vec<_>>(), [53]);
    let scheduler_wrong = model([changed(SERVICE, "scheduler: sh", "scheduler: fastest")]);
    assert_eq!(service(&scheduler_wrong).scheduler, None);
}

#[test]
fn a_file_must_state_an_address_that_nobody_allocates_there() {
    let text = SERVICE.replace("  clusterIP: 10.96.0.1\n  clusterIPs: [10.96.0.1, \"fd00:96::1\"]\n", "");
    let problems = model([object(&text)]).problems();
    assert!(problems.len() == 1 && problems[0].to_string().contains("spec.clusterIP: missing"), "{problems:?}");
}

#[test]
fn services_without_virtual_address_are_no_problem_and_have_none() {
    for (from, to) in [
        ("type: ClusterIP", "type: ExternalName"),
        ("clusterIP: 10.96.0.1", "clusterIP: None"),
        ("clusterIP: 10.96.0.1", "clusterIP: ''"),
        ("namespace: demo", "labels: {service.kubernetes.io/service-proxy-name: ''}\n  namespace: demo"),
        ("namespace: demo", "labels: {service.kubernetes.io/service-proxy-name: }\n  namespace: demo"),
    ] {
        let mut model = model([object(SERVICE)]);
        model.apply(SOURCE, changed(SERVICE, from, to));
        assert_eq!((model.problems(), service(&model).addresses), (vec![], vec![]), "{to}");
        model.apply(SOURCE, object(SERVICE));
        assert_eq!(service(&model).addresses.len(), 2);
    }
}

const WRONG_SLICES: &[(&str, &str, &str, &str)] = &[
    (
        "labels: {kubernetes.io/service-name: web}",
        "labels: {}",
        "[kubernetes.io/service-name]: missing",
        "must name the Service",
    ),
    ("service-name: web", "service-name: ''", "[kubernetes.io/service-name]: \"\"", "must name the Service"),
    ("service-name: web", "service-name: 7", "[kubernetes.io/service-name]: 7", "name of a Service"),
    ("addressType: IPv4", "addressType: IPv5", "addressType: \"IPv5\"", "IPv4, IPv6 or FQDN"),
    ("addressType: IPv4", "adressType: IPv4", "addressType: missing", "IPv4, IPv6 or FQDN"),
    ("\"7\"", "\"-1\"", "[bpvs.io/weight]: \"-1\"", "from 0 to 2147483647"),
    ("\"7\"", "\"3000000000\"", "[bpvs.io/weight]: \"3000000000\"", "from 0 to 2147483647"),
    ("\"7\"", "7", "[bpvs.io/weight]: 7", "in quotes"),
    ("\"7\"", "\"seven\"", "[bpvs.io/weight]: \"seven\"", "from 0 to 2147483647"),
    ("port: 8080", "port: 0", "ports[0].port: 0", "from 1 to 65535"),
    ("port: 8080", "port: 70000", "ports[0].port: 70000", "from 1 to 65535"),
    ("protocol: UDP", "protocol: 17", "ports[1].protocol: 17", "TCP, UDP or SCTP"),
    ("[10.1.0.2]", "[10.1.0.256]", "endpoints[1].addresses[0]: \"10.1.0.256\"", "usable IPv4 address"),
    ("[10.1.0.2]", "[\"fd00::1\"]", "endpoints[1].addresses[0]", "usable IPv4 address"),
    ("[10.1.0.2]", "[example.org]", "endpoints[1].addresses[0]: \"example.org\"", "usable IPv4 address"),
    ("[10.1.0.2]", "[127.0.0.1]", "endpoints[1].addresses[0]", "usable IPv4 address"),
    ("[10.1.0.2]", "10.1.0.2", "endpoints[1].addresses: \"10.1.0.2\"", "must be a list"),
    ("- addresses: [10.1.0.2]", "- 10.1.0.2", "endpoints[1]: \"10.1.0.2\"", "must be a map"),
    ("[10.1.0.2]", "[10.1.0.2]\n  conditions: {ready: 1}", "endpoints[1].conditions.ready: 1", "true or false"),
];

#[test]
fn a_wrong_part_of_a_slice_is_one_problem_and_the_other_endpoints_stay() {
    for &(from, to, field, allowed) in WRONG_SLICES {
        let mut model = model([object(SLICE)]);
        model.apply(SOURCE, changed(SLICE, from, to));
        let problems = model.problems();
        let [problem] = &problems[..] else { panic!("{to}: {problems:?}") };
        let text = problem.to_string();
        assert!(
            text.contains(field) && text.contains(allowed) && text.contains("EndpointSlice demo/web-1"),
            "{to}: {text}"
        );
        let slice = slice(&model);
        assert_eq!((slice.weight, &*slice.service), (Some(7), "web"), "{to}");
        assert_eq!(slice.endpoints[0].address, "10.1.0.1".parse::<IpAddr>().unwrap(), "{to}");
        assert!(slice.ports.iter().any(|port| port.port == 8080), "{to}");
    }
}

#[test]
fn a_slice_that_never_could_be_read_is_a_gap_until_it_can() {
    let mut model = model([changed(SLICE, "addressType: IPv4", "addressType: IPv5")]);
    assert!(model.has_gaps() && model.slices().next().is_none());
    model.apply(SOURCE, object(SLICE));
    assert!(!model.has_gaps() && model.slices().next().is_some());
}

#[test]
fn slices_that_concern_no_proxy_are_no_problem_and_feed_nothing() {
    for (from, to) in [
        ("addressType: IPv4", "addressType: FQDN"),
        ("labels: {", "labels: {service.kubernetes.io/headless: '', "),
        ("labels: {", "labels: {service.kubernetes.io/headless: , "),
    ] {
        let mut model = model([object(SLICE)]);
        model.apply(SOURCE, changed(SLICE, from, to));
        assert!(model.problems().is_empty() && model.slices().next().is_none(), "{to}");
    }
}

#[test]
fn slice_ports_without_name_or_number_are_skipped() {
    let ports = "- {port: 1}\n- {name: p}\n- {name: q, port: 9}\n";
    let model = model([changed(SLICE, "- {name: http, port: 8080, protocol: TCP}\n", ports)]);
    assert_eq!(model.problems(), []);
    assert_eq!(slice(&model).ports.iter().map(|port| &*port.name).collect::<Vec<_>>(), ["q", "dns"]);
}

#[test]
fn a_thousand_wrong_endpoints_are_told_of_in_a_few_lines() {
    let endpoints = "- addresses: [none]\n".repeat(1000);
    let model = model([object(&format!("{SLICE}{endpoints}"))]);
    assert_eq!((model.problems().len(), slice(&model).endpoints.len()), (21, 2));
}

#[test]
fn an_object_that_is_stated_twice_holds_as_stated_first() {
    let annotations = "scheduler: sh\n    bpvs.io/scheduler-flags: sh-port, sh-fallback";
    let second = changed(SERVICE, annotations, "scheduler: rr");
    let mut model = model([object(SERVICE), second.clone(), second.clone()]);
    assert_eq!(service(&model).scheduler, Some(Scheduler::SourceHash));
    let problems = model.problems();
    assert!(
        problems.len() == 1 && problems[0].message.contains("the one of a.yaml:101 (document 2) holds"),
        "{problems:?}"
    );
    model.replace(SOURCE, List { objects: vec![second.clone()], ..List::default() });
    assert_eq!((service(&model).scheduler, model.problems()), (Some(Scheduler::RoundRobin), vec![]));

    model.replace(SourceId::API_SERVICES, List { objects: vec![object(SERVICE)], ..List::default() });
    assert_eq!((service(&model).scheduler, model.problems().len()), (Some(Scheduler::RoundRobin), 1));
    model.delete(SOURCE, &second.key);
    assert_eq!(service(&model).scheduler, Some(Scheduler::SourceHash));
    assert_eq!(model.problems(), []);
}

#[test]
fn the_model_is_complete_after_the_first_list_of_every_source() {
    let mut model = Model::new();
    model.expect(SOURCE);
    model.expect(SourceId::API_SERVICES);
    model.replace(SOURCE, List::default());
    model.apply(SourceId::API_SERVICES, object(SERVICE));
    assert!(!model.is_complete());
    model.replace(SourceId::API_SERVICES, List::default());
    assert!(model.is_complete() && model.services().next().is_none());
}

#[test]
fn a_list_replaces_everything_but_what_it_keeps() {
    let other = changed(SERVICE, "name: web", "name: other");
    let third = changed(SERVICE, "name: web", "name: third");
    let mut model = model([object(SERVICE), other.clone(), third]);
    model.replace(SOURCE, List { kept: vec![other.key.clone()], ..List::default() });
    assert_eq!(model.services().map(|service| &*service.name).collect::<Vec<_>>(), ["other"]);
}

#[test]
fn the_zone_of_a_node_follows_its_label() {
    let node = "apiVersion: v1\nkind: Node\nmetadata:\n  name: n0\n  labels: {topology.kubernetes.io/zone: eu-1}\n";
    let mut model = model([object(node)]);
    assert_eq!(model.node("n0").zone.as_deref(), Some("eu-1"));
    model.apply(SOURCE, changed(node, "eu-1", "''"));
    assert_eq!(model.node("n0").zone, None);
    assert_eq!(model.node("n1"), Node::named("n1"));
}

#[test]
fn flags_are_those_of_the_stated_scheduler() {
    let stated = |scheduler: &str, flags: &str| {
        let text = SERVICE.replacen("bpvs.io/scheduler: sh", scheduler, 1).replacen("sh-port, sh-fallback", flags, 1);
        let model = model([object(&text)]);
        let told = model.problems().iter().map(|problem| problem.to_string()).collect::<Vec<_>>().join("; ");
        (service(&model).flags.to_string(), told)
    };
    for (scheduler, flags, read) in [
        ("bpvs.io/scheduler: mh", "mh-fallback , mh-port", "mh-port,mh-fallback"),
        ("bpvs.io/scheduler: mh", "mh-fallback", "mh-fallback"),
        ("bpvs.io/scheduler: mh", "\"\"", ""),
        ("other: x", "mh-port", "mh-port"),
    ] {
        assert_eq!(stated(scheduler, flags), (read.to_owned(), String::new()), "{scheduler} {flags}");
    }
    for (scheduler, flags, value, message) in [
        ("bpvs.io/scheduler: mh", "sh-port", "\"sh-port\"", "a flag of sh, but the scheduler is mh"),
        ("bpvs.io/scheduler: wlc", "sh-fallback", "\"sh-fallback\"", "a flag of sh, but the scheduler is wlc"),
        ("other: x", "sh-port,mh-port", "\"mh-port\"", "a flag of mh, and stands beside one of sh"),
    ] {
        let (read, told) = stated(scheduler, flags);
        assert!(read.is_empty() && told.contains(value) && told.contains(message), "{told}");
        assert!(told.contains("metadata.annotations[bpvs.io/scheduler-flags]"), "{told}");
    }
}
