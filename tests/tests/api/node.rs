//! What the Node's object says, and that it is gone.

use serde_json::json;

use super::objects::{endpoint, service, slice};
use super::{World, address};

/// ND-5: its zone is unknown from then on, so that hints for a zone are for nobody here.
#[test]
fn a_node_that_is_deleted_is_in_no_zone() {
    let world = World::new(3);
    let to = address("10.96.0.1:80");
    let node = |zone: &str| {
        json!({"apiVersion": "v1", "kind": "Node",
               "metadata": {"name": "n0", "labels": {"topology.kubernetes.io/zone": zone}}})
    };
    let endpoints = [(1, "a"), (2, "a"), (3, "b")].map(|(server, zone)| {
        let mut endpoint = endpoint(&format!("10.1.1.{server}"), json!({"ready": true}));
        endpoint["hints"] = json!({"forZones": [{"name": zone}]});
        endpoint
    });
    world.api().apply(service("a", &["10.96.0.1"]));
    world.api().apply(slice("a-1", "a", &endpoints));
    world.api().apply(node("a"));
    let _agent = world.agent().start().unwrap();
    world.expect(to, &[1, 2]);
    world.api().delete("Node", "", "n0");
    world.expect(to, &[1, 2, 3]);
    world.api().apply(node("b"));
    world.expect(to, &[3]);
}
