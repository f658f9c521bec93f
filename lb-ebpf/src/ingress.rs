//! Requests: client to frontend becomes client to real server, before netfilter and routing see the packet.

use lb_common::{
    address::Protocol,
    connection,
    drops::Drop,
    layout::{
        ACCESS_SILENT, ACCESS_SOURCES, ACCESS_SPLIT, ConnectionState, NETWORK_PODS, SETTING_EXPIRE_NODEST,
        SETTING_SLOPPY_SCTP, SETTING_SLOPPY_TCP, Service, Settings,
    },
    nat::{self, Rewrite},
    packet::{Kind, Packet},
    tcp::Direction,
};

use crate::{
    connections::{self, Entry},
    count, create, fragments,
    frame::Frame,
    lookup,
    maps::Scratch,
    masquerade, persistence, reply, respond,
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
    let Some(entry) = Entry::find(&packet.key) else { return unknown(frame, packet, 0) };
    let state = entry.state();
    if state.has(ConnectionState::PASSING) {
        return masquerade::inbound(frame, packet, &entry);
    }
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
        return unknown(frame, packet, 1);
    }
    known(frame, packet, protocol, &entry)
}

/// True if this packet begins a new connection although its key is in the table: the old one timed out, is over and a
/// SYN comes again, or lost its server (a SYN, or any datagram; a live TCP stream keeps its removed server, unless
/// `expire_nodest_conn` is on). A connection of a template is not over before it has timed out
/// (`is_new_conn_expected`).
#[inline(always)]
fn must_reschedule(packet: &Packet, protocol: Protocol, entry: &Entry, state: ConnectionState) -> bool {
    let Some(settings) = settings() else { return false };
    let expire = settings.switches & SETTING_EXPIRE_NODEST != 0;
    let opens = connection::opens(protocol, packet.signal);
    if opens || expire {
        let server = entry.value().server;
        if !connections::is_available(server) {
            return true;
        }
        if opens && entry.value().control == 0 && connection::is_over(protocol, state) {
            return true;
        }
        if opens && expire && !matches!(protocol, Protocol::Udp) && connections::is_quiescent(server) {
            return true;
        }
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
        entry.advance(&packet.key, protocol, packet, Direction::In, &settings.timeouts);
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

/// A packet of no connection: for a frontend, or none of our business. If it has one, that `ends` with it: a number, found
/// again by its key, since the verifier would follow a pointer through every scheduler.
#[inline(always)]
fn unknown(frame: Frame, packet: &Packet, ends: u32) -> i32 {
    let Some(Scratch { service, wanted, .. }) = scratch() else { return NEXT };
    wanted.address = packet.key.destination;
    wanted.port = packet.key.destination_port;
    wanted.protocol = packet.key.protocol;
    wanted.mark = frame.mark();
    if lookup::copy(wanted, service) != 0 {
        if service.access & ACCESS_SPLIT != 0
            && !masquerade::is_in(NETWORK_PODS, &packet.key.source)
            && lookup::copy_external(wanted, service) == 0
        {
            return verdict::drop(Drop::NoLocalDestination);
        }
        return new(frame, packet, ends);
    }
    if ends != 0 {
        connections::end(&packet.key);
    }
    NEXT
}

/// A packet for a service, the one in the scratch space, that has no connection, or ends the one that it has (`ends`).
#[inline(never)]
fn new(frame: Frame, packet: &Packet, ends: u32) -> i32 {
    let Some(protocol) = Protocol::from_number(packet.key.protocol) else { return NEXT };
    if matches!(packet.kind, Kind::LaterFragment) {
        return verdict::drop(Drop::OrphanFragment);
    }
    let (Some(settings), Some(Scratch { service, request, opened, replaced, .. })) = (settings(), scratch()) else {
        return NEXT;
    };
    request.ends = ends;
    replaced.server = 0;
    if service.access & ACCESS_SOURCES != 0 && !masquerade::is_in(service.id, &packet.key.source) {
        return verdict::drop(Drop::SourceNotAllowed);
    }
    if !connection::opens(protocol, packet.signal) && !opens_sloppily(settings, protocol, packet.signal) {
        return stray(packet, protocol, service, ends);
    }
    let chosen = create::choose(packet, service, request);
    if request.ends != 0 {
        // It is still counted while the server is chosen and gets its connection, as in IPVS, which lets it expire at once;
        // it is gone also if nothing takes its place.
        connections::replace(&packet.key, replaced);
    }
    let result = create::open(packet, service, &chosen, opened);
    replaced.unbind();
    match result {
        create::OPENED => {
            if opened.entry.control != 0 {
                persistence::hold(&packet.key, opened.entry.service, opened.entry.control);
            }
            if opened.masqueraded != 0 && masquerade::begin() != masquerade::BEGUN {
                connections::end(&packet.key);
                return verdict::drop(Drop::NoSourcePort);
            }
            forward(frame, packet, &opened.rewrite, opened.hairpin)
        }
        create::NO_DESTINATION => refused(service),
        create::EXISTS => RACED,
        create::NO_SOURCE_PORT => verdict::drop(Drop::NoSourcePort),
        _ => verdict::drop(Drop::TableFull),
    }
}

/// True if a packet that opens no connection is to be scheduled all the same.
#[inline(always)]
fn opens_sloppily(settings: &Settings, protocol: Protocol, signal: u8) -> bool {
    let switch = match protocol {
        Protocol::Tcp => SETTING_SLOPPY_TCP,
        Protocol::Sctp => SETTING_SLOPPY_SCTP,
        Protocol::Udp => return false,
    };
    settings.switches & switch != 0 && connection::opens_sloppily(protocol, signal)
}

/// A segment of a connection that is not in the table: as a host without that connection would answer.
#[inline(always)]
fn stray(packet: &Packet, protocol: Protocol, service: &Service, ends: u32) -> i32 {
    if ends != 0 {
        connections::end(&packet.key);
    }
    if service.access & ACCESS_SILENT != 0 && service.set_length == 0 {
        return refused(service);
    }
    count::drop(Drop::NotSyn);
    match protocol {
        Protocol::Tcp => RESET,
        _ => UNREACHABLE,
    }
}

/// A packet for which there is no server.
#[inline(always)]
fn refused(service: &Service) -> i32 {
    if service.access & ACCESS_SILENT != 0 {
        return verdict::drop(Drop::NoLocalDestination);
    }
    count::drop(Drop::NoDestination);
    UNREACHABLE
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
    // About a masqueraded request, addressed to the node: the stack is to send it on to the client.
    let masqueraded = state.has(ConnectionState::REPLY) && state.has(ConnectionState::PASSING);
    let translated = !state.has(ConnectionState::REPLY) && !state.has(ConnectionState::PASSING);
    if !(masqueraded || translated || hairpin) {
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
