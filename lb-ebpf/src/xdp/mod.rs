//! XDP on uplinks: what enters the node and leaves it again does so from the driver.
//!
//! Whoever is served here is served as at tc, by the same services, schedulers and connections: this program decides
//! whether the packet leaves by an uplink, and only then changes anything. All else goes up the stack as it came, where
//! `bpvs_ingress` finds the connection that was opened here: packets for servers on this node, fragments, ICMP errors,
//! packets with IP options or VLAN tags, those that are too big for their way or whose neighbour is not known yet, and all
//! that is to be answered.

mod frame;
mod route;

use aya_ebpf::{
    bindings::xdp_action::{XDP_DROP, XDP_PASS, XDP_TX},
    helpers::bpf_redirect,
    programs::XdpContext,
};
use lb_common::{
    address::Protocol,
    drops::Drop,
    layout::{ConnectionKey, ConnectionState, KEY_PACKET, LOOKUP_MARKS, SERVICE_ONE_PACKET},
    nat::{self, Editor, Rewrite, Sum, checksum::Difference},
    packet::{Bytes, Family, Kind, Packet, parse_ethernet},
    tcp::Direction,
};

use self::frame::Frame;
pub use self::route::Hop;
use crate::{
    admit,
    connections::{self, Entry},
    count,
    maps::{LOOKUPS, Scratch},
    reply,
    settings::{now, scratch, settings},
    verdict::NEXT,
};

const PASS: i32 = XDP_PASS as i32;
const DROP: i32 = XDP_DROP as i32;

/// The program.
#[inline(always)]
pub fn run(ctx: &XdpContext) -> i32 {
    let Some(Scratch { packet, .. }) = scratch() else { return PASS };
    let frame = Frame::new(ctx);
    if !parse(frame, packet) || !is_plain(packet) {
        return PASS;
    }
    transport(frame, packet)
}

#[inline(never)]
fn parse(frame: Frame, packet: &mut Packet) -> bool {
    parse_ethernet(&frame, packet).is_ok()
}

/// True for a packet that needs nothing but a translation: whole, untagged, without IP options, not at the end of its
/// life, of known length.
#[inline(always)]
fn is_plain(packet: &Packet) -> bool {
    let header = match packet.family {
        Family::V4 => 20,
        Family::V6 => 40,
    };
    matches!(packet.kind, Kind::Whole)
        && packet.network == ETHERNET
        && packet.transport == ETHERNET + header
        && packet.hops > 1
        && packet.length != 0
}

/// Length of an Ethernet header without tags.
const ETHERNET: u32 = 14;

/// A TCP, UDP or SCTP packet.
#[inline(never)]
fn transport(frame: Frame, packet: &Packet) -> i32 {
    let Some(protocol) = Protocol::from_number(packet.key.protocol) else { return PASS };
    let Some(entry) = Entry::find(&packet.key) else { return unknown(frame, packet, 0) };
    let state = entry.state();
    if state.has(ConnectionState::STACK | ConnectionState::HAIRPIN) {
        return PASS;
    }
    if state.has(ConnectionState::PASSING) {
        // For the node's address, from a server: the entry says whose client it stands for.
        if !state.has(ConnectionState::REPLY) {
            return PASS;
        }
        let Some(answer) = Entry::find(&key_of(&Rewrite::of(entry.value()), packet)) else { return PASS };
        let of_reply = ConnectionState::REPLY | ConnectionState::PASSING;
        if answer.state().0 & of_reply != ConnectionState::REPLY {
            return PASS;
        }
        return reply(frame, packet, protocol, &answer, &entry);
    }
    if state.has(ConnectionState::REPLY) {
        return reply(frame, packet, protocol, &entry, &entry);
    }
    if admit::must_reschedule(packet, protocol, &entry, state) {
        return unknown(frame, packet, 1);
    }
    known(frame, packet, protocol, &entry)
}

/// The key of a packet once it is translated.
#[inline(always)]
fn key_of(to: &Rewrite, packet: &Packet) -> ConnectionKey {
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
fn known(frame: Frame, packet: &Packet, protocol: Protocol, entry: &Entry) -> i32 {
    let (Some(settings), Some(Scratch { onward, hop, .. })) = (settings(), scratch()) else { return PASS };
    *onward = Rewrite::of(entry.value());
    if entry.state().has(ConnectionState::MASQUERADED) && !masquerade(packet, onward) {
        return PASS;
    }
    match route::find(frame, packet, onward, hop) {
        route::LEAVES => {}
        route::STAYS => return entry_stays(entry),
        _ => return PASS,
    }
    entry.touch(now());
    entry.advance(&packet.key, protocol, packet, Direction::In, &settings.timeouts);
    count::request(entry.value().server, packet.length);
    send(frame, packet, onward, hop)
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
fn entry_stays(entry: &Entry) -> i32 {
    entry.leave_to_stack();
    PASS
}

/// A packet from a server: `answer` is the reply entry, `found` the one that the packet itself has.
#[inline(always)]
fn reply(frame: Frame, packet: &Packet, protocol: Protocol, answer: &Entry, found: &Entry) -> i32 {
    let Some(Scratch { onward, hop, .. }) = scratch() else { return PASS };
    *onward = Rewrite::of(answer.value());
    match route::find(frame, packet, onward, hop) {
        route::LEAVES => {}
        route::STAYS => return entry_stays(found),
        _ => return PASS,
    }
    reply::note(packet, protocol, answer);
    send(frame, packet, onward, hop)
}

/// A packet of no connection, or with one that `ends` with it.
#[inline(always)]
fn unknown(frame: Frame, packet: &Packet, ends: u32) -> i32 {
    // A mark is the stack's: whether the packet gets one is not known here.
    if LOOKUPS.get(0).copied().unwrap_or(0) & LOOKUP_MARKS != 0 {
        return PASS;
    }
    if admit::find_service(packet, 0) == 0 {
        if ends != 0 {
            connections::end(&packet.key);
        }
        return PASS;
    }
    // Nothing stays of the connection of a single datagram that the stack could go by.
    if scratch().is_none_or(|scratch| scratch.service.flags & SERVICE_ONE_PACKET != 0) {
        return PASS;
    }
    match admit::open(packet, ends) {
        admit::OPENED => opened(frame, packet),
        NEXT | admit::REFUSED | admit::STRAY | admit::RACED => PASS,
        // Dropped, and counted.
        _ => DROP,
    }
}

/// The packet that opened the connection in the scratch space.
#[inline(never)]
fn opened(frame: Frame, packet: &Packet) -> i32 {
    let Some(Scratch { opened, onward, hop, .. }) = scratch() else { return PASS };
    *onward = opened.rewrite;
    let leaves = if opened.hairpin || (opened.masqueraded != 0 && !masquerade(packet, onward)) {
        route::STAYS
    } else {
        route::find(frame, packet, onward, hop)
    };
    if leaves == route::LEAVES {
        return send(frame, packet, onward, hop);
    }
    if leaves == route::STAYS
        && let Some(entry) = Entry::find(&packet.key)
    {
        entry.leave_to_stack();
    }
    // The stack counts it as one of a known connection.
    count::request_elsewhere(opened.entry.server, packet.length);
    PASS
}

/// Writes the translation and sends the packet out.
#[inline(never)]
fn send(frame: Frame, packet: &Packet, to: &Rewrite, hop: &Hop) -> i32 {
    let mut frame = frame;
    if decrement_hops(&mut frame, packet).is_none()
        || nat::apply(&mut frame, packet, to).is_err()
        || frame.store(0, hop.link, Sum::Kept).is_err()
    {
        count::drop(Drop::RewriteFailed);
        return DROP;
    }
    if hop.back != 0 {
        return XDP_TX as i32;
    }
    // SAFETY: the helper takes plain numbers.
    unsafe { bpf_redirect(hop.interface, 0) as i32 }
}

/// Takes one from the TTL, or hop limit, as every router does (RFC 1812 5.3.1, RFC 8200 3).
#[inline(always)]
fn decrement_hops(frame: &mut Frame, packet: &Packet) -> Option<()> {
    match packet.family {
        Family::V4 => {
            let old = frame.read::<2>(packet.network + 8)?;
            let new = [old[0].wrapping_sub(1), old[1]];
            frame.store(packet.network + 8, new, Sum::Kept).ok()?;
            let difference = Difference::ZERO.half(u16::from_ne_bytes(old), u16::from_ne_bytes(new));
            frame.fix_network(packet.network + 10, difference).ok()
        }
        Family::V6 => {
            let old = frame.read::<2>(packet.network + 6)?;
            frame.store(packet.network + 6, [old[0], old[1].wrapping_sub(1)], Sum::Kept).ok()
        }
    }
}
