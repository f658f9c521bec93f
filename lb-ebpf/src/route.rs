//! Asking the kernel for routes (`bpf_fib_lookup`).

use core::mem::MaybeUninit;

use aya_ebpf::bindings::{
    BPF_FIB_LKUP_RET_FWD_DISABLED, BPF_FIB_LKUP_RET_NOT_FWDED, BPF_FIB_LKUP_RET_SUCCESS, BPF_FIB_LKUP_RET_UNSUPP_LWT,
    bpf_fib_lookup,
};
use lb_common::{
    address::Address,
    nat::Rewrite,
    packet::{Family, Packet},
};

use crate::shortcut::{Hop, LEAVES, STACK_FIRST, STAYS};

/// `AF_INET`.
pub const INTERNET: u8 = 2;
/// `AF_INET6`.
const INTERNET_6: u8 = 10;

/// What is asked for whatever goes from one address to another.
#[inline(always)]
pub fn between(family: Family, source: &Address, destination: &Address) -> bpf_fib_lookup {
    // SAFETY: integers and arrays of them, for which zero is a value.
    let mut asked: bpf_fib_lookup = unsafe { MaybeUninit::zeroed().assume_init() };
    match family {
        Family::V4 => {
            asked.family = INTERNET;
            asked.__bindgen_anon_3.ipv4_src = source.v4_word();
            asked.__bindgen_anon_4.ipv4_dst = destination.v4_word();
        }
        Family::V6 => {
            asked.family = INTERNET_6;
            asked.__bindgen_anon_3.ipv6_src = source.words;
            asked.__bindgen_anon_4.ipv6_dst = destination.words;
        }
    }
    asked
}

/// What is asked for a packet that becomes `to`, came by this interface, and has this length in bytes, without its Ethernet
/// header; 0: the length is not looked at.
#[inline(always)]
pub fn question(packet: &Packet, to: &Rewrite, interface: u32, length: u32) -> bpf_fib_lookup {
    let mut asked = between(packet.family, &to.source, &to.destination);
    asked.l4_protocol = packet.key.protocol;
    asked.sport = to.source_port.0;
    asked.dport = to.destination_port.0;
    asked.__bindgen_anon_1.tot_len = length as u16;
    asked.ifindex = interface;
    asked
}

/// What the kernel's answer means for the packet: [`LEAVES`] if the question holds the next hop now.
#[inline(always)]
pub fn outcome(answer: i64) -> u32 {
    match answer as u32 {
        BPF_FIB_LKUP_RET_SUCCESS => LEAVES,
        // Local, or not forwarded by this node.
        BPF_FIB_LKUP_RET_NOT_FWDED | BPF_FIB_LKUP_RET_FWD_DISABLED | BPF_FIB_LKUP_RET_UNSUPP_LWT => STAYS,
        _ => STACK_FIRST,
    }
}

impl Hop {
    /// Takes the next hop from a question that was answered.
    #[inline(always)]
    pub fn fill(&mut self, answered: &bpf_fib_lookup, how: u32) {
        self.interface = answered.ifindex;
        self.how = how;
        self.link[..6].copy_from_slice(&answered.dmac);
        self.link[6..].copy_from_slice(&answered.smac);
    }
}
