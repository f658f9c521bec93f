//! Replies: real server to client becomes frontend to client, after netfilter and routing saw the packet, and for
//! servers that are processes of the node itself.

use aya_ebpf::programs::TcContext;
use lb_common::{
    address::Protocol,
    drops::Drop,
    layout::ConnectionState,
    nat::{self, Rewrite},
    packet::{Kind, Packet, parse_ethernet, parse_network},
};

use crate::{
    connections::Entry,
    fragments,
    frame::Frame,
    ingress,
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
        return NEXT;
    }
    let Some(protocol) = Protocol::from_number(packet.key.protocol) else { return NEXT };
    let Some(entry) = Entry::find(&packet.key) else { return NEXT };
    let state = entry.state();
    if !state.has(ConnectionState::REPLY) || state.has(ConnectionState::HAIRPIN) {
        return NEXT;
    }
    ingress::reply(&ctx, &packet, protocol, &entry)
}

/// An ICMP error about a request, from the real server, a router behind the node or the node itself: to the client it
/// comes from the frontend, about the packet that the client sent.
#[inline(always)]
fn icmp_error(ctx: &TcContext, packet: &Packet) -> i32 {
    let Ok(quoted) = parse_network(&Frame(ctx), packet.family, packet.transport + 8, true) else { return NEXT };
    let Some(entry) = Entry::find(&nat::quoted_key(&quoted)) else { return NEXT };
    if !entry.state().has(ConnectionState::REPLY) {
        return NEXT;
    }
    let reply = Rewrite::of(entry.value());
    let sent = Rewrite {
        source: reply.destination,
        destination: reply.source,
        source_port: reply.destination_port,
        destination_port: reply.source_port,
    };
    let written =
        nat::apply_embedded(&mut Frame(ctx), packet, reply.source, reply.destination, &quoted, &sent);
    match written {
        Ok(()) => NEXT,
        Err(_) => verdict::drop(Drop::RewriteFailed),
    }
}
