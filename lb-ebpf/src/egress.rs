//! Replies: real server to client becomes frontend to client, after netfilter and routing saw the packet, and for
//! servers that are processes of the node itself. And requests of masqueraded connections: client to real server becomes
//! node to real server.

use lb_common::{
    address::Protocol,
    drops::Drop,
    layout::ConnectionState,
    nat::{self, Rewrite},
    packet::{Kind, Packet},
};

use crate::{
    connections::Entry,
    count, fragments,
    frame::Frame,
    lookup,
    maps::Scratch,
    masquerade, passage, reply,
    settings::scratch,
    translate::{ErrorRewrite, parse, parse_quoted, translate, translate_error},
    verdict::{self, NEXT},
};

/// The program.
#[inline(always)]
pub fn run(frame: Frame) -> i32 {
    if frame.is_finished() {
        return NEXT;
    }
    if let Some(passage) = passage::recall(frame) {
        return match passage.found {
            passage::NOTHING => foreign(&passage.packet),
            passage::TRANSLATION => {
                count::reply(passage.server, passage.packet.length);
                translate(frame, &passage.packet, &passage.onward)
            }
            _ => transport(frame, &mut passage.packet),
        };
    }
    let Some(Scratch { packet, quoted, .. }) = scratch() else { return NEXT };
    if !parse(frame, packet) {
        return NEXT;
    }
    if matches!(packet.kind, Kind::IcmpError) {
        return icmp_error(frame, packet, quoted);
    }
    transport(frame, packet)
}

/// A TCP, UDP or SCTP packet.
#[inline(never)]
fn transport(frame: Frame, packet: &mut Packet) -> i32 {
    if matches!(packet.kind, Kind::LaterFragment) && !fragments::recall(packet) {
        return NEXT;
    }
    let Some(protocol) = Protocol::from_number(packet.key.protocol) else { return NEXT };
    let Some(entry) = Entry::find(&packet.key) else { return foreign(packet) };
    let state = entry.state();
    if state.has(ConnectionState::PASSING) {
        return masquerade::outbound(frame, packet, &entry);
    }
    if !state.has(ConnectionState::REPLY) || state.has(ConnectionState::HAIRPIN) {
        return NEXT;
    }
    reply::run(frame, packet, protocol, &entry)
}

/// A packet of no connection. Here and not where it came in, since another proxy of this node may have translated it
/// meanwhile.
#[inline(always)]
fn foreign(packet: &Packet) -> i32 {
    if lookup::is_of_services(&packet.key.destination) != 0 { verdict::drop(Drop::NoService) } else { NEXT }
}

/// An ICMP error about a request, from the real server, a router behind the node or the node itself: to the client it
/// comes from the frontend, about the packet that the client sent.
#[inline(never)]
fn icmp_error(frame: Frame, packet: &Packet, quoted: &mut Packet) -> i32 {
    if !parse_quoted(frame, packet, quoted) {
        return NEXT;
    }
    let Some(entry) = Entry::find(&nat::quoted_key(quoted)) else { return NEXT };
    let state = entry.state();
    // About a reply, on its way to a server that knows the client by the node's address.
    let masqueraded = state.has(ConnectionState::PASSING) && !state.has(ConnectionState::REPLY);
    let translated = state.has(ConnectionState::REPLY) && !state.has(ConnectionState::PASSING);
    if !(masqueraded || translated) || state.has(ConnectionState::HAIRPIN) {
        return NEXT;
    }
    let reply = Rewrite::of(entry.value());
    let to = ErrorRewrite { source: reply.source, destination: reply.destination, quoted: reply.reversed() };
    translate_error(frame, packet, quoted, &to)
}
