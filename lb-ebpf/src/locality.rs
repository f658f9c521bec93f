//! lblc and lblcr: where the memory of `lb_common::scheduler::locality` lives.
//!
//! lblcr's set is a run of places in `locality_sets`, sixteen to a value, oldest first; IPVS's list is newest first,
//! so walks go downwards. A removed server leaves a hole.

use core::ffi::c_long;

use aya_ebpf::bindings::BPF_ANY;
use lb_common::{
    layout::{
        DESTINATION_AVAILABLE, LOCALITY_CHUNK, Locality, LocalityChunk, LocalityKey, MAX_DESTINATIONS_PER_SERVICE,
        ServerReference, Service,
    },
    scheduler::{
        locality::{FORGET_NS, REPLICATION_EXPIRY_NS, SetMaximum, SetMinimum, busy, may_be_busy},
        scan::Candidate,
    },
};

use crate::{
    maps::{DESTINATIONS_MAP, LOCALITY, LOCALITY_SETS},
    scan::scan_by_locality,
    schedule::{Request, candidate, repeat},
};

const CHUNK: u32 = LOCALITY_CHUNK as u32;

/// True if an entry has not been used for so long that IPVS would have forgotten it.
#[inline(always)]
fn is_forgotten(entry: &Locality, now: u64) -> bool {
    now.wrapping_sub(entry.last_used) as i64 >= FORGET_NS as i64
}

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

/// The key of an address's entry. A scheduler that starts anew finds nothing, as in IPVS.
#[inline(always)]
fn key_of(service: &Service, request: &Request) -> LocalityKey {
    LocalityKey { address: request.destination, service: service.id, chunk: u32::from(service.started) << 16 }
}

/// The key of a chunk of its set.
#[inline(always)]
fn chunk_key(key: &LocalityKey, number: u32) -> LocalityKey {
    LocalityKey { chunk: key.chunk & !0xffff | (1 + number), ..*key }
}

/// lblc: the remembered server unless it is gone or busy, else the least loaded by weight.
#[inline(never)]
pub fn single(service: &Service, request: &Request) -> u32 {
    let key = key_of(service, request);
    let entry = LOCALITY.get_ptr_mut(key);
    let mut remembered = Candidate::default();
    if let Some(entry) = entry {
        // SAFETY: map values stay mapped while the program runs; words are written whole.
        let (server, forgotten) = unsafe {
            let forgotten = is_forgotten(&*entry, request.now);
            (*entry).last_used = request.now;
            ((*entry).server, forgotten)
        };
        if !forgotten
            && let Some((server, true)) = recall(server, service.id)
            && server.weight > 0
        {
            if !may_be_busy(&server) {
                return server.destination;
            }
            remembered = server;
        }
    }
    let scan = scan_by_locality(service);
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

/// A walk over lblcr's set, newest first.
struct SetWalk {
    key: LocalityKey,
    length: u32,
    minimum: SetMinimum,
    maximum: SetMaximum,
}

/// The reference at a place of a set; id 0 where there is none.
#[inline(always)]
fn place_of(key: &mut LocalityKey, place: u32) -> ServerReference {
    *key = chunk_key(key, place / CHUNK);
    // SAFETY: as in `single`.
    match unsafe { LOCALITY_SETS.get(*key) } {
        Some(chunk) => chunk.servers[(place % CHUNK) as usize],
        None => ServerReference { destination: 0, epoch: 0 },
    }
}

unsafe extern "C" fn weigh_place(index: u32, state: *mut SetWalk) -> c_long {
    // SAFETY: bpf_loop passes the pointer that `repeat` gave it.
    let state = unsafe { &mut *state };
    let place = state.length.wrapping_sub(1).wrapping_sub(index);
    let server = place_of(&mut state.key, place);
    if let Some((candidate, available)) = recall(server, state.key.service) {
        state.minimum.step(&candidate, available);
        state.maximum.step(&candidate, place);
    }
    0
}

/// The least loaded server of a set, after taking out the most loaded if the set has not changed for a day.
#[inline(never)]
fn minimum_of_set(key: &LocalityKey, entry: &mut Locality, chosen: &mut Candidate, now: u64) -> u32 {
    let mut walk = SetWalk {
        key: *key,
        length: bounded(entry.length),
        minimum: SetMinimum::default(),
        maximum: SetMaximum::default(),
    };
    repeat(walk.length, weigh_place, &mut walk);
    if entry.count > 1 && now.wrapping_sub(entry.last_modified) as i64 > REPLICATION_EXPIRY_NS as i64 {
        if let Some(place) = walk.maximum.place() {
            write_place(key, place, ServerReference { destination: 0, epoch: 0 });
            entry.count = entry.count.wrapping_sub(1);
        }
        entry.last_modified = now;
    }
    *chosen = *walk.minimum.chosen();
    0
}

#[inline(always)]
fn bounded(length: u32) -> u32 {
    if length > MAX_DESTINATIONS_PER_SERVICE { MAX_DESTINATIONS_PER_SERVICE } else { length }
}

/// A chunk of holes. Static: 128 bytes are too many for the stack.
static EMPTY: LocalityChunk = LocalityChunk { servers: [ServerReference { destination: 0, epoch: 0 }; LOCALITY_CHUNK] };

struct Membership {
    key: LocalityKey,
    wanted: ServerReference,
    found: u32,
}

unsafe extern "C" fn compare_place(place: u32, state: *mut Membership) -> c_long {
    // SAFETY: as in `weigh_place`.
    let state = unsafe { &mut *state };
    // An id alone could be that of a server long gone, whose id another one got.
    if place_of(&mut state.key, place) == state.wanted {
        state.found = 1;
        return 1;
    }
    0
}

/// Adds a server to a set unless it is in it.
#[inline(never)]
fn add_to_set(key: &LocalityKey, entry: &mut Locality, server: u32, now: u64) -> u32 {
    let length = bounded(entry.length);
    let server = reference(server);
    let mut membership = Membership { key: *key, wanted: server, found: 0 };
    repeat(length, compare_place, &mut membership);
    if membership.found != 0 || length >= MAX_DESTINATIONS_PER_SERVICE {
        return 0;
    }
    if length.is_multiple_of(CHUNK) {
        // A new chunk starts empty: one of an evicted set may linger.
        let _ = LOCALITY_SETS.insert(chunk_key(key, length / CHUNK), &EMPTY, u64::from(BPF_ANY));
    }
    write_place(key, length, server);
    entry.length = length.wrapping_add(1);
    entry.count = entry.count.wrapping_add(1);
    entry.last_modified = now;
    0
}

/// lblcr: the least loaded server of the remembered set, which grows when that is busy and shrinks once a day.
#[inline(never)]
pub fn replicated(service: &Service, request: &Request) -> u32 {
    let key = key_of(service, request);
    let Some(entry) = LOCALITY.get_ptr_mut(key) else { return first_of_set(service, &key, request.now) };
    // SAFETY: as in `single`.
    let entry = unsafe { &mut *entry };
    if is_forgotten(entry, request.now) {
        return first_of_set(service, &key, request.now);
    }
    entry.last_used = request.now;
    let mut server = Candidate::default();
    minimum_of_set(&key, entry, &mut server, request.now);
    if server.destination != 0 && !may_be_busy(&server) {
        return server.destination;
    }
    let scan = scan_by_locality(service);
    if server.destination != 0 && !busy(&server, scan.relaxed_exists()) {
        return server.destination;
    }
    let chosen = scan.chosen();
    if chosen != 0 {
        add_to_set(&key, entry, chosen, request.now);
    }
    chosen
}

/// Chooses a server for an address that has no set, which begins with it.
#[inline(never)]
fn first_of_set(service: &Service, key: &LocalityKey, now: u64) -> u32 {
    let chosen = scan_by_locality(service).chosen();
    if chosen != 0 {
        start_set(key, chosen, now);
    }
    chosen
}

/// A new set of one server.
#[inline(never)]
fn start_set(key: &LocalityKey, server: u32, now: u64) -> u32 {
    let _ = LOCALITY_SETS.insert(chunk_key(key, 0), &EMPTY, u64::from(BPF_ANY));
    write_place(key, 0, reference(server));
    let entry = Locality { last_used: now, last_modified: now, length: 1, count: 1, ..Locality::default() };
    let _ = LOCALITY.insert(*key, entry, u64::from(BPF_ANY));
    0
}

/// Writes one place of a set.
#[inline(always)]
fn write_place(key: &LocalityKey, place: u32, server: ServerReference) {
    let key = chunk_key(key, place / CHUNK);
    if let Some(chunk) = LOCALITY_SETS.get_ptr_mut(key) {
        // SAFETY: as in `single`; the remainder keeps the index inside the chunk.
        unsafe { (*chunk).servers[(place % CHUNK) as usize] = server };
    }
}
