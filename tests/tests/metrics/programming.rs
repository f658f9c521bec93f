//! What the agent does with changes, as kube-proxy would tell it.

use std::process::Command;

use bpvs_tests::agent::ServiceManifest;
use bpvs_tests::exposition::Families;
use bpvs_tests::topology::Topology;
use bpvs_tests::world::{CHANGE, TCP, TCP_TARGET, World, virtual_addresses, wait_for, wait_listed};

use super::{HEALTHZ, HERE, agent, get, scrape, value};

const PROGRAMMING: &str = "kubeproxy_network_programming_duration_seconds";

/// The Service's manifest with slices that were written for a change of now.
pub(crate) fn dated(service: &ServiceManifest) -> String {
    let now = Command::new("date").args(["-u", "+%Y-%m-%dT%H:%M:%S.%NZ"]).output().unwrap();
    dated_at(service, String::from_utf8(now.stdout).unwrap().trim())
}

fn dated_at(service: &ServiceManifest, time: &str) -> String {
    let annotation = format!("annotations: {{endpoints.kubernetes.io/last-change-trigger-time: \"{time}\"}}");
    let (before, slices) =
        service.yaml().split_once("kind: EndpointSlice").map(|(a, b)| (a.to_owned(), b.to_owned())).unwrap();
    let slices = slices.replace("metadata:\n", &format!("metadata:\n  {annotation}\n"));
    format!("{before}kind: EndpointSlice{slices}")
}

fn sync(name: &str) -> String {
    format!("kubeproxy_sync_proxy_rules_{name}")
}

/// How often something was measured for a family; 0 if never.
fn measured(families: &Families, family: &str) -> f64 {
    families.get(PROGRAMMING).and_then(|metric| metric.value(&[("ip_family", family)])).unwrap_or(0.0)
}

#[test]
fn changes_are_counted_programmed_and_measured_once() {
    let world = World::new(Topology::builder().servers(2).build().unwrap()).unwrap();
    let old = dated_at(&world.service("web", 1), "2026-01-31T09:30:00Z");
    world.manifests.write("web.yaml", &old).unwrap();
    let agent = agent(&world, &[]);
    let before = scrape(&world);
    // What was changed before the agent started is not measured.
    assert_eq!((measured(&before, "IPv4"), measured(&before, "IPv6")), (0.0, 0.0));
    assert_eq!(value(&before, &sync("service_changes_total"), &[]), 1.0);
    assert_eq!(value(&before, &sync("endpoint_changes_total"), &[]), 2.0);

    world.manifests.write("web.yaml", &dated(&world.service("web", 1).without(1))).unwrap();
    let done = || Ok(Some(scrape(&world)).filter(|now| measured(now, "IPv4") + measured(now, "IPv6") == 2.0));
    let after = wait_for("measurement of both", CHANGE, done, || agent.log().text(0)).unwrap();
    let below = |seconds: f64| {
        let buckets = after[PROGRAMMING].buckets.values().next().unwrap();
        buckets.iter().find(|(bound, _)| *bound == seconds).map(|(_, count)| *count)
    };
    assert_eq!(below(10.0), Some(1.0), "{:?}", after[PROGRAMMING]);
    assert_eq!(value(&after, &sync("service_changes_total"), &[]), 2.0);
    assert_eq!(value(&after, &sync("endpoint_changes_total"), &[]), 4.0);
    for waiting in ["service_changes_pending", "endpoint_changes_pending"] {
        assert_eq!(value(&after, &sync(waiting), &[]), 0.0);
    }
    for family in [("ip_family", "IPv4"), ("ip_family", "IPv6")] {
        assert!(
            value(&after, &sync("duration_seconds"), &[family]) > value(&before, &sync("duration_seconds"), &[family])
        );
        let [queued, synced] = ["last_queued_timestamp_seconds", "last_timestamp_seconds"]
            .map(|name| value(&after, &sync(name), &[family]));
        assert!(queued > 1.7e9 && (queued..queued + 10.0).contains(&synced), "{queued} {synced}");
    }
    assert!(value(&after, "bpvs_programming_duration_seconds", &[]) >= 2.0);
    assert_eq!(value(&after, "bpvs_sync_failures_total", &[]), 0.0);
    assert_eq!(value(&after, "bpvs_input_problems", &[]), 0.0);

    // Another change of the same object for which no new time is told, and one that is no time: neither is measured.
    let wrong = dated_at(&world.service("web", 1), "five past nine");
    world.manifests.write("web.yaml", &wrong).unwrap();
    wait_listed(&agent, "both servers again", |list| list.services.iter().all(|service| service.servers.len() == 2))
        .unwrap();
    let last = scrape(&world);
    assert_eq!((measured(&last, "IPv4"), measured(&last, "IPv6")), (1.0, 1.0));
    assert_eq!(value(&last, "bpvs_input_problems", &[]), 2.0);
    assert!(agent.log().text(0).contains("must be a time as in RFC 3339"), "{}", agent.log().text(0));
}

#[test]
fn service_ports_without_an_endpoint_here_are_counted_once_for_each_policy_and_family() {
    let world = World::new(Topology::builder().servers(1).build().unwrap()).unwrap();
    let server = &world.topology.servers[0];
    let service = |node: &str| {
        let service = ServiceManifest::new("web", &virtual_addresses(1)).node_port("TCP", TCP, TCP_TARGET, 30_080);
        let service = service.server(1, &[server.v4.into()], 1).on_node(1, node);
        let policies = "externalTrafficPolicy: Local";
        service.spec(policies).spec("internalTrafficPolicy: Local").spec("externalIPs: [192.0.2.1, 192.0.2.2]")
    };
    let counted = || {
        let families = scrape(&world);
        ["internal", "external"].map(|policy| {
            ["IPv4", "IPv6"].map(|family| {
                value(
                    &families,
                    &sync("no_local_endpoints_total"),
                    &[("traffic_policy", policy), ("ip_family", family)],
                )
            })
        })
    };
    world.publish("web", &service("there")).unwrap();
    let agent = agent(&world, &[]);
    // IPv6 has no endpoint anywhere: that is another matter.
    assert_eq!(counted(), [[1.0, 0.0], [1.0, 0.0]]);
    world.publish("web", &service(HERE)).unwrap();
    let none = || Ok((counted() == [[0.0, 0.0], [0.0, 0.0]]).then_some(()));
    wait_for("count of 0", CHANGE, none, || format!("{:?}\n{}", counted(), agent.log().text(0))).unwrap();
}

#[test]
fn answers_about_health_are_counted_by_their_code() {
    let world = World::new(Topology::builder().servers(1).build().unwrap()).unwrap();
    world.publish("web", &world.service("web", 1)).unwrap();
    let _agent = agent(&world, &[]);
    assert!(!scrape(&world).contains_key("kubeproxy_proxy_healthz_total"));
    for (path, times) in [("/healthz", 3), ("/livez", 2), ("/readyz", 1)] {
        for _ in 0..times {
            assert_eq!(get(&world, HEALTHZ, path).status, 200, "{path}");
        }
    }
    let families = scrape(&world);
    assert_eq!(value(&families, "kubeproxy_proxy_healthz_total", &[("code", "200")]), 3.0);
    assert_eq!(value(&families, "kubeproxy_proxy_livez_total", &[("code", "200")]), 2.0);
    assert_eq!(families["kubeproxy_proxy_livez_total"].values.len(), 1);
}
