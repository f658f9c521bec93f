//! Session affinity as Kubernetes means it: the frontends of one port of a Service share what is remembered of a client,
//! for as long as is stated now, and open connections do not prolong it.

use std::cell::Cell;
use std::net::SocketAddr;
use std::time::Duration;

use bpvs_tests::datapath::NEXT;
use bpvs_tests::packets::{flags, verify};
use lb_common::address::Protocol;
use lb_common::layout::KEY_AFFINITY;
use lb_userspace::plan::{AffinityGroup, DesiredService, Frontend, Persistence, Plan, Scope};

use crate::shapes::{Around, Inside, protocol_of};
use crate::world::{CHANGED, NODE_PORT, SAME, SERVER_PORT, World, service};

/// Seconds.
const TIMEOUT: u32 = 100;

/// A port of a Service: its frontends, with servers of their own each, all of one group.
struct Port {
    v6: bool,
    name: &'static str,
    timeout: u32,
}

impl Port {
    fn service(&self, frontend: &Frontend, servers: &[SocketAddr]) -> DesiredService {
        let servers: Vec<_> = servers.iter().map(|server| (server.ip(), server.port(), 1)).collect();
        let place = SocketAddr::new(frontend.address, frontend.port);
        let (_, mut desired) = service(frontend.protocol, place, &servers);
        let netmask = if self.v6 { 128 } else { 32 };
        desired.persistence = Some(Persistence { timeout: self.timeout, netmask });
        desired.affinity = Some(AffinityGroup::of_port("demo", "a", self.name));
        desired
    }

    /// Adds a frontend of each protocol.
    fn add(&self, plan: &mut Plan, frontend: impl Fn(Protocol) -> Frontend, servers: &[SocketAddr]) {
        for protocol in Protocol::ALL {
            let frontend = frontend(protocol);
            let desired = self.service(&frontend, servers);
            plan.services.insert(frontend, desired);
        }
    }
}

/// One port at three kinds of frontends, each with these servers.
fn everywhere(world: &World, timeout: u32, servers: [&[SocketAddr]; 3]) -> Plan {
    let port = Port { v6: world.v6, name: "web", timeout };
    let mut plan = Plan::default();
    port.add(&mut plan, |protocol| World::frontend(protocol, world.vip(CHANGED)), servers[0]);
    port.add(&mut plan, |protocol| World::frontend(protocol, world.other_vip(SAME)), servers[1]);
    port.add(&mut plan, |protocol| world.node_port(protocol, Scope::NodePort), servers[2]);
    plan.node_port_addresses.insert(world.node(0).ip());
    plan
}

fn places(world: &World) -> [SocketAddr; 3] {
    [world.vip(CHANGED), world.other_vip(SAME), world.node(NODE_PORT)]
}

/// Clients whose every connection is a new one.
struct Asking(Cell<u16>);

impl Asking {
    fn new() -> Self {
        Self(Cell::new(1000))
    }

    fn port(&self) -> u16 {
        self.0.replace(self.0.get() + 1)
    }

    /// Who gets the client's next opening packet.
    fn client(&self, world: &World, to: SocketAddr, opening: Inside) -> SocketAddr {
        self.from(world, world.client(self.port()), to, opening)
    }

    /// Another client's, which moves the turn on.
    fn stranger(&self, world: &World, to: SocketAddr, opening: Inside) -> SocketAddr {
        self.from(world, SocketAddr::new(world.router().ip(), self.port()), to, opening)
    }

    fn from(&self, world: &World, client: SocketAddr, to: SocketAddr, opening: Inside) -> SocketAddr {
        let run = world.datapath.ingress(&Around::Plain.frame(client, to, opening)).unwrap();
        assert_eq!(run.verdict, NEXT, "{opening:?} from {client} to {to}");
        verify(&run.frame).unwrap().to
    }
}

fn pair(world: &World) -> [SocketAddr; 2] {
    [world.server(SERVER_PORT), world.second_server(SERVER_PORT)]
}

fn both() -> [World; 2] {
    [false, true].map(World::empty)
}

fn pass(world: &mut World, seconds: u64) {
    world.datapath.age(Duration::from_secs(seconds)).unwrap();
    world.datapath.sweep(false).unwrap();
}

fn remembered(world: &World, protocol: Protocol) -> usize {
    let all = world.datapath.connections().unwrap();
    all.iter().filter(|(key, _)| key.kind == KEY_AFFINITY && key.protocol == protocol as u8).count()
}

#[test]
fn all_frontends_of_a_port_have_one_server_for_a_client() {
    for mut world in both() {
        let servers = pair(&world);
        let plan = everywhere(&world, TIMEOUT, [&servers; 3]);
        world.apply(&plan);
        for opening in Inside::OPENING {
            let asking = Asking::new();
            // Every other frontend's turn is the other server's.
            asking.stranger(&world, places(&world)[1], opening);
            for first in 0..3 {
                let mut order = places(&world);
                order.rotate_left(first);
                let server = asking.client(&world, order[0], opening);
                for _ in 0..3 {
                    for to in order {
                        assert_eq!(asking.client(&world, to, opening), server, "{opening:?} to {to}");
                    }
                }
                // One is remembered of each of the two clients, however many frontends there are.
                assert_eq!(remembered(&world, protocol_of(opening)), 2 - usize::from(first > 0), "{opening:?}");
                pass(&mut world, u64::from(TIMEOUT) + 1);
                assert_eq!(remembered(&world, protocol_of(opening)), 0, "{opening:?}");
                asking.stranger(&world, order[1], opening);
                pass(&mut world, u64::from(TIMEOUT) + 1);
            }
        }
    }
}

#[test]
fn a_frontend_whose_policy_leaves_the_server_out_binds_the_client_anew_for_all() {
    for mut world in both() {
        let servers = pair(&world);
        for opening in Inside::OPENING {
            let asking = Asking::new();
            let plan = everywhere(&world, TIMEOUT, [&servers; 3]);
            world.apply(&plan);
            let first = asking.client(&world, places(&world)[0], opening);
            let other = if first == servers[0] { servers[1] } else { servers[0] };
            // The second frontend has the other one only, the third has none.
            let plan = everywhere(&world, TIMEOUT, [&servers, &[other], &[]]);
            world.apply(&plan);
            let [all, local, none] = places(&world);
            let refused = Around::Plain.frame(world.client(asking.port()), none, opening);
            assert_ne!(world.datapath.ingress(&refused).unwrap().verdict, NEXT, "{opening:?}");
            assert_eq!(asking.client(&world, all, opening), first, "{opening:?}: without a choice nobody is unbound");
            assert_eq!(asking.client(&world, local, opening), other, "{opening:?}");
            for _ in 0..3 {
                assert_eq!(asking.client(&world, all, opening), other, "{opening:?}: the new binding is for all");
            }
            pass(&mut world, u64::from(TIMEOUT) + 1);
        }
    }
}

#[test]
fn a_server_that_goes_is_left_at_once_at_every_frontend_and_its_id_is_not_held() {
    for mut world in both() {
        let servers = pair(&world);
        let asking = Asking::new();
        let plan = everywhere(&world, TIMEOUT, [&servers; 3]);
        world.apply(&plan);
        let to = places(&world);
        let first = asking.client(&world, to[0], Inside::Udp);
        let left: Vec<_> = servers.iter().copied().filter(|server| *server != first).collect();
        let plan = everywhere(&world, TIMEOUT, [&left; 3]);
        world.apply(&plan);
        for to in to {
            assert_eq!(asking.client(&world, to, Inside::Udp), left[0], "{to}");
        }
        // It comes back: not for this client.
        let plan = everywhere(&world, TIMEOUT, [&servers; 3]);
        world.apply(&plan);
        for to in to {
            assert_eq!(asking.client(&world, to, Inside::Udp), left[0], "{to}");
        }
    }
}

/// `AF-2`: IPVS's persistence goes on while a connection is open.
#[test]
fn the_time_begins_anew_with_each_connection_and_open_ones_do_not_prolong_it() {
    for mut world in both() {
        let servers = pair(&world);
        let plan = everywhere(&world, TIMEOUT, [&servers; 3]);
        world.apply(&plan);
        let (asking, to) = (Asking::new(), places(&world));
        let client = world.client(999);
        let first = asking.from(&world, client, to[0], Inside::Syn);
        world.datapath.egress(&Around::Plain.frame(first, client, Inside::Syn.answer())).unwrap();
        let segment = |world: &World| {
            let run = world.datapath.ingress(&Around::Plain.frame(client, to[0], Inside::Segment(flags::ACK))).unwrap();
            assert_eq!(verify(&run.frame).unwrap().to, first);
        };
        segment(&world);
        for round in 0..4 {
            pass(&mut world, 80);
            segment(&world);
            let to = to[round % 3];
            assert_eq!(asking.client(&world, to, Inside::Syn), first, "80 s after the last one, to {to}");
        }
        // The connection is open, and carries packets.
        pass(&mut world, 60);
        segment(&world);
        world.datapath.age(Duration::from_secs(41)).unwrap();
        segment(&world);
        assert_ne!(
            asking.client(&world, to[0], Inside::Syn),
            first,
            "after 101 s the choice is free, also before a sweep"
        );
        pass(&mut world, 1);
        segment(&world);
    }
}

/// `AF-5`. IPVS's templates keep the timeout that the service had when they were made.
#[test]
fn another_timeout_holds_at_once_for_whoever_is_bound() {
    for mut world in both() {
        let (server, second) = (world.server(SERVER_PORT), world.second_server(SERVER_PORT));
        for (before, after, idle, stays) in [(60, 1000, 999, true), (60, 1000, 1001, false), (1000, 60, 61, false)] {
            for asked in 0..3 {
                let asking = Asking::new();
                let alone = everywhere(&world, before, [&[server]; 3]);
                world.apply(&alone);
                assert_eq!(asking.client(&world, places(&world)[0], Inside::Udp), server);
                world.datapath.age(Duration::from_secs(30)).unwrap();
                // From now on the turn is the second one's: it was added last.
                let both = everywhere(&world, after, [&[server, second]; 3]);
                world.apply(&both);
                // Longer than flows last.
                for _ in 0..9 {
                    pass(&mut world, (idle - 30) / 9);
                }
                pass(&mut world, (idle - 30) % 9);
                let what = format!("{before} s became {after} s, {idle} s later at frontend {asked}");
                let found = asking.client(&world, places(&world)[asked], Inside::Udp);
                assert_eq!(found, if stays { server } else { second }, "{what}");
                world.apply(&Plan::default());
                pass(&mut world, 2000);
                assert_eq!(remembered(&world, Protocol::Udp), 0, "{what}: of services that are gone nothing is kept");
            }
        }
    }
}

#[test]
fn other_ports_and_services_of_ipvs_remember_for_themselves() {
    for mut world in both() {
        let servers = pair(&world);
        for opening in Inside::OPENING {
            let (web, other) = (world.vip(CHANGED), world.vip(SAME));
            let mut plan = Plan::default();
            let port = Port { v6: world.v6, name: "web", timeout: TIMEOUT };
            port.add(&mut plan, |protocol| World::frontend(protocol, web), &servers);
            for group in [Some(AffinityGroup::of_port("demo", "a", "other")), None] {
                for protocol in Protocol::ALL {
                    let frontend = World::frontend(protocol, other);
                    let affinity = group;
                    plan.services.insert(frontend, DesiredService { affinity, ..port.service(&frontend, &servers) });
                }
                world.apply(&plan);
                let asking = Asking::new();
                let first = asking.client(&world, web, opening);
                // Where the turn would be the same server's, somebody else takes it.
                let mut second = asking.stranger(&world, other, opening);
                if second != first {
                    second = asking.from(&world, SocketAddr::new(world.node(0).ip(), 5000), other, opening);
                }
                assert_eq!(second, first);
                let second = asking.client(&world, other, opening);
                assert_ne!(second, first, "{opening:?}, {group:?}");
                for _ in 0..3 {
                    assert_eq!(asking.client(&world, web, opening), first);
                    assert_eq!(asking.client(&world, other, opening), second);
                }
                world.apply(&Plan::default());
                pass(&mut world, 2000);
            }
        }
    }
}

/// The server of a client stands at any place of the other frontends' lists, whose order has a history.
#[test]
fn the_server_is_found_wherever_it_stands() {
    for mut world in both() {
        let all: Vec<SocketAddr> = (0..40).map(|port| world.server(8000 + port)).collect();
        let reversed: Vec<SocketAddr> = all.iter().rev().copied().collect();
        let asking = Asking::new();
        // The first has its list as a new service has; in the second the latest come first, one by one.
        for length in 1..=all.len() {
            let part = &reversed[..length];
            let plan = everywhere(&world, 1000, [&all, part, part]);
            if length % 10 < 3 {
                world.apply(&plan);
            }
        }
        let [first, second, third] = places(&world);
        let mut seen = std::collections::BTreeSet::new();
        for _ in 0..all.len() {
            let server = asking.client(&world, first, Inside::Udp);
            seen.insert(server);
            for to in [second, third, first, second] {
                assert_eq!(asking.client(&world, to, Inside::Udp), server, "to {to}");
            }
            // All forget, and the turn goes on.
            pass(&mut world, 1001);
        }
        assert_eq!(seen.len(), all.len(), "each was a client's once");
        assert_eq!(remembered(&world, Protocol::Udp), 0);
    }
}
