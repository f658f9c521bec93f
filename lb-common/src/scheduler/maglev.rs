//! mh: Maglev's table, which user space builds, and its lookup (`ip_vs_mh.c`, spec 3.13).
//!
//! Each destination has its own order of all cells, from two hashes of its address and port, and they claim cells in
//! turns. A destination that comes or goes moves few cells of the others.

use super::{
    cursor::WeightSteps,
    table::{self, Probe},
};
use crate::{
    address::{Address, Port},
    layout::{DestinationSlot, SERVICE_HASH_FALLBACK, SERVICE_HASH_PORT},
};

/// Cells in the table, and the most destinations that it can serve: a prime, as distributions build the kernel
/// (`CONFIG_IP_VS_MH_TAB_INDEX=12`).
pub const TABLE_LENGTH: usize = 4093;
const CELLS: u32 = TABLE_LENGTH as u32;
/// Bits of the most cells that a destination claims in one turn (`IP_VS_MH_TAB_INDEX / 2`).
const TURN_BITS: u32 = 6;

/// Both words of the key that offsets and clients are hashed with, and of the one for skips.
const OFFSET_KEY: u64 = 2_654_435_761;
const SKIP_KEY: u64 = 2_654_446_892;

/// Linux's `hsiphash_1u32` on 64-bit machines: the low half of SipHash-1-3 over four bytes, with one word as both halves
/// of the key (spec 4.3).
#[inline(always)]
const fn sip_hash(value: u32, key: u64) -> u32 {
    let mut v = [
        0x736f_6d65_7073_6575 ^ key,
        0x646f_7261_6e64_6f6d ^ key,
        0x6c79_6765_6e65_7261 ^ key,
        0x7465_6462_7974_6573 ^ key,
    ];
    let message = 4 << 56 | value as u64;
    v[3] ^= message;
    v = sip_round(v);
    v[0] ^= message;
    v[2] ^= 0xff;
    v = sip_round(sip_round(sip_round(v)));
    (v[0] ^ v[1] ^ v[2] ^ v[3]) as u32
}

#[inline(always)]
const fn sip_round([mut a, mut b, mut c, mut d]: [u64; 4]) -> [u64; 4] {
    a = a.wrapping_add(b);
    b = b.rotate_left(13) ^ a;
    a = a.rotate_left(32);
    c = c.wrapping_add(d);
    d = d.rotate_left(16) ^ c;
    a = a.wrapping_add(d);
    d = d.rotate_left(21) ^ a;
    c = c.wrapping_add(b);
    b = b.rotate_left(17) ^ c;
    [a, b, c.rotate_left(32), d]
}

/// A destination while the table is built.
#[derive(Clone, Copy, Debug)]
pub struct Claim {
    slot: DestinationSlot,
    last_weight: i32,
    /// The cell to try next.
    next: u32,
    skip: u32,
}

impl Claim {
    /// The claim of a destination. `last_weight` is
    /// [`Destination::last_weight`](crate::layout::Destination::last_weight): it decides the share, and the weight in
    /// `slot` only whether the cells' destination is usable.
    pub const fn new(slot: DestinationSlot, address: &Address, port: Port, last_weight: i32) -> Self {
        let value = address.fold().wrapping_add(port.number() as u32);
        let next = sip_hash(value, OFFSET_KEY) % CELLS;
        Self { slot, last_weight, next, skip: sip_hash(value, SKIP_KEY) % (CELLS - 1) + 1 }
    }

    /// Takes the first free cell of the destination's own order.
    fn take(&mut self, table: &mut [DestinationSlot; TABLE_LENGTH]) {
        while table[self.next as usize].destination != 0 {
            self.next = (self.next + self.skip) % CELLS;
        }
        table[self.next as usize] = self.slot;
    }
}

/// Fills the table. False, with every cell empty, if no destination has a last weight above 0, or if there are more than
/// [`TABLE_LENGTH`].
///
/// `claims` stand in list order, with ids other than 0.
pub fn fill(claims: &mut [Claim], table: &mut [DestinationSlot; TABLE_LENGTH]) -> bool {
    table.fill(DestinationSlot::default());
    let last_weights = || claims.iter().map(|claim| claim.last_weight);
    let highest = last_weights().max().unwrap_or(0);
    if highest <= 0 || claims.len() > TABLE_LENGTH {
        return false;
    }
    let divisor = WeightSteps::of(last_weights()).step;
    let shift = (i32::BITS - (highest / divisor).leading_zeros()).saturating_sub(TURN_BITS);
    let mut free = CELLS;
    loop {
        for claim in claims.iter_mut().filter(|claim| claim.last_weight > 0) {
            // A share too small for the table still has a cell in each turn.
            for _ in 0..((claim.last_weight / divisor) >> shift).max(1) {
                claim.take(table);
                free -= 1;
                if free == 0 {
                    return true;
                }
            }
        }
    }
}

/// The lookup: which cell to look at, and what to do with it (`ip_vs_mh_get`, `ip_vs_mh_get_fallback`).
///
/// A function of the attempt's number, so that a verifier sees the same state at each of thousands of attempts.
#[derive(Clone, Copy, Debug)]
pub struct MaglevWalk {
    client: u32,
    first: u32,
    fallback: bool,
}

impl MaglevWalk {
    /// Attempts to make at most: the hashed cell, then with fallback every offset.
    pub const MAX_PROBES: u32 = 1 + CELLS;

    /// A walk for a client. `port` is the host-order source port; it counts with [`SERVICE_HASH_PORT`] only.
    #[inline(always)]
    pub const fn new(source: &Address, port: u16, flags: u8) -> Self {
        let port = if flags & SERVICE_HASH_PORT != 0 { port as u32 } else { 0 };
        let client = source.fold().wrapping_add(port);
        let first = sip_hash(client, OFFSET_KEY) % CELLS;
        Self { client, first, fallback: flags & SERVICE_HASH_FALLBACK != 0 }
    }

    /// The cell to look at in this attempt, from 0.
    #[inline(always)]
    pub const fn cell(&self, attempt: u32) -> u32 {
        if attempt == 0 {
            return self.first;
        }
        // Unlike sh's, mh's offset goes into the hash; the first one is the hashed cell's number.
        let offset = attempt.wrapping_sub(1).wrapping_add(self.first) % CELLS;
        sip_hash(offset.wrapping_add(self.client), OFFSET_KEY) % CELLS
    }

    /// Judges the cell's destination. The caller counts attempts up to [`Self::MAX_PROBES`].
    #[inline(always)]
    pub const fn offer(&self, cell: DestinationSlot, overloaded: bool) -> Probe {
        if table::usable(cell, overloaded) {
            Probe::Take
        } else if self.fallback && cell.destination != 0 {
            Probe::Next
        } else {
            Probe::Nothing
        }
    }
}

#[cfg(test)]
mod tests {
    use core::net::IpAddr;

    use super::*;

    fn address(text: &str) -> Address {
        Address::from(text.parse::<IpAddr>().expect("vector address"))
    }

    #[test]
    fn hashes_are_those_of_the_kernel() {
        // Spec 4.4.
        for (value, key, expected) in [
            (0, OFFSET_KEY, 492_468_162),
            (1, OFFSET_KEY, 384_591_538),
            (u32::MAX, OFFSET_KEY, 583_391_001),
            (0, SKIP_KEY, 4_169_286_463),
            (0x0a00_0001 + 80, OFFSET_KEY, 1_134_300_350),
            (0x0a00_0001 + 80, SKIP_KEY, 2_545_146_951),
        ] {
            assert_eq!(sip_hash(value, key), expected, "{value}");
        }
        for (text, port, offset, skip) in
            [("10.0.0.1", 80, 3167, 700), ("192.168.60.1", 8080, 3725, 77), ("fd00:60::1", 80, 3949, 358)]
        {
            let claim = Claim::new(DestinationSlot::default(), &address(text), Port::new(port), 1);
            assert_eq!((claim.next, claim.skip), (offset, skip), "{text}");
        }
    }

    #[test]
    fn clients_find_the_kernels_cells() {
        for (text, plain, with_port) in [
            ("10.0.0.1", 3711, 2940),
            ("10.1.2.3", 1263, 2589),
            ("192.168.1.77", 3943, 2189),
            ("203.0.113.9", 1189, 1917),
            ("fd00:1:2::3", 1711, 1410),
            ("2001:db8::1", 3457, 3517),
        ] {
            assert_eq!(MaglevWalk::new(&address(text), 40_000, 0).cell(0), plain, "{text}");
            assert_eq!(MaglevWalk::new(&address(text), 40_000, SERVICE_HASH_PORT).cell(0), with_port, "{text}");
        }
    }

    fn claims(last_weights: [i32; 3]) -> [Claim; 3] {
        // Added in order 1, 2, 3, so the list is 3, 2, 1.
        [3, 2, 1].map(|id: u32| {
            let last_weight = last_weights[id as usize - 1];
            let slot = DestinationSlot { destination: id, weight: 0 };
            Claim::new(slot, &Address::from(IpAddr::from([192, 168, 60, id as u8])), Port::new(80), last_weight)
        })
    }

    #[test]
    fn tables_are_those_of_the_kernel() {
        for (weights, shares, begin) in [
            ([1, 1, 1], [1364, 1364, 1365], b"122333111111112233333331111233"),
            ([1, 2, 3], [682, 1364, 2047], b"122333333331112233333333331233"),
        ] {
            let mut table = [DestinationSlot::default(); TABLE_LENGTH];
            assert!(fill(&mut claims(weights), &mut table));
            assert_eq!([1, 2, 3].map(|id| table.iter().filter(|cell| cell.destination == id).count()), shares);
            for (cell, expected) in table.iter().zip(begin) {
                assert_eq!(cell.destination, u32::from(expected - b'0'), "{weights:?}");
            }
        }
    }

    #[test]
    fn only_what_has_a_last_weight_has_cells() {
        let mut table = [DestinationSlot { destination: 9, weight: 9 }; TABLE_LENGTH];
        assert!(!fill(&mut [], &mut table));
        assert!(!fill(&mut claims([0, 0, 0]), &mut table));
        assert!(table.iter().all(|cell| cell.destination == 0));
        assert!(!fill(&mut [claims([1, 1, 1])[0]; TABLE_LENGTH + 1], &mut table));
        assert!(fill(&mut claims([0, i32::MAX, 1]), &mut table));
        assert!(table.iter().all(|cell| cell.destination > 1));
        assert!(fill(&mut [claims([1, 1, 1])[0]; TABLE_LENGTH], &mut table));
    }

    #[test]
    fn a_fallback_tries_every_offset_once() {
        let cell = DestinationSlot { destination: 1, weight: 0 };
        let plain = MaglevWalk::new(&address("10.1.2.3"), 0, 0);
        let fallback = MaglevWalk::new(&address("10.1.2.3"), 0, SERVICE_HASH_FALLBACK);
        assert_eq!((plain.offer(cell, false), fallback.offer(cell, false)), (Probe::Nothing, Probe::Next));
        assert_eq!(fallback.offer(DestinationSlot::default(), false), Probe::Nothing);
        assert_eq!(plain.offer(DestinationSlot { weight: 1, ..cell }, false), Probe::Take);
        assert!((0..MaglevWalk::MAX_PROBES).all(|attempt| fallback.cell(attempt) < CELLS));
        // Offset 4093 - cell comes back to the client's own hash.
        assert_eq!(fallback.cell(1 + CELLS - fallback.first), fallback.first);
    }
}
