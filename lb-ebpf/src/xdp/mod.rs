//! XDP on uplinks: what enters the node and leaves it again does so from the driver, by the [short way](crate::shortcut).
//! What leaves by no uplink goes up the stack as it came.

mod frame;
mod route;

use core::ffi::c_void;

use aya_ebpf::{
    bindings::xdp_action::{XDP_DROP, XDP_PASS, XDP_TX},
    helpers::bpf_redirect,
    programs::XdpContext,
};
use lb_common::{
    drops::Drop,
    layout::ConnectionState,
    nat::{self, Editor, Rewrite, Sum},
    packet::{Packet, parse_ethernet},
};

use self::frame::Frame;
use crate::{
    count,
    maps::Scratch,
    settings::scratch,
    shortcut::{self, Hop, Shortcut, decrement_hops},
    verdict::{DROPPED, NEXT},
};

/// The program.
#[inline(always)]
pub fn run(ctx: &XdpContext) -> u32 {
    let Some(Scratch { packet, request, .. }) = scratch() else { return XDP_PASS };
    request.server = 0;
    let frame = Frame::new(ctx);
    if !parse(frame, packet) || !shortcut::is_plain(packet) {
        return XDP_PASS;
    }
    match shortcut::transport(frame, packet) {
        NEXT => XDP_PASS,
        DROPPED => XDP_DROP,
        sent => sent as u32,
    }
}

#[inline(never)]
fn parse(frame: Frame, packet: &mut Packet) -> bool {
    parse_ethernet(&frame, packet).is_ok()
}

impl Shortcut for Frame {
    const STAYS_WITH_STACK: u32 = ConnectionState::STACK;

    #[inline(always)]
    fn context(self) -> *mut c_void {
        Frame::context(self).cast()
    }

    #[inline(always)]
    fn came_by(self) -> u32 {
        route::routed_as(self.interface()).unwrap_or(self.interface())
    }

    #[inline(always)]
    fn mark(self) -> Option<u32> {
        None
    }

    #[inline(always)]
    fn length(self, packet: &Packet) -> u32 {
        packet.length
    }

    #[inline(always)]
    fn route(self, packet: &Packet, to: &Rewrite, hop: &mut Hop) -> u32 {
        route::find(self, packet, to, hop)
    }

    #[inline(always)]
    fn leave(self, _packet: &Packet) -> i32 {
        NEXT
    }

    #[inline(always)]
    fn send(self, packet: &Packet, to: &Rewrite, hop: &Hop) -> i32 {
        send(self, packet, to, hop)
    }
}

/// Writes the translation and sends the packet out.
#[inline(never)]
fn send(frame: Frame, packet: &Packet, to: &Rewrite, hop: &Hop) -> i32 {
    let mut frame = frame;
    if decrement_hops(&mut frame, packet).is_none()
        || nat::apply(&mut frame, packet, to).is_err()
        || frame.store(0, hop.link, Sum::Kept).is_err()
    {
        count::drop(Drop::RewriteFailed);
        return DROPPED;
    }
    if hop.how != 0 {
        return XDP_TX as i32;
    }
    // SAFETY: the helper takes plain numbers.
    unsafe { bpf_redirect(hop.interface, 0) as i32 }
}
