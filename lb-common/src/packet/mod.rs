//! Parsing of packets, over any source of bytes: a slice on the host, a socket buffer in BPF.
//!
//! One parser for tc, XDP and the embedded packets of ICMP errors. Wrong or unknown input is one plain
//! [`Unhandled`]: the caller can only leave such a packet alone.

mod ip;
mod transport;

pub use ip::{ETHERNET_HEADER, Family, parse_ethernet, parse_network};

use crate::layout::ConnectionKey;

/// Something that bytes can be read from, at offsets from the start of the link-layer header.
pub trait Bytes {
    /// The `N` bytes at `offset`, or `None` if the packet ends before.
    fn read<const N: usize>(&self, offset: u32) -> Option<[u8; N]>;

    /// The `N` words at `offset`, as native loads of their bytes. Headers are read so: the compiler makes a load and shifts of
    /// each byte of an array, and puts them together again where a word is wanted.
    fn read_words<const N: usize>(&self, offset: u32) -> Option<[u32; N]>;

    /// [`Self::read`] of what few packets have. A source with a fast way that costs the verifier much may spare it here.
    #[inline(always)]
    fn read_seldom<const N: usize>(&self, offset: u32) -> Option<[u8; N]> {
        self.read(offset)
    }
}

impl Bytes for [u8] {
    fn read<const N: usize>(&self, offset: u32) -> Option<[u8; N]> {
        let start = usize::try_from(offset).ok()?;
        self.get(start..start.checked_add(N)?)?.try_into().ok()
    }

    fn read_words<const N: usize>(&self, offset: u32) -> Option<[u32; N]> {
        let start = usize::try_from(offset).ok()?;
        let bytes = self.get(start..start.checked_add(N * 4)?)?;
        let mut words = [0; N];
        bytemuck::cast_slice_mut(&mut words).copy_from_slice(bytes);
        Some(words)
    }
}

/// A packet that is none of ours to judge: not IP, not a protocol of services, or contradicting itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Unhandled;

/// What part of a conversation a packet is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(u8)]
pub enum Kind {
    #[default]
    /// A whole TCP segment, UDP datagram or SCTP packet.
    Whole = 0,
    /// The first fragment of one, with its ports.
    FirstFragment = 1,
    /// A later fragment: the key's ports are 0. In IPv6 the key's protocol may be that of an extension header, when
    /// the first fragment has one before its transport header.
    LaterFragment = 2,
    /// An ICMP or ICMPv6 error; the key is the outer packet's, with ports 0. The packet it is about starts at
    /// [`Packet::transport`] + 8.
    IcmpError = 3,
}

/// What the parser found.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Packet {
    /// Addresses, ports and protocol as they stand in the packet.
    pub key: ConnectionKey,
    /// Offset of the IP header from the start of the frame.
    pub network: u32,
    /// Offset of the transport (or ICMP) header.
    pub transport: u32,
    /// Identification of the datagram, for fragments.
    pub identification: u32,
    /// Length of the IP packet by its own header, in bytes. 0 if its header does not say: larger than 64 KiB, on its
    /// way through segmentation offload.
    pub length: u32,
    /// IPv4 or IPv6.
    pub family: Family,
    /// What it is.
    pub kind: Kind,
    /// TCP: the flags byte. SCTP: the first chunk's type. Otherwise 0.
    pub signal: u8,
    /// SCTP: the second chunk's type where it matters (after COOKIE ECHO or COOKIE ACK); 255 for none.
    pub second_signal: u8,
    /// TTL or hop limit.
    pub hops: u8,
    /// No one's complement sum in this packet covers its ports: SCTP, UDP without a checksum, later fragments.
    pub unsummed: bool,
}

impl Packet {
    /// Parses a frame from its Ethernet header on.
    ///
    /// # Errors
    /// [`Unhandled`] if the frame is none that services could be asked for.
    pub fn parse<B: Bytes + ?Sized>(frame: &B) -> Result<Self, Unhandled> {
        let mut packet = Self::default();
        parse_ethernet(frame, &mut packet)?;
        Ok(packet)
    }

    /// True without IPv4 options and IPv6 extension headers, as almost all packets are.
    #[inline(always)]
    pub const fn has_plain_header(&self) -> bool {
        self.transport == self.network + self.family.header_length()
    }

    /// False if the IP packet ends, by its own header, before `offset` (from the start of the frame): what stands
    /// there is a trailer of the link layer.
    #[inline(always)]
    pub const fn reaches(&self, offset: u32) -> bool {
        self.length == 0 || offset <= self.network + self.length
    }
}

/// Parses the packet that an ICMP error quotes.
///
/// # Errors
/// [`Unhandled`] if the quotation is none that services could be asked for, not in the error but behind it, or of a
/// packet that the error's receiver did not send.
#[inline(always)]
pub fn parse_quoted<B: Bytes + ?Sized>(frame: &B, error: &Packet, quoted: &mut Packet) -> Result<(), Unhandled> {
    parse_network(frame, error.family, error.transport + ICMP_HEADER, true, quoted)?;
    let inside = error.reaches(quoted.transport + QUOTED_TRANSPORT);
    if inside && quoted.key.source == error.key.destination { Ok(()) } else { Err(Unhandled) }
}

/// Bytes of an ICMP error before the packet that it quotes.
const ICMP_HEADER: u32 = 8;
/// Bytes of a transport header that an ICMP error must quote (RFC 792).
const QUOTED_TRANSPORT: u32 = 8;

/// ICMP (RFC 792).
pub const PROTOCOL_ICMP: u8 = 1;
/// ICMPv6 (RFC 4443).
pub const PROTOCOL_ICMPV6: u8 = 58;
