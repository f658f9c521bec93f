//! A router on the way to a server says that a packet is too big which was put inside of another: it says so to this node,
//! about the outer packet. The client is told what it may send (spec 9.4).

use lb_common::{
    drops::Drop,
    layout::ConnectionState,
    packet::{self, Bytes, ETHERNET_HEADER, Family, Packet},
};

use crate::{
    connections::Entry,
    dsr,
    frame::{Frame, Seldom},
    maps::Scratch,
    respond,
    settings::{node_address, scratch, settings},
    tunnel::{adjust, read_header},
    verdict::{self, NEXT},
};

/// [`find`]: the error is one that the client is to be [told](tell), by whoever has a shallow stack.
pub const RELAY: i32 = -8;

/// Bytes of an ICMP error before the packet that it quotes.
const ICMP_HEADER: u32 = 8;

/// Looks at an ICMP error that quotes no packet of a service itself. The client's packet is parsed into `quoted`.
#[inline(never)]
pub fn find(frame: Frame, error: &Packet, quoted: &mut Packet) -> i32 {
    let (Some(settings), Some(Scratch { around, way, .. })) = (settings(), scratch()) else { return NEXT };
    let Some(head) = frame.read_seldom::<8>(error.transport) else { return NEXT };
    let (is_too_big, mtu) = match error.family {
        Family::V4 => (head[0] == 3 && head[1] == 4, u32::from(u16::from_be_bytes([head[6], head[7]]))),
        Family::V6 => (head[0] == 2, u32::from_be_bytes([head[4], head[5], head[6], head[7]])),
    };
    let at = error.transport + ICMP_HEADER;
    if !is_too_big || error.network != ETHERNET_HEADER || !read_header(frame, at, error.family, around) {
        return NEXT;
    }
    let node = node_address(settings, matches!(error.family, Family::V4));
    if around.director != *node || error.key.destination != *node || !parse_inside(frame, at + around.header, quoted) {
        return NEXT;
    }
    let Some(entry) = Entry::find(&quoted.key) else { return NEXT };
    if !entry.state().has(ConnectionState::TUNNEL) || entry.value().destination != around.server {
        return NEXT;
    }
    way.mtu = mtu;
    way.overhead = around.header;
    match dsr::fits(quoted, way) {
        0 => NEXT,
        fits => {
            way.message = respond::too_big(quoted.family);
            way.rest = fits.to_be();
            RELAY
        }
    }
}

/// Parses the packet of the family that `quoted` is to have, of which an ICMP error may have a part.
#[inline(never)]
fn parse_inside(frame: Frame, at: u32, quoted: &mut Packet) -> bool {
    let Some(Scratch { around, .. }) = scratch() else { return false };
    packet::parse_network(&Seldom(frame), around.family, at, true, quoted).is_ok()
}

/// Makes the error one from the frontend about the client's packet, the one that [`find`] found, and sends it there.
#[inline(never)]
pub fn tell(frame: Frame) -> i32 {
    let Some(Scratch { quoted, way, .. }) = scratch() else { return NEXT };
    let length = quoted.network.wrapping_sub(ETHERNET_HEADER);
    if !adjust(frame, (length as i32).wrapping_neg(), 0) {
        return verdict::drop(Drop::RewriteFailed);
    }
    quoted.network = ETHERNET_HEADER;
    quoted.transport = quoted.transport.wrapping_sub(length);
    if !respond::write(frame, quoted, way.message, way.rest) {
        return verdict::drop(Drop::Unanswerable);
    }
    // A packet from here on, for the client.
    quoted.length = frame.len().wrapping_sub(ETHERNET_HEADER);
    way.server = quoted.key.source;
    way.overhead = 0;
    dsr::deliver(frame, quoted, way)
}
