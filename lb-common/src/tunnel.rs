//! Packets inside of other packets: what the outer header says (RFC 2003, RFC 2473, RFC 4213), as IPVS writes it
//! (`ip_vs_tunnel_xmit`).

use crate::{
    address::Address,
    nat::checksum,
    packet::{Bytes, Family},
};

/// Protocol number of IPv4 inside of IP (RFC 2003).
pub const PROTOCOL_IPV4: u8 = 4;
/// Protocol number of IPv6 inside of IP (RFC 4213).
pub const PROTOCOL_IPV6: u8 = 41;

/// EtherType of a family.
#[inline(always)]
pub const fn ethertype(family: Family) -> [u8; 2] {
    match family {
        Family::V4 => [0x08, 0x00],
        Family::V6 => [0x86, 0xdd],
    }
}

/// Length of the header that a packet gets on its way to this address.
#[inline(always)]
pub const fn overhead(to: &Address) -> u32 {
    if to.is_v4() { 20 } else { 40 }
}

/// What an outer header has besides its addresses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Outer {
    /// Length of the packet inside; 0 where its header does not say.
    pub length: u32,
    /// Traffic class.
    pub class: u8,
    /// TTL or hop limit: that of the packet inside.
    pub hops: u8,
    /// [`PROTOCOL_IPV4`] or [`PROTOCOL_IPV6`].
    pub protocol: u8,
    /// IPv4: must not be fragmented, as the packet inside.
    pub whole: bool,
    /// IPv4: identification, if it may be fragmented.
    pub identification: u16,
}

impl Outer {
    /// Of the packet at `network`, whose header says it is that long and has these hops to go.
    #[inline(always)]
    pub fn of<B: Bytes + ?Sized>(bytes: &B, family: Family, network: u32, length: u32, hops: u8) -> Option<Self> {
        let head = bytes.read_seldom::<8>(network)?;
        let (class, protocol, whole) = match family {
            Family::V4 => (head[1], PROTOCOL_IPV4, head[6] & DONT_FRAGMENT != 0),
            Family::V6 => (head[0] << 4 | head[1] >> 4, PROTOCOL_IPV6, false),
        };
        Some(Self { length, class: class_outside(class), hops, protocol, whole, identification: 0 })
    }

    /// As an IPv4 header.
    #[inline(always)]
    pub fn v4(&self, from: &Address, to: &Address) -> [u8; 20] {
        let mut header = [0u8; 20];
        header[0] = 0x45;
        header[1] = self.class;
        header[2..4].copy_from_slice(&length_field(self.length, 20).to_be_bytes());
        if self.whole {
            header[6] = DONT_FRAGMENT;
        } else {
            header[4..6].copy_from_slice(&self.identification.to_ne_bytes());
        }
        header[8] = self.hops;
        header[9] = self.protocol;
        header[12..16].copy_from_slice(&from.v4_word().to_ne_bytes());
        header[16..20].copy_from_slice(&to.v4_word().to_ne_bytes());
        let mut sum = 0u64;
        for word in header.chunks_exact(4) {
            sum += u64::from(u32::from_ne_bytes([word[0], word[1], word[2], word[3]]));
        }
        let sum = (sum & 0xffff_ffff) + (sum >> 32);
        let sum = (sum & 0xffff_ffff) + (sum >> 32);
        header[10..12].copy_from_slice(&(!checksum::fold(sum as u32)).to_ne_bytes());
        header
    }

    /// As an IPv6 header.
    #[inline(always)]
    pub fn v6(&self, from: &Address, to: &Address) -> [u8; 40] {
        let mut header = [0u8; 40];
        header[0] = 0x60 | self.class >> 4;
        header[1] = self.class << 4;
        header[4..6].copy_from_slice(&length_field(self.length, 0).to_be_bytes());
        header[6] = self.protocol;
        header[7] = self.hops;
        let words = [from.words, to.words];
        for (place, word) in header[8..].chunks_exact_mut(4).zip(words.as_flattened()) {
            place.copy_from_slice(&word.to_ne_bytes());
        }
        header
    }
}

/// IPv4: "do not fragment" in the byte that begins flags and offset.
const DONT_FRAGMENT: u8 = 0x40;

/// A length field over that many bytes and a header's. 0 is a segment larger than 64 KiB on its way through segmentation
/// offload, and stays it.
#[inline(always)]
const fn length_field(length: u32, header: u32) -> u16 {
    let sum = length + header;
    if length == 0 || sum > 0xffff { 0 } else { sum as u16 }
}

/// Congestion experienced.
const EXPERIENCED: u8 = 0b11;
/// ECN-capable transport (0).
const CAPABLE: u8 = 0b10;

/// Traffic class of an outer header: that of the packet inside, but that congestion of before is not shown again (RFC 3168
/// 9.1.1, full functionality).
#[inline(always)]
pub const fn class_outside(inside: u8) -> u8 {
    if inside & EXPERIENCED == EXPERIENCED { inside & !EXPERIENCED | CAPABLE } else { inside }
}

/// What becomes of congestion that an outer header shows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Congestion {
    /// Nothing to be told.
    None,
    /// The packet inside is to show it: bits to set in its traffic class.
    Shown(u8),
    /// It cannot, and so is dropped (RFC 6040 4.2).
    Dropped,
}

/// Of a packet with traffic class `inside` that comes out of one with `outside`.
#[inline(always)]
pub const fn congestion(inside: u8, outside: u8) -> Congestion {
    match (outside & EXPERIENCED, inside & EXPERIENCED) {
        (EXPERIENCED, 0) => Congestion::Dropped,
        (EXPERIENCED, EXPERIENCED) => Congestion::None,
        (EXPERIENCED, capable) => Congestion::Shown(EXPERIENCED & !capable),
        _ => Congestion::None,
    }
}

#[cfg(test)]
mod tests {
    use core::net::{Ipv4Addr, Ipv6Addr};

    use super::*;

    const OUTER: Outer =
        Outer { length: 60, class: 0x12, hops: 63, protocol: PROTOCOL_IPV4, whole: true, identification: 7 };

    #[test]
    fn an_ipv4_header_has_a_right_checksum_and_an_identification_only_if_it_may_be_cut() {
        let (from, to) = (Ipv4Addr::new(10, 0, 0, 1).into(), Ipv4Addr::new(192, 0, 2, 255).into());
        for outer in [OUTER, Outer { whole: false, ..OUTER }] {
            let header = outer.v4(&from, &to);
            let sum: u32 = header.chunks(2).map(|half| u32::from(u16::from_be_bytes([half[0], half[1]]))).sum();
            assert_eq!(checksum::fold(sum), 0xffff);
            assert_eq!(header[..4], [0x45, 0x12, 0, 80]);
            let cut = if outer.whole { [0, 0, 0x40, 0] } else { [7, 0, 0, 0] };
            assert_eq!(header[4..8], cut);
            assert_eq!(header[8..10], [63, 4]);
            assert_eq!(header[12..], [10, 0, 0, 1, 192, 0, 2, 255]);
        }
    }

    #[test]
    fn an_ipv6_header_has_class_length_and_addresses_in_place() {
        let (from, to) = (Ipv6Addr::LOCALHOST, Ipv6Addr::new(0xfd00, 1, 2, 3, 4, 5, 6, 7));
        let header = Outer { class: 0xab, ..OUTER }.v6(&from.into(), &to.into());
        assert_eq!(header[..8], [0x6a, 0xb0, 0, 0, 0, 60, 4, 63]);
        assert_eq!(header[8..24], from.octets());
        assert_eq!(header[24..], to.octets());
    }

    #[test]
    fn a_length_that_no_field_holds_is_0() {
        assert_eq!(length_field(65_515, 20), 65_535);
        assert_eq!(length_field(65_516, 20), 0);
        assert_eq!(length_field(0, 20), 0);
    }

    #[test]
    fn congestion_goes_in_once_and_comes_out_where_it_can_be_shown() {
        assert_eq!([0b00, 0b01, 0b10, 0b11].map(class_outside), [0b00, 0b01, 0b10, 0b10]);
        assert_eq!(class_outside(0xb8 | 0b11), 0xb8 | 0b10);
        for outside in 0..3 {
            assert!((0..4).all(|inside| congestion(inside, outside) == Congestion::None));
        }
        let shown = [0b00, 0b01, 0b10, 0b11].map(|inside| congestion(0xb8 | inside, 0b11));
        assert_eq!(shown, [Congestion::Dropped, Congestion::Shown(0b10), Congestion::Shown(0b01), Congestion::None]);
    }
}
