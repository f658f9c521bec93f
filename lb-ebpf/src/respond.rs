//! Answers that the node gives in a frontend's name: ICMP port unreachable, TCP reset. And turning a packet round at
//! the interface it arrived on.
//!
//! The answer is written over the packet. A packet whose checksum a local sender left to the device keeps that mark:
//! right for veth, where such packets come from, since nothing completes it there. A sum that a device kept beside the
//! packet does not follow: nobody looks at it on the way out.

use core::hint::black_box;

use aya_ebpf::helpers::{bpf_skb_change_tail, bpf_skb_load_bytes, bpf_skb_store_bytes};
use lb_common::{
    address::Address,
    drops::Drop,
    nat::{Editor, Sum, checksum},
    packet::{Bytes, Family, Kind, PROTOCOL_ICMP, PROTOCOL_ICMPV6, Packet},
    tcp,
};

use crate::{
    frame::Frame,
    maps::QUOTE_WORDS,
    settings::scratch,
    verdict::{self, send_back},
};

/// Bytes that are moved at once.
const QUOTE: usize = QUOTE_WORDS * 4;
/// Length of an ICMP error, at most: as much of the refused packet as fits is quoted (RFC 1812 4.3.2.3).
const MOST_V4: u32 = 576;
/// The same in ICMPv6: the least MTU (RFC 4443 2.4).
const MOST_V6: u32 = 1280;
/// Hop limit of answers, as Linux's default.
const HOPS: u8 = 64;

/// Sends the packet back where it came from: link-layer addresses swapped.
#[inline(always)]
pub fn turn_round(frame: Frame) -> i32 {
    let mut frame = frame;
    let Some(addresses) = frame.read::<12>(0) else { return verdict::drop(Drop::RewriteFailed) };
    let mut swapped = [0; 12];
    swapped[..6].copy_from_slice(&addresses[6..]);
    swapped[6..].copy_from_slice(&addresses[..6]);
    match frame.store(0, swapped, Sum::Kept) {
        Ok(()) => send_back(frame),
        Err(_) => verdict::drop(Drop::RewriteFailed),
    }
}

/// Must this packet not be answered? RFC 1122 3.2.2, RFC 4443 2.4: nobody, or everybody, sent it.
#[inline(always)]
fn unanswerable(packet: &Packet) -> bool {
    let source = &packet.key.source;
    let [first, ..] = match packet.family {
        Family::V4 => source.v4_word().to_ne_bytes(),
        Family::V6 => source.words[0].to_ne_bytes(),
    };
    let multicast = match packet.family {
        Family::V4 => first >= 224 || first == 127 || first == 0,
        Family::V6 => first == 0xff || *source == Address::UNSPECIFIED,
    };
    multicast || matches!(packet.kind, Kind::LaterFragment)
}

/// Answers with ICMP port unreachable, from the frontend.
#[inline(always)]
pub fn unreachable(frame: Frame, packet: &Packet) -> i32 {
    error(frame, packet, message(packet.family, [3, 3], [1, 4]), 0)
}

/// ICMP host unreachable, or address unreachable.
#[inline(always)]
pub fn host_unreachable(family: Family) -> u32 {
    message(family, [3, 1], [1, 3])
}

/// ICMP fragmentation needed, or packet too big.
#[inline(always)]
pub fn too_big(family: Family) -> u32 {
    message(family, [3, 4], [2, 0])
}

/// ICMP time exceeded in transit.
#[inline(always)]
pub fn time_exceeded(family: Family) -> u32 {
    message(family, [11, 0], [3, 0])
}

/// Type and code as the first word of an ICMP error, in a family.
#[inline(always)]
fn message(family: Family, v4: [u8; 2], v6: [u8; 2]) -> u32 {
    let [kind, code] = match family {
        Family::V4 => v4,
        Family::V6 => v6,
    };
    u32::from_ne_bytes([kind, code, 0, 0])
}

/// Answers with the ICMP error that the way to the server had for the packet.
#[inline(always)]
pub fn explain(frame: Frame, packet: &Packet) -> i32 {
    let Some(scratch) = scratch() else { return verdict::DROPPED };
    error(frame, packet, scratch.way.message, scratch.way.rest)
}

/// Answers with an ICMP error, from the frontend: its first word, without a checksum, and its second.
#[inline(never)]
pub fn error(frame: Frame, packet: &Packet, message: u32, rest: u32) -> i32 {
    if write(frame, packet, message, rest) { turn_round(frame) } else { verdict::drop(Drop::Unanswerable) }
}

/// Writes such an error over the packet; false if there is to be no answer, or could be none.
#[inline(always)]
pub fn write(frame: Frame, packet: &Packet, message: u32, rest: u32) -> bool {
    !unanswerable(packet) && write_error(frame, packet, message, rest).is_some()
}

#[inline(always)]
fn write_error(frame: Frame, packet: &Packet, message: u32, rest: u32) -> Option<()> {
    let (protocol, most) = match packet.family {
        Family::V4 => (PROTOCOL_ICMP, MOST_V4),
        Family::V6 => (PROTOCOL_ICMPV6, MOST_V6),
    };
    let header = packet.family.header_length();
    let mut length = packet.length;
    let available = frame.len().wrapping_sub(packet.network);
    if length == 0 || length > available {
        length = available;
    }
    if length > most - header - 8 {
        length = most - header - 8;
    }
    if length < 28 {
        return None;
    }
    resize(frame, packet.network + header + 8 + length)?;
    // The packet moves behind the headers of its answer, its end first.
    let mut sum = 0u64;
    let mut place = (length - 1) / QUOTE as u32 * QUOTE as u32;
    for _ in 0..MOST_V6 / QUOTE as u32 {
        let part = move_up(frame, packet.network + place, header + 8, length - place);
        if part == FAILED {
            return None;
        }
        sum += part;
        if place == 0 {
            break;
        }
        place -= QUOTE as u32;
    }
    sum += u64::from(message) + u64::from(rest);
    if let Family::V6 = packet.family {
        sum += pseudo_header(packet, 8 + length, protocol);
    }
    let mut icmp = [0; 8];
    icmp[..4].copy_from_slice(&message.to_ne_bytes());
    icmp[2..4].copy_from_slice(&(!fold(sum)).to_ne_bytes());
    icmp[4..].copy_from_slice(&rest.to_ne_bytes());
    if !write_network_header(frame, packet, 8 + length, u32::from(protocol)) {
        return None;
    }
    { frame }.store(packet.network + header, icmp, Sum::Kept).ok()
}

/// [`move_up`]: it could not. No sum of so few words.
const FAILED: u64 = u64::MAX;

/// Moves up to [`QUOTE`] bytes by `distance` towards the end of the frame; their sum, in words.
#[inline(never)]
fn move_up(frame: Frame, from: u32, distance: u32, length: u32) -> u64 {
    let Some(scratch) = scratch() else { return FAILED };
    let quote = &mut scratch.quote;
    // Zero-padded: padding adds nothing to the sum.
    *quote = [0; QUOTE_WORDS];
    let length = if length > QUOTE as u32 { QUOTE as u32 } else { length };
    if length == 0 {
        return 0;
    }
    // 1 to QUOTE already, and changed by none of this: the verifier of Linux 6.1 learns no least length from a compare
    // with 0. Hidden from the compiler, which knows the range and would leave this out.
    const { assert!(QUOTE.is_power_of_two()) };
    let length = (black_box(length - 1) & (QUOTE as u32 - 1)) + 1;
    // SAFETY: at most QUOTE bytes go to `quote`; the helper checks the packet's bounds.
    let loaded = unsafe { bpf_skb_load_bytes(frame.skb().cast(), from, quote.as_mut_ptr().cast(), length) };
    if loaded != 0 {
        return FAILED;
    }
    // SAFETY: as above, from `quote`.
    let stored = unsafe { bpf_skb_store_bytes(frame.skb(), from + distance, quote.as_ptr().cast(), length, 0) };
    if stored != 0 {
        return FAILED;
    }
    quote.iter().map(|word| u64::from(*word)).sum()
}

/// Answers a stray segment with a reset (RFC 9293, 3.10.7.1), from the frontend; a reset itself gets no answer.
#[inline(never)]
pub fn reset(frame: Frame, packet: &Packet) -> i32 {
    if packet.signal & tcp::FLAG_RST != 0 || unanswerable(packet) {
        return verdict::drop(Drop::Unanswerable);
    }
    match write_reset(frame, packet) {
        Some(()) => turn_round(frame),
        None => verdict::drop(Drop::Unanswerable),
    }
}

#[inline(always)]
fn write_reset(frame: Frame, packet: &Packet) -> Option<()> {
    let segment = { frame }.read::<20>(packet.transport)?;
    let sequence = u32::from_be_bytes([segment[4], segment[5], segment[6], segment[7]]);
    let acknowledged = [segment[8], segment[9], segment[10], segment[11]];
    let mut answer = [0; 20];
    answer[..2].copy_from_slice(&packet.key.destination_port.0.to_ne_bytes());
    answer[2..4].copy_from_slice(&packet.key.source_port.0.to_ne_bytes());
    answer[12] = 5 << 4;
    if packet.signal & tcp::FLAG_ACK != 0 {
        answer[4..8].copy_from_slice(&acknowledged);
        answer[13] = tcp::FLAG_RST;
    } else {
        let headers = packet.transport - packet.network + u32::from(segment[12] >> 4) * 4;
        let fin = u32::from(packet.signal & tcp::FLAG_FIN != 0);
        let length = if packet.length == 0 { frame.len().wrapping_sub(packet.network) } else { packet.length };
        let consumed = length.wrapping_sub(headers).wrapping_add(fin);
        answer[8..12].copy_from_slice(&sequence.wrapping_add(consumed).to_be_bytes());
        answer[13] = tcp::FLAG_RST | tcp::FLAG_ACK;
    }
    let mut sum = pseudo_header(packet, 20, packet.key.protocol);
    for word in answer.chunks_exact(4) {
        sum += u64::from(u32::from_ne_bytes([word[0], word[1], word[2], word[3]]));
    }
    answer[16..18].copy_from_slice(&(!fold(sum)).to_ne_bytes());
    let header = packet.family.header_length();
    resize(frame, packet.network + header + 20)?;
    if !write_network_header(frame, packet, 20, u32::from(packet.key.protocol)) {
        return None;
    }
    { frame }.store(packet.network + header, answer, Sum::Kept).ok()
}

#[inline(always)]
fn resize(frame: Frame, length: u32) -> Option<()> {
    // SAFETY: `skb` is this program's context; the helper checks the length.
    let result = unsafe { bpf_skb_change_tail(frame.skb(), length, 0) };
    if result == 0 { Some(()) } else { None }
}

/// Sum of the pseudo-header of an answer, which swaps the packet's addresses.
#[inline(always)]
fn pseudo_header(packet: &Packet, length: u32, protocol: u8) -> u64 {
    let (a, b) = (&packet.key.source.words, &packet.key.destination.words);
    let addresses = match packet.family {
        Family::V4 => u64::from(a[3]) + u64::from(b[3]),
        Family::V6 => {
            u64::from(a[0])
                + u64::from(a[1])
                + u64::from(a[2])
                + u64::from(a[3])
                + u64::from(b[0])
                + u64::from(b[1])
                + u64::from(b[2])
                + u64::from(b[3])
        }
    };
    addresses + u64::from(length.to_be()) + u64::from((u32::from(protocol)).to_be())
}

/// Folds a sum of words to a half word.
#[inline(always)]
fn fold(sum: u64) -> u16 {
    let sum = (sum & 0xffff_ffff) + (sum >> 32);
    let sum = (sum & 0xffff_ffff) + (sum >> 32);
    checksum::fold(sum as u32)
}

/// Writes the answer's IP header: from the frontend to the client.
#[inline(never)]
fn write_network_header(frame: Frame, packet: &Packet, payload: u32, protocol: u32) -> bool {
    let protocol = protocol as u8;
    let (from, to) = (&packet.key.destination, &packet.key.source);
    let mut frame = frame;
    match packet.family {
        Family::V4 => {
            let mut header = [0u8; 20];
            header[0] = 0x45;
            header[2..4].copy_from_slice(&((20 + payload) as u16).to_be_bytes());
            // Do not fragment: an answer is small, and so needs no identification (RFC 6864).
            header[6] = 0x40;
            header[8] = HOPS;
            header[9] = protocol;
            header[12..16].copy_from_slice(&from.v4_word().to_ne_bytes());
            header[16..20].copy_from_slice(&to.v4_word().to_ne_bytes());
            let mut sum = 0;
            for word in header.chunks_exact(4) {
                sum += u64::from(u32::from_ne_bytes([word[0], word[1], word[2], word[3]]));
            }
            header[10..12].copy_from_slice(&(!fold(sum)).to_ne_bytes());
            frame.store(packet.network, header, Sum::Kept).is_ok()
        }
        Family::V6 => {
            let mut header = [0u8; 40];
            header[0] = 0x60;
            header[4..6].copy_from_slice(&(payload as u16).to_be_bytes());
            header[6] = protocol;
            header[7] = HOPS;
            header[8..24].copy_from_slice(&words(from));
            header[24..40].copy_from_slice(&words(to));
            frame.store(packet.network, header, Sum::Kept).is_ok()
        }
    }
}

#[inline(always)]
fn words(address: &Address) -> [u8; 16] {
    let mut bytes = [0; 16];
    for (place, word) in bytes.chunks_exact_mut(4).zip(address.words) {
        place.copy_from_slice(&word.to_ne_bytes());
    }
    bytes
}
