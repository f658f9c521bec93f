//! A server that is its own client.

use bpvs_tests::topology::Topology;
use bpvs_tests::traffic::{DEADLINE, Dial, UdpClient};
use bpvs_tests::world::{TCP, UDP, World, frontends};

fn hairpin(offload: bool) {
    let world = World::new(Topology::builder().servers(2).checksum_offload(offload).build().unwrap()).unwrap();
    let server = &world.topology.servers[1];
    world.publish("web", &world.service("web", 1).without(1)).unwrap();
    let _agent = world.agent().unwrap();
    let node = &world.topology.node;
    for to in frontends(1, TCP) {
        let mut held = Dial::new(&server.namespace, to).open().unwrap_or_else(|error| panic!("{to}: {error}"));
        assert_eq!((held.server, held.peer().unwrap()), (2, to));
        assert_eq!(held.seen_peer.ip(), node.address_like(to.ip()), "its own address would never leave it");
        held.exchange(&[3; 300_000]).unwrap_or_else(|error| panic!("{to}: {error}"));
        held.close().unwrap();
    }
    for to in frontends(1, UDP) {
        for udp in [
            UdpClient::connected(&server.namespace, None, to).unwrap(),
            UdpClient::unconnected(&server.namespace, None, to).unwrap(),
        ] {
            for size in [10, 1400, 8192] {
                let answer = udp.request(size, DEADLINE);
                let answer = answer.unwrap_or_else(|error| panic!("{size} bytes to {to}: {error}"));
                assert_eq!((answer.server, answer.seen_peer.ip()), (2, node.address_like(to.ip())), "{to}");
            }
        }
    }
}

#[test]
fn with_complete_checksums() {
    hairpin(false);
}

#[test]
fn with_offload() {
    hairpin(true);
}
