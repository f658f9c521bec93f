//! Parsing and translating, each in a function of its own: the verifier allows 512 bytes of stack over a chain of
//! calls, and these frames must not add up.

use lb_common::{
    address::Address,
    drops::Drop,
    nat::{self, Rewrite},
    packet::{self, Packet, parse_ethernet},
};

use crate::{
    fragments,
    frame::{Frame, Seldom},
    verdict::{self, NEXT},
};

/// Parses the packet into `packet`; false if it is none of ours.
#[inline(never)]
pub fn parse(frame: Frame, packet: &mut Packet) -> bool {
    parse_ethernet(&frame, packet).is_ok()
}

/// Parses the packet that an ICMP error quotes.
#[inline(never)]
pub fn parse_quoted(frame: Frame, error: &Packet, quoted: &mut Packet) -> bool {
    packet::parse_quoted(&Seldom(frame), error, quoted).is_ok()
}

/// Writes a translation.
#[inline(never)]
pub fn translate(frame: Frame, packet: &Packet, to: &Rewrite) -> i32 {
    let mut frame = frame;
    fragments::remember(packet);
    match nat::apply(&mut frame, packet, to) {
        Ok(()) => NEXT,
        Err(_) => verdict::drop(Drop::RewriteFailed),
    }
}

/// What an ICMP error becomes: its own addresses, and the quoted packet as its sender sent it.
pub struct ErrorRewrite {
    /// Outer source.
    pub source: Address,
    /// Outer destination.
    pub destination: Address,
    /// The quoted packet.
    pub quoted: Rewrite,
}

/// Writes the translation of an ICMP error.
#[inline(never)]
pub fn translate_error(frame: Frame, packet: &Packet, quoted: &Packet, to: &ErrorRewrite) -> i32 {
    let mut frame = frame;
    match nat::apply_embedded(&mut frame, packet, to.source, to.destination, quoted, &to.quoted) {
        Ok(()) => NEXT,
        Err(_) => verdict::drop(Drop::RewriteFailed),
    }
}
