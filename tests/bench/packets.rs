//! The packets that are measured, as templates for the driver.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use bpvs_tests::packets::{Packet, Tcp};
use lb_common::{address::Protocol, packet::Family};

/// Bytes behind the transport header.
const PAYLOAD: [u8; 64] = [0; 64];
const ETHERNET: u32 = 14;

/// Who is on the other side of the client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Direction {
    /// Client to frontend.
    Request,
    /// Server to client.
    Reply,
}

/// A frame, and where its client stands in it.
#[derive(Clone, Debug)]
pub(crate) struct Template {
    pub(crate) frame: Vec<u8>,
    pub(crate) headers: u32,
    pub(crate) address_at: u32,
    pub(crate) port_at: u32,
}

/// A packet between a client and `peer`. `flags` are TCP's.
pub(crate) fn template(direction: Direction, protocol: Protocol, peer: SocketAddr, flags: u8) -> Template {
    let client = SocketAddr::new(client(peer.is_ipv4()), 1024);
    let (from, to) = match direction {
        Direction::Request => (client, peer),
        Direction::Reply => (peer, client),
    };
    let packet = Packet::new(from, to);
    let (transport, transport_header) = match protocol {
        Protocol::Tcp => (packet.tcp(Tcp { flags, ..Tcp::default() }, &PAYLOAD), 20),
        Protocol::Udp => (packet.udp(&PAYLOAD), 8),
        Protocol::Sctp => (packet.sctp(1, &PAYLOAD), 12),
    };
    let (addresses, size) = if peer.is_ipv4() { (ETHERNET + 12, 4) } else { (ETHERNET + 8, 16) };
    let ports = addresses + 2 * size;
    let behind = if direction == Direction::Request { 0 } else { 1 };
    Template {
        frame: packet.frame(&transport),
        headers: ports + transport_header,
        // The driver writes the last four bytes of the address, which are all of an IPv4 one.
        address_at: addresses + behind * size + size - 4,
        port_at: ports + behind * 2,
    }
}

fn client(v4: bool) -> IpAddr {
    if v4 { Ipv4Addr::new(10, 128, 0, 0).into() } else { Ipv6Addr::new(0xfd00, 128, 0, 0, 0, 0, 0, 0).into() }
}

/// An address of a family: `network` and a number in it.
pub(crate) fn address(family: Family, network: u8, number: u16) -> IpAddr {
    let [high, low] = number.to_be_bytes();
    match family {
        Family::V4 => Ipv4Addr::new(10, network, high, low).into(),
        Family::V6 => Ipv6Addr::new(0xfd00, network.into(), 0, 0, 0, 0, 0, number).into(),
    }
}
