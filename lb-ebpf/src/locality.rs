//! lblc and lblcr: where the memory of `lb_common::scheduler::locality` lives.
//!
//! lblcr's set is a run of places in `locality_sets`, sixteen to a value, oldest first; IPVS's list is newest first,
//! so walks go downwards. A removed server leaves a hole.

use core::ffi::c_long;

use aya_ebpf::bindings::BPF_ANY;
use lb_common::{
    address::Address,
    layout::{
        DESTINATION_AVAILABLE, LOCALITY_CHUNK, Locality, LocalityChunk, LocalityKey, MAX_DESTINATIONS_PER_SERVICE,
        ServerReference, Service,
    },
    scheduler::{
        locality::{REPLICATION_EXPIRY_NS, SetMaximum, SetMinimum, busy, may_be_busy},
        scan::{Candidate, Rule},
    },
};

use crate::{
    maps::{DESTINATIONS_MAP, LOCALITY, LOCALITY_SETS},
    schedule::{Request, candidate, repeat, scan},
};

const CHUNK: u32 = LOCALITY_CHUNK as u32;
/// Chunks of a set, at most.
const MAX_CHUNKS: u32 = MAX_DESTINATIONS_PER_SERVICE / CHUNK;

/// A remembered server and whether it is still in its service.
#[inline(always)]
fn recall(server: ServerReference, service: u32) -> Option<(Candidate, bool)> {
    let destination = DESTINATIONS_MAP.get(server.destination)?;
    if server.destination == 0 || destination.epoch != server.epoch || destination.service != service {
        return None;
    }
    let available = destination.flags & DESTINATION_AVAILABLE != 0;
    Some((candidate(server.destination, destination.weight), available))
}

/// A server as it is remembered.
#[inline(always)]
fn reference(destination: u32) -> ServerReference {
    let epoch = match DESTINATIONS_MAP.get(destination) {
        Some(value) => value.epoch,
        None => 0,
    };
    ServerReference { destination, epoch }
}

/// lblc: the remembered server unless it is gone or busy, else the least loaded by weight.
#[inline(never)]
pub fn single(service: &Service, request: &Request) -> u32 {
    let key = LocalityKey { address: request.destination, service: service.id, chunk: 0 };
    let entry = LOCALITY.get_ptr_mut(key);
    let mut remembered = Candidate::default();
    if let Some(entry) = entry {
        // SAFETY: map values stay mapped while the program runs; words are written whole.
        let server = unsafe {
            (*entry).last_used = request.now;
            (*entry).server
        };
        if let Some((server, true)) = recall(server, service.id)
            && server.weight > 0
        {
            if !may_be_busy(&server) {
                return server.destination;
            }
            remembered = server;
        }
    }
    let scan = scan(service, Rule::WeightedLeast);
    if remembered.destination != 0 && !busy(&remembered, scan.relaxed_exists()) {
        return remembered.destination;
    }
    let chosen = scan.chosen();
    if chosen == 0 {
        return 0;
    }
    let server = reference(chosen);
    match entry {
        // SAFETY: as above.
        Some(entry) => unsafe { (*entry).server = server },
        None => {
            let fresh = Locality { last_used: request.now, server, ..Locality::default() };
            let _ = LOCALITY.insert(key, fresh, u64::from(BPF_ANY));
        }
    }
    chosen
}

struct SetWalk {
    key: LocalityKey,
    chunks: u32,
    service: u32,
    minimum: SetMinimum,
    maximum: SetMaximum,
    wanted: u32,
    found: u32,
}

unsafe extern "C" fn walk_chunk(index: u32, state: *mut SetWalk) -> c_long {
    // SAFETY: bpf_loop passes the pointer that `repeat` gave it.
    let state = unsafe { &mut *state };
    let chunk = state.chunks.wrapping_sub(1).wrapping_sub(index);
    state.key.chunk = chunk.wrapping_add(1);
    // SAFETY: as in `single`.
    let Some(servers) = (unsafe { LOCALITY_SETS.get(state.key) }) else { return 0 };
    for back in 0..LOCALITY_CHUNK {
        let place = LOCALITY_CHUNK - 1 - back;
        let server = servers.servers[place];
        if server.destination == 0 {
            continue;
        }
        if server.destination == state.wanted {
            state.found = 1;
        }
        if let Some((candidate, available)) = recall(server, state.service) {
            state.minimum.step(&candidate, available);
            state.maximum.step(&candidate, chunk.wrapping_mul(CHUNK).wrapping_add(place as u32));
        }
    }
    0
}

#[inline(never)]
fn walk(state: &mut SetWalk) -> u32 {
    let chunks = if state.chunks > MAX_CHUNKS { MAX_CHUNKS } else { state.chunks };
    state.chunks = chunks;
    repeat(chunks, walk_chunk, state);
    0
}

#[inline(always)]
fn walk_of(address: Address, service: u32, length: u32, wanted: u32) -> SetWalk {
    SetWalk {
        key: LocalityKey { address, service, chunk: 0 },
        chunks: length.div_ceil(CHUNK),
        service,
        minimum: SetMinimum::default(),
        maximum: SetMaximum::default(),
        wanted,
        found: 0,
    }
}

/// lblcr: the least loaded server of the remembered set, which grows when that is busy and shrinks once a day.
#[inline(never)]
pub fn replicated(service: &Service, request: &Request) -> u32 {
    let key = LocalityKey { address: request.destination, service: service.id, chunk: 0 };
    let Some(entry) = LOCALITY.get_ptr_mut(key) else {
        let chosen = scan(service, Rule::WeightedLeast).chosen();
        if chosen != 0 {
            start_set(key, chosen, request.now);
        }
        return chosen;
    };
    // SAFETY: as in `single`.
    let entry = unsafe { &mut *entry };
    entry.last_used = request.now;
    let mut set = walk_of(key.address, service.id, entry.length, 0);
    walk(&mut set);
    if entry.count > 1 && request.now.wrapping_sub(entry.last_modified) > REPLICATION_EXPIRY_NS {
        if let Some(place) = set.maximum.place() {
            write_place(key, place, ServerReference { destination: 0, epoch: 0 }, false);
            entry.count = entry.count.wrapping_sub(1);
        }
        entry.last_modified = request.now;
    }
    let server = set.minimum.chosen();
    if server.destination != 0 && !may_be_busy(server) {
        return server.destination;
    }
    let scan = scan(service, Rule::WeightedLeast);
    if server.destination != 0 && !busy(server, scan.relaxed_exists()) {
        return server.destination;
    }
    let chosen = scan.chosen();
    if chosen == 0 {
        return 0;
    }
    let mut presence = walk_of(key.address, service.id, entry.length, chosen);
    walk(&mut presence);
    if presence.found == 0 && entry.length < MAX_DESTINATIONS_PER_SERVICE {
        write_place(key, entry.length, reference(chosen), true);
        entry.length = entry.length.wrapping_add(1);
        entry.count = entry.count.wrapping_add(1);
        entry.last_modified = request.now;
    }
    chosen
}

#[inline(always)]
fn start_set(key: LocalityKey, server: u32, now: u64) {
    let mut chunk = LocalityChunk::default();
    chunk.servers[0] = reference(server);
    let _ = LOCALITY_SETS.insert(LocalityKey { chunk: 1, ..key }, chunk, u64::from(BPF_ANY));
    let entry = Locality { last_used: now, last_modified: now, length: 1, count: 1, ..Locality::default() };
    let _ = LOCALITY.insert(key, entry, u64::from(BPF_ANY));
}

/// Writes one place of a set. `append`: at its end, where a new chunk starts empty (one of an evicted set may linger).
#[inline(never)]
fn write_place(key: LocalityKey, place: u32, server: ServerReference, append: bool) -> u32 {
    let key = LocalityKey { chunk: 1 + place / CHUNK, ..key };
    if append && place % CHUNK == 0 {
        let _ = LOCALITY_SETS.insert(key, LocalityChunk::default(), u64::from(BPF_ANY));
    }
    if let Some(chunk) = LOCALITY_SETS.get_ptr_mut(key) {
        // SAFETY: as in `single`; the remainder keeps the index inside the chunk.
        unsafe { (*chunk).servers[(place % CHUNK) as usize] = server };
    }
    0
}
