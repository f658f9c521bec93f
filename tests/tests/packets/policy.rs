//! What a service's policy says of its clients: who has other servers, who gets no answer, who is not let in.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use bpvs_tests::datapath::{DROPPED, NEXT, REDIRECTED};
use bpvs_tests::packets::flags;
use lb_common::{address::Protocol, drops::Drop};
use lb_userspace::plan::{Access, DesiredService, Frontend, Plan, Scope};

use crate::{
    shapes::{Around, Inside},
    world::{CHANGED, NODE_PORT, SERVER_PORT, World, service},
};

fn desired(world: &World, servers: &[SocketAddr], access: Access) -> DesiredService {
    let servers: Vec<_> = servers.iter().map(|server| (server.ip(), server.port(), 1)).collect();
    let (_, desired) = service(Protocol::Tcp, world.vip(CHANGED), &servers);
    DesiredService { access, ..desired }
}

/// Where a packet goes that opens a connection: a server of [`servers`], by its number; `None` if it is not translated.
fn goes_to(world: &World, client: SocketAddr, to: SocketAddr, inside: Inside) -> (i32, Option<usize>) {
    let sent = Around::Plain.frame(client, to, inside);
    let run = world.datapath.ingress(&sent).unwrap();
    let reaches = |server: &SocketAddr| Around::Plain.frame(client, *server, inside) == run.frame;
    (run.verdict, servers(world).iter().position(reaches))
}

fn servers(world: &World) -> [SocketAddr; 2] {
    [world.server(SERVER_PORT), world.second_server(SERVER_PORT)]
}

/// A virtual address and a node port, as `externalTrafficPolicy: Local` makes them: the cluster's own clients reach
/// server 0, external ones server 1.
fn split(world: &World, external: &[SocketAddr], silent: bool) -> Plan {
    let mut plan = Plan::default();
    for protocol in Protocol::ALL {
        let address = World::frontend(protocol, world.vip(CHANGED));
        let port = |scope| world.node_port(protocol, scope);
        let mut add = |frontend: Frontend, servers: &[SocketAddr], access| {
            plan.services.insert(frontend, desired(world, servers, access));
        };
        let own = Access { split: true, ..Access::default() };
        let others = Access { silent, ..Access::default() };
        add(address, &servers(world)[..1], own.clone());
        add(Frontend { scope: Scope::External, ..address }, external, others.clone());
        add(port(Scope::NodePort), &servers(world)[..1], own);
        add(port(Scope::ExternalNodePort), external, others);
    }
    plan.node_port_addresses.insert(world.node(0).ip());
    plan.pod_networks.insert(world.client(0).ip().into());
    plan
}

fn external(world: &World, port: u16) -> SocketAddr {
    SocketAddr::new(world.router().ip(), port)
}

#[test]
fn external_clients_have_servers_of_their_own() {
    for v6 in [false, true] {
        let mut world = World::empty(v6);
        let plan = split(&world, &servers(&world)[1..], true);
        world.apply(&plan);
        // A client's port of its own for each: two services that share a server get different ones there.
        for (port, to) in [(9000, world.vip(CHANGED)), (9001, world.node(NODE_PORT))] {
            for opening in Inside::OPENING {
                assert_eq!(goes_to(&world, world.client(port), to, opening), (NEXT, Some(0)), "{to} {opening:?}");
                assert_eq!(goes_to(&world, external(&world, port), to, opening), (NEXT, Some(1)), "{to} {opening:?}");
            }
        }
        assert_eq!(world.datapath.all_drops().unwrap(), []);
    }
}

/// NE-4: a load balancer's probe is to get no answer, and to go to another node.
#[test]
fn external_clients_without_a_server_here_get_no_answer_or_a_refusal_as_the_policy_says() {
    for v6 in [false, true] {
        let mut world = World::empty(v6);
        for (silent, reason) in [(true, Drop::NoLocalDestination), (false, Drop::NoDestination)] {
            let plan = split(&world, &[], silent);
            world.apply(&plan);
            let before = world.datapath.drops(reason).unwrap();
            let mut sent = 0;
            for (port, to) in [(9100, world.vip(CHANGED)), (9101, world.node(NODE_PORT))] {
                for opening in Inside::OPENING {
                    sent += 1;
                    let verdict = if silent { DROPPED } else { REDIRECTED };
                    assert_eq!(goes_to(&world, external(&world, port), to, opening), (verdict, None), "{opening:?}");
                    assert_eq!(goes_to(&world, world.client(port), to, opening).1, Some(0));
                }
            }
            assert_eq!(world.datapath.drops(reason).unwrap() - before, sent);
            // A segment of a connection that there is not: no reset either.
            if silent {
                let segment = Inside::Segment(flags::ACK);
                assert_eq!(goes_to(&world, external(&world, 9102), world.node(NODE_PORT), segment), (DROPPED, None));
            }
        }
    }
}

#[test]
fn node_ports_are_served_at_the_nodes_addresses_only() {
    for v6 in [false, true] {
        let mut world = World::empty(v6);
        let mut plan = split(&world, &servers(&world)[1..], true);
        world.apply(&plan);
        let other = SocketAddr::new(world.router().ip(), NODE_PORT);
        for opening in Inside::OPENING {
            assert_eq!(goes_to(&world, world.client(9200), other, opening), (NEXT, None), "{opening:?}");
            let wrong_port = SocketAddr::new(world.node(0).ip(), NODE_PORT + 1);
            assert_eq!(goes_to(&world, world.client(9200), wrong_port, opening), (NEXT, None));
        }
        // Addresses come and go.
        plan.node_port_addresses = [world.router().ip()].into();
        world.apply(&plan);
        for opening in Inside::OPENING {
            assert_eq!(goes_to(&world, world.client(9201), other, opening), (NEXT, Some(0)), "{opening:?}");
            assert_eq!(goes_to(&world, world.client(9201), world.node(NODE_PORT), opening), (NEXT, None));
        }
        assert_eq!(world.datapath.all_drops().unwrap(), []);
    }
}

/// NP-3, CVE-2020-8558: at loopback addresses they are for processes of the node, and no packet from outside is for them.
#[test]
fn a_packet_to_a_loopback_address_is_for_no_node_port() {
    let mut world = World::empty(false);
    let mut plan = split(&world, &servers(&world)[1..], true);
    plan.loopback_node_ports = true;
    world.apply(&plan);
    for opening in Inside::OPENING {
        for loopback in ["127.0.0.1", "127.255.255.254"] {
            let to = SocketAddr::new(loopback.parse().unwrap(), NODE_PORT);
            assert_eq!(goes_to(&world, world.client(9600), to, opening), (NEXT, None), "{opening:?}");
        }
        // Its neighbours are no loopback addresses, and none of the node's.
        let to = SocketAddr::new("126.255.255.255".parse().unwrap(), NODE_PORT);
        assert_eq!(goes_to(&world, world.client(9600), to, opening), (NEXT, None), "{opening:?}");
        assert_eq!(goes_to(&world, world.client(9600), world.node(NODE_PORT), opening), (NEXT, Some(0)));
    }
}

/// What has a service of its own is not taken by a node port.
#[test]
fn a_virtual_address_comes_before_a_node_port() {
    for v6 in [false, true] {
        let mut world = World::empty(v6);
        let mut plan = split(&world, &servers(&world)[1..], true);
        for protocol in Protocol::ALL {
            let own = World::frontend(protocol, world.node(NODE_PORT));
            plan.services.insert(own, desired(&world, &servers(&world)[1..], Access::default()));
        }
        world.apply(&plan);
        for opening in Inside::OPENING {
            assert_eq!(goes_to(&world, world.client(9300), world.node(NODE_PORT), opening), (NEXT, Some(1)));
        }
    }
}

/// SR-1 to SR-3: by the client's own address, per frontend, without an answer.
#[test]
fn only_clients_of_a_services_networks_are_let_in() {
    for v6 in [false, true] {
        let mut world = World::empty(v6);
        let mut plan = Plan::default();
        let sources = BTreeSet::from([world.client(0).ip().into()]);
        let open = World::frontend(Protocol::Tcp, world.other_vip(CHANGED));
        plan.services.insert(open, desired(&world, &servers(&world)[..1], Access::default()));
        for protocol in Protocol::ALL {
            let restricted = Access { sources: sources.clone(), ..Access::default() };
            let frontend = World::frontend(protocol, world.vip(CHANGED));
            plan.services.insert(frontend, desired(&world, &servers(&world)[..1], restricted));
        }
        world.apply(&plan);
        let stranger = external(&world, 9400);
        for (count, opening) in (1..).zip(Inside::OPENING) {
            assert_eq!(goes_to(&world, world.client(9401), world.vip(CHANGED), opening), (NEXT, Some(0)));
            assert_eq!(goes_to(&world, stranger, world.vip(CHANGED), opening), (DROPPED, None), "{opening:?}");
            assert_eq!(world.datapath.all_drops().unwrap(), [(Drop::SourceNotAllowed.name(), count)]);
        }
        assert_eq!(goes_to(&world, external(&world, 9403), world.other_vip(CHANGED), Inside::Syn), (NEXT, Some(0)));
        let segment = Inside::Segment(flags::ACK);
        assert_eq!(goes_to(&world, stranger, world.vip(CHANGED), segment), (DROPPED, None), "no reset either");
        // Narrower networks cut no established connection.
        plan.services.values_mut().for_each(|service| {
            if !service.access.sources.is_empty() {
                service.access.sources = [stranger.ip().into()].into();
            }
        });
        world.apply(&plan);
        assert_eq!(goes_to(&world, world.client(9401), world.vip(CHANGED), segment), (NEXT, Some(0)));
        assert_eq!(goes_to(&world, world.client(9402), world.vip(CHANGED), Inside::Syn), (DROPPED, None));
        assert_eq!(goes_to(&world, stranger, world.vip(CHANGED), Inside::Syn), (NEXT, Some(0)));
    }
}

/// NE-5: the client comes first, as in nftables. A client that is not let in is told nothing, not even that nobody is there.
#[test]
fn where_nobody_serves_only_clients_that_are_let_in_are_told() {
    for v6 in [false, true] {
        let mut world = World::empty(v6);
        let mut plan = Plan::default();
        for protocol in Protocol::ALL {
            let access = Access { sources: [world.client(0).ip().into()].into(), ..Access::default() };
            plan.services.insert(World::frontend(protocol, world.vip(CHANGED)), desired(&world, &[], access));
        }
        world.apply(&plan);
        for (count, opening) in (1..).zip(Inside::OPENING) {
            let stranger = external(&world, 9500);
            assert_eq!(goes_to(&world, stranger, world.vip(CHANGED), opening), (DROPPED, None), "{opening:?}");
            assert_eq!(goes_to(&world, world.client(9501), world.vip(CHANGED), opening).0, REDIRECTED, "{opening:?}");
            let drops = [(Drop::NoDestination.name(), count), (Drop::SourceNotAllowed.name(), count)];
            assert_eq!(world.datapath.all_drops().unwrap(), drops);
        }
    }
}
