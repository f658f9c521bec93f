//! Transport headers: ports, TCP flags, SCTP chunks; and which ICMP messages are errors.

use super::{Bytes, Family, Kind, PROTOCOL_ICMP, Packet, Unhandled, ip};
use crate::address::Port;

/// [`Packet::second_signal`]: there is none.
pub(super) const NO_SIGNAL: u8 = 255;

const TCP: u8 = 6;
const UDP: u8 = 17;
const SCTP: u8 = 132;
/// SCTP chunk types after which a second chunk may change the meaning (`ip_vs_proto_sctp.c`).
const COOKIE_ECHO: u8 = 10;
const COOKIE_ACK: u8 = 11;

/// Fills in ports and signals.
#[inline(always)]
pub(super) fn parse<B: Bytes + ?Sized>(bytes: &B, packet: &mut Packet, embedded: bool) -> Result<(), Unhandled> {
    packet.unsummed = !matches!(packet.key.protocol, TCP | UDP) || matches!(packet.kind, Kind::LaterFragment);
    if matches!(packet.kind, Kind::LaterFragment) {
        return if ip::of_services(packet.key.protocol) || ip::hides_protocol(packet) {
            Ok(())
        } else {
            Err(Unhandled)
        };
    }
    if !ip::of_services(packet.key.protocol) {
        return Err(Unhandled);
    }
    // Eight bytes are the least that any of the three has, and what an ICMP error must quote (RFC 792).
    let [ports, second] = bytes.read_words::<2>(packet.transport).ok_or(Unhandled)?;
    if !packet.reaches(packet.transport + 8) {
        return Err(Unhandled);
    }
    let [source, destination]: [u16; 2] = bytemuck::cast(ports);
    packet.key.source_port = Port(source);
    packet.key.destination_port = Port(destination);
    if packet.key.protocol == UDP && u32::from_be(second) & 0xffff == 0 {
        packet.unsummed = true;
    }
    if embedded {
        return Ok(());
    }
    if packet.key.protocol == TCP {
        let [offset, flags] = bytes.read::<2>(packet.transport + 12).ok_or(Unhandled)?;
        let header = u32::from(offset >> 4) * 4;
        if header < 20 || !packet.reaches(packet.transport + header) {
            return Err(Unhandled);
        }
        packet.signal = flags;
    } else if packet.key.protocol == SCTP {
        let [chunk, _, high, low] = bytes.read_seldom::<4>(packet.transport + 12).ok_or(Unhandled)?;
        if !packet.reaches(packet.transport + 16) {
            return Err(Unhandled);
        }
        packet.signal = chunk;
        if chunk == COOKIE_ECHO || chunk == COOKIE_ACK {
            let length = (u32::from(u16::from_be_bytes([high, low])) + 3) & 0x1_fffc;
            let next = packet.transport + 12 + length;
            if let Some([second]) = bytes.read_seldom::<1>(next)
                && packet.reaches(next + 1)
            {
                packet.second_signal = second;
            }
        }
    }
    Ok(())
}

/// Accepts ICMP and ICMPv6 errors; all other messages are none of ours.
#[inline(always)]
pub(super) fn parse_icmp<B: Bytes + ?Sized>(bytes: &B, packet: &mut Packet) -> Result<(), Unhandled> {
    if !matches!(packet.kind, Kind::Whole) {
        return Err(Unhandled);
    }
    let [message] = bytes.read_seldom::<1>(packet.transport).ok_or(Unhandled)?;
    if !packet.reaches(packet.transport + 1) {
        return Err(Unhandled);
    }
    let is_error = match packet.family {
        // Destination unreachable, source quench, time exceeded, parameter problem.
        Family::V4 => packet.key.protocol == PROTOCOL_ICMP && matches!(message, 3 | 4 | 11 | 12),
        // RFC 4443 2.1: errors have the high bit clear. 0 is reserved.
        Family::V6 => message != 0 && message < 128,
    };
    if !is_error {
        return Err(Unhandled);
    }
    packet.kind = Kind::IcmpError;
    packet.signal = message;
    Ok(())
}
