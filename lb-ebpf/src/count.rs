//! Counters: drops by reason, traffic and load by destination.

use lb_common::drops::Drop;

use crate::atomic::Word;
use crate::maps::{DESTINATION_LOAD, DESTINATION_TRAFFIC, DROPS};

/// Counts a packet dropped or refused.
#[inline(always)]
pub fn drop(reason: Drop) {
    if let Some(counter) = DROPS.get_ptr_mut(reason as u32) {
        // SAFETY: the map's value is 8-aligned and lives as long as the map. A slot per CPU, yet atomic: a tc program may
        // interrupt a socket program between its load and its store.
        unsafe { Word::new(counter).add(1) };
    }
}

/// Counts a packet from a client.
#[inline(always)]
pub fn request(server: u32, bytes: u32) {
    if let Some(traffic) = DESTINATION_TRAFFIC.get_ptr_mut(server) {
        // SAFETY: a per-CPU slot that only tc programs write, and they do not nest on a CPU.
        unsafe {
            (*traffic).in_packets += 1;
            (*traffic).in_bytes += u64::from(bytes);
        }
    }
}

/// Counts a packet to a client.
#[inline(always)]
pub fn reply(server: u32, bytes: u32) {
    if let Some(traffic) = DESTINATION_TRAFFIC.get_ptr_mut(server) {
        // SAFETY: as in `request`.
        unsafe {
            (*traffic).out_packets += 1;
            (*traffic).out_bytes += u64::from(bytes);
        }
    }
}

/// Counts a connection as scheduled.
#[inline(always)]
pub fn scheduled(server: u32) {
    if let Some(traffic) = DESTINATION_TRAFFIC.get_ptr_mut(server) {
        // SAFETY: as in `drop`.
        unsafe { Word::new(&raw mut (*traffic).connections).add(1) };
    }
}

/// Counts a connection as scheduled, with the packet from the client that opened it.
#[inline(always)]
pub fn opened(server: u32, bytes: u32) {
    if let Some(traffic) = DESTINATION_TRAFFIC.get_ptr_mut(server) {
        // SAFETY: as in `request`.
        unsafe {
            (*traffic).connections += 1;
            (*traffic).in_packets += 1;
            (*traffic).in_bytes += u64::from(bytes);
        }
    }
}

/// Adds to a destination's active and inactive connections (wrapping, so that a difference moves both at once).
#[inline(always)]
pub fn load(server: u32, difference: u64) {
    if let Some(load) = DESTINATION_LOAD.get_ptr_mut(server) {
        // SAFETY: the map's value is 8-aligned, lives as long as the map, and is changed by atomic operations only.
        // Announced first: whoever reads `connections` and then finds `changes` as it was has read it unchanged.
        unsafe {
            Word::new(&raw mut (*load).changes).add(1);
            Word::new(&raw mut (*load).connections).add(difference);
        }
    }
}
