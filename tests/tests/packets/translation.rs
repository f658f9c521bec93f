//! Requests and replies of every make.

use bpvs_tests::datapath::Hook;
use lb_common::{address::Protocol, drops::Drop};

use crate::{
    rows::Row,
    shapes::{Around, Inside, protocol_of},
    world::{CHANGED, SAME, SERVER_PORT, World},
};

#[test]
fn a_connection_is_translated_both_ways_in_every_make() {
    for world in World::both() {
        let mut client_port = 20_000;
        for &around in Around::all(world.v6) {
            for (port, server_port) in [(CHANGED, SERVER_PORT), (SAME, SAME)] {
                for opening in Inside::OPENING {
                    client_port += 1;
                    let (client, vip) = (world.client(client_port), world.vip(port));
                    let server = world.server(server_port);
                    let name = |what: &str| format!("{around:?}, port {port}, {opening:?}: {what}");
                    let frame = |from, to, inside| around.frame(from, to, inside);
                    let (answer, more) = (opening.answer(), opening.following());
                    let sent = frame(client, vip, opening);
                    let request = frame(client, server, opening);
                    world.check([
                        Row::request(&name("new"), sent, request.clone()),
                        Row::untouched(&name("the request, leaving"), Hook::Egress, request),
                        Row::untouched(&name("the reply, entering"), Hook::Ingress, frame(server, client, answer)),
                        Row::reply(&name("reply"), frame(server, client, answer), frame(vip, client, answer)),
                        Row::request(&name("known"), frame(client, vip, more), frame(client, server, more)),
                        Row::reply(&name("reply to known"), frame(server, client, more), frame(vip, client, more)),
                        Row::request(&name("known again"), frame(client, vip, more), frame(client, server, more)),
                    ]);
                }
            }
        }
        assert_eq!(world.datapath.all_drops().unwrap(), []);
    }
}

#[test]
fn a_datagram_without_a_checksum_stays_without() {
    let [world, _] = World::both();
    let (client, vip, server) = (world.client(4000), world.vip(CHANGED), world.server(SERVER_PORT));
    let frame = |from, to| Around::Plain.frame(from, to, Inside::UdpUnchecked);
    let rows = [
        Row::request("request", frame(client, vip), frame(client, server)),
        Row::reply("reply", frame(server, client), frame(vip, client)),
    ];
    assert!(rows.iter().all(|row| row.out[40..42] == [0, 0]));
    world.check(rows);
}

#[test]
fn an_sctp_packet_whose_ports_stay_keeps_its_checksum_even_a_wrong_one() {
    for world in World::both() {
        let (client, vip, server) = (world.client(4000), world.vip(SAME), world.server(SAME));
        let frame = |from, to, wrong: u8| {
            let mut frame = Around::Plain.frame(from, to, Inside::Init);
            let checksum = if world.v6 { 62 } else { 42 };
            frame[checksum] ^= wrong;
            frame
        };
        world.check([Row::request("right", frame(client, vip, 0), frame(client, server, 0))]);
        let run = world.datapath.ingress(&frame(client, vip, 1)).unwrap();
        assert_eq!(run.frame, frame(client, server, 1));
    }
}

#[test]
fn a_wrong_checksum_goes_on_as_wrong() {
    for world in World::both() {
        let (client, vip, server) = (world.client(4000), world.vip(CHANGED), world.server(SERVER_PORT));
        for opening in Inside::OPENING {
            let flip = |mut frame: Vec<u8>| {
                *frame.last_mut().unwrap() ^= 0x40;
                frame
            };
            let (sent, expected) =
                (Around::Plain.frame(client, vip, opening), Around::Plain.frame(client, server, opening));
            let run = world.datapath.ingress(&flip(sent)).unwrap();
            assert_eq!(run.frame, flip(expected), "{opening:?}");
        }
    }
}

#[test]
fn one_client_port_talks_to_two_frontends_that_share_a_server() {
    for world in World::both() {
        for opening in Inside::OPENING {
            let (client, server) = (world.client(5000), world.server(SERVER_PORT));
            let (first, second) = (world.vip(CHANGED), world.other_vip(CHANGED));
            let (more, answer) = (opening.following(), opening.answer());
            let frame = |from, to, inside| Around::Plain.frame(from, to, inside);
            world.check([Row::request("first", frame(client, first, opening), frame(client, server, opening))]);

            let run = world.datapath.ingress(&frame(client, second, opening)).unwrap();
            let seen = bpvs_tests::packets::verify(&run.frame).unwrap().from;
            assert_eq!(seen.ip(), client.ip());
            assert_ne!(seen.port(), client.port(), "the server could not tell the two apart");
            assert_eq!(run.frame, frame(seen, server, opening), "{opening:?}");

            let (name, by) = (|what: &str| format!("{opening:?}: {what}"), seen);
            world.check([
                Row::reply(&name("the first's"), frame(server, client, answer), frame(first, client, answer)),
                Row::reply(&name("the second's"), frame(server, by, answer), frame(second, client, answer)),
                Row::request(&name("first again"), frame(client, first, more), frame(client, server, more)),
                Row::request(&name("second again"), frame(client, second, more), frame(by, server, more)),
                Row::reply(&name("the second's again"), frame(server, by, more), frame(second, client, more)),
                Row::reply(&name("the first's again"), frame(server, client, more), frame(first, client, more)),
            ]);
            let protocol = protocol_of(opening);
            let total = |(active, inactive)| active + inactive;
            assert_eq!(total(world.counts(protocol, first, server)), 1);
            assert_eq!(total(world.counts(protocol, second, server)), 1);
        }
    }
}

#[test]
fn packets_and_bytes_are_counted_by_their_ip_length() {
    for world in World::both() {
        let (client, vip, server) = (world.client(4000), world.vip(CHANGED), world.server(SERVER_PORT));
        let (request, reply) =
            (Around::Vlan.frame(client, vip, Inside::Udp), Around::Plain.frame(server, client, Inside::Udp));
        for _ in 0..3 {
            world.datapath.ingress(&request).unwrap();
            world.datapath.egress(&reply).unwrap();
        }
        let frontend = World::frontend(Protocol::Udp, vip);
        let id = world.datapath.destination_in(&frontend, server.ip(), server.port()).unwrap().unwrap();
        let traffic = world.datapath.traffic(id).unwrap();
        let (sent, received) = (request.len() as u64 - 18, reply.len() as u64 - 14);
        assert_eq!((traffic.connections, traffic.in_packets, traffic.out_packets), (1, 3, 3));
        assert_eq!((traffic.in_bytes, traffic.out_bytes), (3 * sent, 3 * received));
        assert_eq!(world.datapath.drops(Drop::RewriteFailed).unwrap(), 0);
    }
}
