//! A client that keeps its server: how long, and what ends it, as IPVS has it. `group` shows Kubernetes' way.

use std::net::SocketAddr;
use std::time::Duration;

use bpvs_tests::datapath::NEXT;
use bpvs_tests::packets::{flags, verify};
use lb_common::address::Protocol;
use lb_common::layout::KEY_TEMPLATE;
use lb_userspace::plan::{Persistence, Plan};

use crate::{
    shapes::{Around, Inside, protocol_of},
    world::{CHANGED, SERVER_PORT, World, service},
};

/// Seconds.
const TIMEOUT: u32 = 100;

/// The service at both virtual addresses with these servers, and clients that keep theirs.
fn apply(world: &mut World, servers: &[SocketAddr]) {
    let mut plan = Plan::default();
    let servers: Vec<_> = servers.iter().map(|server| (server.ip(), server.port(), 1)).collect();
    for protocol in Protocol::ALL {
        for vip in [world.vip(CHANGED), world.other_vip(CHANGED)] {
            let (frontend, mut desired) = service(protocol, vip, &servers);
            desired.persistence = Some(Persistence { timeout: TIMEOUT, netmask: if world.v6 { 128 } else { 32 } });
            plan.services.insert(frontend, desired);
        }
    }
    world.apply(&plan);
}

/// Who gets a client's opening packet.
fn ask(world: &World, client: SocketAddr, vip: SocketAddr, opening: Inside) -> SocketAddr {
    let run = world.datapath.ingress(&Around::Plain.frame(client, vip, opening)).unwrap();
    assert_eq!(run.verdict, NEXT, "{opening:?} from {client}");
    verify(&run.frame).unwrap().to
}

fn pair(world: &World) -> [SocketAddr; 2] {
    [world.server(SERVER_PORT), world.second_server(SERVER_PORT)]
}

fn both() -> [World; 2] {
    [false, true].map(World::empty)
}

/// A connection of a moment: reset, and forgotten 10 s later.
fn visit(world: &mut World, port: u16) -> SocketAddr {
    let (client, vip) = (world.client(port), world.vip(CHANGED));
    let server = ask(world, client, vip, Inside::Syn);
    world.datapath.egress(&Around::Plain.frame(server, client, Inside::Syn.answer())).unwrap();
    for bits in [flags::ACK, flags::RST] {
        world.datapath.ingress(&Around::Plain.frame(client, vip, Inside::Segment(bits))).unwrap();
    }
    world.datapath.age(Duration::from_secs(11)).unwrap();
    world.datapath.sweep(false).unwrap();
    let all = world.datapath.connections().unwrap();
    assert!(all.iter().all(|(key, _)| key.kind == KEY_TEMPLATE), "only the memory of it is left: {all:?}");
    server
}

#[test]
fn each_new_connection_begins_the_time_anew() {
    for mut world in both() {
        let servers = pair(&world);
        apply(&mut world, &servers);
        let first = visit(&mut world, 1000);
        for port in 1001..1005 {
            world.datapath.age(Duration::from_secs(80)).unwrap();
            world.datapath.sweep(false).unwrap();
            assert_eq!(visit(&mut world, port), first, "{port}");
        }
        world.datapath.age(Duration::from_secs(100)).unwrap();
        world.datapath.sweep(false).unwrap();
        assert_ne!(visit(&mut world, 1005), first, "the next in turn");
    }
}

#[test]
fn a_client_whose_server_goes_gets_another_and_stays_there() {
    for mut world in both() {
        for opening in Inside::OPENING {
            let servers = pair(&world);
            apply(&mut world, &servers);
            let vip = world.vip(CHANGED);
            let mut ports = 1000..;
            let mut next = |world: &World| ask(world, world.client(ports.next().unwrap()), vip, opening);
            let first = next(&world);
            assert_eq!(next(&world), first, "{opening:?}");
            let left = if first == servers[0] { servers[1] } else { servers[0] };
            apply(&mut world, &[left]);
            assert_eq!(next(&world), left, "{opening:?}: at once, not when the time is over");
            // The old one comes back: not for this client.
            apply(&mut world, &servers);
            for _ in 0..3 {
                assert_eq!(next(&world), left, "{opening:?}");
            }
            apply(&mut world, &[]);
        }
    }
}

/// The frontends of a Service's port share what is remembered (`group`); virtual servers of rules do not, as in IPVS.
#[test]
fn each_frontend_remembers_for_itself() {
    for mut world in both() {
        for opening in [Inside::Syn, Inside::Udp] {
            let servers = pair(&world);
            apply(&mut world, &servers);
            let (first, second) = (world.vip(CHANGED), world.other_vip(CHANGED));
            // Another client moves the second frontend's turn on.
            let stranger = SocketAddr::new(world.router().ip(), 999);
            ask(&world, stranger, second, opening);
            let at_first = ask(&world, world.client(1000), first, opening);
            let at_second = ask(&world, world.client(1001), second, opening);
            assert_ne!(at_first, at_second, "{opening:?}");
            for port in 1002..1006 {
                assert_eq!(ask(&world, world.client(port), first, opening), at_first);
                assert_eq!(ask(&world, world.client(port), second, opening), at_second);
            }
            let templates = world.datapath.connections().unwrap();
            let of_protocol = |key: &lb_common::layout::ConnectionKey| {
                key.kind == KEY_TEMPLATE && key.protocol == protocol_of(opening) as u8
            };
            assert_eq!(templates.iter().filter(|(key, _)| of_protocol(key)).count(), 3, "two clients, two frontends");
        }
    }
}
