//! dh, sh and mh: tables that user space built, indexed by a hash.

use core::ffi::c_long;

use lb_common::{
    layout::Service,
    scheduler::{
        hash,
        maglev::MaglevWalk,
        table::{self, Probe, SourceHashWalk},
    },
};

use crate::schedule::{Request, has_thresholds, repeat, usable_slot};

/// dh: the server of the address that the client asked for.
#[inline(always)]
pub fn destination_hash(service: &Service, request: &Request) -> u32 {
    let cell = hash::destination_cell(&request.destination);
    if cell >= service.table_length {
        return 0;
    }
    let slot = usable_slot(service.table_base.wrapping_add(cell), has_thresholds(service));
    if table::usable(slot, false) { slot.destination } else { 0 }
}

struct SourceHash {
    walk: SourceHashWalk,
    table_base: u32,
    destination: u32,
    thresholds: u32,
}

unsafe extern "C" fn source_hash_step(_: u32, state: *mut SourceHash) -> c_long {
    // SAFETY: as in `round_robin_step`.
    let state = unsafe { &mut *state };
    let slot = usable_slot(state.table_base.wrapping_add(state.walk.cell()), state.thresholds);
    match state.walk.offer(slot, false) {
        Probe::Next => 0,
        Probe::Nothing => 1,
        Probe::Take => {
            state.destination = slot.destination;
            1
        }
    }
}

/// sh: the client's server.
#[inline(never)]
pub fn source_hash(service: &Service, request: &Request) -> u32 {
    if service.table_length == 0 {
        return 0;
    }
    let mut state = SourceHash {
        walk: SourceHashWalk::new(request.client, request.client_port as u16, service.flags),
        table_base: service.table_base,
        destination: 0,
        thresholds: has_thresholds(service),
    };
    repeat(SourceHashWalk::MAX_PROBES, source_hash_step, &mut state);
    state.destination
}

struct Maglev {
    walk: MaglevWalk,
    table_base: u32,
    destination: u32,
    thresholds: u32,
}

unsafe extern "C" fn maglev_step(attempt: u32, state: *mut Maglev) -> c_long {
    // SAFETY: as in `round_robin_step`.
    let state = unsafe { &mut *state };
    let slot = usable_slot(state.table_base.wrapping_add(state.walk.cell(attempt)), state.thresholds);
    match state.walk.offer(slot, false) {
        Probe::Next => 0,
        Probe::Nothing => 1,
        Probe::Take => {
            state.destination = slot.destination;
            1
        }
    }
}

/// mh: the client's server, by consistent hashing.
#[inline(never)]
pub fn maglev(service: &Service, request: &Request) -> u32 {
    if service.table_length == 0 {
        return 0;
    }
    let mut state = Maglev {
        walk: MaglevWalk::new(&request.client, request.client_port as u16, service.flags),
        table_base: service.table_base,
        destination: 0,
        thresholds: has_thresholds(service),
    };
    repeat(MaglevWalk::MAX_PROBES, maglev_step, &mut state);
    state.destination
}
