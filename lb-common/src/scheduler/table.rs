//! dh and sh: tables that user space builds and BPF only indexes.

use super::hash;
use crate::{
    address::Address,
    layout::{DestinationSlot, SERVICE_HASH_FALLBACK, SERVICE_HASH_PORT},
};

/// Cells in dh's and sh's table (`IP_VS_DH_TAB_SIZE`, `IP_VS_SH_TAB_SIZE` as distributions build it).
pub const TABLE_LENGTH: usize = 256;

/// dh's table: the destinations in list order, again and again, whatever their weights (`ip_vs_dh_reassign`).
///
/// An edit of weights alone does not rebuild dh's table in IPVS; here the cells carry weights, and the order of
/// cells depends on the list only, so a rebuild gives the same cells.
pub fn fill_destination_hash(set: &[DestinationSlot], table: &mut [DestinationSlot; TABLE_LENGTH]) {
    for (cell, entry) in table.iter_mut().enumerate() {
        *entry = if set.is_empty() { DestinationSlot::default() } else { set[cell % set.len()] };
    }
}

/// sh's table: each destination takes as many cells in a row as its weight, one if that is 0 (`ip_vs_sh_reassign`).
pub fn fill_source_hash(set: &[DestinationSlot], table: &mut [DestinationSlot; TABLE_LENGTH]) {
    let (mut position, mut taken) = (0, 0);
    for entry in table.iter_mut() {
        if set.is_empty() {
            *entry = DestinationSlot::default();
            continue;
        }
        if position >= set.len() {
            position = 0;
        }
        *entry = set[position];
        taken += 1;
        if taken >= set[position].weight {
            position += 1;
            taken = 0;
        }
    }
}

/// True if a cell's destination takes new connections.
#[inline(always)]
pub const fn usable(cell: DestinationSlot, overloaded: bool) -> bool {
    cell.destination != 0 && cell.weight > 0 && !overloaded
}

/// sh's probe order: which cell to look at, and what to do with it (`ip_vs_sh_get`, `ip_vs_sh_get_fallback`).
#[derive(Clone, Copy, Debug)]
pub struct SourceHashWalk {
    source: Address,
    port: u16,
    first: u32,
    probe: u32,
    fallback: bool,
}

/// What a probed cell means.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Probe {
    /// Connect to this destination.
    Take,
    /// Nothing is usable.
    Nothing,
    /// Probe the next cell.
    Next,
}

impl SourceHashWalk {
    /// Probes to make at most: the hashed cell, then with fallback every offset.
    pub const MAX_PROBES: u32 = 1 + TABLE_LENGTH as u32;

    /// A walk for a client. `port` is the host-order source port; it counts with [`SERVICE_HASH_PORT`] only.
    #[inline(always)]
    pub const fn new(source: Address, port: u16, flags: u8) -> Self {
        let port = if flags & SERVICE_HASH_PORT != 0 { port } else { 0 };
        let first = hash::source_cell(&source, port, 0);
        Self { source, port, first, probe: 0, fallback: flags & SERVICE_HASH_FALLBACK != 0 }
    }

    /// The cell to look at.
    #[inline(always)]
    pub const fn cell(&self) -> u32 {
        if self.probe == 0 {
            return self.first;
        }
        // IPVS's fallback starts its offsets at the hash itself, so the second probe is cell 2h, not h + 1.
        let offset = (self.probe - 1 + self.first) & 255;
        hash::source_cell(&self.source, self.port, offset)
    }

    /// Judges the cell's destination.
    #[inline(always)]
    pub const fn offer(&mut self, cell: DestinationSlot, overloaded: bool) -> Probe {
        if usable(cell, overloaded) {
            return Probe::Take;
        }
        if !self.fallback || cell.destination == 0 {
            return Probe::Nothing;
        }
        self.probe += 1;
        if self.probe >= Self::MAX_PROBES { Probe::Nothing } else { Probe::Next }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(weights: &[(u32, i32)]) -> [DestinationSlot; 3] {
        let mut set = [DestinationSlot::default(); 3];
        for (slot, &(destination, weight)) in set.iter_mut().zip(weights) {
            *slot = DestinationSlot { destination, weight };
        }
        set
    }

    fn shares(table: &[DestinationSlot]) -> [usize; 3] {
        [1, 2, 3].map(|id| table.iter().filter(|cell| cell.destination == id).count())
    }

    #[test]
    fn source_hash_shares_are_those_of_the_kernel() {
        // Spec 4.4: destinations added in order 1, 2, 3, so the list is 3, 2, 1.
        let mut table = [DestinationSlot::default(); TABLE_LENGTH];
        for (weights, expected) in [([1, 1, 1], [85, 85, 86]), ([1, 2, 4], [36, 72, 148]), ([0, 2, 0], [64, 128, 64])] {
            fill_source_hash(&set(&[(3, weights[2]), (2, weights[1]), (1, weights[0])]), &mut table);
            assert_eq!(shares(&table), expected, "weights {weights:?}");
        }
        let first: [u32; 7] = core::array::from_fn(|cell| {
            fill_source_hash(&set(&[(3, 4), (2, 2), (1, 1)]), &mut table);
            table[cell].destination
        });
        assert_eq!(first, [3, 3, 3, 3, 2, 2, 1]);
    }

    #[test]
    fn an_empty_set_leaves_every_cell_empty() {
        let mut table = [DestinationSlot { destination: 9, weight: 9 }; TABLE_LENGTH];
        fill_source_hash(&[], &mut table);
        assert!(table.iter().all(|cell| cell.destination == 0));
        table = [DestinationSlot { destination: 9, weight: 9 }; TABLE_LENGTH];
        fill_destination_hash(&[], &mut table);
        assert!(table.iter().all(|cell| cell.destination == 0));
    }
}
