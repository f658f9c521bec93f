//! What the cluster states reaches packets, and what does not concern services does not.

use bpvs_tests::agent::{Manifests, ServiceManifest};
use serde_json::{Value, json};

use super::objects::{endpoint, ready, service, slice, with};
use super::{World, address, until};

fn total(list: &str, frontend: &str) -> u64 {
    let list: Value = serde_json::from_str(list).unwrap();
    let services = list["services"].as_array().unwrap();
    let service = services.iter().find(|service| service["address"] == frontend).unwrap();
    service["traffic"]["connections"].as_u64().unwrap()
}

#[test]
fn objects_that_come_change_and_go_are_followed_by_connections() {
    let world = World::new(3);
    let (a, b) = (address("10.96.0.1:80"), address("[fd00:96::2]:80"));
    world.api().apply(service("a", &["10.96.0.1"]));
    world.api().apply(slice("a-1", "a", &ready(&[1])));
    let agent = world.agent().start().unwrap();
    assert_eq!(world.dial(a), Some(1), "ready means that the first list is programmed");

    world.api().apply(slice("a-1", "a", &ready(&[2, 3])));
    world.expect(a, &[2, 3]);
    let before = total(&agent.command(&["list", "-o", "json"]).unwrap(), "10.96.0.1");
    world.api().apply(slice("a-2", "a", &ready(&[1])));
    world.expect(a, &[1, 2, 3]);
    world.api().delete("EndpointSlice", "demo", "a-1");
    world.expect(a, &[1]);
    let after = total(&agent.command(&["list", "-o", "json"]).unwrap(), "10.96.0.1");
    assert!(after >= before + 8 + 3, "{before} connections, then {after}: removed servers' count, too");

    world.api().apply(slice("a-2", "a", &ready(&[1, 2, 3])));
    world.expect(a, &[1, 2, 3]);
    world.api().apply(with(service("a", &["10.96.0.1"]), "annotations", "bpvs.io/scheduler", "sh"));
    until("the scheduler is sh", || agent.command(&["list"]).unwrap().contains("TCP  10.96.0.1:80 sh\n"));
    let server = world.dial(a).unwrap();
    world.expect(a, &[server]);
    world.api().apply(service("a", &["10.96.0.1"]));
    world.expect(a, &[1, 2, 3]);

    // Dual stack, the slice before its Service.
    world.api().apply(slice("b-6", "b", &[endpoint("fd00:1:1::2", json!({"ready": true}))]));
    world.api().apply(slice("b-4", "b", &ready(&[3])));
    world.api().apply(service("b", &["10.96.0.2", "fd00:96::2"]));
    world.expect(b, &[2]);
    world.expect(address("10.96.0.2:80"), &[3]);
    world.api().delete("EndpointSlice", "demo", "b-6");
    world.expect(b, &[]);
    world.api().delete("Service", "demo", "b");
    until("b is gone", || {
        let list = agent.command(&["list"]).unwrap();
        !list.contains("10.96.0.2") && !list.contains("fd00:96::2")
    });
    world.expect(a, &[1, 2, 3]);
}

#[test]
fn of_endpoints_that_terminate_only_those_count_that_still_serve_and_only_if_none_is_ready() {
    let world = World::new(4);
    let to = address("10.96.0.1:80");
    let state = |server: u16, ready: bool, serving: bool, terminating: bool| {
        let conditions = json!({"ready": ready, "serving": serving, "terminating": terminating});
        endpoint(&format!("10.1.1.{server}"), conditions)
    };
    world.api().apply(service("a", &["10.96.0.1"]));
    world.api().apply(slice("a-1", "a", &[state(1, true, true, false), state(2, false, true, true)]));
    world.api().apply(slice("a-2", "a", &[state(3, false, false, true), state(4, false, false, false)]));
    let _agent = world.agent().start().unwrap();
    world.expect(to, &[1]);
    world.api().apply(slice("a-1", "a", &[state(1, false, true, true), state(2, false, true, true)]));
    world.expect(to, &[1, 2]);
    world.api().apply(slice("a-2", "a", &[state(3, false, false, true), state(4, true, true, false)]));
    world.expect(to, &[4]);
    // The old slice goes last, as in a roll-out.
    world.api().delete("EndpointSlice", "demo", "a-1");
    world.api().apply(slice("a-2", "a", &[state(3, false, false, true)]));
    world.expect(to, &[]);
}

#[test]
fn an_object_of_the_wrong_shape_is_told_and_costs_only_itself() {
    let world = World::new(2);
    let (a, odd) = (address("10.96.0.1:80"), address("10.96.0.2:80"));
    let mut broken = service("odd", &["10.96.0.2"]);
    broken["spec"]["ports"] = json!("none");
    broken["metadata"]["annotations"] = json!(["not", "a", "map"]);
    world.api().apply(broken.clone());
    world.api().apply(slice("odd-1", "odd", &ready(&[2])));
    world.api().apply(service("a", &["10.96.0.1"]));
    world.api().apply(slice("a-1", "a", &ready(&[1])));
    let agent = world.agent().start().unwrap();
    assert_eq!(world.dial(a), Some(1));
    let log = agent.log().text(0);
    for told in [
        "Service demo/odd: spec.ports: \"none\": must be a list",
        "Service demo/odd: metadata.annotations: a list of 3: must be a map of texts",
    ] {
        assert_eq!(log.lines().filter(|line| line.contains(told)).count(), 1, "{told}:\n{log}");
    }
    world.api().apply(service("odd", &["10.96.0.2"]));
    world.expect(odd, &[2]);
    let mark = agent.log().len();
    world.api().apply(broken);
    let told = |line: &str| line.contains("spec.ports: \"none\": must be a list");
    agent.wait_for_log(mark, "it to be told again", super::DEADLINE, told).unwrap();
    assert_eq!((world.dial(a), world.dial(odd)), (Some(1), Some(2)), "what was right once stays");
}

#[test]
fn services_that_are_none_of_ours_are_left_to_others() {
    let world = World::new(1);
    let to = address("10.96.0.1:80");
    let mut headless = service("headless", &["None"]);
    headless["spec"]["ipFamilies"] = json!(["IPv4"]);
    let mut external = service("external", &["10.96.0.8"]);
    external["spec"]["type"] = json!("ExternalName");
    external["spec"]["externalName"] = json!("example.org");
    let proxied = |object| with(object, "labels", "service.kubernetes.io/service-proxy-name", "other");
    world.api().apply(headless);
    world.api().apply(external);
    world.api().apply(proxied(service("proxied", &["10.96.0.9"])));
    world.api().apply(service("a", &["10.96.0.1"]));
    for name in ["headless", "external", "proxied", "a"] {
        world.api().apply(slice(&format!("{name}-1"), name, &ready(&[1])));
    }
    let agent = world.agent().start().unwrap();
    let programmed = || agent.command(&["list"]).unwrap().lines().filter(|line| line.starts_with("TCP")).count();
    assert_eq!((programmed(), world.dial(to)), (1, Some(1)));
    world.api().apply(service("proxied", &["10.96.0.9"]));
    world.expect(address("10.96.0.9:80"), &[1]);
    world.api().apply(proxied(service("proxied", &["10.96.0.9"])));
    world.api().apply(proxied(service("a", &["10.96.0.1"])));
    until("both are hidden", || programmed() == 0);
}

#[test]
fn with_both_sources_the_manifest_holds_and_the_api_server_follows() {
    let world = World::new(3);
    let to = address("10.96.0.1:80");
    let manifests = Manifests::new().unwrap();
    let stated = |name: &str, address: &str, server: u16| {
        let manifest = ServiceManifest::new(name, &[address.parse().unwrap()]).port("TCP", 80, 8080);
        manifest.server(server, &[format!("10.1.1.{server}").parse().unwrap()], 1).yaml()
    };
    manifests.write("a.yaml", &stated("a", "10.96.0.1", 1)).unwrap();
    manifests.write("own.yaml", &stated("own", "10.96.0.7", 3)).unwrap();
    // Slice `a-ipv4` is what the manifest calls its slice, too.
    let port = |mut object: Value, place: &str| {
        object[place][0]["name"] = json!("tcp-80");
        object
    };
    let mut a = service("a", &["10.96.0.1"]);
    a["spec"] = port(a["spec"].clone(), "ports");
    world.api().apply(a);
    world.api().apply(port(slice("a-ipv4", "a", &ready(&[2])), "ports"));
    world.api().apply(service("b", &["10.96.0.2"]));
    world.api().apply(slice("b-1", "b", &ready(&[2])));

    world.stop_api();
    let agent = world.agent().manifests(&manifests).build().unwrap();
    let mark = agent.launch().unwrap();
    agent.wait_for_log(mark, "the trouble to be told", super::DEADLINE, |line| line.contains("API server: ")).unwrap();
    assert_eq!(agent.command(&["list"]).unwrap().lines().filter(|line| line.starts_with("TCP")).count(), 0);
    world.start_api();
    agent.wait_for_log(mark, "it to be ready", super::DEADLINE, |line| line.contains("ready:")).unwrap();
    assert_eq!((world.dial(to), world.dial(address("10.96.0.7:80"))), (Some(1), Some(3)));
    assert_eq!(world.dial(address("10.96.0.2:80")), Some(2));
    assert!(agent.log().text(mark).contains("demo/a"), "{}", agent.log().text(mark));
    manifests.remove("a.yaml").unwrap();
    world.expect(to, &[2]);
    world.expect(address("10.96.0.7:80"), &[3]);
}
