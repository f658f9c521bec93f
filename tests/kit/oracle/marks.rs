//! Which packets of clients carry a firewall mark: those to the addresses kept for it, each script's mark its own.
//!
//! IPVS sees marks that anything before it has set, bpvs those that a tc program before its own has: one small program at
//! the head of the clients' interface sets them for both. It is written in instructions, as not every kernel that tests
//! run on has the filters and actions that `tc` would need.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::script::NUMBERS;

/// First bits of the IPv4 addresses, and how many bits follow: the number of the address, and the script's.
const V4: (u32, u32) = (16, 26);
/// First bits of the IPv6 addresses, likewise of the first word.
const V6: (u32, u32) = (0xfd65, 16);

/// The addresses of a family as a network: its first, and the bits that all have in common.
pub fn network(v6: bool) -> (IpAddr, u8) {
    if v6 {
        (Ipv6Addr::new(V6.0 as u16, 0, 0, 0, 0, 0, 0, 0).into(), 16)
    } else {
        (Ipv4Addr::from_bits(V4.0 << V4.1).into(), 6)
    }
}

/// The mark of a script, which is not 0.
pub fn mark(number: u32) -> u32 {
    number % NUMBERS + 1
}

/// One of the virtual addresses whose packets carry a script's mark.
pub fn address(number: u32, which: u16, v6: bool) -> IpAddr {
    let number = number % NUMBERS;
    if v6 {
        let ends = ((number >> 16) as u16, number as u16);
        return Ipv6Addr::new(V6.0 as u16, 0, 0, which, 0, 0, ends.0, ends.1).into();
    }
    Ipv4Addr::from_bits((V4.0 << V4.1) + u32::from(which) * NUMBERS + number).into()
}

/// The program: `struct bpf_insn` by number.
pub fn program() -> Vec<u64> {
    // Loads of the packet (`BPF_LD | BPF_ABS`) want the context in register 6, and answer in register 0.
    const CONTEXT: u64 = 6;
    const MARK: i32 = 8;
    let instruction = |code: u8, registers: u64, offset: i16, number: i32| {
        u64::from(code) | registers << 8 | u64::from(offset as u16) << 16 | u64::from(number as u32) << 32
    };
    let half = |at| instruction(0x28, 0, 0, at);
    let word = |at| instruction(0x20, 0, 0, at);
    let unless = |equal, skipped| instruction(0x55, 0, skipped, equal);
    let shift = |bits: u32| instruction(0x77, 0, 0, bits as i32);
    vec![
        instruction(0xbf, CONTEXT | 1 << 4, 0, 0),
        // EtherType; IPv4's destination.
        half(12),
        unless(0x0800, 5),
        word(30),
        shift(V4.1),
        unless(V4.0 as i32, 10),
        word(30),
        instruction(0x05, 0, 5, 0),
        // IPv6's destination: its first word, and its last.
        unless(0x86dd, 7),
        word(38),
        shift(V6.1),
        unless(V6.0 as i32, 4),
        word(50),
        // The script's number, and one more.
        instruction(0x57, 0, 0, (NUMBERS - 1) as i32),
        instruction(0x07, 0, 0, 1),
        instruction(0x63, CONTEXT, MARK as i16, 0),
        // To whoever comes next.
        instruction(0xb7, 0, 0, -1),
        instruction(0x95, 0, 0, 0),
    ]
}
