//! Direct routing and tunnels (`ip_vs_dr_xmit`, `ip_vs_tunnel_xmit`): requests go to a server that answers the client itself.
//!
//! The frontend's address stays in the packet, so that the stack cannot route it, and an outer header from this node's
//! address would not pass the stack's source validation: the packet leaves from here, by the kernel's routes and
//! neighbours. Nothing is changed before it is known to leave.

use core::mem;

use aya_ebpf::{
    bindings::{
        BPF_FIB_LKUP_RET_FRAG_NEEDED, BPF_FIB_LKUP_RET_NO_NEIGH, BPF_FIB_LKUP_RET_NOT_FWDED, BPF_FIB_LKUP_RET_SUCCESS,
        bpf_fib_lookup, bpf_redir_neigh,
    },
    helpers::{
        bpf_redirect_neigh,
        generated::{self, bpf_skb_vlan_pop},
    },
};
use lb_common::{
    address::Address,
    drops::Drop,
    layout::ConnectionState,
    packet::{ETHERNET_HEADER, Family, Kind, Packet},
    tunnel,
};

use crate::{
    count,
    forwarding::length_on_the_wire,
    fragments,
    frame::Frame,
    maps::Scratch,
    respond,
    route::between,
    settings::{node_address, scratch, settings},
    shortcut::decrement_hops,
    tunnel::wrap,
    verdict::{self, NEXT},
};

/// [`past`]: the packet is to be [sent](forward), by whoever has a shallow stack.
pub const PAST: i32 = -6;
/// [`forward`]: the client is to be told, as [`Way`] says.
pub const ANSWER: i32 = -7;

/// How a packet reaches its server, or what its client is told.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Way {
    /// The server.
    pub server: Address,
    /// Bytes of the header that the packet gets; 0 for none.
    pub overhead: u32,
    /// The next hop.
    pub next: bpf_redir_neigh,
    /// Index of the interface that it is behind.
    pub interface: u32,
    /// Bytes that fit, of the packet and what is put before it.
    pub mtu: u32,
    /// ICMP type and code ([`respond::error`]).
    pub message: u32,
    /// Second word of the ICMP error.
    pub rest: u32,
}

/// Notes where a request, or an ICMP error about an answer, goes: to this server, by the one of
/// [`ConnectionState::DIRECT_RETURN`] that its connection has.
#[inline(always)]
pub fn past(server: &Address, state: ConnectionState) -> i32 {
    let Some(Scratch { way, .. }) = scratch() else { return NEXT };
    way.server = *server;
    way.overhead = if state.has(ConnectionState::TUNNEL) { tunnel::overhead(server) } else { 0 };
    PAST
}

/// Sends the packet there.
#[inline(never)]
pub fn forward(frame: Frame, packet: &Packet) -> i32 {
    let Some(Scratch { way, .. }) = scratch() else { return NEXT };
    match find(frame, packet, way) {
        LEAVES => {}
        HERE => return NEXT,
        TOO_BIG => return too_big(packet, way),
        _ => return answer(packet, Drop::NoRoute, respond::host_unreachable(packet.family), way),
    }
    if packet.hops <= 1 {
        return answer(packet, Drop::HopsExceeded, respond::time_exceeded(packet.family), way);
    }
    fragments::remember(packet);
    send(frame, packet, way)
}

/// [`find`]: there is a next hop.
const LEAVES: u32 = 0;
/// [`find`]: the server's address is this node's. Its stack gets the packet as it is.
const HERE: u32 = 1;
/// [`find`]: the packet is too big for the way.
const TOO_BIG: u32 = 2;
/// [`find`]: there is no way.
const NO_WAY: u32 = 3;

/// Asks the kernel for the way to the server, for the packet with its header.
#[inline(never)]
fn find(frame: Frame, packet: &Packet, way: &mut Way) -> u32 {
    let Some(settings) = settings() else { return NO_WAY };
    let server = &way.server;
    let v4 = server.is_v4();
    let family = if v4 { Family::V4 } else { Family::V6 };
    let mut asked = between(family, node_address(settings, v4), server);
    let length = length_on_the_wire(frame, packet) + way.overhead;
    asked.__bindgen_anon_1.tot_len = if length > 0xffff { 0xffff } else { length as u16 };
    asked.ifindex = frame.interface();
    // SAFETY: the context is valid during the program, and the helper is told how large `asked` is.
    let found = unsafe {
        generated::bpf_fib_lookup(frame.skb().cast(), &raw mut asked, mem::size_of::<bpf_fib_lookup>() as i32, 0)
    };
    match found as u32 {
        // A neighbour that is not known is found by whoever sends.
        BPF_FIB_LKUP_RET_SUCCESS | BPF_FIB_LKUP_RET_NO_NEIGH => {}
        BPF_FIB_LKUP_RET_NOT_FWDED => return HERE,
        BPF_FIB_LKUP_RET_FRAG_NEEDED => {
            // SAFETY: the kernel wrote this member of the union.
            way.mtu = u32::from(unsafe { asked.__bindgen_anon_1.mtu_result });
            return TOO_BIG;
        }
        _ => return NO_WAY,
    }
    way.interface = asked.ifindex;
    // SAFETY: all members of the union are integers, and the kernel wrote the one of `family`: the gateway's address, or left
    // the server's there.
    let hop = unsafe { asked.__bindgen_anon_4.ipv6_dst };
    way.next.nh_family = u32::from(asked.family);
    way.next.__bindgen_anon_1.ipv6_nh = hop;
    LEAVES
}

/// The packet does not fit, with a header that the client does not know of.
#[inline(always)]
fn too_big(packet: &Packet, way: &mut Way) -> i32 {
    match fits(packet, way) {
        0 => verdict::drop(Drop::TooBig),
        fits => {
            way.rest = fits.to_be();
            answer(packet, Drop::TooBig, respond::too_big(packet.family), way)
        }
    }
}

/// Bytes of a client's packet that fit the way; 0 if that is less than every link must carry (RFC 791, RFC 8200 5): nobody
/// would send smaller ones.
#[inline(always)]
pub fn fits(packet: &Packet, way: &Way) -> u32 {
    let least = match packet.family {
        Family::V4 => 68,
        Family::V6 => 1280,
    };
    let fits = way.mtu.wrapping_sub(way.overhead);
    if fits < least || fits > way.mtu { 0 } else { fits }
}

/// Sends a packet of this node's to the one that [`Way`] has as its server.
#[inline(always)]
pub fn deliver(frame: Frame, packet: &Packet, way: &mut Way) -> i32 {
    match find(frame, packet, way) {
        LEAVES => send(frame, packet, way),
        HERE => NEXT,
        _ => verdict::drop(Drop::NoRoute),
    }
}

/// Has the client told, unless it is an ICMP error that does not get there (RFC 1122 3.2.2).
#[inline(always)]
fn answer(packet: &Packet, reason: Drop, message: u32, way: &mut Way) -> i32 {
    if matches!(packet.kind, Kind::IcmpError) {
        return verdict::drop(reason);
    }
    count::drop(reason);
    if !matches!(reason, Drop::TooBig) {
        way.rest = 0;
    }
    way.message = message;
    ANSWER
}

/// Sends the packet to the next hop.
#[inline(never)]
fn send(frame: Frame, packet: &Packet, way: &mut Way) -> i32 {
    let mut at = frame;
    // Tags that stand in the packet: the kernel takes such a packet for none of IP, and would not send it.
    if packet.network != ETHERNET_HEADER || decrement_hops(&mut at, packet).is_none() {
        return verdict::drop(Drop::RewriteFailed);
    }
    if frame.is_tagged() {
        // SAFETY: `skb` is this program's context. The tag is that of the network that the packet came from.
        if unsafe { bpf_skb_vlan_pop(frame.skb()) } != 0 {
            return verdict::drop(Drop::RewriteFailed);
        }
    }
    if way.overhead != 0 && wrap(frame, packet, &way.server, way.overhead) == 0 {
        return verdict::drop(Drop::RewriteFailed);
    }
    frame.finish();
    // SAFETY: the helper reads the next hop from a map's value, which is as large as it is told.
    let sent =
        unsafe { bpf_redirect_neigh(way.interface, &raw mut way.next, mem::size_of::<bpf_redir_neigh>() as i32, 0) };
    sent as i32
}
