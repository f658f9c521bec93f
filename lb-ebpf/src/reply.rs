//! A packet from a real server: the frontend's address goes in front of it.

use lb_common::{
    address::Protocol,
    layout::ConnectionState,
    nat::Rewrite,
    packet::{Kind, Packet},
    tcp,
    tcp::Direction,
};

use crate::{
    connections::{self, Entry},
    count,
    frame::Frame,
    settings::{now, settings},
    translate::translate,
};

/// Translates a reply; `entry` is its reply entry.
#[inline(always)]
pub fn run(frame: Frame, packet: &Packet, protocol: Protocol, entry: &Entry) -> i32 {
    let rewrite = Rewrite::of(entry.value());
    note(packet, protocol, entry);
    translate(frame, packet, &rewrite)
}

/// Notes a reply: clock, state and counters of its connection.
#[inline(always)]
pub fn note(packet: &Packet, protocol: Protocol, entry: &Entry) {
    note_at(packet, protocol, entry, now());
}

/// The same at this time. True if it is not the first packet of this instant.
#[inline(always)]
pub fn note_at(packet: &Packet, protocol: Protocol, entry: &Entry, now: u64) -> bool {
    let busy = entry.touch(now);
    if !is_settled(packet, protocol, entry.state()) {
        advance(packet, protocol, entry);
    }
    count::reply(entry.value().server, packet.length);
    busy
}

/// True if the packet can change nothing about the connection, so that its request entry need not be looked up.
#[inline(always)]
pub fn is_settled(packet: &Packet, protocol: Protocol, state: ConnectionState) -> bool {
    // A later fragment has no flags, which to the state machine of TCP is the end of the connection.
    if matches!(packet.kind, Kind::LaterFragment) {
        return true;
    }
    match protocol {
        // The state machine has one state; the clocks of both entries count.
        Protocol::Udp => true,
        Protocol::Tcp => state.has(ConnectionState::SETTLED) && connections::is_plain_ack(packet.signal),
        Protocol::Sctp => false,
    }
}

#[inline(always)]
fn advance(packet: &Packet, protocol: Protocol, entry: &Entry) {
    let Some(settings) = settings() else { return };
    let key = entry.other_key(packet.key.protocol);
    let Some(request) = Entry::find(&key) else { return };
    request.advance(&key, protocol, packet, Direction::Out, &settings.timeouts);
    let established = request.state().number() == tcp::State::Established as u8;
    entry.set_settled(established && matches!(protocol, Protocol::Tcp));
}
