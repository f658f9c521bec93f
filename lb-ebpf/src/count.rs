//! Counters: drops by reason, traffic and load by destination.

use lb_common::{
    drops::Drop,
    layout::{Destination, DestinationLoad},
};

use crate::atomic::Word;
use crate::maps::{DESTINATION_LOAD, DESTINATION_TRAFFIC, DESTINATIONS_MAP, DROPS};

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

/// Counts a packet from a client no more: whoever has it next will count it.
#[inline(always)]
pub fn request_elsewhere(server: u32, bytes: u32) {
    if let Some(traffic) = DESTINATION_TRAFFIC.get_ptr_mut(server) {
        // SAFETY: as in `request`.
        unsafe {
            (*traffic).in_packets -= 1;
            (*traffic).in_bytes -= u64::from(bytes);
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

/// Announces a change of a destination's connections: a recount that began before it corrects nothing.
#[inline(always)]
pub fn announce(server: u32) {
    load(server, 0);
}

/// Counts a new connection, and checks its server's upper threshold (`ip_vs_bind_dest`).
#[inline(always)]
pub fn bind(server: u32, destination: &Destination, share: u64) {
    load(server, share);
    if destination.upper != 0 {
        weigh(server, destination);
    }
}

/// Counts a connection no more, and checks whether its server takes new ones again (`ip_vs_unbind_dest`).
#[inline(always)]
pub fn unbind(server: u32, share: u64) {
    load(server, share.wrapping_neg());
    if is_overloaded(server)
        && let Some(destination) = DESTINATIONS_MAP.get(server)
    {
        weigh(server, destination);
    }
}

/// True if a server takes no new connections, having had its upper threshold of them.
#[inline(always)]
pub fn is_overloaded(server: u32) -> bool {
    match DESTINATION_LOAD.get(server) {
        Some(load) => load.overloaded(),
        None => false,
    }
}

/// Tries against other CPUs that count connections of the same server: theirs come here too.
const TRIES: u32 = 4;

/// Sets a server's overload flag, or clears it, as its count of connections demands.
#[inline(always)]
fn weigh(server: u32, destination: &Destination) {
    let Some(load) = DESTINATION_LOAD.get_ptr_mut(server) else { return };
    // SAFETY: as in `load`.
    let word = unsafe { Word::new(&raw mut (*load).connections) };
    let mut connections = word.load();
    for _ in 0..TRIES {
        let now = DestinationLoad { connections, remote_active: 0, changes: 0 };
        if destination.overload(now.total(), now.overloaded()) == now.overloaded() {
            return;
        }
        match word.replace(connections, connections ^ DestinationLoad::OVERLOADED) {
            Ok(()) => return,
            Err(current) => connections = current,
        }
    }
}
