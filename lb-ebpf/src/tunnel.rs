//! Packets inside of other packets: put in on the way to a server ([`wrap`]), taken out at the server's node
//! ([`take_out`]). No tunnel device has to do with either.
//!
//! What is taken out is for a service and a server of it that this node knows as its own ([`DESTINATION_LOCAL`]), by the
//! outer header's destination; all else is somebody else's, or the kernel's tunnels', and passes untouched. Then it is a
//! request as any other, but that nobody is asked for its server.

use core::ffi::c_long;

use aya_ebpf::{
    bindings::{
        BPF_F_ADJ_ROOM_ENCAP_L3_IPV4, BPF_F_ADJ_ROOM_ENCAP_L3_IPV6, BPF_F_ADJ_ROOM_FIXED_GSO,
        bpf_adj_room_mode::BPF_ADJ_ROOM_MAC,
    },
    helpers::{bpf_get_prandom_u32, generated::bpf_skb_adjust_room},
};
use lb_common::{
    address::{Address, Protocol},
    connection,
    drops::Drop,
    layout::{
        ACCESS_SPLIT, ConnectionState, DESTINATION_AVAILABLE, DESTINATION_LOCAL, LOOKUP_TUNNELS, SERVICE_TUNNELS,
    },
    nat::{self, Editor, Sum, checksum::Difference},
    packet::{self, Bytes, ETHERNET_HEADER, Family, Kind, Packet},
    tunnel::{self, Congestion, Outer},
};

use crate::{
    admit,
    connections::{self, Entry},
    count, fragments,
    frame::{Frame, Seldom},
    lookup,
    maps::{DESTINATION_SLOTS, DESTINATIONS_MAP, LOOKUPS, Scratch},
    masquerade::is_pod,
    schedule::repeat,
    settings::{node_address, scratch, settings},
};

/// Puts a packet inside of another one, for this server, behind a header of `overhead` bytes. 0 if it could not.
#[inline(never)]
pub fn wrap(frame: Frame, packet: &Packet, server: &Address, overhead: u32) -> u32 {
    let mut frame = frame;
    let Some(settings) = settings() else { return 0 };
    let hops = packet.hops.wrapping_sub(1);
    let Some(mut outer) = Outer::of(&frame, packet.family, packet.network, packet.length, hops) else { return 0 };
    let from = node_address(settings, server.is_v4());
    if *from == Address::UNSPECIFIED {
        return 0;
    }
    let family = if server.is_v4() { Family::V4 } else { Family::V6 };
    let kind = match family {
        Family::V4 => BPF_F_ADJ_ROOM_ENCAP_L3_IPV4,
        Family::V6 => BPF_F_ADJ_ROOM_ENCAP_L3_IPV6,
    };
    if !adjust(frame, overhead as i32, kind) {
        return 0;
    }
    let stored = match family {
        Family::V4 => {
            // SAFETY: the helper takes no arguments and has no preconditions.
            outer.identification = unsafe { bpf_get_prandom_u32() } as u16;
            frame.store(ETHERNET_HEADER, outer.v4(from, server), Sum::Kept)
        }
        Family::V6 => frame.store(ETHERNET_HEADER, outer.v6(from, server), Sum::Changed),
    };
    if stored.is_err() {
        return 0;
    }
    if family as u8 != packet.family as u8
        && frame.store(ETHERNET_HEADER - 2, tunnel::ethertype(family), Sum::Kept).is_err()
    {
        return 0;
    }
    1
}

/// Makes room for a header before the packet, or takes one away. What segmentation offload will make of the packet has the
/// payload that its sender chose.
#[inline(always)]
pub fn adjust(frame: Frame, by: i32, flags: u32) -> bool {
    let flags = u64::from(flags | BPF_F_ADJ_ROOM_FIXED_GSO);
    // SAFETY: `skb` is this program's context; the helper checks lengths.
    unsafe { bpf_skb_adjust_room(frame.skb(), by, BPF_ADJ_ROOM_MAC, flags) == 0 }
}

/// [`take_out`]: there is nothing that is ours.
pub const NOTHING: u32 = 0;
/// [`take_out`]: the packet is the one that was inside, as it is parsed in the scratch space.
pub const TAKEN: u32 = 1;
/// [`take_out`]: dropped, and counted.
pub const BROKEN: u32 = 2;

/// Takes a packet out of another one, if that was sent to a server of this node.
#[inline(never)]
pub fn take_out(frame: Frame) -> u32 {
    if LOOKUPS.get(0).copied().unwrap_or(0) & LOOKUP_TUNNELS == 0 {
        return NOTHING;
    }
    let Some(Scratch { packet, quoted, request, around, .. }) = scratch() else { return NOTHING };
    if !read_around(frame, around) || !parse_inside(frame, around, packet) {
        return NOTHING;
    }
    let server = if matches!(packet.kind, Kind::IcmpError) {
        if !parse_quoted(frame, packet, quoted) {
            return NOTHING;
        }
        known(&around.server, Entry::find(&nat::quoted_key(quoted)), false)
    } else {
        server(frame, packet, &around.server)
    };
    if server == 0 {
        return NOTHING;
    }
    if !strip(frame, packet, around) {
        count::drop(Drop::RewriteFailed);
        return BROKEN;
    }
    request.server = server;
    match show_congestion(frame, packet, around.class) {
        true => TAKEN,
        false => {
            count::drop(Drop::Congestion);
            BROKEN
        }
    }
}

/// What an outer header says.
pub struct Around {
    /// Its source.
    pub director: Address,
    /// Its destination.
    pub server: Address,
    /// Length of the packet inside, by this header; 0 where it does not say.
    length: u32,
    /// Length of the header.
    pub header: u32,
    /// Traffic class.
    class: u8,
    /// Family of both packets.
    pub family: Family,
}

/// Reads the header that a frame begins with; false as [`read_header`] is.
#[inline(always)]
fn read_around(frame: Frame, around: &mut Around) -> bool {
    let Some(ethertype) = frame.read_seldom::<2>(ETHERNET_HEADER - 2) else { return false };
    let family = if ethertype == tunnel::ethertype(Family::V4) {
        Family::V4
    } else if ethertype == tunnel::ethertype(Family::V6) {
        Family::V6
    } else {
        return false;
    };
    read_header(frame, ETHERNET_HEADER, family, around)
}

/// Reads an outer header; false if it is none of a tunnel within one family, or of a part of a packet.
#[inline(never)]
pub fn read_header(frame: Frame, at: u32, family: Family, around: &mut Around) -> bool {
    around.family = family;
    match family {
        Family::V4 => {
            let Some(header) = frame.read_seldom::<20>(at) else { return false };
            let total = u32::from(u16::from_be_bytes([header[2], header[3]]));
            around.header = u32::from(header[0] & 0x0f) * 4;
            around.class = header[1];
            let address = |at: usize| {
                Address::from_v4_word(u32::from_ne_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]))
            };
            around.director = address(12);
            around.server = address(16);
            around.length = if total == 0 { 0 } else { total.wrapping_sub(around.header) };
            // Neither more fragments nor an offset.
            let whole = header[6] & 0x3f == 0 && header[7] == 0;
            header[0] >> 4 == 4
                && around.header >= 20
                && (total == 0 || total > around.header)
                && whole
                && header[9] == tunnel::PROTOCOL_IPV4
        }
        Family::V6 => {
            let Some(header) = frame.read_seldom::<40>(at) else { return false };
            let mut address = [0; 16];
            address.copy_from_slice(&header[8..24]);
            around.director = Address::from_v6_bytes(address);
            address.copy_from_slice(&header[24..]);
            around.server = Address::from_v6_bytes(address);
            around.header = 40;
            around.class = header[0] << 4 | header[1] >> 4;
            around.length = u32::from(u16::from_be_bytes([header[4], header[5]]));
            header[0] >> 4 == 6 && header[6] == tunnel::PROTOCOL_IPV6
        }
    }
}

/// Parses the packet inside; false if it is none of ours, or does not fit.
#[inline(never)]
fn parse_inside(frame: Frame, around: &Around, packet: &mut Packet) -> bool {
    if packet::parse_network(&Seldom(frame), around.family, ETHERNET_HEADER + around.header, false, packet).is_err() {
        return false;
    }
    // A length of 0 on one side only is a lie; what is behind the packet's end is padding.
    if around.length == 0 || packet.length == 0 {
        return around.length == 0 && packet.length == 0 && frame.segment() != 0;
    }
    packet.length <= around.length && packet.network + packet.length <= frame.len()
}

#[inline(never)]
fn parse_quoted(frame: Frame, error: &Packet, quoted: &mut Packet) -> bool {
    packet::parse_quoted(&Seldom(frame), error, quoted).is_ok()
}

/// The destination id that a packet for this server has here; 0 if it is none of ours.
#[inline(never)]
fn server(frame: Frame, packet: &mut Packet, server: &Address) -> u32 {
    if matches!(packet.kind, Kind::LaterFragment) && !fragments::recall(packet) {
        return 0;
    }
    let Some(protocol) = Protocol::from_number(packet.key.protocol) else { return 0 };
    let opens = connection::opens(protocol, packet.signal) && !matches!(packet.kind, Kind::LaterFragment);
    let entry = Entry::find(&packet.key);
    let known = known(server, entry, opens);
    if known != 0 {
        return known;
    }
    let found = of_service(frame, packet, server);
    // The director has chosen anew.
    if found != 0 && entry.is_some_and(|entry| entry.value().server != found) {
        connections::end(&packet.key);
    }
    found
}

/// The destination id of a connection, if that is one with this server; of those that are over for packets that open one,
/// not. A connection that is known outlives its server's place in the set and its method ([`LOOKUP_TUNNELS`] stays): what
/// would be let in by that is what the packet inside could do by itself.
#[inline(always)]
fn known(server: &Address, entry: Option<Entry>, opens: bool) -> u32 {
    let Some(entry) = entry else { return 0 };
    let others = ConnectionState::REPLY | ConnectionState::PASSING | ConnectionState::DIRECT_RETURN;
    if entry.state().has(others) {
        return 0;
    }
    let wanted = if opens { DESTINATION_LOCAL | DESTINATION_AVAILABLE } else { 0 };
    let id = entry.value().server;
    match DESTINATIONS_MAP.get(id) {
        Some(destination) if destination.flags & wanted == wanted && destination.address == *server => id,
        _ => 0,
    }
}

/// The destination id of a server in the service that a packet is for.
#[inline(always)]
fn of_service(frame: Frame, packet: &Packet, server: &Address) -> u32 {
    let Some(Scratch { service, wanted, .. }) = scratch() else { return 0 };
    if admit::find_service(packet, frame.mark()) == 0 {
        return 0;
    }
    if service.access & ACCESS_SPLIT != 0
        && is_pod(&packet.key.source, frame.interface()) == 0
        && lookup::copy_external(wanted, service) == 0
    {
        return 0;
    }
    if service.flags & SERVICE_TUNNELS == 0 {
        return 0;
    }
    let mut search = Search { address: *server, base: service.set_base, found: 0 };
    repeat(service.set_length, look, &mut search);
    search.found
}

/// A server of this node that is looked for in a set.
struct Search {
    address: Address,
    base: u32,
    found: u32,
}

unsafe extern "C" fn look(position: u32, search: *mut Search) -> c_long {
    // SAFETY: bpf_loop passes the pointer that `repeat` gave it.
    let search = unsafe { &mut *search };
    let Some(slot) = DESTINATION_SLOTS.get(search.base.wrapping_add(position)) else { return 0 };
    let id = slot.destination;
    match DESTINATIONS_MAP.get(id) {
        Some(destination)
            if id != 0 && destination.flags & DESTINATION_LOCAL != 0 && destination.address == search.address =>
        {
            search.found = id;
            1
        }
        _ => 0,
    }
}

/// Takes the outer header away.
#[inline(never)]
fn strip(frame: Frame, packet: &mut Packet, around: &Around) -> bool {
    let header = around.header;
    if !(20..=60).contains(&header) || !adjust(frame, -(header as i32), 0) {
        return false;
    }
    packet.network = packet.network.wrapping_sub(header);
    packet.transport = packet.transport.wrapping_sub(header);
    true
}

/// Shows congestion on the way here to the receiver. False if it cannot be shown.
#[inline(never)]
fn show_congestion(frame: Frame, packet: &Packet, outside: u8) -> bool {
    let mut frame = frame;
    let Some([first, second]) = frame.read_seldom::<2>(packet.network) else { return false };
    let inside = match packet.family {
        Family::V4 => second,
        Family::V6 => first << 4 | second >> 4,
    };
    let bits = match tunnel::congestion(inside, outside) {
        Congestion::None => return true,
        Congestion::Dropped => return false,
        Congestion::Shown(bits) => bits,
    };
    let (old, place) = ([first, second], packet.network);
    match packet.family {
        Family::V4 => {
            let new = [first, second | bits];
            let difference = Difference::ZERO.half(u16::from_ne_bytes(old), u16::from_ne_bytes(new));
            frame.store(place, new, Sum::Kept).is_ok() && frame.fix_network(place + 10, difference).is_ok()
        }
        Family::V6 => frame.store(place, [first, second | bits << 4], Sum::Changed).is_ok(),
    }
}
