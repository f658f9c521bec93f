//! Hostile bytes: nothing panics, BPF decides as the same code does on the host, and what is not named stays.

use std::time::Duration;

use bpvs_tests::{
    datapath::{DROPPED, Hook, NEXT, REDIRECTED},
    packets::{IcmpError, Packet, Tcp, flags, verify},
};
use lb_common::packet;
use lb_userspace::datapath::dump::dump;

use crate::{
    mutations::{Numbers, mutations, noise},
    rows::hex,
    shapes::{Around, Inside, plain},
    twins::{CLIENT_PORT, Twins},
    world::{CHANGED, EMPTY, HAIRPIN, PAIR, SAME, SERVER_PORT, World},
};

/// True if `BPF_PROG_TEST_RUN` takes the frame: not without a byte behind the Ethernet header and, in newer kernels, not
/// with half an IP header there. Behind a VLAN tag it takes any.
pub(crate) fn runs(frame: &[u8]) -> bool {
    let least = match frame.get(12..14) {
        Some([0x08, 0x00]) => 34,
        Some([0x86, 0xdd]) => 54,
        _ => 15,
    };
    frame.len() >= least
}

/// Good frames of a family: requests, replies, errors and fragments, of connections and of none.
fn good_frames(world: &World) -> Vec<Vec<u8>> {
    let (client, vip, server) = (world.client(CLIENT_PORT), world.vip(CHANGED), world.server(SERVER_PORT));
    let (same, same_server) = (world.vip(SAME), world.server(SAME));
    let (hairpin, node, myself) = (world.vip(HAIRPIN), world.node(CLIENT_PORT), world.client(SERVER_PORT));
    let pairs = [(client, vip), (server, client), (client, hairpin), (myself, node)];
    let mut frames = Vec::new();
    for inside in Inside::OF_A_CONNECTION {
        frames.extend(pairs.map(|(from, to)| Around::Plain.frame(from, to, inside)));
    }
    if !world.v6 {
        frames.push(Around::Plain.frame(client, vip, Inside::UdpUnchecked));
    }
    for &around in Around::all(world.v6) {
        for inside in [Inside::Segment(flags::ACK), Inside::Udp, Inside::Data] {
            frames.push(around.frame(client, same, inside));
            frames.push(around.frame(same_server, client, inside));
        }
    }
    for inside in [Inside::Segment(flags::ACK), Inside::Udp, Inside::Data] {
        for (from, to, about_from, about_to) in
            [(server, client, client, server), (client, vip, vip, client), (myself, node, node, myself)]
        {
            let (outer, inner) = (Packet::new(from, to), Packet::new(about_from, about_to).ipv4_options(&[1, 1, 1, 0]));
            let quoted = inner.ip(&inside.transport(&inner));
            frames.push(outer.frame(&outer.icmp_error(IcmpError::PortUnreachable, &quoted)));
        }
        for (from, to) in [(client, vip), (server, client)] {
            let packet = Around::DestinationOptions.packet(from, to);
            frames.extend(packet.fragments(&inside.transport(&packet), 24).into_iter().take(2));
        }
    }
    let cookie = Packet::new(client, vip);
    // COOKIE ECHO and a second chunk, which matters.
    let chunks = [10, 0, 0, 8, 1, 2, 3, 4, 9, 0, 0, 4, 0, 0, 0, 4];
    frames.push(cookie.frame(&cookie.sctp(7, &chunks)));
    frames.push(cookie.frame(&cookie.echo_request(1, 2, b"ping")));
    frames.push(Around::Plain.frame(client, world.vip(9), Inside::Udp));
    frames
}

#[test]
fn no_bytes_make_the_parser_panic() {
    for world in [World::empty(false), World::empty(true)] {
        let (frames, mut numbers) = (good_frames(&world), Numbers::new(1));
        let parse = |frame: &[u8]| {
            if let Ok(found) = packet::Packet::parse(frame) {
                let mut quoted = packet::Packet::default();
                let _any = packet::parse_quoted(frame, &found, &mut quoted);
            }
        };
        for frame in &frames {
            mutations(frame, &frames, &mut numbers).iter().for_each(|frame| parse(frame));
        }
        for _ in 0..100_000 {
            parse(&noise(&mut numbers));
            let length = numbers.below(70);
            parse(&numbers.bytes(length));
        }
    }
}

fn bpf_decides_as_the_host(v6: bool) {
    let mut twins = Twins::new(v6);
    let before = dump(twins.world.datapath.writer().store()).unwrap();
    let (frames, mut numbers) = (good_frames(&twins.world), Numbers::new(if v6 { 6 } else { 4 }));
    let mut inputs = 0;
    for frame in &frames {
        for damaged in mutations(frame, &frames, &mut numbers) {
            if runs(&damaged) {
                twins.compare(Hook::Ingress, &damaged);
                twins.compare(Hook::Egress, &damaged);
                inputs += 1;
            }
        }
        twins.compare_tables();
        twins.reset();
    }
    for _ in 0..10_000 {
        let frame = noise(&mut numbers);
        if !runs(&frame) {
            continue;
        }
        twins.compare(Hook::Ingress, &frame);
        twins.compare(Hook::Egress, &frame);
        inputs += 1;
    }
    twins.compare_tables();
    twins.reset();
    assert!(inputs > 80_000, "{inputs} inputs");
    // Nothing that user space wrote has changed.
    assert_eq!(dump(twins.world.datapath.writer().store()).unwrap(), before);
}

#[test]
fn bpf_decides_as_the_host_on_any_ipv4_bytes() {
    bpf_decides_as_the_host(false);
}

#[test]
fn bpf_decides_as_the_host_on_any_ipv6_bytes() {
    bpf_decides_as_the_host(true);
}

/// A right frame of a client to any of the services, with anything in it that may be.
fn any_right_frame(world: &World, numbers: &mut Numbers) -> Vec<u8> {
    let ports = [CHANGED, SAME, EMPTY, HAIRPIN, PAIR];
    let (client, vip) = (world.client(4000 + numbers.below(50) as u16), world.vip(ports[numbers.below(ports.len())]));
    let around = Around::all(world.v6)[numbers.below(Around::all(world.v6).len())];
    let packet = around.packet(client, vip);
    let length = numbers.below(300);
    let payload = numbers.bytes(length);
    let transport = match numbers.below(3) {
        0 => {
            let (sequence, acknowledgment) = (u32::MAX - numbers.below(300) as u32, numbers.below(300) as u32);
            let (bits, options) = (numbers.byte(), [1; 40]);
            let options = &options[..4 * numbers.below(11)];
            packet.tcp(Tcp { flags: bits, sequence, acknowledgment, options }, &payload)
        }
        1 => packet.udp(&payload),
        _ => packet.sctp(numbers.below(9) as u32, &[&[numbers.below(16) as u8, 0, 0, 4], &payload[..]].concat()),
    };
    packet.frame(&transport)
}

/// One frame to a service: it passes by untouched, goes on right, is answered right, or is dropped by name.
fn check_laws(world: &World, sent: &[u8]) {
    let drops = || world.datapath.all_drops().unwrap().iter().map(|(_, count)| count).sum::<u64>();
    let counted = drops();
    let run = world.datapath.ingress(sent).unwrap();
    let what = || format!("{}\nbecame {}", hex(sent), hex(&run.frame));
    match run.verdict {
        NEXT | REDIRECTED => {}
        DROPPED => assert!(drops() > counted, "dropped without a name: {}", what()),
        other => panic!("verdict {other} on {}", what()),
    }
    if packet::Packet::parse(sent).is_err() {
        assert_eq!((run.verdict, &run.frame[..]), (NEXT, sent));
    }
    let right = |frame: &[u8]| frame.len() > 33 && verify(&plain(frame)).is_ok();
    if run.verdict != DROPPED && right(sent) && !right(&run.frame) {
        panic!("right became wrong: {:?}\n{}", verify(&plain(&run.frame)), what());
    }
}

/// With services, where connections open and refusals are answered: laws instead of a model.
#[test]
fn any_bytes_to_a_service_pass_by_go_on_right_are_answered_right_or_are_counted() {
    for mut world in World::both() {
        let (client, mut numbers) = (world.client(CLIENT_PORT), Numbers::new(9));
        let mut frames = Vec::new();
        for opening in [Inside::Syn, Inside::Segment(flags::ACK), Inside::Udp, Inside::Init, Inside::Data] {
            for port in [CHANGED, EMPTY, HAIRPIN, PAIR] {
                frames.push(Around::Plain.frame(client, world.vip(port), opening));
            }
        }
        frames.extend(Around::all(world.v6).iter().map(|around| around.frame(client, world.vip(EMPTY), Inside::Udp)));
        let before = dump(world.datapath.writer().store()).unwrap();
        for frame in &frames {
            for damaged in mutations(frame, &frames, &mut numbers).iter().filter(|frame| runs(frame)) {
                check_laws(&world, damaged);
            }
        }
        for _ in 0..20_000 {
            let sent = any_right_frame(&world, &mut numbers);
            verify(&sent).unwrap_or_else(|error| panic!("{error:#}: {}", hex(&sent)));
            check_laws(&world, &sent);
        }
        // Time passes; sweeps leave all as it was, but for whose turn it is.
        world.datapath.age(Duration::from_secs(3_600)).unwrap();
        let swept = [world.datapath.sweep(true).unwrap(), world.datapath.sweep(true).unwrap()];
        assert_eq!((swept[1].corrections, swept[1].orphans), (0, 0), "counts went wrong: {swept:?}");
        assert_eq!(world.datapath.connections().unwrap(), []);
        let lasting = |line: &&str| !line.starts_with("word");
        let after = dump(world.datapath.writer().store()).unwrap();
        assert_eq!(
            after.lines().filter(lasting).collect::<Vec<_>>(),
            before.lines().filter(lasting).collect::<Vec<_>>()
        );
    }
}
