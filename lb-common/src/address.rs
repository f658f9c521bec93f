//! Addresses, ports and protocols as the maps hold them.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use bytemuck::{Pod, Zeroable};

/// An IPv6 address, or an IPv4 address as v4-mapped (`::ffff:a.b.c.d`), in network order.
///
/// Held as four words so that BPF compares and folds it in four loads; the bytes in memory are the bytes on the wire.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Pod, Zeroable)]
#[repr(C)]
pub struct Address {
    /// The address as four words of network-order bytes (native loads of wire bytes).
    pub words: [u32; 4],
}

/// The third word of every v4-mapped address: bytes `00 00 ff ff`.
const V4_PREFIX: u32 = u32::from_ne_bytes([0, 0, 0xff, 0xff]);

impl Address {
    /// `::`, which stands for "no address".
    pub const UNSPECIFIED: Self = Self { words: [0; 4] };

    /// An IPv4 address from its four wire bytes, as a native load of them.
    #[inline(always)]
    pub const fn from_v4_word(word: u32) -> Self {
        Self { words: [0, 0, V4_PREFIX, word] }
    }

    /// An address from its sixteen wire bytes.
    #[inline(always)]
    pub const fn from_v6_bytes(b: [u8; 16]) -> Self {
        Self {
            words: [
                u32::from_ne_bytes([b[0], b[1], b[2], b[3]]),
                u32::from_ne_bytes([b[4], b[5], b[6], b[7]]),
                u32::from_ne_bytes([b[8], b[9], b[10], b[11]]),
                u32::from_ne_bytes([b[12], b[13], b[14], b[15]]),
            ],
        }
    }

    /// True for a v4-mapped address.
    #[inline(always)]
    pub const fn is_v4(&self) -> bool {
        self.words[0] == 0 && self.words[1] == 0 && self.words[2] == V4_PREFIX
    }

    /// The IPv4 address as a native load of its wire bytes. Meaningless unless [`Self::is_v4`].
    #[inline(always)]
    pub const fn v4_word(&self) -> u32 {
        self.words[3]
    }

    /// The address with all but its first `bits` bits 0; 96 of them are the prefix of an IPv4 address.
    #[inline(always)]
    pub const fn network(&self, bits: u8) -> Self {
        let mut words = self.words;
        let mut index = 0;
        while index < 4 {
            let kept = bits as u32;
            let before = 32 * index as u32;
            words[index] &= if kept >= before + 32 {
                u32::MAX
            } else if kept <= before {
                0
            } else {
                (u32::MAX << (32 - (kept - before))).to_be()
            };
            index += 1;
        }
        Self { words }
    }

    /// True for 127.0.0.0/8.
    #[inline(always)]
    pub const fn is_v4_loopback(&self) -> bool {
        self.is_v4() && u32::from_be(self.words[3]) >> 24 == 127
    }

    /// IPVS's `fold`: the host-order IPv4 address, or the XOR of the four host-order words of an IPv6 address
    /// (spec 4.1; `ip_vs_sh.c`, `ip_vs_dh.c`, `ip_vs_lblc.c`, `ip_vs_mh.c`).
    #[inline(always)]
    pub const fn fold(&self) -> u32 {
        if self.is_v4() {
            u32::from_be(self.words[3])
        } else {
            u32::from_be(self.words[0] ^ self.words[1] ^ self.words[2] ^ self.words[3])
        }
    }
}

impl From<IpAddr> for Address {
    fn from(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(v4) => Self::from(v4),
            IpAddr::V6(v6) => Self::from(v6),
        }
    }
}

impl From<Ipv4Addr> for Address {
    fn from(address: Ipv4Addr) -> Self {
        Self::from_v4_word(u32::from_ne_bytes(address.octets()))
    }
}

impl From<Ipv6Addr> for Address {
    fn from(address: Ipv6Addr) -> Self {
        Self::from_v6_bytes(address.octets())
    }
}

impl From<Address> for IpAddr {
    fn from(address: Address) -> Self {
        if address.is_v4() {
            IpAddr::V4(Ipv4Addr::from(address.words[3].to_ne_bytes()))
        } else {
            let octets: [u8; 16] = bytemuck::cast(address.words);
            IpAddr::V6(Ipv6Addr::from(octets))
        }
    }
}

/// A port in network order: the two wire bytes as a native load.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Pod, Zeroable)]
#[repr(transparent)]
pub struct Port(pub u16);

impl Port {
    /// From a host-order number.
    #[inline(always)]
    pub const fn new(number: u16) -> Self {
        Self(number.to_be())
    }

    /// The host-order number.
    #[inline(always)]
    pub const fn number(self) -> u16 {
        u16::from_be(self.0)
    }
}

/// A transport protocol that a virtual service can have, by its IANA number.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
#[repr(u8)]
pub enum Protocol {
    /// TCP (RFC 9293).
    Tcp = 6,
    /// UDP (RFC 768).
    Udp = 17,
    /// SCTP (RFC 9260), single-homed associations.
    Sctp = 132,
}

impl Protocol {
    /// All protocols, in the order that `ipvsadm` lists them.
    pub const ALL: [Self; 3] = [Self::Tcp, Self::Udp, Self::Sctp];

    /// The protocol with this IANA number, if services can have it.
    #[inline(always)]
    pub const fn from_number(number: u8) -> Option<Self> {
        match number {
            6 => Some(Self::Tcp),
            17 => Some(Self::Udp),
            132 => Some(Self::Sctp),
            _ => None,
        }
    }

    /// The name as `ipvsadm` and Kubernetes print it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Tcp => "TCP",
            Self::Udp => "UDP",
            Self::Sctp => "SCTP",
        }
    }
}
