//! What an `ipvsadm` user can ask for besides a scheduler: persistence, thresholds, one-packet scheduling, and virtual
//! services that are more than one address.

use std::net::SocketAddr;
use std::time::Duration;

use bpvs_tests::datapath::{Hook, NEXT, Options};
use bpvs_tests::packets::{flags, verify};
use lb_common::address::Protocol;
use lb_common::drops::Drop;
use lb_common::layout::{ConnectionState, KEY_TEMPLATE, SETTING_EXPIRE_QUIESCENT, Settings};
use lb_common::scheduler::Scheduler;
use lb_userspace::plan::{DesiredDestination, DesiredService, Frontend, Persistence, Plan, Scope, Thresholds};

use crate::rows::Row;
use crate::shapes::{Around, Inside, protocol_of};
use crate::world::{SERVER_PORT, World};

/// A port of the VIP that no service of the world's own plan has.
const PORT: u16 = 7000;
/// The TCP opening packet and the datagram.
const OPENINGS: [Inside; 2] = [Inside::OPENING[0], Inside::OPENING[1]];

impl World {
    fn pair(&self, port: u16, thresholds: Thresholds) -> Vec<DesiredDestination> {
        let desired = |server: SocketAddr| DesiredDestination {
            thresholds,
            ..DesiredDestination::new(server.ip(), server.port(), 1)
        };
        vec![desired(self.second_server(port)), desired(self.server(port))]
    }

    /// One service alone.
    fn only(&mut self, frontend: Frontend, service: &DesiredService) {
        self.apply(&Plan { services: [(frontend, service.clone())].into(), ..Plan::default() });
    }

    /// Sends a packet; who gets it, or `None` if it is not translated.
    fn ask(&self, from: SocketAddr, to: SocketAddr, inside: Inside, mark: u32) -> Option<SocketAddr> {
        let frame = Around::Plain.frame(from, to, inside);
        let run = self.datapath.run(Hook::Ingress, &frame, Options { mark, ..Options::default() }).unwrap();
        (run.verdict == NEXT && run.frame != frame).then(|| verify(&run.frame).unwrap().to)
    }

    fn templates(&self) -> usize {
        self.datapath.connections().unwrap().iter().filter(|(key, _)| key.kind == KEY_TEMPLATE).count()
    }

    /// The unspecified address of the family, as services by mark have it.
    fn any(&self) -> std::net::IpAddr {
        if self.v6 { [0u16; 8].into() } else { [0u8; 4].into() }
    }

    fn prefix(&self, v4: u8, v6: u8) -> u8 {
        if self.v6 { v6 } else { v4 }
    }
}

#[test]
fn a_client_keeps_its_server_while_its_template_lives() {
    for mut world in World::both() {
        for (opening, netmask) in OPENINGS.into_iter().zip([world.prefix(32, 128), world.prefix(24, 64)]) {
            let vip = world.vip(PORT);
            let frontend = Frontend::new(vip.ip(), PORT, protocol_of(opening));
            let mut service =
                DesiredService::new("kept", Scheduler::RoundRobin, world.pair(SERVER_PORT, Thresholds::default()));
            service.persistence = Some(Persistence { timeout: 100, netmask });
            world.only(frontend, &service);
            let first = world.ask(world.client(1000), vip, opening, 0).unwrap();
            for port in 1001..1006 {
                assert_eq!(world.ask(world.client(port), vip, opening, 0), Some(first), "the same client");
            }
            assert_eq!(world.templates(), 1);
            // Weight 0 does not end it, unless that is asked for.
            for destination in &mut service.destinations {
                destination.weight = i32::from(destination.address != first.ip());
            }
            world.only(frontend, &service);
            assert_eq!(world.ask(world.client(1007), vip, opening, 0), Some(first));
            let settings = world.datapath.settings().unwrap();
            world.datapath.set_settings(Settings { switches: SETTING_EXPIRE_QUIESCENT, ..settings }).unwrap();
            let second = world.ask(world.client(1008), vip, opening, 0).unwrap();
            assert_ne!(second, first);
            world.datapath.set_settings(settings).unwrap();
            // Once its connections and its own time are over, it is gone.
            world.datapath.age(Duration::from_secs(4000)).unwrap();
            world.datapath.sweep(false).unwrap();
            world.datapath.age(Duration::from_secs(61)).unwrap();
            world.datapath.sweep(false).unwrap();
            assert_eq!((world.templates(), world.datapath.connections().unwrap().len()), (0, 0));
        }
    }
}

#[test]
fn a_template_with_open_connections_goes_on_by_a_minute_at_a_time() {
    for mut world in World::both() {
        let (vip, opening) = (world.vip(PORT), Inside::OPENING[1]);
        let frontend = Frontend::new(vip.ip(), PORT, Protocol::Udp);
        let mut service =
            DesiredService::new("kept", Scheduler::RoundRobin, world.pair(SERVER_PORT, Thresholds::default()));
        service.persistence = Some(Persistence { timeout: 10, netmask: world.prefix(32, 128) });
        world.only(frontend, &service);
        let first = world.ask(world.client(1000), vip, opening, 0).unwrap();
        world.datapath.age(Duration::from_secs(45)).unwrap();
        world.datapath.sweep(false).unwrap();
        let template = |world: &World| {
            let all = world.datapath.connections().unwrap();
            all.into_iter().find(|(key, _)| key.kind == KEY_TEMPLATE).map(|(_, value)| value)
        };
        assert_eq!(template(&world).map(|template| (template.timeout, template.control)), Some((60_000, 1)));
        assert_eq!(world.ask(world.client(1001), vip, opening, 0), Some(first));
        // The datagram flows end after 300 s; the template is extended until then and a minute at most beyond.
        for _ in 0..8 {
            world.datapath.age(Duration::from_secs(60)).unwrap();
            world.datapath.sweep(false).unwrap();
        }
        assert!(template(&world).is_none(), "{:?}", template(&world));
    }
}

#[test]
fn a_server_at_its_upper_threshold_takes_no_more_until_it_is_under_the_lower_one() {
    for mut world in World::both() {
        for (vip_port, scheduler) in (PORT..).zip(Scheduler::ALL) {
            let (vip, opening) = (world.vip(vip_port), Inside::OPENING[0]);
            let frontend = Frontend::new(vip.ip(), vip_port, Protocol::Tcp);
            let one = |world: &World, thresholds| vec![world.pair(SERVER_PORT, thresholds).remove(1)];
            let limits = Thresholds { upper: 3, lower: 2 };
            let mut service = DesiredService::new("limited", scheduler, one(&world, limits));
            service.destinations[0].weight = 10;
            world.only(frontend, &service);
            let server = world.server(SERVER_PORT);
            let base = 1000 + 100 * (vip_port - PORT);
            for port in base..base + 3 {
                assert_eq!(world.ask(world.client(port), vip, opening, 0), Some(server), "{}", scheduler.name());
            }
            let before = world.datapath.drops(Drop::NoDestination).unwrap();
            // lblc asks nobody once an address has its server (`ip_vs_lblc_schedule`).
            let sticks = scheduler == Scheduler::LocalityLeastConnection;
            let answer = world.ask(world.client(base + 3), vip, opening, 0);
            assert_eq!(answer.is_some(), sticks, "{}", scheduler.name());
            assert_eq!(world.datapath.drops(Drop::NoDestination).unwrap() - before, u64::from(!sticks));
            // One fewer is not under the lower threshold, two fewer are.
            let end = |world: &World, port| {
                world.ask(world.client(port), vip, Inside::Segment(flags::RST), 0);
                let reply = Around::Plain.frame(server, world.client(port), Inside::Segment(flags::RST));
                world.datapath.egress(&reply).unwrap();
            };
            if !sticks {
                end(&world, base);
                world
                    .datapath
                    .age_if(Duration::from_secs(30), |key, _| {
                        key.source_port.number() == base || key.destination_port.number() == base
                    })
                    .unwrap();
                world.datapath.sweep(false).unwrap();
                assert_eq!(world.ask(world.client(base + 4), vip, opening, 0), None, "{}", scheduler.name());
                end(&world, base + 1);
                world
                    .datapath
                    .age_if(Duration::from_secs(30), |key, _| {
                        key.source_port.number() == base + 1 || key.destination_port.number() == base + 1
                    })
                    .unwrap();
                world.datapath.sweep(false).unwrap();
                assert_eq!(world.ask(world.client(base + 5), vip, opening, 0), Some(server), "{}", scheduler.name());
            }
            // Without thresholds it takes all.
            service.destinations[0].thresholds = Thresholds::default();
            world.only(frontend, &service);
            for port in base + 10..base + 15 {
                assert_eq!(world.ask(world.client(port), vip, opening, 0), Some(server), "{}", scheduler.name());
            }
        }
    }
}

#[test]
fn each_datagram_is_scheduled_for_itself_and_its_answer_comes_from_the_frontend() {
    for mut world in World::both() {
        let (vip, opening) = (world.vip(PORT), Inside::OPENING[1]);
        let frontend = Frontend::new(vip.ip(), PORT, Protocol::Udp);
        let mut service =
            DesiredService::new("alone", Scheduler::RoundRobin, world.pair(SERVER_PORT, Thresholds::default()));
        service.one_packet = true;
        world.only(frontend, &service);
        let client = world.client(1000);
        let got: Vec<_> = (0..4).map(|_| world.ask(client, vip, opening, 0).unwrap()).collect();
        assert!(got[0] != got[1] && got[0] == got[2] && got[1] == got[3], "{got:?}");
        for server in &got[..2] {
            assert_eq!(world.counts(Protocol::Udp, vip, *server), (0, 0));
            let frame = |from| Around::Plain.frame(from, client, opening.answer());
            world.check([Row::reply("an answer", frame(*server), frame(vip))]);
        }
        let all = world.datapath.connections().unwrap();
        assert!(all.iter().all(|(_, value)| ConnectionState(value.state).has(ConnectionState::ONE_PACKET)));
        world.datapath.age(Duration::from_secs(301)).unwrap();
        let swept = world.datapath.sweep(true).unwrap();
        assert_eq!((world.datapath.connections().unwrap().len(), swept.orphans, swept.corrections), (0, 0, 0));
    }
}

#[test]
fn a_mark_a_network_and_every_port_of_an_address_are_virtual_services() {
    for mut world in World::both() {
        let (client, vip, other) = (world.client(1000), world.vip(PORT), world.other_vip(PORT));
        let network = if world.v6 { vip.ip() } else { std::net::IpAddr::from([10, 96, 0, 0]) };
        for opening in OPENINGS {
            let protocol = protocol_of(opening);
            // A real server without a port of its own keeps the client's.
            let service = DesiredService::new("wide", Scheduler::RoundRobin, world.pair(0, Thresholds::default()));
            let servers = [world.server(PORT), world.second_server(PORT)];

            let mut frontend = Frontend { scope: Scope::Mark(7), ..Frontend::new(world.any(), 0, Protocol::Tcp) };
            world.only(frontend, &service);
            assert_eq!(world.ask(client, vip, opening, 0), None, "no mark");
            assert_eq!(world.ask(client, vip, opening, 8), None, "another mark");
            let marked = world.ask(client, vip, opening, 7).unwrap();
            assert!(servers.contains(&marked));
            assert!(servers.contains(&world.ask(client, other, opening, 7).unwrap()), "any address");
            let reply = |from| Around::Plain.frame(from, client, opening.answer());
            world.check([Row::reply("of a mark", reply(marked), reply(vip))]);

            let client = world.client(2000);
            let bits = world.prefix(16, 128);
            frontend = Frontend { scope: Scope::Prefix(bits), ..Frontend::new(network, PORT, protocol) };
            world.only(frontend, &service);
            assert!(servers.contains(&world.ask(client, vip, opening, 0).unwrap()), "in the network");
            assert_eq!(world.ask(client, world.vip(PORT + 1), opening, 0), None, "another port");
            assert_eq!(world.ask(client, world.router(), opening, 0), None, "another network");

            let client = world.client(3000);
            let mut service = service.clone();
            service.persistence = Some(Persistence { timeout: 60, netmask: world.prefix(32, 128) });
            world.only(Frontend::new(vip.ip(), 0, protocol), &service);
            let kept = world.ask(client, vip, opening, 0).unwrap();
            let on = world.ask(client, world.vip(PORT + 9), opening, 0).unwrap();
            assert_eq!((on.ip(), on.port()), (kept.ip(), PORT + 9), "ports of one address stick together");
            assert_eq!(world.ask(client, other, opening, 0), None, "another address");
        }
    }
}
