//! What tests/data/plan does not say: origins, ages, limits, and that nothing but the present counts.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::model::{Kind, List, Object, Origin, SourceId};

fn service(name: &str, address: &str, ports: &[&str]) -> Value {
    let ports: Vec<Value> = ports.iter().map(|port| service_port(port)).collect();
    json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "namespace": "demo"},
           "spec": {"clusterIP": address, "ports": ports}})
}

/// `name:80/TCP`
fn service_port(text: &str) -> Value {
    let (name, rest) = text.split_once(':').unwrap();
    let (port, protocol) = rest.split_once('/').unwrap();
    json!({"name": name, "port": port.parse::<u16>().unwrap(), "protocol": protocol})
}

/// Endpoints are `address` or `address{ready serving terminating}` as in `10.1.0.1{011}`.
fn slice(name: &str, service: &str, ports: &[&str], endpoints: &[&str]) -> Value {
    let family = if endpoints.iter().any(|endpoint| endpoint.contains(':')) { "IPv6" } else { "IPv4" };
    let endpoints: Vec<Value> = endpoints
        .iter()
        .map(|text| {
            let (address, conditions) = text.trim_end_matches('}').split_once('{').unwrap_or((text, "110"));
            let condition = |index: usize| conditions.as_bytes()[index] == b'1';
            json!({"addresses": [address],
                   "conditions": {"ready": condition(0), "serving": condition(1), "terminating": condition(2)}})
        })
        .collect();
    let ports: Vec<Value> = ports.iter().map(|port| service_port(port)).collect();
    json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": family, "ports": ports,
           "metadata": {"name": name, "namespace": "demo", "labels": {"kubernetes.io/service-name": service}},
           "endpoints": endpoints})
}

fn with(mut object: Value, pointer: &str, value: Value) -> Value {
    let (parent, key) = pointer.rsplit_once('/').unwrap();
    object.pointer_mut(parent).unwrap()[key] = value;
    object
}

fn annotated(object: Value, key: &str, value: &str) -> Value {
    with(object, "/metadata/annotations", json!({ key: value }))
}

fn object(json: &Value) -> Object {
    let kind = Kind::of(json["apiVersion"].as_str().unwrap(), json["kind"].as_str().unwrap()).unwrap();
    Object::identify(kind, json.clone().into(), Origin::default()).unwrap()
}

fn model(objects: &[Value]) -> Model {
    let mut model = Model::new();
    let objects = objects.iter().map(object).collect();
    model.replace(SourceId::API_SERVICES, List { objects, ..List::default() });
    assert_eq!(model.problems(), []);
    model
}

fn planned(objects: &[Value]) -> Plan {
    plan(&model(objects), &Node::named("n0"), &Defaults::default())
}

/// One line per virtual service: `TCP 10.96.0.1:80 rr 10.1.0.1:8080=1 10.1.0.2:8080=1`.
fn lines(plan: &Plan) -> Vec<String> {
    plan.services
        .iter()
        .map(|(frontend, service)| {
            let mut line = format!("{} {}", frontend, service.scheduler.name());
            for destination in &service.destinations {
                let address = std::net::SocketAddr::new(destination.address, destination.port);
                line += &format!(" {address}={}", destination.weight);
            }
            line
        })
        .collect()
}

#[test]
fn flags_and_origin_come_from_the_service() {
    let web = annotated(
        service("web", "10.96.0.1", &["p:80/TCP", ":81/TCP"]),
        "bpvs.io/scheduler-flags",
        "sh-port,sh-fallback",
    );
    let plan = planned(&[web]);
    let services: Vec<_> = plan.services.values().collect();
    // The default scheduler, rr, has no flags.
    assert!(services.iter().all(|service| !service.hash_port && !service.hash_fallback));
    let [problem] = plan.problems.as_slice() else { panic!("one Service, one problem: {:?}", plan.problems) };
    assert_eq!(problem.field, "metadata.annotations[bpvs.io/scheduler-flags]");
    assert_eq!(problem.value, "sh-port,sh-fallback");
    assert!(problem.message.contains("flags of sh") && problem.message.contains("state bpvs.io/scheduler: sh"));
    assert_eq!(services[0].origin, "demo/web:p");
    assert_eq!(services[1].origin, "demo/web:81");
}

#[test]
fn two_services_with_one_frontend_the_older_has_it_and_the_other_takes_over() {
    let at = |name: &str, time: Option<&str>| {
        let service = service(name, "10.96.0.1", &["p:80/TCP"]);
        time.map_or(service.clone(), |time| with(service, "/metadata/creationTimestamp", json!(time)))
    };
    for (first, second, winner) in [
        (at("a", Some("2026-01-02T00:00:00Z")), at("b", Some("2026-01-01T00:00:00Z")), "demo/b:p"),
        (at("a", Some("2026-01-01T00:00:00Z")), at("b", Some("2026-01-01T00:00:00Z")), "demo/a:p"),
        (at("a", None), at("b", Some("2026-01-01T00:00:00Z")), "demo/b:p"),
        (at("a", None), at("b", None), "demo/a:p"),
    ] {
        let other_port = service("c", "10.96.0.1", &["p:443/TCP"]);
        let mut model = model(&[first, second, other_port]);
        let plan = |model: &Model| super::plan(model, &Node::named("n0"), &Defaults::default());
        let both = plan(&model);
        assert_eq!(
            both.services.values().map(|service| service.origin.as_str()).collect::<Vec<_>>(),
            [winner, "demo/c:p"]
        );
        let [problem] = &both.problems[..] else { panic!("{:?}", both.problems) };
        assert!(problem.message.contains(winner) && problem.message.contains("TCP 10.96.0.1:80"), "{problem}");
        let name = winner.trim_start_matches("demo/").trim_end_matches(":p").to_owned();
        let loser = if name == "a" { "demo/b:p" } else { "demo/a:p" };
        model.delete(
            SourceId::API_SERVICES,
            &crate::model::ObjectKey { kind: Kind::Service, namespace: "demo".into(), name: name.into() },
        );
        let one = plan(&model);
        assert_eq!(one.services.values().next().unwrap().origin, loser);
        assert_eq!(one.problems, []);
    }
}

#[test]
fn of_one_age_the_service_that_has_a_frontend_keeps_it_from_one_that_comes_later() {
    let (mut model, mut planner) = (Model::new(), Planner::new(Defaults::default()));
    let mut later = |objects: &[&Value]| {
        let objects = objects.iter().map(|json| object(json)).collect();
        model.replace(SourceId::API_SERVICES, List { objects, ..List::default() });
        let changes = model.take_changes();
        planner.update(&model, &Node::named("n0"), &changes);
        planner.plan().clone()
    };
    let origins = |plan: &Plan| plan.services.values().map(|service| service.origin.clone()).collect::<Vec<_>>();
    let first = service("b", "10.96.0.1", &["p:80/TCP", "q:81/TCP"]);
    let second = service("a", "10.96.0.1", &["p:80/TCP", "r:82/TCP"]);
    later(&[&first]);
    let both = later(&[&first, &second]);
    assert_eq!(origins(&both), ["demo/b:p", "demo/b:q", "demo/a:r"]);
    let texts: Vec<String> = both.problems.iter().map(ToString::to_string).collect();
    assert!(texts.len() == 1 && texts[0].contains("Service demo/a: spec.ports[0]: 80: TCP 10.96.0.1:80"), "{texts:?}");
    assert_eq!(later(&[&first, &second]), both);
    // Another name of its port is no reason to lose it.
    let renamed = service("b", "10.96.0.1", &["x:80/TCP", "q:81/TCP"]);
    assert_eq!(origins(&later(&[&renamed, &second])), ["demo/b:x", "demo/b:q", "demo/a:r"]);
    // Age decides first.
    let older = with(second.clone(), "/metadata/creationTimestamp", json!("2026-01-01T00:00:00Z"));
    assert_eq!(origins(&later(&[&first, &older])), ["demo/a:p", "demo/b:q", "demo/a:r"]);
    // It goes, the other has it, and keeps it when the first one returns.
    later(&[&first]);
    assert_eq!(origins(&later(&[&first, &second])), ["demo/b:p", "demo/b:q", "demo/a:r"]);
    later(&[&second]);
    assert_eq!(origins(&later(&[&first, &second])), ["demo/a:p", "demo/b:q", "demo/a:r"]);
}

#[test]
fn session_affinity_one_packet_and_thresholds_reach_every_port_that_can_have_them() {
    let web = with(
        service("web", "10.96.0.1", &["p:80/TCP", "q:53/UDP"]),
        "/metadata/annotations",
        json!({"bpvs.io/persistence-netmask": "24", "bpvs.io/one-packet": "true", "bpvs.io/thresholds": "9,4"}),
    );
    let web = with(web, "/spec/sessionAffinity", json!("ClientIP"));
    let plan = planned(&[web, slice("a", "web", &["p:1/TCP", "q:2/UDP"], &["10.1.0.1"])]);
    let [udp, tcp] = plan.services.values().collect::<Vec<_>>()[..] else { panic!("{plan:?}") };
    for service in [tcp, udp] {
        assert_eq!(service.persistence, Some(Persistence { timeout: 10_800, netmask: 24 }));
        assert_eq!(service.destinations[0].thresholds, Thresholds { upper: 9, lower: 4 });
    }
    assert!(!tcp.one_packet && udp.one_packet);
}

#[test]
fn beyond_a_limit_a_problem_names_object_and_limit_and_the_rest_works() {
    let objects = [
        with(
            service("new", "10.96.0.2", &["p:80/TCP", "q:81/TCP"]),
            "/metadata/creationTimestamp",
            json!("2026-01-02T00:00:00Z"),
        ),
        with(service("old", "10.96.0.1", &["p:80/TCP"]), "/metadata/creationTimestamp", json!("2026-01-01T00:00:00Z")),
        slice("a", "old", &["p:1/TCP"], &["10.1.0.3", "10.1.0.1", "10.1.0.2"]),
    ];
    let defaults = Defaults { max_services: 2, max_destinations_per_service: 2, ..Defaults::default() };
    let plan = plan(&model(&objects), &Node::named("n0"), &defaults);
    assert_eq!(lines(&plan), ["TCP 10.96.0.1:80 rr 10.1.0.1:1=1 10.1.0.2:1=1", "TCP 10.96.0.2:80 rr"]);
    let texts: Vec<String> = plan.problems.iter().map(ToString::to_string).collect();
    assert_eq!(texts.len(), 2, "{texts:?}");
    assert!(texts[0].contains("Service demo/old") && texts[0].contains("first 2 are used"), "{texts:?}");
    assert!(texts[1].contains("Service demo/new") && texts[1].contains("room for 2 (max_services)"), "{texts:?}");
}

#[test]
fn a_slice_in_a_file_without_its_service_is_a_problem_until_the_service_comes() {
    let origin = Origin { file: Some("a.yaml".into()), document: 1, first_line: 1, line: 1 };
    let in_file = |json: &Value| Object { origin: origin.clone(), ..object(json) };
    let mut model = Model::new();
    model.apply(SourceId::MANIFESTS, in_file(&slice("a", "web", &["p:1/TCP"], &["10.1.0.1"])));
    let node = Node::named("n0");
    let alone = plan(&model, &node, &Defaults::default());
    assert!(alone.services.is_empty() && alone.problems.len() == 1);
    assert!(alone.problems[0].to_string().contains("EndpointSlice demo/a"), "{}", alone.problems[0]);
    model.apply(SourceId::MANIFESTS, in_file(&service("web", "10.96.0.1", &["p:80/TCP"])));
    let both = plan(&model, &node, &Defaults::default());
    assert_eq!((lines(&both), both.problems), (vec!["TCP 10.96.0.1:80 rr 10.1.0.1:1=1".to_owned()], vec![]));
}

proptest! {
    /// Whatever came first, and whatever was there in between, only what is there now counts.
    #[test]
    fn the_order_of_arrival_is_irrelevant(
        order in Just((0..9usize).collect::<Vec<_>>()).prop_shuffle(),
        again in prop::collection::vec(0..9usize, 0..12),
        gone in prop::collection::vec(0..9usize, 0..4),
    ) {
        let objects = [
            service("a", "10.96.0.1", &["p:80/TCP", "q:53/UDP"]),
            with(service("b", "10.96.0.1", &["p:80/TCP"]), "/spec/externalIPs", json!(["198.51.100.9"])),
            annotated(with(service("c", "10.96.0.3", &["p:80/TCP"]), "/spec/externalIPs", json!(["198.51.100.9"])), "bpvs.io/weights", "node/n=3"),
            slice("a-1", "a", &["p:1/TCP", "q:2/UDP"], &["10.1.0.1{110}", "10.1.0.2{011}"]),
            annotated(slice("a-2", "a", &["p:1/TCP"], &["10.1.0.1{010}", "10.1.0.3"]), "bpvs.io/weight", "4"),
            annotated(slice("a-3", "a", &["p:1/TCP"], &["10.1.0.1", "10.1.0.4{101}"]), "bpvs.io/weight", "5"),
            slice("b-1", "b", &["p:1/TCP"], &["10.1.0.9"]),
            slice("c-1", "c", &["p:1/TCP"], &["10.1.0.5{011}"]),
            slice("c-2", "c", &["p:1/TCP"], &["10.1.0.6{010}"]),
        ];
        let source = SourceId::API_SERVICES;
        let mut moved = Model::new();
        for &index in again.iter().chain(&order) {
            moved.apply(source, object(&objects[index]));
            for &index in &gone {
                moved.delete(source, &object(&objects[index]).key);
            }
        }
        for &index in &order {
            moved.apply(source, object(&objects[index]));
        }
        for &index in &gone {
            moved.delete(source, &object(&objects[index]).key);
        }
        let kept: Vec<Value> =
            objects.iter().enumerate().filter(|(index, _)| !gone.contains(index)).map(|(_, json)| json.clone()).collect();
        prop_assert_eq!(plan(&moved, &Node::named("n0"), &Defaults::default()), planned(&kept));
    }
}

/// There are some hundred thousand of them: the method has the byte that was left.
#[test]
fn a_destination_takes_32_bytes() {
    assert_eq!(size_of::<DesiredDestination>(), 32);
}
