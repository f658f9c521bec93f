//! What ingress found of a packet that goes on as it came, for egress: most packets of a node are for no service, and all
//! answers are translated on their way out, so that egress would parse and look up again what ingress has.
//!
//! Ingress keeps the packet as it parsed it in one of a few places of its CPU, and the number of that in the packet's
//! `tc_index`. Egress takes it for the packet at hand only if the addresses, ports and protocol in that are the same still:
//! netfilter may have translated it, or a tunnel put another header before it. For the same ones the same would be found.

use lb_common::{
    nat::Rewrite,
    packet::{Bytes, Family, Kind, Packet},
};

use crate::{
    frame::Frame,
    maps::{PASSAGES, Passage},
    settings::scratch,
};

/// Places on each CPU: more than the kernel takes from a device at a time, all of which come to ingress before the first comes
/// to egress (`gro_normal_batch`: 8).
pub const PLACES: usize = 16;

/// [`Passage::found`]: no connection, and no service.
pub const NOTHING: u32 = 0;
/// [`Passage::found`]: the connection that it answers.
pub const ANSWER: u32 = 1;
/// [`Passage::found`]: its translation, and nothing about the connection is to be noted any more but that it passed.
pub const TRANSLATION: u32 = 2;

/// Every number has this bit.
const NUMBERED: u32 = 1 << 15;

/// Keeps a packet that goes on as it came. Those that are not plain and whole are looked at again: fragments may be put
/// together on the way.
#[inline(never)]
pub fn note(frame: Frame, packet: &Packet, found: u32) -> u32 {
    let Some(scratch) = scratch() else { return 0 };
    if !matches!(packet.kind, Kind::Whole) || !packet.has_plain_header() {
        return 0;
    }
    scratch.passages = scratch.passages.wrapping_add(1);
    let number = NUMBERED | scratch.passages & (NUMBERED - 1);
    let Some(place) = place(number) else { return 0 };
    place.number = number;
    place.found = found;
    place.packet = *packet;
    frame.write_note(number);
    number
}

/// Keeps an answer that leaves its connection as it is: egress has but to write the translation.
#[inline(always)]
pub fn note_answer(frame: Frame, packet: &Packet, server: u32, onward: &Rewrite) {
    let number = note(frame, packet, TRANSLATION);
    if number != 0
        && let Some(place) = place(number)
    {
        place.server = server;
        place.onward = *onward;
    }
}

/// What ingress has kept of this packet; `None` if it has not, or if it is another one by now.
#[inline(always)]
pub fn recall(frame: Frame) -> Option<&'static mut Passage> {
    let number = frame.note();
    if number & NUMBERED == 0 {
        return None;
    }
    let place = place(number)?;
    (place.number == number && is_same(frame, &place.packet)).then_some(place)
}

#[inline(always)]
fn place(number: u32) -> Option<&'static mut Passage> {
    // SAFETY: a per-CPU value that only tc programs use, one at a time on a CPU.
    PASSAGES.get_ptr_mut(number % PLACES as u32).map(|place| unsafe { &mut *place })
}

/// True if a packet is still between the same ends.
#[inline(always)]
fn is_same(frame: Frame, packet: &Packet) -> bool {
    let key = &packet.key;
    match packet.family {
        Family::V4 => match frame.read_words::<4>(packet.network + 8) {
            Some([third, source, destination, ports]) => {
                (u32::from_be(third) >> 16) as u8 == key.protocol
                    && source == key.source.v4_word()
                    && destination == key.destination.v4_word()
                    && ports == key.ports()
            }
            None => false,
        },
        Family::V6 => match frame.read_words::<10>(packet.network + 4) {
            Some([second, a, b, c, d, e, f, g, h, ports]) => {
                (u32::from_be(second) >> 8) as u8 == key.protocol
                    && [a, b, c, d] == key.source.words
                    && [e, f, g, h] == key.destination.words
                    && ports == key.ports()
            }
            None => false,
        },
    }
}
