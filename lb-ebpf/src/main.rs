//! The BPF programs of bpvs.
//!
//! | hook | program | what it does |
//! |---|---|---|
//! | tc ingress | `bpvs_ingress` | requests: finds or opens the connection, writes the real server's address |
//! | tc ingress | `bpvs_direct` | in its place, both, of packets that go straight to an interface |
//! | tc egress | `bpvs_egress` | replies: writes the frontend's address, after netfilter and routing saw the server's |
//! | XDP | `bpvs_uplink`, ... | both, of packets that leave the node again |
//! | cgroup | `bpvs_connect4`, ... | sockets of the node's own processes: the server is chosen at connect or send |
//! | none | `bpvs_sweep` | run by the agent: removes what has expired, recounts |
//!
//! No policy of its own: what decides is in `lb-common`.
#![no_std]
#![no_main]
#![feature(core_intrinsics, asm_experimental_arch)]
#![allow(internal_features, reason = "atomics of this target exist as intrinsics only, see atomic.rs")]

mod admit;
mod affinity;
mod atomic;
mod connections;
mod count;
mod create;
mod direct;
mod dsr;
mod egress;
mod forwarding;
mod fragments;
mod frame;
mod hashing;
mod ingress;
mod locality;
mod lookup;
mod maps;
mod masquerade;
mod passage;
mod persistence;
mod recent;
mod relay;
mod reply;
mod respond;
mod route;
mod scan;
mod schedule;
mod settings;
mod shortcut;
mod sockets;
mod source;
mod sweep;
mod translate;
mod tunnel;
mod verdict;
mod xdp;

use aya_ebpf::{
    macros::{cgroup_sock, cgroup_sock_addr, classifier, xdp},
    programs::{SockAddrContext, SockContext, TcContext, XdpContext},
};

use crate::frame::Frame;

/// Requests, as they enter the node on any interface.
#[classifier]
pub fn bpvs_ingress(ctx: TcContext) -> i32 {
    ingress::run(Frame::new(&ctx))
}

/// In the place of `bpvs_ingress` with `--forwarding direct`: requests and replies, straight to where they go.
#[classifier]
pub fn bpvs_direct(ctx: TcContext) -> i32 {
    forwarding::run(Frame::new(&ctx))
}

/// Replies, as they leave towards the client on any interface.
#[classifier]
pub fn bpvs_egress(ctx: TcContext) -> i32 {
    egress::run(Frame::new(&ctx))
}

/// Packets on an uplink, before the stack: those of services that leave the node again do so from here.
#[xdp(frags)]
pub fn bpvs_uplink(ctx: XdpContext) -> u32 {
    xdp::run(&ctx)
}

/// The same in generic mode. Linux copies a packet for a program that takes fragmented buffers there, and forgets how long
/// its Ethernet header is (`skb_pp_cow_data`, seen on 6.18): tc programs then see the IP header first.
#[xdp]
pub fn bpvs_uplink_generic(ctx: XdpContext) -> u32 {
    xdp::run(&ctx)
}

/// Removes expired connections and recounts. Never attached: the agent runs it.
#[classifier]
pub fn bpvs_sweep(_ctx: TcContext) -> i32 {
    sweep::run()
}

/// connect() of an IPv4 socket of this node.
#[cgroup_sock_addr(connect4)]
pub fn bpvs_connect4(ctx: SockAddrContext) -> i32 {
    sockets::connect::<sockets::V4>(&ctx)
}

/// connect() of an IPv6 socket of this node.
#[cgroup_sock_addr(connect6)]
pub fn bpvs_connect6(ctx: SockAddrContext) -> i32 {
    sockets::connect::<sockets::V6>(&ctx)
}

/// sendto() and sendmsg() with an address on an IPv4 UDP socket of this node.
#[cgroup_sock_addr(sendmsg4)]
pub fn bpvs_sendmsg4(ctx: SockAddrContext) -> i32 {
    sockets::sendmsg::<sockets::V4>(&ctx)
}

/// sendto() and sendmsg() with an address on an IPv6 UDP socket of this node.
#[cgroup_sock_addr(sendmsg6)]
pub fn bpvs_sendmsg6(ctx: SockAddrContext) -> i32 {
    sockets::sendmsg::<sockets::V6>(&ctx)
}

/// recvfrom() and recvmsg() on an IPv4 UDP socket: the sender is the frontend.
#[cgroup_sock_addr(recvmsg4)]
pub fn bpvs_recvmsg4(ctx: SockAddrContext) -> i32 {
    sockets::recvmsg::<sockets::V4>(&ctx)
}

/// recvfrom() and recvmsg() on an IPv6 UDP socket: the sender is the frontend.
#[cgroup_sock_addr(recvmsg6)]
pub fn bpvs_recvmsg6(ctx: SockAddrContext) -> i32 {
    sockets::recvmsg::<sockets::V6>(&ctx)
}

/// getpeername() on an IPv4 socket: the peer is the frontend.
#[cgroup_sock_addr(getpeername4)]
pub fn bpvs_getpeername4(ctx: SockAddrContext) -> i32 {
    sockets::getpeername::<sockets::V4>(&ctx)
}

/// getpeername() on an IPv6 socket: the peer is the frontend.
#[cgroup_sock_addr(getpeername6)]
pub fn bpvs_getpeername6(ctx: SockAddrContext) -> i32 {
    sockets::getpeername::<sockets::V6>(&ctx)
}

/// The last reference to a socket goes: its connection is over.
#[cgroup_sock(sock_release)]
pub fn bpvs_release(ctx: SockContext) -> i32 {
    sockets::release(&ctx)
}

#[cfg(not(test))]
#[panic_handler]
fn panic(_info: &core::panic::PanicInfo) -> ! {
    loop {}
}

#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";
