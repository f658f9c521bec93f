//! What the agent told the programs, and the clock.

use aya_ebpf::helpers::generated::bpf_ktime_get_coarse_ns;
use lb_common::{address::Address, layout::Settings};

use crate::maps::{SCRATCH, SETTINGS, Scratch};

/// The settings; an array of one entry always has it.
#[inline(always)]
pub fn settings() -> Option<&'static Settings> {
    // The map outlives every run of the program, and user space replaces the value's words whole.
    SETTINGS.get(0)
}

/// The node's address in a family; unspecified if it has none.
#[inline(always)]
pub fn node_address(settings: &Settings, v4: bool) -> &Address {
    if v4 { &settings.node_v4 } else { &settings.node_v6 }
}

/// This CPU's scratch space.
#[inline(always)]
pub fn scratch() -> Option<&'static mut Scratch> {
    // SAFETY: a per-CPU value that only tc programs use, one at a time on a CPU (see the map).
    SCRATCH.get_ptr_mut(0).map(|scratch| unsafe { &mut *scratch })
}

/// Nanoseconds of the monotonic clock as of the last timer tick (1 to 10 ms old): enough for timeouts, at a fraction
/// of the cost of reading the clock.
#[inline(always)]
pub fn now() -> u64 {
    // SAFETY: the helper takes no arguments and has no preconditions.
    unsafe { bpf_ktime_get_coarse_ns() }
}
