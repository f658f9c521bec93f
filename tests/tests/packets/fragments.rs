//! Fragments: the first has the ports, the others follow it.

use bpvs_tests::{
    datapath::{DROPPED, Hook, NEXT},
    packets::{Extension, Packet, flags, reassemble},
};
use lb_common::{address::Protocol, drops::Drop, layout::ConnectionState, tcp};

use crate::{
    rows::Row,
    shapes::{Around, Inside},
    world::{CHANGED, SAME, SERVER_PORT, World},
};

fn datagram() -> Vec<u8> {
    (0..3500).map(|n| (n % 251) as u8).collect()
}

fn makes(v6: bool) -> Vec<(&'static str, fn(Packet) -> Packet)> {
    match v6 {
        false => vec![
            ("plain", |packet| packet),
            ("tagged", |packet| packet.vlan(7)),
            ("with options", |packet| packet.ipv4_options(&[1, 1, 1, 0])),
        ],
        true => vec![
            ("plain", |packet| packet),
            ("tagged", |packet| packet.vlan(7)),
            ("behind a hop-by-hop header", |packet| packet.extension(Extension::HopByHop)),
            // The later fragments name the options, not UDP.
            ("with destination options inside", |packet| packet.extension(Extension::DestinationOptions)),
            ("with both", |packet| packet.extension(Extension::Routing).extension(Extension::DestinationOptions)),
        ],
    }
}

#[test]
fn a_fragmented_datagram_is_translated_both_ways() {
    for world in World::both() {
        let mut identification = 100;
        for (what, make) in makes(world.v6) {
            for (port, server_port) in [(CHANGED, SERVER_PORT), (SAME, SAME)] {
                identification += 1;
                let (client, vip) = (world.client(3000 + identification as u16), world.vip(port));
                let server = world.server(server_port);
                let pieces = |from, to| {
                    let packet = make(Packet::new(from, to)).identification(identification);
                    packet.fragments(&packet.udp(&datagram()), 1200)
                };
                for (hook, sent, out) in [
                    (Hook::Ingress, pieces(client, vip), pieces(client, server)),
                    (Hook::Egress, pieces(server, client), pieces(vip, client)),
                    // The same datagram again: a known connection.
                    (Hook::Ingress, pieces(client, vip), pieces(client, server)),
                ] {
                    assert!(sent.len() > 2);
                    reassemble(&out).unwrap();
                    world.check(sent.into_iter().zip(out).map(|(sent, out)| Row {
                        what: format!("{what}, port {port}"),
                        hook,
                        sent,
                        verdict: NEXT,
                        out,
                    }));
                }
            }
        }
        assert_eq!(world.datapath.all_drops().unwrap(), []);
    }
}

#[test]
fn later_fragments_without_their_first_pass_by() {
    for world in World::both() {
        let (client, vip) = (world.client(4000), world.vip(CHANGED));
        let pieces = |identification| {
            let packet = Packet::new(client, vip).identification(identification);
            packet.fragments(&packet.udp(&datagram()), 1200)
        };
        let first = &pieces(1)[0];
        world.datapath.ingress(first).unwrap();
        // Of another datagram of the same flow; and of this one, where its first did not come by.
        world.check([
            Row::untouched("another datagram", Hook::Ingress, pieces(2)[1].clone()),
            Row::untouched("another hook's direction", Hook::Egress, pieces(2)[1].clone()),
        ]);
    }
}

#[test]
fn later_fragments_of_a_connection_that_ended_are_dropped() {
    for mut world in World::both() {
        let (client, vip) = (world.client(4000), world.vip(CHANGED));
        let packet = Packet::new(client, vip);
        let pieces = packet.fragments(&packet.udp(&datagram()), 1200);
        world.datapath.ingress(&pieces[0]).unwrap();
        for (key, _) in world.datapath.connections().unwrap() {
            world.datapath.remove_connection(key).unwrap();
        }
        let run = world.datapath.ingress(&pieces[1]).unwrap();
        assert_eq!(run.verdict, DROPPED);
        assert_eq!(world.datapath.drops(Drop::OrphanFragment).unwrap(), 1);
        assert!(world.datapath.connections().unwrap().is_empty(), "no fragment opens a connection");
    }
}

#[test]
fn fragments_of_a_segment_keep_its_connection_established() {
    for world in World::both() {
        let (client, vip, server) = (world.client(4000), world.vip(CHANGED), world.server(SERVER_PORT));
        let plain = |from, to, inside| Around::Plain.frame(from, to, inside);
        let ack = Inside::Segment(flags::ACK);
        world.datapath.ingress(&plain(client, vip, Inside::Syn)).unwrap();
        world.datapath.egress(&plain(server, client, Inside::Syn.answer())).unwrap();
        world.datapath.ingress(&plain(client, vip, ack)).unwrap();
        assert_eq!(world.counts(Protocol::Tcp, vip, server), (1, 0));
        let pieces = |from, to, identification| {
            let packet = Packet::new(from, to).identification(identification);
            packet.fragments(&ack.transport(&packet), 24)
        };
        let rows = |hook, sent: Vec<Vec<u8>>, out: Vec<Vec<u8>>| {
            sent.into_iter().zip(out).map(move |(sent, out)| Row {
                what: "segment".to_owned(),
                hook,
                sent,
                verdict: NEXT,
                out,
            })
        };
        world.check(rows(Hook::Ingress, pieces(client, vip, 7), pieces(client, server, 7)));
        world.check(rows(Hook::Egress, pieces(server, client, 8), pieces(vip, client, 8)));
        assert_eq!(world.counts(Protocol::Tcp, vip, server), (1, 0));
        let connections = world.datapath.connections().unwrap();
        let request = connections.iter().map(|(_, value)| ConnectionState(value.state));
        let request = request.filter(|state| !state.has(ConnectionState::REPLY)).collect::<Vec<_>>();
        assert_eq!(request.len(), 1);
        assert_eq!(request[0].number(), tcp::State::Established as u8);
    }
}

#[test]
fn fragments_of_sctp_go_on_only_where_their_checksum_need_not_change() {
    for world in World::both() {
        let client = world.client(4000);
        let pieces = |to, identification| {
            let packet = Packet::new(client, to).identification(identification);
            packet.fragments(&Inside::Init.transport(&packet), 16)
        };
        let (same, server) = (world.vip(SAME), world.server(SAME));
        let (sent, out) = (pieces(same, 1), pieces(server, 1));
        world.check(sent.into_iter().zip(out).map(|(sent, out)| Row::request("same port", sent, out)));

        let run = world.datapath.ingress(&pieces(world.vip(CHANGED), 2)[0]).unwrap();
        assert_eq!(run.verdict, DROPPED);
        assert_eq!(world.datapath.all_drops().unwrap(), [(Drop::RewriteFailed.name(), 1)]);
    }
}
