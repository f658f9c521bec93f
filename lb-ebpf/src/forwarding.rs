//! `--forwarding direct` at tc: a packet goes straight to the interface of its receiver, by the [short way](crate::shortcut),
//! past the host's routing, netfilter and, to a pod of this node, its queue.

use core::{ffi::c_void, mem, ptr};

use aya_ebpf::{
    bindings::{BPF_FIB_LKUP_RET_NO_NEIGH, bpf_fib_lookup},
    helpers::{bpf_redirect_neigh, bpf_redirect_peer, generated},
};
use lb_common::{
    drops::Drop,
    layout::{ConnectionState, DIRECT_NEIGHBOUR, DIRECT_PEER},
    nat::{self, Editor, Rewrite, Sum},
    packet::{Bytes, Packet},
};

use crate::{
    count,
    frame::Frame,
    ingress::{self, Arrival},
    maps::{DIRECT, Scratch},
    passage,
    route::{outcome, question},
    settings::scratch,
    shortcut::{self, Hop, LEAVES, STAYS, Shortcut, decrement_hops},
    verdict::{DROPPED, NEXT},
};

/// The program: the short way first, else as ever.
#[inline(always)]
pub fn run(frame: Frame) -> i32 {
    let arrival = match ingress::arrive(frame) {
        Ok(arrival) => arrival,
        Err(verdict) => return verdict,
    };
    let Some(Scratch { packet, .. }) = scratch() else { return NEXT };
    // A tag beside the packet would leave with it: what VLAN devices get comes by again, without.
    if matches!(arrival, Arrival::Itself) && !frame.is_tagged() && shortcut::is_plain(packet) {
        match shortcut::transport(frame, packet) {
            NEXT => {}
            shortcut::LEFT => return NEXT,
            verdict => return verdict,
        }
    }
    ingress::parsed(frame)
}

impl Shortcut for Frame {
    const STAYS_WITH_STACK: u32 = ConnectionState::NOT_DIRECT;

    #[inline(always)]
    fn context(self) -> *mut c_void {
        self.skb().cast()
    }

    #[inline(always)]
    fn came_by(self) -> u32 {
        self.interface()
    }

    #[inline(always)]
    fn mark(self) -> Option<u32> {
        Some(Frame::mark(self))
    }

    #[inline(always)]
    fn length(self, packet: &Packet) -> u32 {
        length_on_the_wire(self, packet)
    }

    #[inline(always)]
    fn route(self, packet: &Packet, to: &Rewrite, hop: &mut Hop) -> u32 {
        find(self, packet, to, hop)
    }

    #[inline(always)]
    fn leave(self, packet: &Packet) -> i32 {
        passage::note(self, packet, passage::NOTHING);
        shortcut::LEFT
    }

    #[inline(always)]
    fn send(self, packet: &Packet, to: &Rewrite, hop: &Hop) -> i32 {
        send(self, packet, to, hop)
    }
}

#[inline(never)]
fn find(frame: Frame, packet: &Packet, to: &Rewrite, hop: &mut Hop) -> u32 {
    let mut asked = question(packet, to, frame.interface(), length_on_the_wire(frame, packet));
    // SAFETY: the context is valid during the program, and the helper is told how large `asked` is.
    let answer = unsafe {
        generated::bpf_fib_lookup(frame.skb().cast(), &raw mut asked, mem::size_of::<bpf_fib_lookup>() as i32, 0)
    };
    let has_neighbour = answer as u32 != BPF_FIB_LKUP_RET_NO_NEIGH;
    // One that is not known is found by whoever sends.
    if has_neighbour && outcome(answer) != LEAVES {
        return outcome(answer);
    }
    // SAFETY: a value is one word, which is copied at once.
    let Some(how) = unsafe { DIRECT.get(&asked.ifindex) }.copied() else { return STAYS };
    // At once at the other end only with its hardware address: it may be a bridge's port.
    hop.fill(&asked, if has_neighbour { how } else { DIRECT_NEIGHBOUR });
    LEAVES
}

/// Length of the packet, or of each that it is cut into (segmentation offload).
#[inline(always)]
pub fn length_on_the_wire(frame: Frame, packet: &Packet) -> u32 {
    let segment = frame.segment();
    if segment == 0 {
        return packet.length;
    }
    let header = match packet.key.protocol {
        6 => match frame.read::<2>(packet.transport + 12) {
            Some([offset, _]) => u32::from(offset >> 4) * 4,
            None => 60,
        },
        _ => 8,
    };
    packet.transport - packet.network + header + segment
}

/// Writes the translation and sends the packet on.
#[inline(never)]
fn send(frame: Frame, packet: &Packet, to: &Rewrite, hop: &Hop) -> i32 {
    let mut frame = frame;
    if decrement_hops(&mut frame, packet).is_none() || nat::apply(&mut frame, packet, to).is_err() {
        count::drop(Drop::RewriteFailed);
        return DROPPED;
    }
    frame.finish();
    // SAFETY: the helpers take plain numbers; without parameters the next hop is looked up.
    let verdict = unsafe {
        if hop.how == DIRECT_PEER {
            if frame.store(0, hop.link, Sum::Kept).is_err() {
                count::drop(Drop::RewriteFailed);
                return DROPPED;
            }
            bpf_redirect_peer(hop.interface, 0)
        } else {
            bpf_redirect_neigh(hop.interface, ptr::null_mut(), 0, 0)
        }
    };
    verdict as i32
}
