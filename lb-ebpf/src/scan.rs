//! lc, wlc, sed, nq, fo and ovf, and what lblc and lblcr look for: a walk that shows every destination to a
//! [`Scan`](lb_common::scheduler::scan::Scan).

use core::ffi::c_long;

use lb_common::{
    layout::Service,
    scheduler::scan::{Candidate, Flow, Rule, Scan},
};

use crate::{
    maps::{DESTINATION_LOAD, DESTINATION_SLOTS},
    schedule::{repeat, usable},
};

struct LeastLoaded {
    scan: Scan,
    set_base: u32,
    length: u32,
}

/// Destinations that one call of the callback looks at: the call costs as much as looking at one.
pub const STRIDE: u32 = 4;

/// One for each rule: asking for the rule cost as much as comparing by it.
unsafe extern "C" fn scan_step<R: By>(chunk: u32, state: *mut LeastLoaded) -> c_long {
    // SAFETY: as in `round_robin_step`.
    let state = unsafe { &mut *state };
    for place in 0..STRIDE {
        let index = chunk.wrapping_mul(STRIDE).wrapping_add(place);
        if index >= state.length {
            return 1;
        }
        // There is no way on without either: one path less for the verifier to follow.
        let Some(slot) = DESTINATION_SLOTS.get(state.set_base.wrapping_add(index)) else { return 1 };
        let Some(load) = DESTINATION_LOAD.get(slot.destination) else { return 1 };
        let candidate = Candidate::with(slot.destination, slot.weight, usable(load, slot.weight), load);
        if R::LOCALITY {
            state.scan.relax(&candidate);
        }
        if matches!(state.scan.step(R::RULE, &candidate), Flow::Stop) {
            return 1;
        }
    }
    0
}

/// What lblc's and lblcr's scan of a whole set found.
#[derive(Clone, Copy)]
pub struct Found(u64);

impl Found {
    const RELAXED: u64 = 1 << 32;

    /// The destination chosen; 0 for none.
    #[inline(always)]
    pub fn chosen(self) -> u32 {
        self.0 as u32
    }

    /// Some destination has fewer active connections than half its weight.
    #[inline(always)]
    pub fn relaxed_exists(self) -> bool {
        self.0 & Self::RELAXED != 0
    }
}

/// A rule as a type.
pub trait By {
    const RULE: Rule;
    /// For lblc and lblcr, which ask for relaxed destinations too.
    const LOCALITY: bool = false;
}

macro_rules! rules {
    ($($name:ident),*) => {$(
        /// [`Rule`] of this name.
        pub struct $name;
        impl By for $name {
            const RULE: Rule = Rule::$name;
        }
    )*};
}
rules!(Least, WeightedLeast, ExpectedDelay, NeverQueue, Failover, Overflow);

struct Locality;
impl By for Locality {
    const RULE: Rule = Rule::WeightedLeast;
    const LOCALITY: bool = true;
}

/// Shows every destination of a service to lblc's and lblcr's scan.
#[inline(always)]
pub fn scan_by_locality(service: &Service) -> Found {
    Found(scan_set::<Locality>(service))
}

/// Shows every destination of a service to a scan: who is chosen.
#[inline(always)]
pub fn scan<R: By>(service: &Service) -> u32 {
    scan_set::<R>(service) as u32
}

/// [`scan`], in a stack frame of its own.
#[inline(never)]
fn scan_set<R: By>(service: &Service) -> u64 {
    let mut state = LeastLoaded { scan: Scan::new(R::RULE), set_base: service.set_base, length: service.set_length };
    repeat(service.set_length.div_ceil(STRIDE), scan_step::<R>, &mut state);
    let relaxed = if state.scan.relaxed_exists() { Found::RELAXED } else { 0 };
    u64::from(state.scan.chosen()) | relaxed
}
