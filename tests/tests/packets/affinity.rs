//! `sessionAffinity: ClientIP` beside what else decides who serves a client: scheduler, weights, a client that is a server,
//! another timeout.

use std::net::SocketAddr;
use std::time::Duration;

use bpvs_tests::packets::verify;
use lb_common::address::Protocol;
use lb_common::scheduler::Scheduler;
use lb_userspace::plan::{DesiredDestination, DesiredService, Frontend, Persistence, Plan};

use crate::shapes::{Around, Inside, plain, protocol_of};
use crate::world::{SERVER_PORT, World};

/// A port of the VIP that no service of the world's own plan has.
const PORT: u16 = 7100;

/// How long clients are bound, in seconds, and these servers with their weights.
struct Sticky<'a> {
    timeout: Option<u32>,
    scheduler: Scheduler,
    servers: &'a [(SocketAddr, i32)],
}

impl World {
    /// This service alone, for a protocol.
    fn stick(&mut self, protocol: Protocol, sticky: &Sticky<'_>) {
        let desired =
            |&(server, weight): &(SocketAddr, i32)| DesiredDestination::new(server.ip(), server.port(), weight);
        let mut destinations: Vec<_> = sticky.servers.iter().map(desired).collect();
        destinations.sort();
        let mut service = DesiredService::new("sticky", sticky.scheduler, destinations);
        let netmask = if self.v6 { 128 } else { 32 };
        service.persistence = sticky.timeout.map(|timeout| Persistence { timeout, netmask });
        let frontend = Frontend::new(self.vip(PORT).ip(), PORT, protocol);
        self.apply(&Plan { services: [(frontend, service)].into(), ..Plan::default() });
    }

    /// Opens a connection; its server.
    fn reaches(&self, client: SocketAddr, opening: Inside) -> SocketAddr {
        let sent = Around::Plain.frame(client, self.vip(PORT), opening);
        let run = self.datapath.ingress(&sent).unwrap();
        assert_ne!(run.frame, sent, "{opening:?} from {client} is not translated");
        verify(&plain(&run.frame)).unwrap().to
    }

    /// Someone who is neither the client nor a server.
    fn other_client(&self, port: u16) -> SocketAddr {
        SocketAddr::new(self.router().ip(), port)
    }
}

#[test]
fn neither_the_scheduler_nor_the_weights_choose_for_a_client_that_is_bound() {
    for v6 in [false, true] {
        for opening in Inside::OPENING {
            // One each: the schedulers' tables take room, and give it back a second later.
            let mut world = World::empty(v6);
            let servers = [world.server(SERVER_PORT), world.second_server(SERVER_PORT)];
            let protocol = protocol_of(opening);
            let mut ports = 1000..;
            let mut next = |world: &World| world.client(ports.next().unwrap());
            let even = servers.map(|server| (server, 1));
            let timeout = Some(1000);
            world.stick(protocol, &Sticky { timeout, scheduler: Scheduler::RoundRobin, servers: &even });
            let first = world.reaches(next(&world), opening);
            // Everything speaks for the other one.
            let uneven = servers.map(|server| (server, if server == first { 1 } else { 100 }));
            for scheduler in Scheduler::ALL {
                for servers in [&uneven, &even] {
                    world.stick(protocol, &Sticky { timeout, scheduler, servers });
                    for _ in 0..3 {
                        assert_eq!(world.reaches(next(&world), opening), first, "{opening:?}, {}", scheduler.name());
                    }
                }
            }
            // The same without affinity.
            let scheduler = Scheduler::WeightedRoundRobin;
            world.stick(protocol, &Sticky { timeout: None, scheduler, servers: &uneven });
            let found: Vec<_> = (0..10).map(|_| world.reaches(next(&world), opening)).collect();
            assert!(found.iter().any(|&server| server != first), "{opening:?}: {found:?}");
        }
    }
}

#[test]
fn a_client_that_is_a_server_too_is_bound_to_itself_or_to_another() {
    for v6 in [false, true] {
        for opening in Inside::OPENING {
            let mut bound = Vec::new();
            // The second time someone else takes the turn first.
            for others in [0, 1] {
                let mut world = World::empty(v6);
                let servers = [(world.client(SERVER_PORT), 1), (world.server(SERVER_PORT), 1)];
                let protocol = protocol_of(opening);
                let mut sticky = Sticky { timeout: Some(1000), scheduler: Scheduler::RoundRobin, servers: &servers };
                world.stick(protocol, &sticky);
                for port in 0..others {
                    world.reaches(world.other_client(3000 + port), opening);
                }
                let first = world.reaches(world.client(2000), opening);
                for port in 2001..2006 {
                    assert_eq!(world.reaches(world.client(port), opening), first, "{opening:?}");
                }
                bound.push(first);
                sticky.timeout = None;
                world.stick(protocol, &sticky);
                let free: Vec<_> = (2010..2014).map(|port| world.reaches(world.client(port), opening)).collect();
                assert!(servers.iter().all(|(server, _)| free.contains(server)), "without affinity: {free:?}");
            }
            assert_ne!(bound[0], bound[1], "{opening:?}: both kinds of binding were seen");
        }
    }
}

/// As in IPVS, whose templates have the timeout that the service had when they were made.
#[test]
fn another_timeout_is_that_of_clients_bound_from_then_on() {
    for mut world in World::both() {
        let opening = Inside::Udp;
        let (server, second) = (world.server(SERVER_PORT), world.second_server(SERVER_PORT));
        let scheduler = Scheduler::RoundRobin;
        let alone = [(server, 1)];
        world.stick(Protocol::Udp, &Sticky { timeout: Some(1000), scheduler, servers: &alone });
        assert_eq!(world.reaches(world.client(1000), opening), server);
        world.stick(Protocol::Udp, &Sticky { timeout: Some(100), scheduler, servers: &alone });
        assert_eq!(world.reaches(world.other_client(1000), opening), server);
        // From now on whoever is free goes to the second one, and whoever is bound does not.
        let drained = [(server, 0), (second, 1)];
        world.stick(Protocol::Udp, &Sticky { timeout: Some(100), scheduler, servers: &drained });
        assert_eq!(world.reaches(world.other_client(1001), opening), server, "within 100 s");
        // The flows end after 300 s, and prolong the shorter binding by a minute beyond at most.
        for _ in 0..8 {
            world.datapath.age(Duration::from_secs(60)).unwrap();
            world.datapath.sweep(false).unwrap();
        }
        assert_eq!(world.reaches(world.client(1002), opening), server, "1000 s are not over");
        assert_eq!(world.reaches(world.other_client(1002), opening), second, "100 s are");
    }
}
