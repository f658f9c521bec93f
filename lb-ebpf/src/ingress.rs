//! Requests: client to frontend becomes client to real server, before netfilter and routing see the packet.

use aya_ebpf::programs::TcContext;
use lb_common::{
    address::Protocol,
    connection,
    drops::Drop,
    layout::{ConnectionState, Service, ServiceKey, Settings},
    nat::{self, Rewrite},
    packet::{Kind, Packet, parse_ethernet, parse_network},
    tcp::Direction,
};

use crate::{
    connections::{self, Entry},
    count, create,
    fragments,
    frame::Frame,
    maps::SERVICES_MAP,
    respond,
    settings::{now, settings},
    verdict::{self, NEXT},
};

/// The program.
#[inline(always)]
pub fn run(ctx: TcContext) -> i32 {
    let Ok(mut packet) = parse_ethernet(&Frame(&ctx)) else { return NEXT };
    if matches!(packet.kind, Kind::IcmpError) {
        return icmp_error(&ctx, &packet);
    }
    if matches!(packet.kind, Kind::LaterFragment) && !fragments::recall(&mut packet) {
        return orphan(&packet);
    }
    let Some(protocol) = Protocol::from_number(packet.key.protocol) else { return NEXT };
    let Some(entry) = Entry::find(&packet.key) else { return unknown(&ctx, &packet, protocol, None) };
    let state = entry.state();
    if state.has(ConnectionState::REPLY) {
        // Replies are translated on their way out, but a hairpin's reply would never get there: it is addressed to
        // the node.
        if !state.has(ConnectionState::HAIRPIN) {
            return NEXT;
        }
        let result = reply(&ctx, &packet, protocol, &entry);
        return if result == NEXT { respond::turn_round(&ctx) } else { result };
    }
    known(&ctx, &packet, protocol, &entry, state)
}

/// A later fragment whose first was not translated: on its way to a frontend it can reach nobody.
#[inline(always)]
fn orphan(packet: &Packet) -> i32 {
    // Without ports the service cannot be told; fragments to anything but services pass, as they must.
    let _ = packet;
    NEXT
}

/// A packet of a connection in the table.
#[inline(always)]
fn known(ctx: &TcContext, packet: &Packet, protocol: Protocol, entry: &Entry, state: ConnectionState) -> i32 {
    let Some(settings) = settings() else { return NEXT };
    let now = now();
    let value = entry.value();
    if must_reschedule(packet, protocol, entry, state, now) {
        return unknown(ctx, packet, protocol, Some(*entry));
    }
    let rewrite = Rewrite::of(value);
    let server = value.server;
    entry.touch(now);
    entry.advance(protocol, packet, Direction::In, &settings.timeouts);
    count::request(server, packet.length);
    forward(ctx, packet, &rewrite, state.has(ConnectionState::HAIRPIN))
}

/// True if this packet begins a new connection although its key is in the table: the old one timed out, is over and a
/// SYN comes again, or lost its server (a SYN, or any datagram; a live TCP stream keeps its removed server).
#[inline(always)]
fn must_reschedule(packet: &Packet, protocol: Protocol, entry: &Entry, state: ConnectionState, now: u64) -> bool {
    let opens = connection::opens(protocol, packet.signal);
    if opens && connection::is_over(protocol, state) {
        return true;
    }
    if opens && !connections::is_available(entry.value().server) {
        // A frontend that is gone has no other server to offer: what lives, lives on.
        return true;
    }
    entry.is_expired(packet.key.protocol, now)
}

/// A packet of no connection: for a frontend, or none of our business.
#[inline(always)]
fn unknown(ctx: &TcContext, packet: &Packet, protocol: Protocol, old: Option<Entry>) -> i32 {
    let key = ServiceKey {
        address: packet.key.destination,
        port: packet.key.destination_port,
        protocol: packet.key.protocol,
        pad: 0,
    };
    // SAFETY: copied word by word below; user space replaces values whole, in a new element.
    match unsafe { SERVICES_MAP.get(key) } {
        Some(service) => new(ctx, packet, protocol, service, old),
        None => {
            if let Some(old) = old {
                old.close(&packet.key);
            }
            NEXT
        }
    }
}

#[inline(always)]
fn new(ctx: &TcContext, packet: &Packet, protocol: Protocol, service: &Service, old: Option<Entry>) -> i32 {
    let Some(settings) = settings() else { return NEXT };
    if matches!(packet.kind, Kind::LaterFragment) {
        return verdict::drop(Drop::OrphanFragment);
    }
    if !connection::opens(protocol, packet.signal) {
        return stray(ctx, packet, protocol, old);
    }
    match open(packet, protocol, service, settings, old) {
        Ok(opened) => forward(ctx, packet, &opened.rewrite, opened.hairpin),
        Err(Drop::NoDestination) => {
            count::drop(Drop::NoDestination);
            respond::unreachable(ctx, packet)
        }
        Err(reason) => verdict::drop(reason),
    }
}

#[inline(always)]
fn open(
    packet: &Packet,
    protocol: Protocol,
    service: &Service,
    settings: &Settings,
    old: Option<Entry>,
) -> Result<create::Opened, Drop> {
    create::open(packet, protocol, service, settings, old, now())
}

/// A segment of a connection that is not in the table: as a host without that connection would answer.
#[inline(always)]
fn stray(ctx: &TcContext, packet: &Packet, protocol: Protocol, old: Option<Entry>) -> i32 {
    if let Some(old) = old {
        old.close(&packet.key);
    }
    count::drop(Drop::NotSyn);
    match protocol {
        Protocol::Tcp => respond::reset(ctx, packet),
        _ => respond::unreachable(ctx, packet),
    }
}

/// Writes the translation and lets the packet go on.
#[inline(always)]
fn forward(ctx: &TcContext, packet: &Packet, rewrite: &Rewrite, hairpin: bool) -> i32 {
    fragments::remember(packet);
    if nat::apply(&mut Frame(ctx), packet, rewrite).is_err() {
        return verdict::drop(Drop::RewriteFailed);
    }
    if hairpin { respond::turn_round(ctx) } else { NEXT }
}

/// A packet from a real server: the frontend's address goes in front of it.
#[inline(always)]
pub fn reply(ctx: &TcContext, packet: &Packet, protocol: Protocol, entry: &Entry) -> i32 {
    let value = entry.value();
    let rewrite = Rewrite::of(value);
    let server = value.server;
    let state = entry.state();
    entry.touch(now());
    let settled = match protocol {
        // The state machine has one state; both entries' clocks count.
        Protocol::Udp => true,
        Protocol::Tcp => state.has(ConnectionState::SETTLED) && connections::is_plain_ack(packet.signal),
        Protocol::Sctp => false,
    };
    if !settled {
        let Some(settings) = settings() else { return NEXT };
        let Some(request) = Entry::find(&entry.other_key(packet.key.protocol)) else { return NEXT };
        request.advance(protocol, packet, Direction::Out, &settings.timeouts);
        let established = request.state().number() == lb_common::tcp::State::Established as u8;
        entry.set_settled(established && matches!(protocol, Protocol::Tcp));
    }
    count::reply(server, packet.length);
    fragments::remember(packet);
    match nat::apply(&mut Frame(ctx), packet, &rewrite) {
        Ok(()) => NEXT,
        Err(_) => verdict::drop(Drop::RewriteFailed),
    }
}

/// An ICMP error from the client's side about a reply: its receiver is the real server.
#[inline(always)]
fn icmp_error(ctx: &TcContext, packet: &Packet) -> i32 {
    let Ok(quoted) = parse_network(&Frame(ctx), packet.family, packet.transport + 8, true) else { return NEXT };
    let Some(entry) = Entry::find(&nat::quoted_key(&quoted)) else { return NEXT };
    if entry.state().has(ConnectionState::REPLY) {
        return NEXT;
    }
    let request = Rewrite::of(entry.value());
    // The quoted packet is a reply as the client saw it; the server must see what it sent.
    let sent = Rewrite {
        source: request.destination,
        destination: request.source,
        source_port: request.destination_port,
        destination_port: request.source_port,
    };
    let written = nat::apply_embedded(
        &mut Frame(ctx),
        packet,
        packet.key.source,
        request.destination,
        &quoted,
        &sent,
    );
    match written {
        Ok(()) => NEXT,
        Err(_) => verdict::drop(Drop::RewriteFailed),
    }
}
