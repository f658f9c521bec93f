//! Asking the kernel for routes (`bpf_fib_lookup`).

use core::mem::MaybeUninit;

use aya_ebpf::bindings::bpf_fib_lookup;
use lb_common::{
    nat::Rewrite,
    packet::{Family, Packet},
};

/// `AF_INET`.
const INTERNET: u8 = 2;
/// `AF_INET6`.
const INTERNET_6: u8 = 10;

/// What is asked for a packet that becomes `to`, came by this interface, and has this length in bytes, without its Ethernet
/// header; 0: the length is not looked at.
#[inline(always)]
pub fn question(packet: &Packet, to: &Rewrite, interface: u32, length: u32) -> bpf_fib_lookup {
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
    asked.__bindgen_anon_1.tot_len = length as u16;
    asked.ifindex = interface;
    asked
}
