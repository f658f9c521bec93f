//! Requests: client to frontend becomes client to real server, before netfilter and routing see the packet.

use lb_common::{
    address::Protocol,
    connection,
    drops::Drop,
    layout::{ConnectionState, SERVICE_BY_ADDRESS, Service, ServiceKey},
    nat::{self, Rewrite},
    packet::{Kind, Packet},
    tcp::Direction,
};

use crate::{
    connections::{self, Entry},
    count, create, fragments,
    frame::Frame,
    maps::{SERVICES_MAP, Scratch},
    reply, respond,
    settings::{now, scratch, settings},
    translate::{ErrorRewrite, parse, parse_quoted, translate, translate_error},
    verdict::{self, NEXT},
};

/// The program.
#[inline(always)]
pub fn run(frame: Frame) -> i32 {
    let Some(Scratch { packet, quoted, .. }) = scratch() else { return NEXT };
    if !parse(frame, packet) {
        return NEXT;
    }
    if matches!(packet.kind, Kind::IcmpError) {
        return icmp_error(frame, packet, quoted);
    }
    match transport(frame, packet) {
        // Answered from here, where the stack is shallow.
        UNREACHABLE => respond::unreachable(frame, packet),
        RESET => respond::reset(frame, packet),
        RACED => raced(frame, packet),
        verdict => verdict,
    }
}

/// [`transport`]: the packet is to be answered with ICMP port unreachable.
const UNREACHABLE: i32 = -2;
/// [`transport`]: the packet is to be answered with a TCP reset.
const RESET: i32 = -3;
/// [`transport`]: another CPU opened the packet's connection meanwhile.
const RACED: i32 = -4;

/// A TCP, UDP or SCTP packet.
#[inline(never)]
fn transport(frame: Frame, packet: &mut Packet) -> i32 {
    // Without ports the service cannot be told: fragments that no translated first fragment came before pass, as
    // those to anything but services must.
    if matches!(packet.kind, Kind::LaterFragment) && !fragments::recall(packet) {
        return NEXT;
    }
    let Some(protocol) = Protocol::from_number(packet.key.protocol) else { return NEXT };
    let Some(entry) = Entry::find(&packet.key) else { return unknown(frame, packet, None) };
    let state = entry.state();
    if state.has(ConnectionState::REPLY) {
        // Replies are translated on their way out, but a hairpin's reply would never get there: it is addressed to
        // the node.
        if !state.has(ConnectionState::HAIRPIN) {
            return NEXT;
        }
        return match reply::run(frame, packet, protocol, &entry) {
            NEXT => respond::turn_round(frame),
            other => other,
        };
    }
    if must_reschedule(packet, protocol, &entry, state) {
        return unknown(frame, packet, Some(entry));
    }
    known(frame, packet, protocol, &entry)
}

/// True if this packet begins a new connection although its key is in the table: the old one timed out, is over and a
/// SYN comes again, or lost its server (a SYN, or any datagram; a live TCP stream keeps its removed server).
#[inline(always)]
fn must_reschedule(packet: &Packet, protocol: Protocol, entry: &Entry, state: ConnectionState) -> bool {
    if connection::opens(protocol, packet.signal)
        && (connection::is_over(protocol, state) || !connections::is_available(entry.value().server))
    {
        return true;
    }
    entry.is_expired(packet.key.protocol, now())
}

/// A packet of a connection in the table.
#[inline(always)]
fn known(frame: Frame, packet: &Packet, protocol: Protocol, entry: &Entry) -> i32 {
    let Some(settings) = settings() else { return NEXT };
    let rewrite = Rewrite::of(entry.value());
    let hairpin = entry.state().has(ConnectionState::HAIRPIN);
    entry.touch(now());
    // A later fragment has no flags, which to the state machine of TCP is the end of the connection.
    if !matches!(packet.kind, Kind::LaterFragment) {
        entry.advance(protocol, packet, Direction::In, &settings.timeouts);
    }
    count::request(entry.value().server, packet.length);
    forward(frame, packet, &rewrite, hairpin)
}

/// A packet whose connection another CPU opened while this one was about to: two datagrams of one socket, for example.
#[inline(never)]
fn raced(frame: Frame, packet: &Packet) -> i32 {
    let Some(protocol) = Protocol::from_number(packet.key.protocol) else { return NEXT };
    match Entry::find(&packet.key) {
        Some(entry) if !entry.state().has(ConnectionState::CLOSING) => known(frame, packet, protocol, &entry),
        // Not opened but ended this instant: the client's next packet opens it.
        _ => verdict::drop(Drop::TableFull),
    }
}

/// A packet of no connection: for a frontend, or none of our business. `old` is a connection that ends with it.
#[inline(always)]
fn unknown(frame: Frame, packet: &Packet, old: Option<Entry>) -> i32 {
    let key = ServiceKey {
        address: packet.key.destination,
        port: packet.key.destination_port,
        protocol: packet.key.protocol,
        kind: SERVICE_BY_ADDRESS,
    };
    // SAFETY: user space replaces values whole, in a new element.
    match unsafe { SERVICES_MAP.get(key) } {
        Some(service) => new(frame, packet, service, old),
        None => {
            if let Some(old) = old {
                old.close(&packet.key);
            }
            NEXT
        }
    }
}

/// A packet for a service that has no connection, or ends `old`.
#[inline(never)]
fn new(frame: Frame, packet: &Packet, service: &Service, old: Option<Entry>) -> i32 {
    let Some(protocol) = Protocol::from_number(packet.key.protocol) else { return NEXT };
    if matches!(packet.kind, Kind::LaterFragment) {
        return verdict::drop(Drop::OrphanFragment);
    }
    if !connection::opens(protocol, packet.signal) {
        return stray(packet, protocol, old);
    }
    let Some(Scratch { request, opened, .. }) = scratch() else { return NEXT };
    let server = create::choose(packet, service, request);
    match create::open(packet, service, server, old, opened) {
        create::OPENED => forward(frame, packet, &opened.rewrite, opened.hairpin),
        create::NO_DESTINATION => UNREACHABLE,
        create::EXISTS => RACED,
        create::NO_SOURCE_PORT => verdict::drop(Drop::NoSourcePort),
        _ => verdict::drop(Drop::TableFull),
    }
}

/// A segment of a connection that is not in the table: as a host without that connection would answer.
#[inline(always)]
fn stray(packet: &Packet, protocol: Protocol, old: Option<Entry>) -> i32 {
    if let Some(old) = old {
        old.close(&packet.key);
    }
    count::drop(Drop::NotSyn);
    match protocol {
        Protocol::Tcp => RESET,
        _ => UNREACHABLE,
    }
}

/// Writes the translation and lets the packet go on.
#[inline(always)]
fn forward(frame: Frame, packet: &Packet, rewrite: &Rewrite, hairpin: bool) -> i32 {
    match translate(frame, packet, rewrite) {
        NEXT if hairpin => respond::turn_round(frame),
        verdict => verdict,
    }
}

/// An ICMP error from the client's side about a reply: its receiver is the real server, which must see what it sent.
/// One about a hairpin's packet comes in here whichever of the two it is about, and turns round as the packet did.
#[inline(never)]
fn icmp_error(frame: Frame, packet: &Packet, quoted: &mut Packet) -> i32 {
    if !parse_quoted(frame, packet, quoted) {
        return NEXT;
    }
    let Some(entry) = Entry::find(&nat::quoted_key(quoted)) else { return NEXT };
    let state = entry.state();
    let hairpin = state.has(ConnectionState::HAIRPIN);
    if state.has(ConnectionState::REPLY) && !hairpin {
        return NEXT;
    }
    let onward = Rewrite::of(entry.value());
    let source = if hairpin { onward.source } else { packet.key.source };
    let to = ErrorRewrite { source, destination: onward.destination, quoted: onward.reversed() };
    match translate_error(frame, packet, quoted, &to) {
        NEXT if hairpin => respond::turn_round(frame),
        verdict => verdict,
    }
}
