//! The packet builder and the packet verifier prove each other, and both meet the kernel.

use std::net::SocketAddr;
use std::time::Duration;

use bpvs_tests::namespace::{End, Namespace, veth};
use bpvs_tests::packets::{
    Checksum, Extension, IcmpError, Packet, RawSocket, Summary, Tcp, Transport, flags, protocol, reassemble, verify,
};
use bpvs_tests::topology::Topology;
use bpvs_tests::traffic::{Servers, UdpClient};

const SOON: Duration = Duration::from_secs(5);

fn packets() -> Vec<(&'static str, Packet)> {
    let v4 = Packet::new("10.1.2.1:4000".parse().unwrap(), "10.1.1.1:5353".parse().unwrap());
    let v6 = Packet::new("[fd00:1:2::1]:4000".parse().unwrap(), "[fd00:1:1::1]:5353".parse().unwrap());
    let extended = v6.clone().extension(Extension::HopByHop).extension(Extension::Routing);
    vec![
        ("IPv4", v4.clone()),
        ("IPv4 with options", v4.clone().ipv4_options(&[1, 1, 1, 0, 1, 1, 1, 0])),
        ("IPv4 in a VLAN", v4.vlan(7)),
        ("IPv6", v6.clone()),
        ("IPv6 with extension headers", extended.extension(Extension::DestinationOptions)),
        ("IPv6 in a VLAN", v6.vlan(7)),
    ]
}

fn transports(packet: &Packet) -> Vec<Transport> {
    let syn = Tcp { flags: flags::SYN, sequence: 1, acknowledgment: 0, options: &[2, 4, 5, 180] };
    vec![
        packet.tcp(syn, b""),
        packet.tcp(Tcp { flags: flags::ACK | flags::PSH, ..syn }, b"odd"),
        packet.udp(b""),
        packet.udp(b"odd"),
        packet.udp(&[0xa5; 1400]),
        packet.sctp(0x1234_5678, &[1, 0, 0, 4]),
        packet.echo_request(1, 2, b"ping"),
    ]
}

#[test]
fn what_is_built_is_found_right_and_taken_apart_again() {
    for (what, packet) in packets() {
        for transport in transports(&packet) {
            let summary = verify(&packet.frame(&transport)).unwrap_or_else(|error| panic!("{what}: {error:#}"));
            assert_eq!(summary.checksum, Checksum::Right, "{what}");
            assert_eq!(summary.protocol, transport.protocol, "{what}");
            assert_eq!(summary.vlan, what.contains("VLAN").then_some(7), "{what}");
            let ports = (summary.from.port(), summary.to.port());
            let icmp = matches!(transport.protocol, protocol::ICMP | protocol::ICMPV6);
            assert_eq!(ports, if icmp { (0, 0) } else { (4000, 5353) }, "{what}");
            assert!(transport.bytes.ends_with(&summary.payload), "{what}");
        }
    }
}

/// Every byte of a packet is under some checksum or names something, except a few: so nearly every flipped bit shows.
#[test]
fn every_flipped_bit_of_the_transport_is_found() {
    for (what, packet) in packets() {
        for transport in transports(&packet) {
            let frame = packet.frame(&transport);
            let start = frame.len() - transport.bytes.len();
            for bit in start * 8..frame.len() * 8 {
                let mut broken = frame.clone();
                broken[bit / 8] ^= 1 << (bit % 8);
                let found = verify(&broken);
                assert!(found.is_err(), "{what}, protocol {}, bit {bit}: {found:?}", transport.protocol);
            }
        }
    }
}

#[test]
fn every_flipped_bit_of_an_ipv4_header_is_found() {
    let packet = &packets()[1].1;
    let frame = packet.frame(&packet.udp(b"payload"));
    for bit in 14 * 8..(14 + 28) * 8 {
        let mut broken = frame.clone();
        broken[bit / 8] ^= 1 << (bit % 8);
        verify(&broken).unwrap_err();
    }
}

#[test]
fn udp_checksum_zero_is_absent_in_ipv4_and_wrong_in_ipv6() {
    for (what, packet) in packets() {
        let found = verify(&packet.frame(&packet.udp_without_checksum(b"payload")));
        match what.starts_with("IPv4") {
            true => assert_eq!(found.unwrap().checksum, Checksum::Absent, "{what}"),
            false => assert!(found.unwrap_err().root_cause().to_string().contains("checksum 0"), "{what}"),
        }
    }
}

#[test]
fn icmp_errors_hold_the_packet_that_they_are_about() {
    for (what, packet) in packets() {
        let inner = packet.udp(&[7; 64]);
        let whole = packet.ip(&inner);
        let (least, router) = (whole.len() - 64, packet.reversed());
        for error in
            [IcmpError::PortUnreachable, IcmpError::HostUnreachable, IcmpError::TooBig(1400), IcmpError::TimeExceeded]
        {
            for cut in [whole.len(), whole.len() - 1, least] {
                let frame = router.frame(&router.icmp_error(error, &whole[..cut]));
                let summary = verify(&frame).unwrap_or_else(|error| panic!("{what}, {cut}: {error:#}"));
                assert_eq!(summary.checksum, Checksum::Right, "{what}");
                let embedded = summary.embedded.unwrap();
                assert_eq!((embedded.from.port(), embedded.to.port()), (4000, 5353), "{what}");
                let expected = if cut == whole.len() { Checksum::Right } else { Checksum::Incomplete };
                assert_eq!(embedded.checksum, expected, "{what}, {cut}");
            }
        }
        // The outer checksum covers the inner packet: make it right again over a broken one.
        let mut broken = whole.clone();
        broken[whole.len() - 1] ^= 1;
        let error = verify(&router.frame(&router.icmp_error(IcmpError::PortUnreachable, &broken))).unwrap_err();
        assert!(format!("{error:#}").contains("the error is about"), "{what}: {error:#}");
    }
}

#[test]
fn fragments_are_put_together_and_holes_are_found() {
    for (what, packet) in packets() {
        let datagram = packet.udp(&(0..8000).map(|n| (n % 251) as u8).collect::<Vec<_>>());
        let mut frames = packet.fragments(&datagram, 1480);
        assert_eq!(frames.len(), 6, "{what}");
        frames.rotate_left(2);
        let whole = verify(&reassemble(&frames).unwrap()).unwrap();
        assert_eq!(whole.checksum, Checksum::Right, "{what}");
        assert!(datagram.bytes.ends_with(&whole.payload), "{what}");
        frames.pop();
        reassemble(&frames).unwrap_err();
    }
}

#[test]
fn hostile_bytes_are_errors_and_no_panic() {
    for (_, packet) in packets() {
        for transport in transports(&packet) {
            let frame = packet.frame(&transport);
            for length in 0..frame.len() {
                verify(&frame[..length]).unwrap_err();
            }
            // Random bytes, repeatable: anything but a panic is right.
            let mut seed = 1_u32;
            for _ in 0..2000 {
                let mut broken = frame.clone();
                for _ in 0..4 {
                    seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    let at = (seed >> 8) as usize % broken.len();
                    broken[at] = seed as u8;
                }
                let _any = verify(&broken);
            }
        }
    }
}

#[test]
fn frames_cross_a_wire_unchanged_with_their_vlan_tag() {
    let (a, b) = (Namespace::new("a").unwrap(), Namespace::new("b").unwrap());
    let end = |namespace, last| End { namespace, interface: "eth0", mac: [2, 0, 0, 0, 0, last] };
    veth(end(&a, 1), end(&b, 2), 1500).unwrap();
    for namespace in [&a, &b] {
        namespace.sysctls(&[("ipv6/conf/all/disable_ipv6", "1"), ("ipv6/conf/default/disable_ipv6", "1")]).unwrap();
        namespace.ip(&["link set eth0 up".into()]).unwrap();
    }
    let (out, into) = (RawSocket::open(&a, "eth0").unwrap(), RawSocket::open(&b, "eth0").unwrap());
    // The carrier comes a moment after both ends are up.
    let probe = packets()[0].1.clone().hop_limit(1);
    let probe = probe.frame(&probe.udp(b"probe"));
    let end = std::time::Instant::now() + SOON;
    while into.receive(Duration::from_millis(10)).unwrap().is_none() {
        assert!(std::time::Instant::now() < end, "no frame crossed");
        out.send(&probe).unwrap();
    }
    for (what, packet) in packets() {
        for transport in transports(&packet) {
            let frame = packet.frame(&transport);
            out.send(&frame).unwrap();
            let (received, _) = into.expect(SOON, |summary| summary.hop_limit == 64).unwrap();
            assert_eq!(received, frame, "{what}");
        }
    }
    assert_eq!(out.receive(Duration::ZERO).unwrap(), None, "a socket does not see what it sends");
    let error = into.expect(Duration::from_millis(20), |_| true).unwrap_err().to_string();
    assert!(error.contains("did not come"), "{error}");
}

#[test]
fn the_kernel_answers_what_is_built_and_its_packets_are_found_right() {
    let topology = Topology::builder().servers(1).build().unwrap();
    let _servers = Servers::everywhere(&topology, 8080, 5353).unwrap();
    let (client, server) = (&topology.clients[0], &topology.servers[0]);
    let raw = RawSocket::open(&client.namespace, "eth0").unwrap();
    for v6 in [false, true] {
        let addresses = |port: u16| -> (SocketAddr, SocketAddr) {
            match v6 {
                false => ((client.v4, 4000).into(), (server.v4, port).into()),
                true => ((client.v6, 4000).into(), (server.v6, port).into()),
            }
        };
        let make = |port| {
            let (from, to) = addresses(port);
            let packet = Packet::new(from, to).macs(client.mac, client.gateway_mac);
            if v6 { packet.extension(Extension::DestinationOptions) } else { packet.ipv4_options(&[1, 1, 1, 0]) }
        };
        let answer = |protocol: u8| move |summary: &Summary| summary.protocol == protocol;

        let packet = make(5353);
        raw.send(&packet.frame(&packet.udp(b"hello"))).unwrap();
        let (_, found) = raw.expect(SOON, answer(protocol::UDP)).unwrap();
        assert_eq!((found.from, found.to), (addresses(5353).1, addresses(5353).0));
        assert!(found.payload.starts_with(b"server 1 peer") && found.payload.ends_with(b"hello"));
        // Nobody in the client listens on that port: the client itself answers with an error, which is no answer.

        for frame in packet.fragments(&packet.udp(&[9; 4000]), 1400) {
            raw.send(&frame).unwrap();
        }
        let mut pieces = Vec::new();
        while reassemble(&pieces).is_err() {
            pieces.push(raw.expect(SOON, |summary| summary.fragment.is_some()).unwrap().0);
        }
        assert!(verify(&reassemble(&pieces).unwrap()).unwrap().payload.ends_with(&[9; 4000]));

        let packet = make(8080);
        raw.send(&packet.frame(&packet.tcp(Tcp { flags: flags::SYN, sequence: 41, ..Tcp::default() }, b""))).unwrap();
        let (_, found) = raw.expect(SOON, answer(protocol::TCP)).unwrap();
        assert_eq!(found.kind, flags::SYN | flags::ACK);

        let packet = make(9);
        raw.send(&packet.frame(&packet.udp(b"nobody"))).unwrap();
        let icmp = if v6 { protocol::ICMPV6 } else { protocol::ICMP };
        let (_, found) = raw.expect(SOON, answer(icmp)).unwrap();
        let embedded = found.embedded.unwrap();
        assert_eq!((embedded.from, embedded.to), addresses(9));
    }
}

#[test]
fn partial_checksums_are_seen_as_wrong_only_with_offload() {
    for offload in [false, true] {
        let topology = Topology::builder().servers(1).checksum_offload(offload).build().unwrap();
        let _servers = Servers::everywhere(&topology, 8080, 5353).unwrap();
        let raw = RawSocket::open(&topology.clients[0].namespace, "eth0").unwrap();
        let to = (topology.servers[0].v4, 5353).into();
        let udp = UdpClient::connected(&topology.clients[0].namespace, None, to).unwrap();
        udp.request(100, SOON).unwrap();
        let found = raw.expect(SOON, |summary| summary.protocol == protocol::UDP);
        assert_eq!(found.is_err(), offload, "{found:?}");
    }
}
