//! The short way through the node: a packet is translated once and for both its halves, and leaves from where it came in.
//! [XDP](crate::xdp) takes it for uplinks, and [`forwarding`](crate::forwarding) at tc, if asked to.
//!
//! Whoever is served here is served as elsewhere, by the same services, schedulers and connections: first it is decided
//! whether the packet leaves, and only then anything is changed. All else goes on as it came, where `ingress` finds the
//! connection that was opened here: packets for servers that the hook does not send to, fragments, ICMP errors, packets with
//! IP options or VLAN tags, those that are too big for their way, and all that is to be answered.

use core::ffi::c_void;

use lb_common::{
    address::Protocol,
    layout::{ConnectionKey, ConnectionState, KEY_PACKET, LOOKUP_MARKS, SERVICE_ONE_PACKET},
    nat::{Editor, Rewrite, Sum, checksum::Difference},
    packet::{ETHERNET_HEADER, Family, Kind, Packet},
    tcp::Direction,
};

use crate::{
    admit,
    connections::{self, Entry},
    count,
    maps::{LOOKUPS, Recent, Scratch},
    recent, reply,
    settings::{now, scratch, settings},
    verdict::NEXT,
};

/// A hook that can send a packet out of the node.
pub trait Shortcut: Copy {
    /// Flag of entries whose packets the hook leaves to the stack.
    const STAYS_WITH_STACK: u32;

    /// The program's context, for helpers that ask for it.
    fn context(self) -> *mut c_void;

    /// Index of the interface that the packet is routed as coming from.
    fn came_by(self) -> u32;

    /// The packet's firewall mark; `None` if it may get one later.
    fn mark(self) -> Option<u32>;

    /// Length of a packet on the wire, without its Ethernet header, in bytes.
    fn length(self, packet: &Packet) -> u32;

    /// Finds the way of a packet that becomes `to`: [`LEAVES`], [`STAYS`], [`STACK_FIRST`].
    fn route(self, packet: &Packet, to: &Rewrite, hop: &mut Hop) -> u32;

    /// Leaves a packet of no connection and no service alone. [`NEXT`], or [`LEFT`] if nobody need look for them again.
    fn leave(self, packet: &Packet) -> i32;

    /// Writes the translation and sends the packet out. The hook's verdict.
    fn send(self, packet: &Packet, to: &Rewrite, hop: &Hop) -> i32;
}

/// [`transport`]: the packet goes on as it came, and `ingress` has nothing to do with it.
pub const LEFT: i32 = -9;

/// The way out of the node.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Hop {
    /// Index of the interface that it leaves by.
    pub interface: u32,
    /// XDP: not 0 if it is sent back by where it came in (XDP_TX). tc: how the interface is sent to.
    pub how: u32,
    /// Destination and source of its Ethernet header.
    pub link: [u8; 12],
}

/// [`Shortcut::route`]: the packet leaves from here.
pub const LEAVES: u32 = 0;
/// [`Shortcut::route`]: it does not: its receiver is this node, or behind an interface that the hook does not send on. So it
/// will be for the whole connection.
pub const STAYS: u32 = 1;
/// [`Shortcut::route`]: the stack has something to do first, or to answer: find the neighbour, or say that the packet is too
/// big or the destination unreachable.
pub const STACK_FIRST: u32 = 2;

/// True for a packet that needs nothing but a translation: whole, untagged, without IP options, not at the end of its
/// life, of known length.
#[inline(always)]
pub fn is_plain(packet: &Packet) -> bool {
    matches!(packet.kind, Kind::Whole)
        && packet.network == ETHERNET_HEADER
        && packet.has_plain_header()
        && packet.hops > 1
        && packet.length != 0
}

/// A TCP, UDP or SCTP packet.
#[inline(never)]
pub fn transport<F: Shortcut>(frame: F, packet: &Packet) -> i32 {
    let Some(protocol) = Protocol::from_number(packet.key.protocol) else { return NEXT };
    if let Some(flow) = recent::recall(packet, protocol)
        && flow.found > recent::ANSWER
        && frame.length(packet) <= flow.length
    {
        return again(frame, packet, flow);
    }
    let Some(entry) = Entry::find(&packet.key) else { return unknown(frame, packet, 0) };
    let state = entry.state();
    if state.has(F::STAYS_WITH_STACK | ConnectionState::HAIRPIN | ConnectionState::DIRECT_RETURN) {
        return NEXT;
    }
    if state.has(ConnectionState::PASSING) {
        // For the node's address, from a server: the entry says whose client it stands for.
        if !state.has(ConnectionState::REPLY) {
            return NEXT;
        }
        let Some(answer) = Entry::find(&key_of(&Rewrite::of(entry.value()), packet)) else { return NEXT };
        let of_reply = ConnectionState::REPLY | ConnectionState::PASSING;
        if answer.state().0 & of_reply != ConnectionState::REPLY {
            return NEXT;
        }
        return reply(frame, packet, protocol, (&answer, &entry));
    }
    if state.has(ConnectionState::REPLY) {
        return reply(frame, packet, protocol, (&entry, &entry));
    }
    let now = now();
    if admit::must_reschedule(packet, protocol, &entry, state, now) {
        return unknown(frame, packet, 1);
    }
    known(frame, packet, protocol, &entry, now)
}

/// A packet of a flow whose last one took the short way.
#[inline(always)]
fn again<F: Shortcut>(frame: F, packet: &Packet, flow: &Recent) -> i32 {
    if flow.found == recent::SHORT_ANSWER {
        count::reply(flow.server, packet.length);
    } else {
        count::request(flow.server, packet.length);
    }
    frame.send(packet, &flow.onward, &flow.hop)
}

/// The key of a packet once it is translated.
#[inline(always)]
pub fn key_of(to: &Rewrite, packet: &Packet) -> ConnectionKey {
    ConnectionKey {
        source: to.source,
        destination: to.destination,
        source_port: to.source_port,
        destination_port: to.destination_port,
        protocol: packet.key.protocol,
        kind: KEY_PACKET,
        pad: [0; 2],
    }
}

/// A packet of a connection in the table.
#[inline(always)]
fn known<F: Shortcut>(frame: F, packet: &Packet, protocol: Protocol, entry: &Entry, now: u64) -> i32 {
    let (Some(settings), Some(Scratch { onward, hop, .. })) = (settings(), scratch()) else { return NEXT };
    *onward = Rewrite::of(entry.value());
    if entry.state().has(ConnectionState::MASQUERADED) && !masquerade(packet, onward) {
        return NEXT;
    }
    match frame.route(packet, onward, hop) {
        LEAVES => {}
        STAYS => return entry_stays::<F>(entry),
        _ => return NEXT,
    }
    let busy = entry.touch(now);
    entry.advance(&packet.key, protocol, packet, Direction::In, &settings.timeouts);
    let server = entry.value().server;
    count::request(server, packet.length);
    if busy {
        recent::keep_short(packet, server, now, frame.length(packet));
    }
    frame.send(packet, onward, hop)
}

/// Puts the node's address in the client's place, as the second half of the connection has it. False without one.
#[inline(always)]
fn masquerade(packet: &Packet, onward: &mut Rewrite) -> bool {
    match Entry::find(&key_of(onward, packet)) {
        Some(second) if second.state().has(ConnectionState::PASSING) => {
            *onward = Rewrite::of(second.value());
            true
        }
        _ => false,
    }
}

/// A packet of a connection that stays with the stack.
#[inline(always)]
fn entry_stays<F: Shortcut>(entry: &Entry) -> i32 {
    entry.leave_to_stack(F::STAYS_WITH_STACK);
    NEXT
}

/// A packet from a server: `answer` is the reply entry, `found` the one that the packet itself has.
#[inline(always)]
fn reply<F: Shortcut>(frame: F, packet: &Packet, protocol: Protocol, (answer, found): (&Entry, &Entry)) -> i32 {
    let Some(Scratch { onward, hop, .. }) = scratch() else { return NEXT };
    *onward = Rewrite::of(answer.value());
    match frame.route(packet, onward, hop) {
        LEAVES => {}
        STAYS => return entry_stays::<F>(found),
        _ => return NEXT,
    }
    let now = now();
    if reply::note_at(packet, protocol, answer, now) {
        recent::keep_short(packet, answer.value().server, now, frame.length(packet));
    }
    frame.send(packet, onward, hop)
}

/// A packet of no connection, or with one that `ends` with it.
#[inline(always)]
fn unknown<F: Shortcut>(frame: F, packet: &Packet, ends: u32) -> i32 {
    let mark = match frame.mark() {
        Some(mark) => mark,
        // Whether it gets one is not known here.
        None if LOOKUPS.get(0).copied().unwrap_or(0) & LOOKUP_MARKS != 0 => return NEXT,
        None => 0,
    };
    if admit::find_service(packet, mark) == 0 {
        if ends != 0 {
            connections::end(&packet.key);
        }
        return frame.leave(packet);
    }
    // Nothing stays of the connection of a single datagram that the stack could go by.
    if scratch().is_none_or(|scratch| scratch.service.flags & SERVICE_ONE_PACKET != 0) {
        return NEXT;
    }
    match admit::open(frame.context(), frame.came_by(), packet, ends) {
        admit::OPENED => opened(frame, packet),
        admit::REFUSED | admit::STRAY | admit::RACED => NEXT,
        // None of ours, or dropped and counted.
        verdict => verdict,
    }
}

/// The packet that opened the connection in the scratch space.
#[inline(never)]
fn opened<F: Shortcut>(frame: F, packet: &Packet) -> i32 {
    let Some(Scratch { opened, onward, hop, .. }) = scratch() else { return NEXT };
    *onward = opened.rewrite;
    let direct = opened.entry.state & ConnectionState::DIRECT_RETURN != 0;
    let leaves = if opened.hairpin || direct || (opened.masqueraded != 0 && !masquerade(packet, onward)) {
        STAYS
    } else {
        frame.route(packet, onward, hop)
    };
    if leaves == LEAVES {
        return frame.send(packet, onward, hop);
    }
    if leaves == STAYS
        && let Some(entry) = Entry::find(&packet.key)
    {
        entry.leave_to_stack(F::STAYS_WITH_STACK);
    }
    // The stack counts it as one of a known connection.
    count::request_elsewhere(opened.entry.server, packet.length);
    NEXT
}

/// Takes one from the TTL, or hop limit, as every router does (RFC 1812 5.3.1, RFC 8200 3); of a packet without tags.
#[inline(always)]
pub fn decrement_hops<E: Editor>(frame: &mut E, packet: &Packet) -> Option<()> {
    match packet.family {
        Family::V4 => {
            let old = frame.read::<2>(ETHERNET_HEADER + 8)?;
            let new = [old[0].wrapping_sub(1), old[1]];
            frame.store(ETHERNET_HEADER + 8, new, Sum::Kept).ok()?;
            let difference = Difference::ZERO.half(u16::from_ne_bytes(old), u16::from_ne_bytes(new));
            frame.fix_network(ETHERNET_HEADER + 10, difference).ok()
        }
        Family::V6 => {
            let old = frame.read::<2>(ETHERNET_HEADER + 6)?;
            frame.store(ETHERNET_HEADER + 6, [old[0], old[1].wrapping_sub(1)], Sum::Changed).ok()
        }
    }
}
