//! Who talks to whom: the server sees the client, the client sees the virtual address.

use std::net::SocketAddr;

use bpvs_tests::topology::Topology;
use bpvs_tests::traffic::{DEADLINE, Dial, UdpClient};
use bpvs_tests::world::{TCP, TCP_TARGET, UDP, UDP_TARGET, World, frontends};

/// Datagrams below and above the MTU: at the edge of one packet, of two, and the largest that is promised.
const SIZES: [usize; 6] = [0, 100, 1300, 1473, 3000, 8192];

/// Every client asks every family over TCP and UDP.
pub(crate) fn everyone_is_served(world: &World, number: u16) {
    for (who, client) in world.clients() {
        for to in frontends(number, TCP) {
            let mut held =
                Dial::new(&client.namespace, to).open().unwrap_or_else(|error| panic!("{who} to {to}: {error}"));
            assert_eq!(held.peer().unwrap(), to, "{who}: getpeername");
            assert_eq!(
                held.seen_peer.ip(),
                client.address_like(to.ip()),
                "{who} to {to}: the client as the server sees it"
            );
            assert_eq!(held.seen_peer.port(), held.local().unwrap().port(), "{who} to {to}");
            held.exchange(&[7; 40_000]).unwrap_or_else(|error| panic!("{who} to {to}: {error}"));
            held.close().unwrap_or_else(|error| panic!("{who} to {to}: {error}"));
        }
        for to in frontends(number, UDP) {
            let connected = UdpClient::connected(&client.namespace, None, to).unwrap();
            assert_eq!(connected.socket().peer_addr().unwrap(), to, "{who}: getpeername");
            for (kind, udp) in [
                ("connected", connected),
                ("unconnected", UdpClient::unconnected(&client.namespace, None, to).unwrap()),
            ] {
                let mut server = None;
                for size in SIZES {
                    let what = format!("{who}, {kind}, {size} bytes to {to}");
                    let answer = udp.request(size, DEADLINE).unwrap_or_else(|error| panic!("{what}: {error}"));
                    assert_eq!(answer.from, to, "{what}");
                    assert_eq!(answer.seen_peer.ip(), client.address_like(to.ip()), "{what}");
                    assert_eq!(answer.seen_peer.port(), udp.local().unwrap().port(), "{what}");
                    assert_eq!(*server.get_or_insert(answer.server), answer.server, "{what}: one flow, one server");
                }
            }
        }
    }
}

#[test]
fn complete_checksums() {
    let world = World::new(Topology::builder().servers(3).build().unwrap()).unwrap();
    world.publish("web", &world.service("web", 1)).unwrap();
    let _agent = world.agent().unwrap();
    everyone_is_served(&world, 1);
}

#[test]
fn checksums_and_segments_left_to_the_device() {
    let world = World::new(Topology::builder().servers(3).checksum_offload(true).build().unwrap()).unwrap();
    world.publish("web", &world.service("web", 1)).unwrap();
    let _agent = world.agent().unwrap();
    everyone_is_served(&world, 1);
}

#[test]
fn several_ports_and_slices_are_one_service() {
    let world = World::new(Topology::builder().servers(4).build().unwrap()).unwrap();
    for server in &world.topology.servers {
        world.servers.tcp(&server.namespace, server.id, 9090).unwrap();
    }
    let all = world.service("web", 1).port("TCP", 8081, 9090);
    // The second half of the servers in slices of their own, as large services have them.
    let first = all.clone().without(3).without(4).yaml();
    let second = all.clone().without(1).without(2).yaml();
    let slices = second.split_once("---\n").unwrap().1;
    let slices = slices
        .replace("name: web-ipv4\n", "name: web-more-ipv4\n")
        .replace("name: web-ipv6\n", "name: web-more-ipv6\n");
    world.manifests.write("web.yaml", &format!("{first}---\n{slices}")).unwrap();
    let _agent = world.agent().unwrap();
    for port in [TCP, 8081] {
        for to in frontends(1, port) {
            let from = &world.topology.clients[0].namespace;
            let mut servers: Vec<_> = (0..4).map(|_| Dial::new(from, to).open().unwrap().server).collect();
            servers.sort_unstable();
            assert_eq!(servers, [1, 2, 3, 4], "{to}");
        }
    }
    for to in frontends(1, UDP) {
        let from = &world.topology.external.namespace;
        let ask = |_| UdpClient::connected(from, None, to).unwrap().request(10, DEADLINE).unwrap().server;
        let mut servers: Vec<_> = (0..4).map(ask).collect();
        servers.sort_unstable();
        assert_eq!(servers, [1, 2, 3, 4], "{to}");
    }
}

#[test]
fn a_server_of_the_nodes_own_network() {
    for offload in [false, true] {
        let world = World::new(Topology::builder().servers(0).checksum_offload(offload).build().unwrap()).unwrap();
        let node = &world.topology.node;
        world.servers.tcp(&node.namespace, 9, TCP_TARGET).unwrap();
        world.servers.udp(&node.namespace, 9, UDP_TARGET).unwrap();
        let service = world.empty_service("web", 1).server(9, &[node.v4.into(), node.v6.into()], 1);
        world.publish("web", &service).unwrap();
        let _agent = world.agent().unwrap();
        everyone_is_served(&world, 1);
    }
}

#[test]
fn one_client_port_to_two_services_with_one_server() {
    let world = World::new(Topology::builder().servers(1).build().unwrap()).unwrap();
    for number in [1, 2] {
        let name = format!("web{number}");
        world.publish(&name, &world.service(&name, number)).unwrap();
    }
    let _agent = world.agent().unwrap();
    // Not the node's processes: their packets are addressed to the server itself, which one port cannot reach twice.
    for (who, client) in &world.clients()[..2] {
        for family in [0, 1] {
            let [first, second] = [1, 2].map(|number| frontends(number, TCP)[family]);
            let source = SocketAddr::new(client.address_like(first.ip()), 20_000);
            let mut held = [first, second].map(|to| {
                let held = Dial::new(&client.namespace, to).source(source).open();
                held.unwrap_or_else(|error| panic!("{who} from {source} to {to}: {error}"))
            });
            for (held, to) in held.iter_mut().zip([first, second]) {
                assert_eq!(held.peer().unwrap(), to);
                held.exchange(to.to_string().as_bytes()).unwrap();
            }
            assert_ne!(held[0].seen_peer.port(), held[1].seen_peer.port(), "{who}: the server must tell them apart");
            for held in held {
                held.close().unwrap();
            }
            let [first, second] = [1, 2].map(|number| frontends(number, UDP)[family]);
            let source = SocketAddr::new(client.address_like(first.ip()), 20_001);
            let socket = UdpClient::unconnected(&client.namespace, Some(source), first).unwrap();
            let other = socket.towards(second).unwrap();
            for _ in 0..3 {
                for udp in [&socket, &other] {
                    udp.request(20, DEADLINE).unwrap_or_else(|error| panic!("{who} over UDP: {error}"));
                }
            }
        }
    }
}
