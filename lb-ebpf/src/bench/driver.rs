//! Makes a packet, then tail-calls the program under test.
//!
//! `BPF_PROG_TEST_RUN` repeats a program on one packet, which the first run translates. The driver writes the headers
//! anew before each run, with another client where that is asked for; what it costs is measured with
//! [`bench_empty`] as its target, and subtracted.

use aya_ebpf::{
    EbpfContext,
    bindings::xdp_action::{XDP_ABORTED, XDP_PASS},
    btf_maps::{Array, ProgramArray},
    helpers::{bpf_get_prandom_u32, bpf_skb_store_bytes, generated::bpf_xdp_store_bytes},
    macros::{btf_map, classifier, xdp},
    programs::{TcContext, XdpContext},
};

use crate::control::{AT_RANDOM, Control, TARGETS, TEMPLATE_MASK};

/// What is measured.
#[btf_map(name = "bench_control")]
static CONTROL: Array<Control, 1> = Array::new();

/// Programs under test.
#[btf_map(name = "bench_targets")]
static TARGET_PROGRAMS: ProgramArray<TARGETS> = ProgramArray::new();

/// Go on with the next program: what the programs of bpvs return for a packet that is none of theirs.
const NEXT: i32 = -1;
/// Drop: what a run that could not be measured returns.
const SHOT: i32 = 2;

/// First port of clients.
const FIRST_PORT: u32 = 1024;

/// The control entry.
#[inline(always)]
pub(crate) fn control() -> Option<&'static mut Control> {
    // SAFETY: an array value stays mapped; one program runs at a time, and user space writes between runs.
    CONTROL.get_ptr_mut(0).map(|control| unsafe { &mut *control })
}

/// Number of the flow that this run is about.
#[inline(always)]
pub(crate) fn flow(control: &mut Control) -> u32 {
    if control.order == AT_RANDOM {
        // SAFETY: the helper takes no arguments and has no preconditions.
        let random = unsafe { bpf_get_prandom_u32() };
        // Scaled, not divided: a multiplication is cheaper and as even.
        return ((u64::from(random) * u64::from(control.flows)) >> 32) as u32;
    }
    let flow = control.next as u32;
    control.next += 1;
    flow
}

/// Puts the next packet's client into the template. Its length, 0 if there is none.
#[inline(always)]
fn prepare(control: &mut Control) -> u32 {
    let flow = flow(control);
    let address = (control.address_at & TEMPLATE_MASK) as usize;
    let port = (control.port_at & TEMPLATE_MASK) as usize;
    let template = (&raw mut control.template).cast::<u8>();
    // SAFETY: the mask keeps offsets at least eight bytes before the template's end.
    unsafe {
        // 10.128.0.0 and on, and ports once those 65,536 are used up.
        let client = 0x0a80_0000 | (flow & 0xffff);
        template.add(address).cast::<u32>().write_unaligned(client.to_be());
        let number = (FIRST_PORT + (flow >> 16)) as u16;
        template.add(port).cast::<u16>().write_unaligned(number.to_be());
    }
    control.length & TEMPLATE_MASK
}

/// The driver of tc programs.
#[classifier]
pub fn bench_packet(ctx: TcContext) -> i32 {
    let Some(control) = control() else { return SHOT };
    let length = prepare(control);
    if length == 0 {
        return SHOT;
    }
    let template = (&raw mut control.template).cast::<u8>();
    // SAFETY: the template has more bytes than the mask admits; the helper checks the packet's bounds.
    if unsafe { bpf_skb_store_bytes(ctx.skb.skb, 0, template.cast(), length, 0) } != 0 {
        return SHOT;
    }
    // SAFETY: nothing here needs to be dropped.
    unsafe { TARGET_PROGRAMS.tail_call(&ctx, control.target) };
    SHOT
}

/// The empty program that all costs are net of.
#[classifier]
pub fn bench_empty(ctx: TcContext) -> i32 {
    if ctx.as_ptr().is_null() { SHOT } else { NEXT }
}

/// XDP programs under test.
#[btf_map(name = "bench_uplink_targets")]
static UPLINK_PROGRAMS: ProgramArray<TARGETS> = ProgramArray::new();

/// The driver of XDP programs. Takes fragmented buffers as its targets do, which a tail call demands.
#[xdp(frags)]
pub fn bench_uplink(ctx: XdpContext) -> u32 {
    let Some(control) = control() else { return XDP_ABORTED };
    let length = prepare(control);
    if length == 0 {
        return XDP_ABORTED;
    }
    let template = (&raw mut control.template).cast::<u8>();
    // SAFETY: as above.
    if unsafe { bpf_xdp_store_bytes(ctx.ctx, 0, template.cast(), length) } != 0 {
        return XDP_ABORTED;
    }
    // SAFETY: nothing here needs to be dropped.
    unsafe { UPLINK_PROGRAMS.tail_call(&ctx, control.target) };
    XDP_ABORTED
}

/// The empty program of XDP.
#[xdp(frags)]
pub fn bench_uplink_empty(ctx: XdpContext) -> u32 {
    if ctx.as_ptr().is_null() { XDP_ABORTED } else { XDP_PASS }
}
