//! How a tc program ends.

use aya_ebpf::{bindings::TC_ACT_SHOT, helpers::bpf_redirect, programs::TcContext};
use lb_common::drops::Drop;

use crate::count;

/// Not ours, or done: the next program, then the stack. `TC_ACT_UNSPEC`, which TCX calls `TCX_NEXT`.
pub const NEXT: i32 = -1;

/// Drops the packet and counts why.
#[inline(always)]
pub fn drop(reason: Drop) -> i32 {
    count::drop(reason);
    TC_ACT_SHOT
}

/// Sends the packet out of the interface it arrived on.
#[inline(always)]
pub fn send_back(ctx: &TcContext) -> i32 {
    // SAFETY: `skb` is the context that the kernel passed to this program.
    let interface = unsafe { (*ctx.skb.skb).ifindex };
    // SAFETY: the helper takes plain numbers.
    unsafe { bpf_redirect(interface, 0) as i32 }
}
