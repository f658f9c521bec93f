//! What was found for the last packets of busy flows, so that the next one of the same instant need not ask again: not the
//! connection table, not the state machine, not the kernel's routes.
//!
//! An instant is a tick of the [coarse clock](now). What is kept holds for packets that cannot change anything about their
//! connection (datagrams, plain ACKs with or without data, in a settled state), as long as
//!
//! - the clock stands, so that there is no time to note either, and a change of the routes is seen with its next tick;
//! - no connection of the same server began, ended or changed its state ([`DestinationLoad::changes`]);
//! - the server is in its service's set.
//!
//! Otherwise the packet is looked at as ever, and the table remains the only truth. A flow has one place on each CPU, and the
//! one that was busy last has it.
//!
//! [`DestinationLoad::changes`]: lb_common::layout::DestinationLoad::changes

use lb_common::{
    address::Protocol,
    connection,
    layout::{ConnectionKey, ConnectionState},
    nat::Rewrite,
    packet::{Kind, Packet},
};

use crate::{
    connections::{self, Entry},
    maps::{DESTINATION_LOAD, RECENT, Recent},
    settings::{now, scratch},
    shortcut::key_of,
};

/// Places on each CPU.
pub const PLACES: usize = 64;

/// [`Recent::found`]: nothing is kept.
const NOTHING: u32 = 0;
/// [`Recent::found`]: a request, and `onward` is all of its translation.
pub const REQUEST: u32 = 1;
/// [`Recent::found`]: a request that egress translates once more.
pub const HALF: u32 = 2;
/// [`Recent::found`]: a reply, which egress translates.
pub const ANSWER: u32 = 3;
/// [`Recent::found`]: a request that takes the [short way](crate::shortcut).
pub const SHORT_REQUEST: u32 = 4;
/// [`Recent::found`]: a reply that takes it.
pub const SHORT_ANSWER: u32 = 5;

/// What is kept of a packet's flow, if it holds now.
#[inline(always)]
pub fn recall(packet: &Packet, protocol: Protocol) -> Option<&'static mut Recent> {
    let place = place(&packet.key)?;
    // Of a stranger no more is asked than this.
    let holds = is_same(&place.key, &packet.key)
        && changes_nothing(packet, protocol)
        && place.seen == now()
        && place.changes == changes(place.server)
        && connections::is_available(place.server);
    holds.then_some(place)
}

/// True for a packet that leaves a settled connection as it is.
#[inline(always)]
fn changes_nothing(packet: &Packet, protocol: Protocol) -> bool {
    matches!(packet.kind, Kind::Whole)
        && match protocol {
            Protocol::Udp => true,
            Protocol::Tcp => connections::is_plain_ack(packet.signal),
            Protocol::Sctp => false,
        }
}

/// Keeps what ingress finds for packets like this one, of a connection to this server.
#[inline(never)]
pub fn keep(packet: &Packet, server: u32, now: u64) -> u32 {
    let Some(protocol) = Protocol::from_number(packet.key.protocol) else { return NOTHING };
    if !changes_nothing(packet, protocol) {
        return NOTHING;
    }
    // Before the entry is looked at: what changes afterwards is noticed.
    let changes = changes(server);
    let Some(entry) = Entry::find(&packet.key) else { return NOTHING };
    let state = entry.state();
    if state.has(ConnectionState::PASSING | ConnectionState::HAIRPIN | ConnectionState::DIRECT_RETURN) {
        return NOTHING;
    }
    if entry.value().server != server || !is_settled(protocol, state) {
        return NOTHING;
    }
    let found = match (state.has(ConnectionState::REPLY), state.has(ConnectionState::MASQUERADED)) {
        (true, _) => ANSWER,
        (false, true) => HALF,
        (false, false) => REQUEST,
    };
    let Some(place) = place(&packet.key) else { return NOTHING };
    place.key = packet.key;
    place.onward = Rewrite::of(entry.value());
    place.server = server;
    place.found = found;
    place.changes = changes;
    place.seen = now;
    found
}

/// Keeps the short way that was found for a packet of this length, as the scratch space has it, and of packets like it that
/// are no longer.
#[inline(never)]
pub fn keep_short(packet: &Packet, server: u32, now: u64, length: u32) -> u32 {
    let Some(protocol) = Protocol::from_number(packet.key.protocol) else { return NOTHING };
    let Some(scratch) = scratch() else { return NOTHING };
    if length == 0 || !changes_nothing(packet, protocol) {
        return NOTHING;
    }
    let changes = changes(server);
    let Some(first) = Entry::find(&packet.key) else { return NOTHING };
    let state = first.state();
    let mut owner = first;
    let mut last = first;
    if state.has(ConnectionState::PASSING | ConnectionState::MASQUERADED) {
        let Some(second) = Entry::find(&key_of(&Rewrite::of(first.value()), packet)) else { return NOTHING };
        last = second;
        if state.has(ConnectionState::REPLY) {
            owner = second;
        }
    }
    let onward = Rewrite::of(last.value());
    if owner.value().server != server || !is_settled(protocol, owner.state()) || onward != scratch.onward {
        return NOTHING;
    }
    let Some(place) = place(&packet.key) else { return NOTHING };
    place.key = packet.key;
    place.onward = onward;
    place.server = server;
    place.found = if state.has(ConnectionState::REPLY) { SHORT_ANSWER } else { SHORT_REQUEST };
    place.changes = changes;
    place.seen = now;
    place.length = length;
    place.hop = scratch.hop;
    place.found
}

/// True if packets that [change nothing](changes_nothing) leave an entry in this state as it is.
#[inline(always)]
fn is_settled(protocol: Protocol, state: ConnectionState) -> bool {
    if state.has(ConnectionState::CLOSING) {
        return false;
    }
    match protocol {
        Protocol::Udp => true,
        Protocol::Tcp if state.has(ConnectionState::REPLY) => state.has(ConnectionState::SETTLED),
        Protocol::Tcp => connection::is_established(protocol, state),
        Protocol::Sctp => false,
    }
}

/// How often connections of a server changed.
#[inline(always)]
fn changes(server: u32) -> u32 {
    match DESTINATION_LOAD.get(server) {
        Some(load) => load.changes,
        None => 0,
    }
}

/// The place of a key.
#[inline(always)]
fn place(key: &ConnectionKey) -> Option<&'static mut Recent> {
    let mixed =
        (key.source.words[3] ^ key.destination.words[3].rotate_left(16) ^ key.ports()).wrapping_mul(0x9e37_79b1);
    // SAFETY: a per-CPU value that only tc and XDP programs use, one at a time on a CPU.
    RECENT.get_ptr_mut(mixed >> (32 - PLACES.ilog2())).map(|place| unsafe { &mut *place })
}

/// True if two keys of packets are one.
#[inline(always)]
fn is_same(one: &ConnectionKey, other: &ConnectionKey) -> bool {
    one.ports() == other.ports()
        && one.source.words == other.source.words
        && one.destination.words == other.destination.words
        && one.protocol == other.protocol
}
