//! Answers in a frontend's name: port unreachable, reset; and who gets none.

use std::net::{IpAddr, SocketAddr};

use bpvs_tests::{
    datapath::{DROPPED, REDIRECTED},
    packets::{Checksum, Packet, Summary, Tcp, flags, protocol, verify},
};
use lb_common::drops::Drop;

use crate::{
    shapes::{Around, Inside, plain},
    world::{CHANGED, DRAINED, EMPTY, World},
};

/// Runs a packet that must be answered; the answer, checked as far as all answers are alike.
fn answer(world: &World, what: &str, sent: &[u8], from: SocketAddr, to: SocketAddr) -> (Vec<u8>, Summary) {
    let run = world.datapath.ingress(sent).unwrap();
    assert_eq!(run.verdict, REDIRECTED, "{what}: {:?}", world.datapath.all_drops().unwrap());
    let frame = plain(&run.frame);
    let found = verify(&frame).unwrap_or_else(|error| panic!("{what}: {error:#}"));
    assert_eq!(run.frame[..12], [&sent[6..12], &sent[..6]].concat(), "{what}: hardware addresses");
    assert_eq!((found.from.ip(), found.to.ip()), (from.ip(), to.ip()), "{what}");
    assert_eq!(found.checksum, Checksum::Right, "{what}");
    assert_eq!(found.hop_limit, 64, "{what}");
    (frame, found)
}

#[test]
fn a_service_without_usable_servers_answers_port_unreachable_at_once() {
    for world in World::both() {
        let client = world.client(4000);
        let mut refused = 0;
        for vip in [world.vip(EMPTY), world.vip(DRAINED)] {
            for &around in Around::all(world.v6) {
                for opening in Inside::OPENING {
                    for trailer in [0, 30] {
                        let what = format!("{around:?}, {opening:?} to {vip}, trailer of {trailer}");
                        let mut sent = around.frame(client, vip, opening);
                        let length = sent.len();
                        sent.extend(vec![0x5a; trailer]);
                        let (frame, found) = answer(&world, &what, &sent, vip, client);
                        let (icmp, kind, code) =
                            if world.v6 { (protocol::ICMPV6, 1, 4) } else { (protocol::ICMP, 3, 3) };
                        assert_eq!((found.protocol, found.kind, found.code), (icmp, kind, code), "{what}");
                        let (network, header) = match around {
                            Around::Vlan => (18, if world.v6 { 40 } else { 20 }),
                            Around::QinQ => (22, if world.v6 { 40 } else { 20 }),
                            _ => (14, if world.v6 { 40 } else { 20 }),
                        };
                        let quote = &sent[network..length.min(network + 128)];
                        let outer = if around == Around::QinQ { 14 } else { network };
                        assert_eq!(frame[outer + header + 8..], *quote, "{what}: the quote");
                        refused += 1;
                    }
                }
            }
        }
        assert_eq!(world.datapath.all_drops().unwrap(), [(Drop::NoDestination.name(), refused)]);
        assert!(world.datapath.connections().unwrap().is_empty());
    }
}

#[test]
fn a_large_packet_is_quoted_in_part() {
    for world in World::both() {
        let (client, vip) = (world.client(4000), world.vip(EMPTY));
        let packet = Packet::new(client, vip);
        for length in [0, 1, 2, 79, 80, 99, 100, 101, 1000, 1400] {
            let sent = packet.frame(&packet.udp(&vec![7; length]));
            let (frame, _) = answer(&world, &format!("{length} bytes"), &sent, vip, client);
            let header = if world.v6 { 40 } else { 20 };
            assert_eq!(frame[14 + header + 8..], sent[14..sent.len().min(14 + 128)], "{length} bytes");
        }
    }
}

#[test]
fn a_stray_segment_is_reset_in_its_own_numbers() {
    for world in World::both() {
        let (client, vip) = (world.client(4000), world.vip(CHANGED));
        for &around in Around::all(world.v6) {
            if matches!(around, Around::QinQ | Around::Authentication) {
                continue; // The frame is made by hand below.
            }
            for (bits, payload) in [
                (flags::ACK, &b""[..]),
                (flags::ACK | flags::PSH, b"data"),
                (flags::FIN | flags::ACK, b""),
                (flags::FIN, b""),
                (flags::FIN, b"last words"),
                (0, b"no flags at all"),
                (flags::URG, b""),
            ] {
                let packet = around.packet(client, vip);
                let sequence = 0xffff_fffe;
                let segment = packet
                    .tcp(Tcp { flags: bits, sequence, acknowledgment: 0x0102_0304, options: &[1, 1, 1, 1] }, payload);
                for trailer in [0, 25] {
                    let mut sent = packet.frame(&segment);
                    sent.extend(vec![0; trailer]);
                    let what = format!("{around:?}, flags {bits:#x}, {} bytes, trailer {trailer}", payload.len());
                    let (frame, found) = answer(&world, &what, &sent, vip, client);
                    assert_eq!((found.from, found.to), (vip, client), "{what}");
                    let tcp = &frame[frame.len() - 20..];
                    let number = |at: usize| u32::from_be_bytes(tcp[at..at + 4].try_into().unwrap());
                    // RFC 9293, 3.10.7.1.
                    if bits & flags::ACK != 0 {
                        assert_eq!((number(4), number(8), tcp[13]), (0x0102_0304, 0, flags::RST), "{what}");
                    } else {
                        let length = payload.len() as u32 + u32::from(bits & flags::FIN != 0);
                        let expected = (0, sequence.wrapping_add(length), flags::RST | flags::ACK);
                        assert_eq!((number(4), number(8), tcp[13]), expected, "{what}");
                    }
                }
            }
        }
        assert!(world.datapath.connections().unwrap().is_empty());
    }
}

#[test]
fn a_stray_reset_is_dropped() {
    for world in World::both() {
        for bits in [flags::RST, flags::RST | flags::ACK, flags::RST | flags::SYN, flags::RST | flags::FIN] {
            let frame = Around::Plain.frame(world.client(4000), world.vip(CHANGED), Inside::Segment(bits));
            assert_eq!(world.datapath.ingress(&frame).unwrap().verdict, DROPPED, "{bits:#x}");
        }
        assert_eq!(world.datapath.drops(Drop::Unanswerable).unwrap(), 4);
        assert!(world.datapath.connections().unwrap().is_empty());
    }
}

#[test]
fn a_stray_sctp_packet_is_refused() {
    for world in World::both() {
        let (client, vip) = (world.client(4000), world.vip(CHANGED));
        let sent = Around::Plain.frame(client, vip, Inside::Data);
        let (_, found) = answer(&world, "data", &sent, vip, client);
        assert_eq!(found.embedded.unwrap().to, vip);
        assert_eq!(world.datapath.all_drops().unwrap(), [(Drop::NotSyn.name(), 1)]);
    }
}

#[test]
fn nobody_and_everybody_get_no_answer() {
    for world in World::both() {
        let sources: &[&str] = match world.v6 {
            false => &["0.0.0.0", "127.0.0.1", "224.0.0.1", "239.255.255.250", "240.0.0.1", "255.255.255.255"],
            true => &["::", "ff02::1", "ff0e::1234"],
        };
        for source in sources {
            let from = SocketAddr::new(source.parse::<IpAddr>().unwrap(), 4000);
            for (to, inside) in [
                (world.vip(EMPTY), Inside::Udp),
                (world.vip(EMPTY), Inside::Syn),
                (world.vip(EMPTY), Inside::Init),
                (world.vip(CHANGED), Inside::Segment(flags::ACK)),
            ] {
                let run = world.datapath.ingress(&Around::Plain.frame(from, to, inside)).unwrap();
                assert_eq!(run.verdict, DROPPED, "{inside:?} from {source}");
            }
        }
        assert_eq!(world.datapath.drops(Drop::Unanswerable).unwrap(), 4 * sources.len() as u64);
    }
}
