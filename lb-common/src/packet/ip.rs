//! Link layer and IP headers: Ethernet with VLAN tags, IPv4 with options, IPv6 with extension headers.

use super::{Bytes, Kind, PROTOCOL_ICMP, PROTOCOL_ICMPV6, Packet, Unhandled, transport};
use crate::address::{Address, Port, Protocol};
use crate::layout::KEY_PACKET;

/// IP version.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(u8)]
pub enum Family {
    #[default]
    /// IPv4 (RFC 791).
    V4 = 4,
    /// IPv6 (RFC 8200).
    V6 = 6,
}

/// Length of an Ethernet header without tags.
pub const ETHERNET_HEADER: u32 = 14;
impl Family {
    /// Length of its header without options and extension headers.
    #[inline(always)]
    pub const fn header_length(self) -> u32 {
        match self {
            Self::V4 => 20,
            Self::V6 => 40,
        }
    }
}

const ETHERTYPE_V4: u16 = 0x0800;
const ETHERTYPE_V6: u16 = 0x86dd;
const ETHERTYPE_VLAN: u16 = 0x8100;
const ETHERTYPE_QINQ: u16 = 0x88a8;
/// VLAN tags in a frame, at most (802.1ad).
const MAX_TAGS: u32 = 2;
/// IPv6 extension headers that are followed, at most. More are not seen on real networks; such packets pass by.
const MAX_EXTENSIONS: u32 = 6;

/// Parses a frame from its Ethernet header on. `packet` is an out-parameter, since the 512 bytes of a BPF stack have
/// no room for copies; it is meaningless after an error.
#[inline(always)]
pub fn parse_ethernet<B: Bytes + ?Sized>(bytes: &B, packet: &mut Packet) -> Result<(), Unhandled> {
    let [high, low] = bytes.read::<2>(12).ok_or(Unhandled)?;
    let mut ethertype = u16::from_be_bytes([high, low]);
    let mut network = ETHERNET_HEADER;
    for _ in 0..MAX_TAGS {
        if ethertype != ETHERTYPE_VLAN && ethertype != ETHERTYPE_QINQ {
            break;
        }
        let [high, low] = bytes.read_seldom::<2>(network + 2).ok_or(Unhandled)?;
        ethertype = u16::from_be_bytes([high, low]);
        network += 4;
    }
    let family = match ethertype {
        ETHERTYPE_V4 => Family::V4,
        ETHERTYPE_V6 => Family::V6,
        _ => return Err(Unhandled),
    };
    parse_network(bytes, family, network, false, packet)
}

/// Parses an IP packet at `network`. `embedded`: inside an ICMP error, where it may be cut after eight bytes of its
/// transport header and must not be an error itself.
#[inline(always)]
pub fn parse_network<B: Bytes + ?Sized>(
    bytes: &B,
    family: Family,
    network: u32,
    embedded: bool,
    packet: &mut Packet,
) -> Result<(), Unhandled> {
    packet.network = network;
    packet.family = family;
    packet.signal = 0;
    packet.unsummed = false;
    packet.second_signal = transport::NO_SIGNAL;
    packet.key.source_port = Port(0);
    packet.key.destination_port = Port(0);
    packet.key.kind = KEY_PACKET;
    packet.key.pad = [0; 2];
    match family {
        Family::V4 => parse_v4(bytes, embedded, packet),
        Family::V6 => parse_v6(bytes, embedded, packet),
    }
}

#[inline(always)]
fn parse_v4<B: Bytes + ?Sized>(bytes: &B, embedded: bool, packet: &mut Packet) -> Result<(), Unhandled> {
    let [first, second, third, source, destination] = bytes.read_words::<5>(packet.network).ok_or(Unhandled)?;
    let [first, second, third] = [u32::from_be(first), u32::from_be(second), u32::from_be(third)];
    let header_length = (first >> 24 & 0x0f) * 4;
    if first >> 28 != 4 || header_length < 20 {
        return Err(Unhandled);
    }
    packet.length = first & 0xffff;
    // A length of 0 is a segment larger than 64 KiB on its way through segmentation offload (BIG TCP).
    if packet.length != 0 && packet.length < header_length {
        return Err(Unhandled);
    }
    packet.kind = match (second & 0x1fff, second & 0x2000) {
        (0, 0) => Kind::Whole,
        (0, _) => Kind::FirstFragment,
        _ => Kind::LaterFragment,
    };
    packet.identification = second >> 16;
    packet.transport = packet.network + header_length;
    packet.hops = (third >> 24) as u8;
    packet.key.protocol = (third >> 16) as u8;
    packet.key.source = Address::from_v4_word(source);
    packet.key.destination = Address::from_v4_word(destination);
    if packet.key.protocol == PROTOCOL_ICMP && !embedded {
        return transport::parse_icmp(bytes, packet);
    }
    transport::parse(bytes, packet, embedded)
}

#[inline(always)]
fn parse_v6<B: Bytes + ?Sized>(bytes: &B, embedded: bool, packet: &mut Packet) -> Result<(), Unhandled> {
    let [first, second, a, b, c, d, e, f, g, h] = bytes.read_words::<10>(packet.network).ok_or(Unhandled)?;
    let [first, second] = [u32::from_be(first), u32::from_be(second)];
    if first >> 28 != 6 {
        return Err(Unhandled);
    }
    packet.length = match second >> 16 {
        // As in IPv4; RFC 2675 calls it a jumbogram.
        0 => 0,
        payload => 40 + payload,
    };
    packet.kind = Kind::Whole;
    packet.identification = 0;
    packet.transport = packet.network + 40;
    packet.hops = second as u8;
    packet.key.protocol = (second >> 8) as u8;
    packet.key.source = Address { words: [a, b, c, d] };
    packet.key.destination = Address { words: [e, f, g, h] };
    // In the tables these mean IPv4. On the wire they mean nothing (RFC 4038 4.2), except to who would pass for IPv4.
    if packet.key.source.is_v4() || packet.key.destination.is_v4() {
        return Err(Unhandled);
    }
    for _ in 0..MAX_EXTENSIONS {
        let next = packet.key.protocol;
        match next {
            EXTENSION_HOP_BY_HOP | EXTENSION_ROUTING | EXTENSION_DESTINATION | EXTENSION_AUTHENTICATION => {
                let [following, units, _, left] = bytes.read_seldom::<4>(packet.transport).ok_or(Unhandled)?;
                // On its way to a waypoint: not for the address in its header, whose checksum is not over it either.
                if next == EXTENSION_ROUTING && left != 0 {
                    return Err(Unhandled);
                }
                packet.key.protocol = following;
                packet.transport += if next == EXTENSION_AUTHENTICATION {
                    (u32::from(units) + 2) * 4
                } else {
                    (u32::from(units) + 1) * 8
                };
            }
            EXTENSION_FRAGMENT => {
                let fragment = bytes.read_seldom::<8>(packet.transport).ok_or(Unhandled)?;
                packet.key.protocol = fragment[0];
                packet.transport += 8;
                packet.identification = u32::from_be_bytes([fragment[4], fragment[5], fragment[6], fragment[7]]);
                let place = u16::from_be_bytes([fragment[2], fragment[3]]);
                packet.kind = match (place & 0xfff8, place & 1) {
                    // An atomic fragment (RFC 6946): a whole packet with a fragment header.
                    (0, 0) => Kind::Whole,
                    (0, _) => Kind::FirstFragment,
                    _ => Kind::LaterFragment,
                };
                if matches!(packet.kind, Kind::LaterFragment) {
                    break;
                }
            }
            _ => break,
        }
    }
    if packet.key.protocol == PROTOCOL_ICMPV6 && !embedded {
        return transport::parse_icmp(bytes, packet);
    }
    transport::parse(bytes, packet, embedded)
}

const EXTENSION_HOP_BY_HOP: u8 = 0;
const EXTENSION_ROUTING: u8 = 43;
const EXTENSION_FRAGMENT: u8 = 44;
const EXTENSION_AUTHENTICATION: u8 = 51;
const EXTENSION_DESTINATION: u8 = 60;

/// True for a protocol that services have.
#[inline(always)]
pub(super) fn of_services(protocol: u8) -> bool {
    Protocol::from_number(protocol).is_some()
}

/// True for a later fragment of a packet whose first has an extension header before the transport's: the fragment
/// header names that one (RFC 8200 4.5), and only who saw the first fragment knows the protocol.
#[inline(always)]
pub(super) fn hides_protocol(packet: &Packet) -> bool {
    matches!(packet.family, Family::V6)
        && matches!(packet.key.protocol, EXTENSION_DESTINATION | EXTENSION_AUTHENTICATION)
}
