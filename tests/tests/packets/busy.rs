//! Busy flows: what was found for their last packets serves the next ones of the same instant, and nothing that happens in that
//! instant is missed because of it.

use bpvs_tests::{
    datapath::{NEXT, is_reply, next_instant},
    packets::{flags, verify},
};
use lb_common::{
    address::Protocol,
    layout::{Connection, ConnectionKey},
};

use crate::{
    shapes::{Around, Inside},
    world::{PAIR, SERVER_PORT, World, service},
};

const ACK: Inside = Inside::Segment(flags::ACK);

/// Instants that are tried: one may end between two packets.
const TRIES: u16 = 100;

impl World {
    /// Sends a packet of a flow often enough that the next one of this instant is not looked up.
    fn hurry(&self, port: u16, inside: Inside) -> std::net::SocketAddr {
        self.sent(port, inside);
        self.sent(port, inside);
        self.sent(port, inside)
    }

    fn sent(&self, port: u16, inside: Inside) -> std::net::SocketAddr {
        let run = self.datapath.ingress(&Around::Plain.frame(self.client(port), self.vip(PAIR), inside)).unwrap();
        assert_eq!(run.verdict, NEXT, "{inside:?}");
        verify(&run.frame).unwrap().to
    }

    fn requests(&self) -> Vec<(ConnectionKey, Connection)> {
        self.datapath.connections().unwrap().into_iter().filter(|(_, value)| !is_reply(value)).collect()
    }

    fn forget(&mut self) {
        for (key, _) in self.datapath.connections().unwrap() {
            self.datapath.remove_connection(key).unwrap();
        }
    }
}

#[test]
fn a_busy_flow_is_not_looked_up_and_in_the_next_instant_it_is() {
    for mut world in World::both() {
        let mut served = 0;
        for port in 1..=TRIES {
            next_instant();
            let server = world.hurry(port, Inside::Udp);
            world.forget();
            // Nobody but the program takes entries away, so this never happens; it shows whether the table was asked.
            assert!(world.requests().is_empty());
            let same = world.sent(port, Inside::Udp) == server;
            served += u16::from(same && world.requests().is_empty());
            next_instant();
            world.sent(port, Inside::Udp);
            assert_eq!(world.requests().len(), 1, "opened anew");
            world.forget();
            if served == 3 {
                break;
            }
        }
        assert_eq!(served, 3, "in {TRIES} instants");
    }
}

#[test]
fn datagrams_leave_a_server_in_the_instant_in_which_it_leaves_its_service() {
    for mut world in World::both() {
        for port in 1..=20 {
            next_instant();
            let server = world.hurry(port, Inside::Udp);
            let mut plan = world.plan();
            let stays = if server.ip() == world.server(0).ip() { world.second_server(0) } else { world.server(0) };
            let (frontend, service) = service(Protocol::Udp, world.vip(PAIR), &[(stays.ip(), SERVER_PORT, 1)]);
            plan.services.insert(frontend, service);
            world.apply(&plan);
            assert_ne!(world.sent(port, Inside::Udp), server);
            let plan = world.plan();
            world.apply(&plan);
        }
    }
}

#[test]
fn a_connection_that_takes_the_place_of_another_has_its_own_server_in_the_same_instant() {
    for world in World::both() {
        for port in 1..=20 {
            next_instant();
            let server = world.sent(port, Inside::Syn);
            let answer = Around::Plain.frame(server, world.client(port), Inside::Segment(flags::SYN | flags::ACK));
            assert_eq!(world.datapath.egress(&answer).unwrap().verdict, NEXT);
            assert_eq!(world.hurry(port, ACK), server);
            world.sent(port, Inside::Segment(flags::RST));
            let next = world.sent(port, Inside::Syn);
            assert_ne!(next, server, "in turns");
            assert_eq!(world.sent(port, ACK), next);
        }
    }
}
