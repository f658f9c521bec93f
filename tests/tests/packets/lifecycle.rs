//! What changes of state and of configuration mean to the next packet of a connection.

use std::time::Duration;

use bpvs_tests::{
    datapath::{NEXT, REDIRECTED, is_reply},
    packets::{flags, verify},
};
use lb_common::{address::Protocol, drops::Drop, layout::ConnectionState, tcp::State};

use crate::{
    rows::Row,
    shapes::{Around, Inside, protocol_of},
    world::{PAIR, SERVER_PORT, World, service},
};

impl World {
    /// Sends a client's packet; who gets it.
    fn send(&self, port: u16, inside: Inside) -> std::net::SocketAddr {
        let run = self.datapath.ingress(&Around::Plain.frame(self.client(port), self.vip(PAIR), inside)).unwrap();
        assert_eq!(run.verdict, NEXT, "{inside:?}");
        verify(&run.frame).unwrap().to
    }

    /// Lets a server answer; the answer must come from the frontend.
    fn answer(&self, server: std::net::SocketAddr, port: u16, inside: Inside) {
        let (client, vip) = (self.client(port), self.vip(PAIR));
        let frame = |from| Around::Plain.frame(from, client, inside);
        self.check([Row::reply(&format!("{inside:?}"), frame(server), frame(vip))]);
    }

    /// Opens a connection; its server.
    fn establish(&self, port: u16, opening: Inside) -> std::net::SocketAddr {
        let server = self.send(port, opening);
        self.answer(server, port, opening.answer());
        assert_eq!(self.send(port, opening.following()), server);
        server
    }

    fn other(&self, server: std::net::SocketAddr) -> std::net::SocketAddr {
        let (first, second) = (self.server(SERVER_PORT), self.second_server(SERVER_PORT));
        if server == first { second } else { first }
    }

    fn total(&self, protocol: Protocol, server: std::net::SocketAddr) -> (u32, u32) {
        self.counts(protocol, self.vip(PAIR), server)
    }

    /// The pair's service with these weights; `None` leaves a server out.
    fn set_pair(&mut self, weights: &[(std::net::SocketAddr, i32)]) {
        let mut plan = self.plan();
        for protocol in Protocol::ALL {
            let servers: Vec<_> =
                weights.iter().map(|&(server, weight)| (server.ip(), server.port(), weight)).collect();
            let (frontend, service) = service(protocol, self.vip(PAIR), &servers);
            plan.services.insert(frontend, service);
        }
        self.apply(&plan);
    }
}

const ACK: Inside = Inside::Segment(flags::ACK);
const FIN: Inside = Inside::Segment(flags::FIN | flags::ACK);

#[test]
fn a_syn_on_a_connection_in_time_wait_opens_a_new_one() {
    for world in World::both() {
        let first = world.establish(4000, Inside::Syn);
        assert_eq!(world.send(4000, FIN), first);
        world.answer(first, 4000, FIN);
        assert_eq!(world.send(4000, ACK), first);
        assert_eq!(world.total(Protocol::Tcp, first), (0, 1), "in TIME_WAIT");
        let second = world.send(4000, Inside::Syn);
        assert_eq!(second, world.other(first), "the next in turn");
        assert_eq!((world.total(Protocol::Tcp, first), world.total(Protocol::Tcp, second)), ((0, 0), (1, 0)));
        assert_eq!(world.datapath.connections().unwrap().len(), 2);
        world.answer(second, 4000, Inside::Syn.answer());
    }
}

#[test]
fn a_syn_on_a_reset_connection_opens_a_new_one() {
    for world in World::both() {
        let first = world.establish(4000, Inside::Syn);
        assert_eq!(world.send(4000, Inside::Segment(flags::RST)), first);
        assert_eq!(world.total(Protocol::Tcp, first), (0, 1), "in CLOSE");
        assert_eq!(world.send(4000, Inside::Syn), world.other(first));
        assert_eq!(world.total(Protocol::Tcp, first), (0, 0));
    }
}

#[test]
fn a_syn_on_a_live_connection_stays_on_it() {
    for world in World::both() {
        let server = world.send(4000, Inside::Syn);
        assert_eq!(world.send(4000, Inside::Syn), server, "a retransmission");
        world.answer(server, 4000, Inside::Syn.answer());
        assert_eq!(world.send(4000, ACK), server);
        assert_eq!(world.send(4000, Inside::Syn), server, "on an established one");
        assert_eq!(world.total(Protocol::Tcp, server), (1, 0));
    }
}

#[test]
fn a_server_that_is_drained_keeps_its_connections() {
    for mut world in World::both() {
        for opening in Inside::OPENING {
            let (full, pair) = (opening, [world.server(SERVER_PORT), world.second_server(SERVER_PORT)]);
            world.set_pair(&pair.map(|server| (server, 1)));
            let server = world.establish(4000, full);
            let other = world.other(server);
            world.set_pair(&[(server, 0), (other, 1)]);
            assert_eq!(world.send(4000, opening.following()), server);
            world.answer(server, 4000, opening.following());
            for port in 5000..5004 {
                assert_eq!(world.send(port, opening), other, "new ones go elsewhere");
            }
        }
    }
}

#[test]
fn a_stream_stays_on_a_removed_server_and_a_datagram_leaves_it_at_once() {
    for mut world in World::both() {
        for opening in Inside::OPENING {
            let pair = [world.server(SERVER_PORT), world.second_server(SERVER_PORT)];
            world.set_pair(&pair.map(|server| (server, 1)));
            let server = world.establish(4000, opening);
            let other = world.other(server);
            world.set_pair(&[(other, 1)]);
            let stays = if opening == Inside::Udp { other } else { server };
            assert_eq!(world.send(4000, opening.following()), stays, "{opening:?}");
            world.answer(stays, 4000, opening.following());
            if opening != Inside::Udp {
                assert_eq!(world.send(4000, opening), other, "a new one on the same port leaves it: {opening:?}");
            }
        }
    }
}

#[test]
fn a_datagram_is_refused_at_once_when_the_last_server_is_gone() {
    for mut world in World::both() {
        world.establish(4000, Inside::Udp);
        world.set_pair(&[]);
        let frame = Around::Plain.frame(world.client(4000), world.vip(PAIR), Inside::Udp);
        assert_eq!(world.datapath.ingress(&frame).unwrap().verdict, REDIRECTED);
        assert_eq!(world.datapath.all_drops().unwrap(), [(Drop::NoDestination.name(), 1)]);
    }
}

#[test]
fn established_streams_outlive_their_service() {
    for mut world in World::both() {
        for opening in [Inside::Syn, Inside::Init] {
            let plan = world.plan();
            world.apply(&plan);
            let server = world.establish(4000, opening);
            let mut without = plan.clone();
            without.services.retain(|frontend, _| frontend.port != PAIR);
            world.apply(&without);
            assert_eq!(world.send(4000, opening.following()), server, "{opening:?}");
            world.answer(server, 4000, opening.following());
            let fresh = Around::Plain.frame(world.client(4001), world.vip(PAIR), opening);
            world.check([Row::untouched("new", bpvs_tests::datapath::Hook::Ingress, fresh)]);
        }
    }
}

#[test]
fn datagrams_to_a_service_that_is_gone_pass_by() {
    for mut world in World::both() {
        world.establish(4000, Inside::Udp);
        let mut without = world.plan();
        without.services.retain(|frontend, _| frontend.port != PAIR);
        world.apply(&without);
        let frame = Around::Plain.frame(world.client(4000), world.vip(PAIR), Inside::Udp);
        world.check([Row::untouched("datagram", bpvs_tests::datapath::Hook::Ingress, frame)]);
        assert!(world.datapath.connections().unwrap().is_empty(), "the connection is over");
    }
}

#[test]
fn a_connection_that_timed_out_is_none_before_any_sweep() {
    for mut world in World::both() {
        for opening in Inside::OPENING {
            let server = world.establish(4000, opening);
            world.datapath.age(Duration::from_secs(3_600)).unwrap();
            let protocol = protocol_of(opening);
            if opening == Inside::Udp {
                assert_eq!(world.send(4000, opening), world.other(server), "scheduled anew");
                continue;
            }
            let late = Around::Plain.frame(world.client(4000), world.vip(PAIR), opening.following());
            assert_eq!(world.datapath.ingress(&late).unwrap().verdict, REDIRECTED, "{opening:?}");
            assert_eq!(world.total(protocol, server), (0, 0), "{opening:?}");
        }
        assert_eq!(world.datapath.all_drops().unwrap(), [(Drop::NotSyn.name(), 2)]);
    }
}

/// A client that gave up its end begins again from the same port; a server that still knows the old connection answers with
/// a plain ACK (RFC 5961), which IPVS takes for the new one's: SYN_RECV becomes ESTABLISHED.
#[test]
fn a_plain_ack_counts_again_once_the_client_has_ended_an_established_connection() {
    for world in World::both() {
        let (port, ack) = (5100, Inside::Segment(flags::ACK));
        let server = world.establish(port, Inside::Syn);
        world.answer(server, port, ack);
        world.answer(server, port, ack);
        let state = || {
            let all = world.datapath.connections().unwrap();
            let request = all.iter().find(|(_, value)| !is_reply(value)).expect("the request entry");
            ConnectionState(request.1.state).number()
        };
        assert_eq!(state(), State::Established as u8);
        world.send(port, Inside::Segment(flags::FIN | flags::ACK));
        assert_eq!(state(), State::CloseWait as u8);
        assert_eq!(world.send(port, Inside::Syn), server);
        assert_eq!(state(), State::SynReceived as u8);
        world.answer(server, port, ack);
        assert_eq!(state(), State::Established as u8);
    }
}
