//! Clients that reach their server from the node's address: both halves of the translation, in both directions.

use std::net::SocketAddr;
use std::time::Duration;

use bpvs_tests::{
    datapath::{DROPPED, Hook, NEXT},
    packets::{IcmpError, Packet, reassemble},
};
use lb_common::{
    address::{Address, Protocol},
    drops::Drop,
    layout::{ConnectionState, Settings},
};
use lb_userspace::plan::{Access, Masquerade, Plan, Scope};

use crate::{
    rows::Row,
    shapes::{Around, Inside, protocol_of},
    world::{CHANGED, NODE_PORT, SERVER_PORT, World, service},
};

/// A node port with one server, for every protocol.
fn world(v6: bool, access: &Access) -> World {
    let mut world = World::empty(v6);
    let plan = node_ports(&world, access);
    world.apply(&plan);
    world
}

fn node_ports(world: &World, access: &Access) -> Plan {
    let mut plan = Plan::default();
    for protocol in Protocol::ALL {
        let (_, mut desired) = service(protocol, world.vip(NODE_PORT), &[(world.server(0).ip(), SERVER_PORT, 1)]);
        desired.access = access.clone();
        plan.services.insert(world.node_port(protocol, Scope::NodePort), desired);
    }
    plan.node_port_addresses.insert(world.node(0).ip());
    plan
}

fn always() -> Access {
    Access { masquerade: Masquerade::Always, ..Access::default() }
}

fn both() -> [World; 2] {
    [false, true].map(|v6| world(v6, &always()))
}

/// The port of the node that stands for a client at a server.
fn port_of(world: &World, client: SocketAddr, server: SocketAddr, protocol: Protocol) -> Option<SocketAddr> {
    let entries = world.datapath.connections().unwrap();
    let found = entries.iter().find(|(key, value)| {
        let state = ConnectionState(value.state);
        let ends = (key.source, key.source_port.number(), key.destination, key.destination_port.number());
        state.has(ConnectionState::PASSING)
            && !state.has(ConnectionState::REPLY)
            && key.protocol == protocol as u8
            && ends == (Address::from(client.ip()), client.port(), Address::from(server.ip()), server.port())
    });
    found.map(|(_, value)| SocketAddr::new(value.source.into(), value.source_port.number()))
}

#[test]
fn requests_come_from_the_node_and_replies_from_the_frontend() {
    for world in both() {
        let mut client_port = 20_000;
        for &around in Around::all(world.v6) {
            for opening in Inside::OPENING {
                client_port += 1;
                let (client, frontend) = (world.client(client_port), world.node(NODE_PORT));
                let server = world.server(SERVER_PORT);
                let (answer, more) = (opening.answer(), opening.following());
                let name = |what: &str| format!("{around:?}, {opening:?}: {what}");
                let frame = |(from, to, inside)| around.frame(from, to, inside);
                world.check([Row::request(
                    &name("new, entering"),
                    frame((client, frontend, opening)),
                    frame((client, server, opening)),
                )]);
                let node = port_of(&world, client, server, protocol_of(opening)).expect("a port");
                assert_eq!(node.ip(), frontend.ip());
                assert!((1_024..32_768).contains(&node.port()) || node.port() >= 61_000, "{node}");
                let row =
                    |hook, what: &str, from, to| Row { hook, ..Row::request(&name(what), frame(from), frame(to)) };
                world.check([
                    row(Hook::Egress, "new, leaving", (client, server, opening), (node, server, opening)),
                    row(Hook::Ingress, "reply, entering", (server, node, answer), (server, client, answer)),
                    row(Hook::Egress, "reply, leaving", (server, client, answer), (frontend, client, answer)),
                    row(Hook::Ingress, "known, entering", (client, frontend, more), (client, server, more)),
                    row(Hook::Egress, "known, leaving", (client, server, more), (node, server, more)),
                    // A client that speaks to the server itself, from the same port: what enters is not changed.
                    Row::untouched(&name("the server itself"), Hook::Ingress, frame((client, server, more))),
                    Row::untouched(&name("node to server"), Hook::Egress, frame((server, node, answer))),
                ]);
                assert_eq!(port_of(&world, client, server, protocol_of(opening)), Some(node), "one port for all");
            }
        }
        assert_eq!(world.datapath.all_drops().unwrap(), []);
    }
}

#[test]
fn errors_pass_both_halves() {
    for world in both() {
        for opening in Inside::OPENING {
            let (client, frontend) = (world.client(4000), world.node(NODE_PORT));
            let server = world.server(SERVER_PORT);
            let answer = opening.answer();
            world.datapath.ingress(&Around::Plain.frame(client, frontend, opening)).unwrap();
            let node = port_of(&world, client, server, protocol_of(opening)).expect("a port");
            let error = |from: SocketAddr, to: SocketAddr, (inner_from, inner_to, inside): (_, _, Inside)| {
                let outer = Around::Plain.packet(SocketAddr::new(from.ip(), 0), SocketAddr::new(to.ip(), 0));
                let inner = Around::Plain.packet(inner_from, inner_to);
                let quoted = inner.ip(&inside.transport(&inner));
                outer.frame(&outer.icmp_error(IcmpError::TooBig(1400), &quoted))
            };
            let router = world.router();
            world.check([
                Row::request(
                    "about a request, entering",
                    error(router, node, (node, server, opening)),
                    error(router, client, (client, server, opening)),
                ),
                Row::reply(
                    "about a request, leaving",
                    error(router, client, (client, server, opening)),
                    error(frontend, client, (client, frontend, opening)),
                ),
                Row::request(
                    "about a reply, entering",
                    error(router, frontend, (frontend, client, answer)),
                    error(router, server, (server, client, answer)),
                ),
                Row::reply(
                    "about a reply, leaving",
                    error(router, server, (server, client, answer)),
                    error(node, server, (server, node, answer)),
                ),
            ]);
        }
    }
}

#[test]
fn fragments_follow_the_first_through_both_halves() {
    let data: Vec<u8> = (0..3500).map(|n| (n % 251) as u8).collect();
    for world in both() {
        let (client, frontend, server) = (world.client(3000), world.node(NODE_PORT), world.server(SERVER_PORT));
        let pieces = |from, to| {
            let packet = Packet::new(from, to).identification(77);
            packet.fragments(&packet.udp(&data), 1200)
        };
        let pass = |hook, sent: Vec<Vec<u8>>, out: &[Vec<u8>]| {
            reassemble(out).unwrap();
            for (piece, wanted) in sent.into_iter().zip(out) {
                let found = world.datapath.run(hook, &piece, Default::default()).unwrap();
                assert_eq!((found.verdict, &found.frame), (NEXT, wanted));
            }
        };
        pass(Hook::Ingress, pieces(client, frontend), &pieces(client, server));
        let node = port_of(&world, client, server, Protocol::Udp).expect("a port");
        pass(Hook::Egress, pieces(client, server), &pieces(node, server));
        pass(Hook::Ingress, pieces(server, node), &pieces(server, client));
        pass(Hook::Egress, pieces(server, client), &pieces(frontend, client));
    }
}

#[test]
fn all_four_entries_end_with_the_connection() {
    for mut world in both() {
        let (client, frontend) = (world.client(5000), world.node(NODE_PORT));
        for opening in Inside::OPENING {
            world.datapath.ingress(&Around::Plain.frame(client, frontend, opening)).unwrap();
        }
        assert_eq!(world.datapath.connections().unwrap().len(), 4 * Inside::OPENING.len());
        assert_eq!(world.datapath.sweep(true).unwrap().corrections, 0);
        assert_eq!(world.datapath.connections().unwrap().len(), 4 * Inside::OPENING.len(), "nothing is over yet");
        world.datapath.age(Duration::from_secs(10_000)).unwrap();
        let swept = world.datapath.sweep(true).unwrap();
        assert_eq!((swept.expired, swept.orphans, swept.corrections), (Inside::OPENING.len() as u64, 0, 0));
        assert!(world.datapath.connections().unwrap().is_empty());
    }
}

/// An entry of a second half whose connection is gone, as a program that was interrupted leaves it.
#[test]
fn a_second_half_without_a_connection_is_swept() {
    for mut world in both() {
        let (client, frontend) = (world.client(5000), world.node(NODE_PORT));
        world.datapath.ingress(&Around::Plain.frame(client, frontend, Inside::Udp)).unwrap();
        let passing = |value: u32| ConnectionState(value).has(ConnectionState::PASSING);
        for (key, value) in world.datapath.connections().unwrap() {
            if !passing(value.state) {
                world.datapath.remove_connection(key).unwrap();
            }
        }
        world.datapath.sweep(false).unwrap();
        assert_eq!(world.datapath.connections().unwrap().len(), 2, "they may be a moment ahead");
        world.datapath.age(Duration::from_secs(3)).unwrap();
        world.datapath.sweep(false).unwrap();
        assert!(world.datapath.connections().unwrap().is_empty());
    }
}

#[test]
fn without_a_free_port_a_connection_is_refused_by_name_and_leaves_nothing() {
    for mut world in both() {
        let settings = world.datapath.settings().unwrap();
        let two = Settings { local_ports_first: 1_025, local_ports_last: 65_534, ..settings };
        world.datapath.set_settings(two).unwrap();
        let (frontend, server) = (world.node(NODE_PORT), world.server(SERVER_PORT));
        let mut ports = Vec::new();
        for client_port in 1..=5 {
            let client = world.client(client_port);
            let run = world.datapath.ingress(&Around::Plain.frame(client, frontend, Inside::Syn)).unwrap();
            let port = port_of(&world, client, server, Protocol::Tcp).map(|node| node.port());
            assert_eq!(run.verdict, if port.is_some() { NEXT } else { DROPPED });
            ports.extend(port);
        }
        ports.sort_unstable();
        assert_eq!(ports, [1_024, 65_535]);
        assert_eq!(world.datapath.all_drops().unwrap(), [(Drop::NoSourcePort.name(), 3)]);
        assert_eq!(world.datapath.connections().unwrap().len(), 8);
        let id = world.datapath.destination_of(server.ip(), server.port()).unwrap().unwrap();
        let (active, inactive) = world.datapath.counts(id).unwrap();
        assert_eq!(active + inactive, 2, "what was refused is not counted");
        assert_eq!(world.datapath.sweep(true).unwrap().corrections, 0);
    }
}

#[test]
fn a_node_without_an_address_masquerades_nobody() {
    for mut world in both() {
        let settings = world.datapath.settings().unwrap();
        let nobody = Settings { node_v4: Address::UNSPECIFIED, node_v6: Address::UNSPECIFIED, ..settings };
        world.datapath.set_settings(nobody).unwrap();
        let sent = Around::Plain.frame(world.client(4000), world.node(NODE_PORT), Inside::Syn);
        assert_eq!(world.datapath.ingress(&sent).unwrap().verdict, DROPPED);
        assert_eq!(world.datapath.all_drops().unwrap(), [(Drop::NoSourcePort.name(), 1)]);
        assert!(world.datapath.connections().unwrap().is_empty());
    }
}

/// The same service at a virtual address, whose pods keep their address.
#[test]
fn only_external_clients_are_masqueraded_where_pods_are_known() {
    for v6 in [false, true] {
        let mut world = World::empty(v6);
        let (frontend, mut desired) =
            service(Protocol::Tcp, world.vip(CHANGED), &[(world.server(0).ip(), SERVER_PORT, 1)]);
        desired.access = Access { masquerade: Masquerade::External, ..Access::default() };
        let mut plan = Plan::default();
        plan.services.insert(frontend, desired);
        let pod = world.client(7000);
        plan.pod_networks.insert(pod.ip().into());
        world.apply(&plan);
        let external = world.router();
        let external = SocketAddr::new(external.ip(), 7001);
        let server = world.server(SERVER_PORT);
        for (client, masqueraded) in [(pod, false), (external, true)] {
            let sent = Around::Plain.frame(client, world.vip(CHANGED), Inside::Syn);
            assert_eq!(world.datapath.ingress(&sent).unwrap().verdict, NEXT);
            assert_eq!(port_of(&world, client, server, Protocol::Tcp).is_some(), masqueraded, "{client}");
        }
    }
}
