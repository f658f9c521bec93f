//! What is dropped where something is short: ports of the node, the connection table, the first fragment. And who is none of a
//! hook's: packets from outside for the node's loopback, and for addresses where there is nothing but services.

use std::net::SocketAddr;
use std::time::Duration;

use bpvs_tests::agent::ServiceManifest;
use bpvs_tests::packets::{Packet, RawSocket, Summary, Tcp, flags};
use bpvs_tests::topology::Host;
use bpvs_tests::traffic::{DEADLINE, UdpClient};
use bpvs_tests::world::{CHANGE, TCP, TCP_TARGET, UDP, UDP_TARGET, World, frontends, virtual_addresses, wait_for};

use super::On;
use super::hook::Hook;

/// A pod's Service, and one that clients from outside come to as the node.
const SERVICE: u16 = 1;
const NODE_PORT: u16 = 30_001;
/// Ports that are left for clients if the node's own sockets may have any.
const FREE_PORTS: u16 = 4_096;
/// Clients of one server.
const CLIENTS: u16 = 6_000;
/// Connections that the table has room for; each has two entries, and one whose client comes from the node four.
const ROOM: usize = 64;
/// Far below the first repetition of anything.
const AT_ONCE: Duration = Duration::from_millis(300);

fn world(hook: Hook) -> World {
    let world = hook.world();
    let server = &world.topology.servers[0];
    let service = ServiceManifest::new("web", &virtual_addresses(SERVICE))
        .node_port("TCP", TCP, TCP_TARGET, NODE_PORT)
        .node_port("UDP", UDP, UDP_TARGET, NODE_PORT)
        .server(server.id, &[server.v4.into(), server.v6.into()], 1);
    world.publish("web", &service).unwrap();
    let networks = "apiVersion: networking.k8s.io/v1\nkind: ServiceCIDR\nmetadata:\n  name: kubernetes\n\
                    spec:\n  cidrs:\n  - 10.96.0.0/16\n  - fd00:96::/112\n";
    world.manifests.write("networks.yaml", networks).unwrap();
    // Leaves the fewest ports that bpvs takes for clients.
    world.topology.node.namespace.sysctls(&[("ipv4/ip_local_port_range", "1024 65535")]).unwrap();
    world
}

fn check(hook: Hook) {
    let world = world(hook);
    let on = On::start_with(hook, &world, &["--iptables-localhost-nodeports"]);
    a_later_fragment_whose_connection_ended(&on);
    from_outside_to_loopback(&on);
    to_nobodys_address(&on);
    without_a_free_port(&on);
    on.agent.cleanup().unwrap();
    a_full_table(&On::start_with(hook, &world, &[&format!("--max-connections={ROOM}")]));
}

/// More clients of one server than the node has ports: as many as have none are dropped.
fn without_a_free_port(on: &On<'_>) {
    let external = &on.world.topology.external;
    let wire = RawSocket::open(&external.namespace, "eth0").unwrap();
    for to in on.world.topology.node.at(NODE_PORT) {
        let before = on.drops("no-source-port");
        for port in 1..=CLIENTS {
            let from = SocketAddr::new(external.address_like(to.ip()), 10_000 + port);
            let packet = Packet::new(from, to).macs(external.mac, external.gateway_mac);
            let frame = packet.frame(&packet.udp(b"one"));
            // A veth with XDP at its other end has room for 256 frames.
            while wire.send(&frame).is_err() {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        let dropped = || on.drops("no-source-port") - before;
        let some = || Ok((dropped() >= u64::from(CLIENTS - FREE_PORTS)).then_some(()));
        wait_for("clients without a port", CHANGE, some, || format!("{} dropped", dropped())).unwrap();
        // Near the end a free one may not be found.
        assert!(dropped() < u64::from(CLIENTS - FREE_PORTS * 9 / 10), "{to}: {} dropped", dropped());
    }
}

/// Nothing says where the rest of a datagram goes once its connection is gone.
fn a_later_fragment_whose_connection_ended(on: &On<'_>) {
    let pod = &on.world.topology.clients[0];
    on.agent.command(&["set-timeouts", "0", "0", "1"]).unwrap();
    let wire = RawSocket::open(&pod.namespace, "eth0").unwrap();
    let arrives = RawSocket::open(&on.world.topology.servers[0].namespace, "eth0").unwrap();
    for to in frontends(SERVICE, UDP) {
        let from = SocketAddr::new(pod.address_like(to.ip()), 41_000);
        let packet = Packet::new(from, to).macs(pod.mac, pod.gateway_mac).identification(77);
        let pieces = packet.fragments(&packet.udp(&[7; 2000]), 1200);
        let before = on.drops("orphan-fragment");
        wire.send(&pieces[0]).unwrap();
        let at_server = |seen: &Summary| seen.from == from && seen.to.port() == UDP_TARGET;
        arrives.expect(DEADLINE, at_server).unwrap_or_else(|error| panic!("the first piece to {to}: {error:#}"));
        let listed = || on.agent.command(&["connections"]).unwrap();
        let gone = || Ok((!listed().contains(&from.to_string())).then_some(()));
        wait_for("end of the connection", CHANGE, gone, listed).unwrap();
        wire.send(&pieces[1]).unwrap();
        let counted = || Ok((on.drops("orphan-fragment") > before).then_some(()));
        wait_for("orphan-fragment", CHANGE, counted, || format!("{}", on.drops("orphan-fragment"))).unwrap();
        assert_eq!(on.drops("orphan-fragment"), before + 1, "{to}");
    }
    on.agent.command(&["set-timeouts", "0", "0", "300"]).unwrap();
}

/// Node ports are served at loopback for processes of the node alone: what comes by a wire for 127.0.0.1 is for nobody.
fn from_outside_to_loopback(on: &On<'_>) {
    let topology = &on.world.topology;
    let to = SocketAddr::from(([127, 0, 0, 1], NODE_PORT));
    for client in [&topology.external, &topology.clients[0]] {
        let wire = RawSocket::open(&client.namespace, "eth0").unwrap();
        let arrives = RawSocket::open(&topology.servers[0].namespace, "eth0").unwrap();
        let from = SocketAddr::new(client.v4.into(), 42_000);
        let packet = Packet::new(from, to).macs(client.mac, client.gateway_mac);
        let segment = packet.tcp(Tcp { flags: flags::SYN, sequence: 7, ..Tcp::default() }, b"");
        wire.send(&packet.frame(&segment)).unwrap();
        let ours = |seen: &Summary| seen.to.port() == TCP_TARGET;
        assert!(arrives.expect(AT_ONCE, ours).is_err(), "{} reached a server", client.namespace.name());
        let listed = on.agent.command(&["connections"]).unwrap();
        assert!(!listed.contains(&from.to_string()), "{listed}");
    }
}

/// An address of the networks of services that no Service has is sent nowhere, by no hook.
fn to_nobodys_address(on: &On<'_>) {
    let topology = &on.world.topology;
    for to in frontends(99, UDP) {
        for client in [&topology.external, &topology.clients[0]] {
            let (before, wire) =
                (on.drops("no-service"), RawSocket::open(&topology.external.namespace, "eth0").unwrap());
            let socket = UdpClient::unconnected(&client.namespace, None, to).unwrap();
            socket.socket().send_to(b"nobody", to).unwrap();
            let ours = |seen: &Summary| seen.to == to;
            assert!(wire.expect(AT_ONCE, ours).is_err(), "{} to {to} left the node", client.namespace.name());
            assert_eq!(on.drops("no-service"), before + 1, "{} to {to}", client.namespace.name());
        }
    }
}

/// What is there goes on, what is new is dropped.
fn a_full_table(on: &On<'_>) {
    let pod = &on.world.topology.clients[0];
    let [to, _] = frontends(SERVICE, UDP);
    let held = UdpClient::connected(&pod.namespace, None, to).unwrap();
    held.request(20, DEADLINE).unwrap();
    let before = on.drops("table-full");
    let answers: Vec<bool> = (0..3 * ROOM).map(|_| asks_shortly(pod, to)).collect();
    let answered = answers.iter().filter(|answered| **answered).count();
    assert!((1..=2 * ROOM).contains(&answered), "{answered} of {} flows are served", answers.len());
    assert_eq!(on.drops("table-full") - before, (answers.len() - answered) as u64);
    held.request(20, DEADLINE).unwrap();
}

/// Whether a flow of its own is answered.
fn asks_shortly(client: &Host, to: SocketAddr) -> bool {
    let socket = UdpClient::connected(&client.namespace, None, to).unwrap();
    socket.request(20, Duration::from_millis(50)).is_ok()
}

#[test]
fn tc() {
    check(Hook::Tc);
}

#[test]
fn tc_direct() {
    check(Hook::TcDirect);
}

#[test]
fn xdp_native() {
    check(Hook::XdpNative);
}

#[test]
fn xdp_generic() {
    check(Hook::XdpGeneric);
}
