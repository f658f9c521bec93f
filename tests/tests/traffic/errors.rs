//! ICMP errors reach the other side in its own terms: too big, port unreachable.

use std::io;
use std::net::SocketAddr;
use std::process::Command;
use std::time::Instant;

use bpvs_tests::namespace::Namespace;
use bpvs_tests::topology::{Host, Topology};
use bpvs_tests::traffic::{DEADLINE, Dial, DialError, UdpClient};
use bpvs_tests::world::{TCP, UDP, UDP_TARGET, World, frontends};

const SMALL: u32 = 1300;

/// From the node to `host` go packets of at most [`SMALL`] bytes; nobody else knows. By the route and not by the
/// interface: a veth drops what is larger than its own MTU when it arrives, too.
fn narrow(world: &World, host: &Host) {
    let (dev, node) = (&host.node_interface, &world.topology.node);
    let lines = [
        format!("route replace {}/32 dev {dev} src {} mtu lock {SMALL}", host.v4, node.v4),
        format!("route replace {}/128 dev {dev} src {} mtu lock {SMALL}", host.v6, node.v6),
    ];
    node.namespace.ip(&lines).unwrap();
}

/// A datagram of 1,400 bytes must draw "too big", which the socket tells; the next goes in fragments.
fn datagram_meets_a_narrow_link(who: &str, from: &Namespace, to: SocketAddr) {
    let udp = UdpClient::connected(from, None, to).unwrap();
    // Linux sets DF on datagrams that fit the path as far as it knows it.
    let begin = Instant::now();
    match udp.request(1400, DEADLINE) {
        Err(DialError::Io(error)) if error.raw_os_error() == Some(nix::libc::EMSGSIZE) => {}
        other => panic!("{who} to {to}: {other:?} after {:?}, not EMSGSIZE", begin.elapsed()),
    }
    let answer = udp.request(1400, DEADLINE).unwrap_or_else(|error| panic!("{who} to {to}, in fragments: {error}"));
    assert_eq!(answer.from, to);
}

pub(crate) fn narrow_server_link(world: &World) {
    narrow(world, &world.topology.servers[0]);
    for (who, client) in &world.clients()[..2] {
        for to in frontends(1, UDP) {
            datagram_meets_a_narrow_link(who, &client.namespace, to);
        }
    }
    forget_paths(world);
    for (who, client) in world.clients() {
        for to in frontends(1, TCP) {
            let held = Dial::new(&client.namespace, to).open().unwrap();
            held.stream_through(1 << 20).unwrap_or_else(|error| panic!("{who} to {to}: {error:#}"));
        }
    }
}

/// What UDP has learned about the path must not help TCP.
fn forget_paths(world: &World) {
    for (_, client) in world.clients() {
        for family in ["-4", "-6"] {
            client.namespace.run(Command::new("ip").args([family, "route", "flush", "cache"])).unwrap();
        }
    }
}

fn world(offload: bool) -> World {
    let world = World::new(Topology::builder().servers(1).checksum_offload(offload).build().unwrap()).unwrap();
    world.publish("web", &world.service("web", 1)).unwrap();
    world
}

#[test]
fn too_big_for_the_servers_link() {
    for offload in [false, true] {
        let world = world(offload);
        let _agent = world.agent().unwrap();
        narrow_server_link(&world);
    }
}

#[test]
fn too_big_for_the_clients_link() {
    for offload in [false, true] {
        let world = world(offload);
        let _agent = world.agent().unwrap();
        for (who, client) in &world.clients()[..2] {
            narrow(&world, client);
            for to in frontends(1, TCP) {
                let held = Dial::new(&client.namespace, to).open().unwrap();
                held.stream_through(1 << 20).unwrap_or_else(|error| panic!("{who} to {to}: {error:#}"));
            }
        }
    }
}

#[test]
fn a_closed_port_of_the_server_refuses_the_client() {
    let world = world(false);
    let _agent = world.agent().unwrap();
    world.servers.stop(1);
    for (who, client) in world.clients() {
        for to in frontends(1, UDP) {
            match UdpClient::connected(&client.namespace, None, to).unwrap().request(10, DEADLINE) {
                Err(DialError::Refused(_)) => {}
                other => panic!("{who} to {to}: {other:?}"),
            }
        }
        for to in frontends(1, TCP) {
            match Dial::new(&client.namespace, to).open() {
                Err(DialError::Refused(_)) => {}
                other => panic!("{who} to {to}: {other:?}"),
            }
        }
    }
}

/// The client is gone when the answer comes: its host's port unreachable, about a packet from the virtual address, must
/// reach the server's socket, which sent it from its own.
#[test]
fn a_closed_port_of_the_client_refuses_the_server() {
    let world = world(false);
    let _agent = world.agent().unwrap();
    world.servers.stop(1);
    let server = &world.topology.servers[0];
    for (family, any) in ["0.0.0.0", "::"].into_iter().enumerate() {
        let bound = SocketAddr::new(any.parse().unwrap(), UDP_TARGET);
        for (who, client) in &world.clients()[..2] {
            let socket = server.namespace.enter(|| std::net::UdpSocket::bind(bound)).unwrap();
            socket.set_read_timeout(Some(DEADLINE)).unwrap();
            let to = frontends(1, UDP)[family];
            let udp = UdpClient::unconnected(&client.namespace, None, to).unwrap();
            udp.socket().send_to(b"question", to).unwrap();
            let mut buffer = [0; 100];
            let (_, peer) = socket.recv_from(&mut buffer).unwrap_or_else(|error| panic!("{who} to {to}: {error}"));
            drop(udp);
            // Errors come to connected sockets.
            socket.connect(peer).unwrap();
            socket.send(b"answer").unwrap();
            let error = socket.recv(&mut buffer).expect_err("the client is gone");
            assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused, "{who} to {to}: {error}");
        }
    }
}
