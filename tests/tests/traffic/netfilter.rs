//! What others on the node do with packets: a stateful policy and strict reverse-path filters see one plain conversation
//! of client and server, and may translate it once more; what is written into a packet's notes changes nothing.

use std::os::fd::OwnedFd;

use bpvs_tests::foreign::on_tcx_with;
use bpvs_tests::topology::Topology;
use bpvs_tests::traffic::Dial;
use bpvs_tests::world::{TCP, World, frontends};

use crate::{errors, identity, node_ports};

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

const MASQUERADE: &str = "
table inet other {
  chain post {
    type nat hook postrouting priority srcnat;
    tcp dport 8080 counter masquerade
  }
}";

/// Egress looks for itself where netfilter has translated too: answers come for the node, and are the client's again only
/// behind ingress.
#[test]
fn a_masquerade_of_somebody_elses() {
    let world = World::new(Topology::builder().servers(2).build().unwrap()).unwrap();
    world.publish("web", &world.service("web", 1)).unwrap();
    let topology = &world.topology;
    topology.node.namespace.nft(MASQUERADE).unwrap();
    let _agent = world.agent().unwrap();
    for client in [&topology.external, &topology.clients[0]] {
        for to in frontends(1, TCP) {
            let mut held = Dial::new(&client.namespace, to).open().unwrap_or_else(|error| panic!("{to}: {error}"));
            assert_eq!(held.peer().unwrap(), to);
            assert_ne!(held.seen_peer.ip(), client.address_like(to.ip()), "the rule has translated");
            held.exchange(&[7; 20_000]).unwrap_or_else(|error| panic!("{to}: {error}"));
            held.close().unwrap();
        }
    }
}

/// Offset of `tc_index` in `struct __sk_buff`.
const TC_INDEX: u64 = 44;

/// `r2 = number; tc_index = r2; r0 = -1; exit`.
fn writes_tc_index(number: u32) -> [u64; 4] {
    [0x02b7 | u64::from(number) << 32, 0x2163 | TC_INDEX << 16, 0xffff_ffff_0000_00b7, 0x95]
}

/// What a pod wrote where ingress leaves a note for egress, on every way into the node: requests still come from the node,
/// and answers from the frontend.
#[test]
fn a_forged_note_from_another_namespace() {
    for mode in ["stack", "direct"] {
        let world = World::new(Topology::builder().servers(3).build().unwrap()).unwrap();
        world.publish("web", &node_ports::service(&world)).unwrap();
        let topology = &world.topology;
        let node = &topology.node.namespace;
        let forge = |name: String| -> OwnedFd {
            let index = node.interface_index(&name).unwrap();
            node.enter(|| on_tcx_with(index, &writes_tc_index(0x6276))).unwrap()
        };
        // First in the chain, so that bpvs finds it as it would find what a pod wrote.
        let _forgers: Vec<OwnedFd> = topology.node_interfaces().into_iter().map(forge).collect();
        let _agent = node_ports::agent(&world, &["--tc", "tcx", "--forwarding", mode]);
        for (who, client) in world.clients() {
            let to = [topology.node.at(node_ports::TCP_PORT), topology.node.at(node_ports::UDP_PORT)];
            assert_eq!(node_ports::servers(client, to, &topology.node), [1, 2, 3], "{mode}: {who}");
        }
    }
}
