//! Where a packet goes once it is translated: the kernel's routes and neighbours (`bpf_fib_lookup`), asked before anything
//! is written, so that a packet that has to go by the stack goes there as it came.

use core::mem::{self, MaybeUninit};

use aya_ebpf::{
    bindings::{BPF_FIB_LKUP_RET_FRAG_NEEDED, BPF_FIB_LKUP_RET_NO_NEIGH, BPF_FIB_LKUP_RET_SUCCESS, bpf_fib_lookup},
    helpers::generated,
};
use lb_common::{
    nat::Rewrite,
    packet::{Family, Packet},
};

use super::frame::Frame;
use crate::maps::UPLINKS;

/// `AF_INET`.
const INTERNET: u8 = 2;
/// `AF_INET6`.
const INTERNET_6: u8 = 10;

/// The way out of the node.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Hop {
    /// Index of the interface that it leaves by.
    pub interface: u32,
    /// Not 0: the one it came by.
    pub back: u32,
    /// Destination and source of its Ethernet header.
    pub link: [u8; 12],
}

/// [`find`]: the packet leaves by an uplink.
pub const LEAVES: u32 = 0;
/// [`find`]: it does not: its receiver is on this node, or behind an interface that XDP does not send on. So it will be for
/// the whole connection.
pub const STAYS: u32 = 1;
/// [`find`]: the stack has something to do first, or to answer: find the neighbour, or say that the packet is too big or the
/// destination unreachable.
pub const STACK_FIRST: u32 = 2;

/// Finds the way of a packet that becomes `to`.
#[inline(never)]
pub fn find(frame: Frame, packet: &Packet, to: &Rewrite, hop: &mut Hop) -> u32 {
    let Some(came_by) = routed_as(frame.interface()) else { return STACK_FIRST };
    // SAFETY: integers and arrays of them, for which zero is a value.
    let mut asked: bpf_fib_lookup = unsafe { MaybeUninit::zeroed().assume_init() };
    match packet.family {
        Family::V4 => {
            asked.family = INTERNET;
            asked.__bindgen_anon_3.ipv4_src = to.source.v4_word();
            asked.__bindgen_anon_4.ipv4_dst = to.destination.v4_word();
        }
        Family::V6 => {
            asked.family = INTERNET_6;
            asked.__bindgen_anon_3.ipv6_src = to.source.words;
            asked.__bindgen_anon_4.ipv6_dst = to.destination.words;
        }
    }
    asked.l4_protocol = packet.key.protocol;
    asked.sport = to.source_port.0;
    asked.dport = to.destination_port.0;
    asked.__bindgen_anon_1.tot_len = packet.length as u16;
    asked.ifindex = came_by;
    // SAFETY: the context is valid during the program, and the helper is told how large `asked` is.
    let answer = unsafe {
        generated::bpf_fib_lookup(frame.context().cast(), &raw mut asked, mem::size_of::<bpf_fib_lookup>() as i32, 0)
    };
    match answer as u32 {
        BPF_FIB_LKUP_RET_SUCCESS => {}
        BPF_FIB_LKUP_RET_NO_NEIGH | BPF_FIB_LKUP_RET_FRAG_NEEDED => return STACK_FIRST,
        // Local, or not forwarded by this node.
        4..=6 => return STAYS,
        _ => return STACK_FIRST,
    }
    if routed_as(asked.ifindex).is_none() {
        return STAYS;
    }
    hop.interface = asked.ifindex;
    hop.back = u32::from(asked.ifindex == came_by);
    hop.link[..6].copy_from_slice(&asked.dmac);
    hop.link[6..].copy_from_slice(&asked.smac);
    LEAVES
}

/// What an uplink is routed as; `None` for other interfaces.
#[inline(always)]
fn routed_as(interface: u32) -> Option<u32> {
    // SAFETY: a value is one word, which is copied at once.
    unsafe { UPLINKS.get(&interface) }.copied()
}
