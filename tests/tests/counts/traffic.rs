//! `bpvs list --stats` against what was on the wire.

use std::net::SocketAddr;
use std::time::Duration;

use bpvs_tests::agent::Listing;
use bpvs_tests::packets::{RawSocket, verify};
use bpvs_tests::topology::Topology;
use bpvs_tests::traffic::{DEADLINE, Dial, UdpClient};
use bpvs_tests::world::{TCP, UDP, World, frontends};

/// IP packets and their bytes that a wire carried from or to the service, TCP's or UDP's, and empties it.
fn seen(wire: &RawSocket, frontend: SocketAddr) -> (u64, u64) {
    let (mut packets, mut bytes) = (0, 0);
    while let Some(frame) = wire.receive(Duration::ZERO).unwrap() {
        // Others, such as multicast listener reports, are no packets of the service.
        let Ok(packet) = verify(&frame) else { continue };
        // Later fragments have no ports.
        if [packet.from.ip(), packet.to.ip()].contains(&frontend.ip()) {
            packets += 1;
            bytes += frame.len() as u64 - 14;
        }
    }
    (packets, bytes)
}

#[test]
fn connections_packets_and_bytes_are_those_of_the_wire() {
    let world = World::new(Topology::builder().servers(1).build().unwrap()).unwrap();
    world.publish("web", &world.service("web", 1)).unwrap();
    let agent = world.agent().unwrap();
    let client = &world.topology.clients[0];
    for family in [0, 1] {
        for (protocol, to) in [("TCP", frontends(1, TCP)[family]), ("UDP", frontends(1, UDP)[family])] {
            let requests = RawSocket::open(&world.topology.node.namespace, &client.node_interface).unwrap();
            let replies = RawSocket::open(&client.namespace, "eth0").unwrap();
            if protocol == "TCP" {
                for size in [1, 20_000] {
                    let mut held = Dial::new(&client.namespace, to).open().unwrap();
                    held.exchange(&vec![1; size]).unwrap();
                    held.close().unwrap();
                }
            } else {
                for size in [0, 1000, 5000] {
                    let udp = UdpClient::connected(&client.namespace, None, to).unwrap();
                    udp.request(size, DEADLINE).unwrap();
                }
            }
            let ((in_packets, in_bytes), (out_packets, out_bytes)) = (seen(&requests, to), seen(&replies, to));
            let connections = if protocol == "TCP" { 2 } else { 3 };
            let list = Listing::read(&agent).unwrap();
            let found = list.service(protocol, to).unwrap().servers[0].traffic;
            let expected = [connections, in_packets, out_packets, in_bytes, out_bytes];
            assert_eq!(found, expected, "{protocol} {to}: connections, packets in, out, bytes in, out");
            assert!(in_packets > 0 && out_packets > 0);
        }
    }
}
