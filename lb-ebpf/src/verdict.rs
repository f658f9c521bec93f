//! How a tc program ends.

use aya_ebpf::{bindings::TC_ACT_SHOT, helpers::bpf_redirect};
use lb_common::drops::Drop;

use crate::{count, frame::Frame};

/// Not ours, or done: the next program, then the stack. `TC_ACT_UNSPEC`, which TCX calls `TCX_NEXT`.
pub const NEXT: i32 = -1;

/// Dropped, and counted.
pub const DROPPED: i32 = TC_ACT_SHOT;

/// Drops the packet and counts why.
#[inline(always)]
pub fn drop(reason: Drop) -> i32 {
    count::drop(reason);
    DROPPED
}

/// Sends the packet out of the interface it arrived on.
#[inline(always)]
pub fn send_back(frame: Frame) -> i32 {
    // SAFETY: the helper takes plain numbers.
    unsafe { bpf_redirect(frame.interface(), 0) as i32 }
}
