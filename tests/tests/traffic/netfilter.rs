//! A stateful policy and strict reverse-path filters on the node: both see one plain conversation of client and server.

use bpvs_tests::topology::Topology;
use bpvs_tests::world::World;

use crate::{errors, identity};

/// What belongs to nothing known is dropped, and new is only what goes to a real server's port. A packet that carried
/// the virtual address through the forward chain would find no rule.
const POLICY: &str = "
table inet guard {
  chain input { type filter hook input priority filter; policy accept; ct state invalid counter drop; }
  chain forward {
    type filter hook forward priority filter; policy drop;
    ct state invalid counter drop
    ct state established,related accept
    ip daddr 10.1.1.0/24 tcp dport 8080 ct state new accept
    ip daddr 10.1.1.0/24 udp dport 5353 ct state new accept
    ip6 daddr fd00:1:1::/48 tcp dport 8080 ct state new accept
    ip6 daddr fd00:1:1::/48 udp dport 5353 ct state new accept
    counter drop
  }
}";

#[test]
fn a_stateful_policy() {
    for offload in [false, true] {
        let world = World::new(Topology::builder().servers(1).checksum_offload(offload).build().unwrap()).unwrap();
        world.publish("web", &world.service("web", 1)).unwrap();
        let node = &world.topology.node.namespace;
        node.nft(POLICY).unwrap();
        let _agent = world.agent().unwrap();
        let served = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            identity::everyone_is_served(&world, 1);
            errors::narrow_server_link(&world);
        }));
        let rules = node.nft("list ruleset").unwrap();
        assert!(served.is_ok(), "with the policy, whose counters now are:\n{rules}");
    }
}

#[test]
fn strict_reverse_path_filters() {
    let world = World::new(Topology::builder().servers(2).build().unwrap()).unwrap();
    world.publish("web", &world.service("web", 1)).unwrap();
    let mut names = world.topology.node_interfaces();
    names.extend(["all".to_owned(), "default".to_owned()]);
    for name in names {
        let key = format!("ipv4/conf/{name}/rp_filter");
        world.topology.node.namespace.sysctls(&[(key.as_str(), "1")]).unwrap();
    }
    let _agent = world.agent().unwrap();
    identity::everyone_is_served(&world, 1);
}
