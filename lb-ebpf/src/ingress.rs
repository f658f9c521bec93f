//! Requests: client to frontend becomes client to real server, before netfilter and routing see the packet.

use lb_common::{
    address::Protocol,
    drops::Drop,
    layout::ConnectionState,
    nat::{self, Rewrite},
    packet::{Kind, Packet},
    tcp::Direction,
};

use crate::{
    admit,
    connections::{self, Entry},
    count, dsr, fragments,
    frame::Frame,
    maps::{Recent, Scratch},
    masquerade, passage, recent, relay, reply, respond,
    settings::{now, scratch, settings},
    translate::{ErrorRewrite, parse, parse_quoted, translate, translate_error},
    tunnel,
    verdict::{self, DROPPED, NEXT},
};

/// The program.
#[inline(always)]
pub fn run(frame: Frame) -> i32 {
    match arrive(frame) {
        Ok(_) => parsed(frame),
        Err(verdict) => verdict,
    }
}

/// How a packet came that is parsed in the scratch space.
pub enum Arrival {
    /// As it is.
    Itself,
    /// Inside of another one, for a server of this node.
    Inside,
}

/// Parses a packet into the scratch space; the verdict on one that is none of ours.
#[inline(always)]
pub fn arrive(frame: Frame) -> Result<Arrival, i32> {
    frame.begin();
    let Some(Scratch { packet, request, .. }) = scratch() else { return Err(NEXT) };
    request.server = 0;
    if parse(frame, packet) {
        return Ok(Arrival::Itself);
    }
    match tunnel::take_out(frame) {
        tunnel::NOTHING => Err(NEXT),
        tunnel::BROKEN => Err(DROPPED),
        _ => Ok(Arrival::Inside),
    }
}

/// The program, once the packet in the scratch space is parsed.
#[inline(always)]
pub fn parsed(frame: Frame) -> i32 {
    let Some(Scratch { packet, quoted, .. }) = scratch() else { return NEXT };
    let verdict = match packet.kind {
        Kind::IcmpError => icmp_error(frame, packet, quoted),
        _ => transport(frame, packet),
    };
    match verdict {
        // Answered from here, where the stack is shallow.
        admit::REFUSED => refuse(frame, packet),
        admit::STRAY => answer_stray(frame, packet),
        admit::RACED => raced(frame, packet),
        dsr::PAST => past(frame, packet),
        relay::RELAY => relay::tell(frame),
        verdict => verdict,
    }
}

/// A TCP, UDP or SCTP packet.
#[inline(never)]
fn transport(frame: Frame, packet: &mut Packet) -> i32 {
    // Without ports the service cannot be told: fragments that no translated first fragment came before pass, as
    // those to anything but services must.
    if matches!(packet.kind, Kind::LaterFragment) && !fragments::recall(packet) {
        return NEXT;
    }
    let Some(protocol) = Protocol::from_number(packet.key.protocol) else { return NEXT };
    if let Some(flow) = recent::recall(packet, protocol)
        && flow.found <= recent::ANSWER
    {
        return again(frame, packet, flow);
    }
    let Some(entry) = Entry::find(&packet.key) else { return unknown(frame, packet, 0) };
    let state = entry.state();
    if state.has(ConnectionState::PASSING) {
        return masquerade::inbound(frame, packet, &entry);
    }
    if state.has(ConnectionState::REPLY) {
        // Replies are translated on their way out, but a hairpin's reply would never get there: it is addressed to
        // the node.
        if !state.has(ConnectionState::HAIRPIN) {
            return answer(frame, packet, protocol, &entry);
        }
        return match reply::run(frame, packet, protocol, &entry) {
            NEXT => respond::turn_round(frame),
            other => other,
        };
    }
    let now = now();
    if admit::must_reschedule(packet, protocol, &entry, state, now) {
        return unknown(frame, packet, 1);
    }
    known(frame, packet, protocol, &entry, now)
}

/// A packet of a flow for whose last one all was found.
#[inline(always)]
fn again(frame: Frame, packet: &Packet, flow: &Recent) -> i32 {
    if flow.found == recent::ANSWER {
        passage::note_answer(frame, packet, flow.server, &flow.onward);
        return NEXT;
    }
    count::request(flow.server, packet.length);
    if flow.found == recent::REQUEST {
        frame.finish();
    }
    translate(frame, packet, &flow.onward)
}

/// A packet from a server that is to be translated on its way out.
#[inline(always)]
fn answer(frame: Frame, packet: &Packet, protocol: Protocol, entry: &Entry) -> i32 {
    if !reply::is_settled(packet, protocol, entry.state()) {
        passage::note(frame, packet, passage::ANSWER);
        return NEXT;
    }
    let (server, now) = (entry.value().server, now());
    passage::note_answer(frame, packet, server, &Rewrite::of(entry.value()));
    if entry.touch(now) {
        recent::keep(packet, server, now);
    }
    NEXT
}

/// A packet of a connection in the table.
#[inline(always)]
fn known(frame: Frame, packet: &Packet, protocol: Protocol, entry: &Entry, now: u64) -> i32 {
    let Some(settings) = settings() else { return NEXT };
    let rewrite = Rewrite::of(entry.value());
    let state = entry.state();
    if state.has(ConnectionState::DIRECT_RETURN) {
        return known_past(packet, protocol, *entry, now);
    }
    let busy = entry.touch(now);
    // A later fragment has no flags, which to the state machine of TCP is the end of the connection.
    if !matches!(packet.kind, Kind::LaterFragment) {
        entry.advance(&packet.key, protocol, packet, Direction::In, &settings.timeouts);
    }
    let server = entry.value().server;
    count::request(server, packet.length);
    if busy {
        recent::keep(packet, server, now);
    }
    forward(frame, packet, &rewrite, state)
}

/// The same, to a server that answers the client itself. In a frame of its own, as the stack above a scheduler is full on
/// Linux 6.1 (docs/kernels.md).
#[inline(never)]
fn known_past(packet: &Packet, protocol: Protocol, entry: Entry, now: u64) -> i32 {
    let Some(settings) = settings() else { return NEXT };
    entry.touch(now);
    if !matches!(packet.kind, Kind::LaterFragment) {
        entry.advance(&packet.key, protocol, packet, Direction::InOnly, &settings.timeouts);
    }
    count::request(entry.value().server, packet.length);
    dsr::past(&entry.value().destination, entry.state())
}

/// A packet whose connection another CPU opened while this one was about to: two datagrams of one socket, for example.
#[inline(never)]
fn raced(frame: Frame, packet: &Packet) -> i32 {
    let Some(protocol) = Protocol::from_number(packet.key.protocol) else { return NEXT };
    match Entry::find(&packet.key) {
        Some(entry) if !entry.state().has(ConnectionState::CLOSING) => known(frame, packet, protocol, &entry, now()),
        // Not opened but ended this instant: the client's next packet opens it.
        _ => verdict::drop(Drop::TableFull),
    }
}

/// A packet of no connection: for a frontend, or none of our business. If it has one, that `ends` with it: a number, found
/// again by its key, since the verifier would follow a pointer through every scheduler.
#[inline(always)]
fn unknown(frame: Frame, packet: &Packet, ends: u32) -> i32 {
    if admit::find_service(packet, frame.mark()) != 0 {
        return match admit::open(frame.skb().cast(), frame.interface(), packet, ends) {
            admit::OPENED => opened(frame, packet),
            verdict => verdict,
        };
    }
    if ends != 0 {
        connections::end(&packet.key);
    }
    passage::note(frame, packet, passage::NOTHING);
    NEXT
}

/// The packet that opened the connection in the scratch space.
#[inline(always)]
fn opened(frame: Frame, packet: &Packet) -> i32 {
    let Some(Scratch { opened, .. }) = scratch() else { return NEXT };
    forward(frame, packet, &opened.rewrite, ConnectionState(opened.entry.state))
}

/// Sends a packet to a server that answers the client itself, or tells the client why not.
#[inline(always)]
fn past(frame: Frame, packet: &Packet) -> i32 {
    match dsr::forward(frame, packet) {
        dsr::ANSWER => respond::explain(frame, packet),
        verdict => verdict,
    }
}

/// Refuses a packet for which there is no server.
#[inline(always)]
fn refuse(frame: Frame, packet: &Packet) -> i32 {
    count::drop(Drop::NoDestination);
    respond::unreachable(frame, packet)
}

/// Answers a segment of no connection.
#[inline(always)]
fn answer_stray(frame: Frame, packet: &Packet) -> i32 {
    count::drop(Drop::NotSyn);
    match Protocol::from_number(packet.key.protocol) {
        Some(Protocol::Tcp) => respond::reset(frame, packet),
        _ => respond::unreachable(frame, packet),
    }
}

/// Writes the translation and lets the packet go on; egress has a part in it if the connection is masqueraded.
#[inline(always)]
fn forward(frame: Frame, packet: &Packet, rewrite: &Rewrite, state: ConnectionState) -> i32 {
    if state.has(ConnectionState::DIRECT_RETURN) {
        return dsr::past(&rewrite.destination, state);
    }
    if !state.has(ConnectionState::MASQUERADED) {
        frame.finish();
    }
    match translate(frame, packet, rewrite) {
        NEXT if state.has(ConnectionState::HAIRPIN) => respond::turn_round(frame),
        verdict => verdict,
    }
}

/// An ICMP error from the client's side about a reply: its receiver is the real server, which must see what it sent.
/// One about a hairpin's packet comes in here whichever of the two it is about, and turns round as the packet did.
#[inline(never)]
fn icmp_error(frame: Frame, packet: &Packet, quoted: &mut Packet) -> i32 {
    if !parse_quoted(frame, packet, quoted) {
        return relay::find(frame, packet, quoted);
    }
    let Some(entry) = Entry::find(&nat::quoted_key(quoted)) else { return NEXT };
    let state = entry.state();
    if state.has(ConnectionState::DIRECT_RETURN) {
        // As it came: the server has the address that it is for (spec 9.4).
        count::request(entry.value().server, packet.length);
        return dsr::past(&entry.value().destination, state);
    }
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
