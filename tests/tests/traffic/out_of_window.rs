//! Segments that belong to a connection's addresses and to none of its windows, as an old packet that was under way too
//! long: nf_conntrack calls them invalid. The connection goes on, and nobody sees an address that is not its peer's.

use std::net::SocketAddr;
use std::time::Duration;

use bpvs_tests::agent::ServiceManifest;
use bpvs_tests::packets::{Packet, RawSocket, Summary, Tcp, flags, protocol, verify};
use bpvs_tests::topology::{Host, Topology};
use bpvs_tests::traffic::{DEADLINE, Dial};
use bpvs_tests::world::{TCP, TCP_TARGET, World, frontends, virtual_addresses};

const TCP_PORT: u16 = 30_080;
/// Far from every window.
const ELSEWHERE: u32 = 0x7000_0000;
/// Longer than an answer takes.
const QUIET: Duration = Duration::from_millis(100);

/// nf_conntrack follows what the node forwards, and counts what it finds invalid.
const CONNECTION_TRACKING: &str = "
table inet seen {
  counter strays { }
  chain forward { type filter hook forward priority filter; ct state invalid counter name strays; }
}";

fn world() -> World {
    let world = World::new(Topology::builder().servers(1).build().unwrap()).unwrap();
    let server = &world.topology.servers[0];
    let service = ServiceManifest::new("web", &virtual_addresses(1)).node_port("TCP", TCP, TCP_TARGET, TCP_PORT);
    world.publish("web", &service.server(1, &[server.v4.into(), server.v6.into()], 1)).unwrap();
    world.topology.node.namespace.nft(CONNECTION_TRACKING).unwrap();
    world
}

/// Sends a segment with numbers that nobody expects from a host's interface.
fn stray(wire: &RawSocket, host: &Host, from: SocketAddr, to: SocketAddr, bits: u8) {
    let packet = Packet::new(from, to).macs(host.mac, host.gateway_mac);
    let numbers = Tcp { flags: bits, sequence: ELSEWHERE, acknowledgment: ELSEWHERE, options: &[] };
    wire.send(&packet.frame(&packet.tcp(numbers, b"stray"))).unwrap();
}

/// All TCP that came to a host within a moment.
fn came(wire: &RawSocket) -> Vec<Summary> {
    let mut all = Vec::new();
    while let Some(frame) = wire.receive(QUIET).unwrap() {
        let packet = verify(&frame).unwrap_or_else(|error| panic!("{error:#}"));
        if packet.protocol == protocol::TCP {
            all.push(packet);
        }
    }
    all
}

#[test]
fn segments_out_of_the_window_reset_nothing() {
    let world = world();
    let _agent = world.agent().unwrap();
    let server = &world.topology.servers[0];
    for (who, client) in &world.clients()[..2] {
        for to in frontends(1, TCP).into_iter().chain(world.topology.node.at(TCP_PORT)) {
            let mut held = Dial::new(&client.namespace, to).deadline(DEADLINE).open().unwrap();
            held.exchange(b"before").unwrap();
            let (own, seen) = (held.local().unwrap(), held.seen_peer);
            let serves = SocketAddr::new(server.address_like(to.ip()), TCP_TARGET);
            let wires = [*client, server].map(|host| RawSocket::open(&host.namespace, "eth0").unwrap());
            for bits in [flags::ACK, flags::ACK | flags::PSH, flags::SYN | flags::ACK, flags::FIN | flags::ACK] {
                let what = format!("{who} to {to}, flags {bits:#x}");
                stray(&wires[1], server, serves, seen, bits);
                let [at_client, at_server] = [came(&wires[0]), came(&wires[1])];
                let strays = at_client.iter().filter(|packet| packet.payload == b"stray").count();
                assert_eq!(strays, 1, "{what}: as a part of the connection: {at_client:?}");
                stray(&wires[0], client, own, to, bits);
                let [also_at_client, also_at_server] = [came(&wires[0]), came(&wires[1])];
                let strays = also_at_server.iter().filter(|packet| packet.payload == b"stray").count();
                assert_eq!(strays, 1, "{what}, by the client: {also_at_server:?}");
                for packet in at_client.iter().chain(&also_at_client) {
                    assert_eq!((packet.from, packet.to), (to, own), "{what}: the client's only peer");
                }
                for packet in at_server.iter().chain(&also_at_server) {
                    assert_eq!((packet.from, packet.to), (seen, serves), "{what}: the server's only peer");
                }
                let all = [at_client, at_server, also_at_client, also_at_server].concat();
                assert!(all.iter().all(|packet| packet.kind & flags::RST == 0), "{what}: {all:?}");
                held.exchange(b"after").unwrap_or_else(|error| panic!("{what}: {error}"));
                wires.iter().for_each(|wire| drop(came(wire)));
            }
            held.close().unwrap();
        }
    }
    let counted = world.topology.node.namespace.nft("list counter inet seen strays").unwrap();
    assert!(!counted.contains("packets 0 "), "nf_conntrack must have seen them, too: {counted}");
}
