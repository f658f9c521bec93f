//! External policy Local without an endpoint here: what a load balancer's probe gets, to the last packet.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use bpvs_tests::agent::{Agent, ServiceManifest};
use bpvs_tests::packets::{Packet, RawSocket, Tcp, flags, verify};
use bpvs_tests::topology::Topology;
use bpvs_tests::traffic::Dial;
use bpvs_tests::world::{TCP, TCP_TARGET, UDP, UDP_TARGET, World, virtual_addresses};

const TCP_PORT: u16 = 30_080;
const UDP_PORT: u16 = 30_053;
const EXTERNAL: [&str; 2] = ["198.51.100.9", "2001:db8:1::9"];
/// Longer than an answer takes.
const QUICK: Duration = Duration::from_millis(200);

#[test]
fn not_a_packet_comes_back_from_a_node_without_endpoints() {
    let world = World::new(Topology::builder().servers(1).build().unwrap()).unwrap();
    let server = &world.topology.servers[0];
    let service = ServiceManifest::new("web", &virtual_addresses(1))
        .node_port("TCP", TCP, TCP_TARGET, TCP_PORT)
        .node_port("UDP", UDP, UDP_TARGET, UDP_PORT)
        .spec(&format!("externalIPs: {EXTERNAL:?}"))
        .spec("externalTrafficPolicy: Local")
        .server(1, &[server.v4.into(), server.v6.into()], 1)
        .on_node(1, "there");
    world.publish("web", &service).unwrap();
    let arguments = ["--node-name", "here", "--cluster-cidr", "10.1.0.0/16,fd00:1::/32"];
    let builder = Agent::builder(&world.topology.node.namespace).manifests(&world.manifests);
    let _agent = arguments.into_iter().fold(builder, |builder, argument| builder.argument(argument)).start().unwrap();
    let (outside, pod) = (&world.topology.external, &world.topology.clients[0]);
    let wire = RawSocket::open(&outside.namespace, "eth0").unwrap();
    let [v4, v6] = EXTERNAL.map(|address| address.parse::<IpAddr>().unwrap());
    let [node_v4, node_v6] = [IpAddr::from(world.topology.node.v4), world.topology.node.v6.into()];
    let mut port = 20_000;
    for (address, [tcp, udp]) in
        [(v4, [TCP, UDP]), (v6, [TCP, UDP]), (node_v4, [TCP_PORT, UDP_PORT]), (node_v6, [TCP_PORT, UDP_PORT])]
    {
        let own = outside.address_like(address);
        for bits in [flags::SYN, flags::ACK, flags::FIN | flags::ACK, flags::SYN | flags::ACK, flags::RST, 0] {
            port += 1;
            let packet = Packet::new(SocketAddr::new(own, port), SocketAddr::new(address, tcp));
            let packet = packet.macs(outside.mac, outside.gateway_mac);
            wire.send(&packet.frame(&packet.tcp(Tcp { flags: bits, ..Tcp::default() }, b""))).unwrap();
        }
        let packet = Packet::new(SocketAddr::new(own, port), SocketAddr::new(address, udp));
        let packet = packet.macs(outside.mac, outside.gateway_mac);
        wire.send(&packet.frame(&packet.udp(b"probe"))).unwrap();
        for fragment in packet.clone().identification(7).fragments(&packet.udp(&[7; 2000]), 1200) {
            wire.send(&fragment).unwrap();
        }
        while let Some(frame) = wire.receive(QUICK).unwrap() {
            // The second fragment goes on by the node's routes, as nothing is known of its datagram: it is its sender's.
            let found = verify(&frame).unwrap_or_else(|error| panic!("{error:#}"));
            assert!(found.from.ip() == own && found.fragment.is_some(), "an answer from {address}: {found:?}");
        }
        // Pods reach the endpoint by the same address.
        let held = Dial::new(&pod.namespace, SocketAddr::new(address, tcp)).open();
        assert_eq!(held.unwrap_or_else(|error| panic!("a pod to {address}: {error}")).server, 1);
    }
    assert_eq!(world.servers.served(1), 4, "the pod's connections");
}
