//! What is none of ours goes on byte for byte, on both hooks.

use bpvs_tests::{
    datapath::Hook,
    packets::{Extension, Packet, Transport, flags},
};

use crate::{
    rows::Row,
    shapes::{Around, Inside},
    world::{CHANGED, SERVER_PORT, World},
};

fn check(world: &World, what: &str, frame: &[u8]) {
    world.check([Hook::Ingress, Hook::Egress].map(|hook| Row::untouched(what, hook, frame.to_vec())));
}

#[test]
fn traffic_to_anything_but_a_service_passes_by() {
    for world in World::both() {
        let before = world.datapath.connections().unwrap();
        let client = world.client(4000);
        for &around in Around::all(world.v6) {
            for inside in [Inside::Syn, Inside::Segment(flags::ACK), Inside::Udp, Inside::Init, Inside::Data] {
                for (what, to) in [
                    ("a VIP's other port", world.vip(9)),
                    ("a server itself", world.server(SERVER_PORT)),
                    ("the node", world.node(CHANGED)),
                    ("someone else", world.second_server(CHANGED)),
                ] {
                    check(&world, &format!("{around:?}, {inside:?} to {what}"), &around.frame(client, to, inside));
                }
            }
        }
        assert_eq!(world.datapath.connections().unwrap(), before);
        assert_eq!(world.datapath.all_drops().unwrap(), []);
    }
}

#[test]
fn other_protocols_to_a_vip_pass_by() {
    for world in World::both() {
        let packet = Packet::new(world.client(0), world.vip(0));
        check(&world, "echo request", &packet.frame(&packet.echo_request(1, 2, b"ping")));
        // 2 IGMP, 4 and 41 tunnels, 33 DCCP, 47 GRE, 50 ESP, 136 UDP-Lite: with bytes that would do as ports.
        for protocol in [2, 4, 33, 41, 47, 50, 103, 112, 136, 255] {
            let mut bytes = Inside::Udp.transport(&Packet::new(world.client(4000), world.vip(CHANGED))).bytes;
            bytes.resize(40, 0);
            check(&world, &format!("protocol {protocol}"), &packet.frame(&Transport { protocol, bytes }));
        }
        let mut arp = Around::Plain.frame(world.client(1), world.vip(CHANGED), Inside::Udp);
        for kind in [[0x08, 0x06], [0x88, 0xcc], [0x88, 0x47], [0x00, 0x20], [0x91, 0x00]] {
            arp[12..14].copy_from_slice(&kind);
            check(&world, &format!("EtherType {kind:02x?}"), &arp);
        }
        assert_eq!(world.datapath.all_drops().unwrap(), []);
    }
}

#[test]
fn three_tags_or_seven_extension_headers_pass_by() {
    for world in World::both() {
        let (client, vip) = (world.client(4000), world.vip(CHANGED));
        let frame = Around::QinQ.frame(client, vip, Inside::Udp);
        check(&world, "three tags", &[&frame[..12], &[0x81, 0, 0, 9], &frame[12..]].concat());
        if world.v6 {
            let mut packet = Packet::new(client, vip).extension(Extension::HopByHop);
            for _ in 0..6 {
                packet = packet.extension(Extension::DestinationOptions);
            }
            check(&world, "seven extension headers", &packet.frame(&packet.udp(b"x")));
        }
    }
}

#[test]
fn a_packet_on_its_way_to_a_routing_waypoint_passes_by() {
    let [_, world] = World::both();
    let mut frame = Around::Routing.frame(world.client(4000), world.vip(CHANGED), Inside::Udp);
    frame[57] = 1; // Segments left.
    check(&world, "routing header with a segment left", &frame);
}

/// In the tables IPv4 addresses are v4-mapped; on the wire such an IPv6 packet must not pass for an IPv4 one.
#[test]
fn an_ipv6_packet_between_v4_mapped_addresses_passes_by() {
    let [world, _] = World::both();
    let mapped = |address: std::net::SocketAddr| match address.ip() {
        std::net::IpAddr::V4(v4) => std::net::SocketAddr::new(v4.to_ipv6_mapped().into(), address.port()),
        std::net::IpAddr::V6(_) => address,
    };
    let (client, vip, server) = (world.client(4000), world.vip(CHANGED), world.server(SERVER_PORT));
    check(&world, "of no connection", &Around::Plain.frame(mapped(client), mapped(vip), Inside::Udp));
    world.check([Row::request(
        "IPv4",
        Around::Plain.frame(client, vip, Inside::Udp),
        Around::Plain.frame(client, server, Inside::Udp),
    )]);
    check(&world, "of a connection", &Around::Plain.frame(mapped(client), mapped(vip), Inside::Udp));
    check(&world, "of its replies", &Around::Plain.frame(mapped(server), mapped(client), Inside::Udp));
}

/// Lengths that contradict what is there: the bytes behind a packet's end are no ports of it.
#[test]
fn headers_that_end_behind_their_packet_pass_by() {
    for world in World::both() {
        let (client, vip) = (world.client(4000), world.vip(CHANGED));
        for (inside, least) in
            [(Inside::Syn, 24), (Inside::Segment(flags::ACK), 20), (Inside::Udp, 8), (Inside::Init, 16)]
        {
            for claimed in 1..least {
                let mut frame = Around::Plain.frame(client, vip, inside);
                if world.v6 {
                    frame[18..20].copy_from_slice(&(claimed as u16).to_be_bytes());
                } else {
                    frame[16..18].copy_from_slice(&(20 + claimed as u16).to_be_bytes());
                }
                check(&world, &format!("{inside:?} in {claimed} bytes"), &frame);
            }
        }
    }
}
