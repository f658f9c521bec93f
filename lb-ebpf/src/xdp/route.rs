//! Where a packet goes once it is translated: by the kernel's routes and neighbours, to an uplink or not.

use core::mem;

use aya_ebpf::{bindings::bpf_fib_lookup, helpers::generated};
use lb_common::{layout::UPLINK_REDIRECTS, nat::Rewrite, packet::Packet};

use super::frame::Frame;
use crate::{
    maps::UPLINKS,
    route::{outcome, question},
    shortcut::{Hop, LEAVES, STACK_FIRST, STAYS},
};

/// Finds the way of a packet that becomes `to`.
#[inline(never)]
pub fn find(frame: Frame, packet: &Packet, to: &Rewrite, hop: &mut Hop) -> u32 {
    let Some(uplink) = uplink(frame.interface()) else { return STACK_FIRST };
    let came_by = uplink & !UPLINK_REDIRECTS;
    let mut asked = question(packet, to, came_by, packet.length);
    // SAFETY: the context is valid during the program, and the helper is told how large `asked` is.
    let answer = unsafe {
        generated::bpf_fib_lookup(frame.context().cast(), &raw mut asked, mem::size_of::<bpf_fib_lookup>() as i32, 0)
    };
    if outcome(answer) != LEAVES {
        return outcome(answer);
    }
    if self::uplink(asked.ifindex).is_none() {
        return STAYS;
    }
    let back = asked.ifindex == came_by && uplink & UPLINK_REDIRECTS == 0;
    hop.fill(&asked, back.into());
    LEAVES
}

/// What an uplink is routed as; `None` for other interfaces.
#[inline(always)]
pub fn routed_as(interface: u32) -> Option<u32> {
    uplink(interface).map(|uplink| uplink & !UPLINK_REDIRECTS)
}

/// The same with its flag.
#[inline(always)]
fn uplink(interface: u32) -> Option<u32> {
    // SAFETY: a value is one word, which is copied at once.
    unsafe { UPLINKS.get(&interface) }.copied()
}
