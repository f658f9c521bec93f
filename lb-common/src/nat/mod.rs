//! Translations as values: [`Rewrite`] says what addresses and ports become, [`apply`] and [`apply_embedded`] write it
//! through an [`Editor`], which in BPF is the kernel's helpers and on the host a slice.
//!
//! Checksums are updated incrementally (RFC 1624), so that a wrong checksum stays wrong and its receiver finds out,
//! and so that partial checksums (offload) stay partial.

pub mod checksum;
pub mod crc32c;
mod embedded;
mod slice;

pub use embedded::{apply_embedded, quoted_key};
pub use slice::SliceEditor;

use checksum::Difference;

use crate::{
    address::{Address, Port},
    layout::{Connection, ConnectionKey},
    packet::{Bytes, Family, Kind, PROTOCOL_ICMPV6, Packet},
};

/// The kernel, or the slice, refused a write: the packet may be half translated and must be dropped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Refused;

/// A packet that can be written to. Offsets count from the start of the frame.
pub trait Editor: Bytes {
    /// Writes bytes, without touching any checksum in the packet. `sum` says whether one that follows makes good for
    /// the change: a sum that the device kept beside the packet (`CHECKSUM_COMPLETE`) must stay right.
    fn store<const N: usize>(&mut self, offset: u32, bytes: [u8; N], sum: Sum) -> Result<(), Refused>;

    /// [`Self::store`] of words, as native loads of their bytes.
    fn store_words<const N: usize>(&mut self, offset: u32, words: [u32; N], sum: Sum) -> Result<(), Refused>;

    /// Adds a difference to the IPv4 header checksum at `offset`.
    fn fix_network(&mut self, offset: u32, difference: Difference) -> Result<(), Refused>;

    /// Adds a difference to the transport checksum at `offset`.
    fn fix_transport(&mut self, offset: u32, difference: Difference, field: Field) -> Result<(), Refused>;
}

/// What a write does to the one's complement sum over the whole packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sum {
    /// Nothing, in the end: a checksum in the packet changes against it.
    Kept,
    /// It changes.
    Changed,
}

impl Sum {
    /// Of a write to ports.
    #[inline(always)]
    const fn of(packet: &Packet) -> Self {
        if packet.unsummed { Self::Changed } else { Self::Kept }
    }
}

/// What kind of transport checksum is updated, and for what.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Field {
    /// The difference comes from addresses, which the checksum covers through the pseudo-header. To the sum over the
    /// packet this is a change of its own: the kernel reckons that an IPv4 header's checksum undoes that of the
    /// addresses, and so those of IPv6 are written as [`Sum::Changed`], which comes to the same.
    pub pseudo_header: bool,
    /// UDP: 0 means "no checksum" and stays; a result of 0 is written as 0xffff (RFC 768).
    pub zero_means_none: bool,
}

/// What a packet's addresses and ports become.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Rewrite {
    /// New source address.
    pub source: Address,
    /// New destination address.
    pub destination: Address,
    /// New source port.
    pub source_port: Port,
    /// New destination port.
    pub destination_port: Port,
}

impl Rewrite {
    /// The translation that a connection entry holds.
    #[inline(always)]
    pub const fn of(connection: &Connection) -> Self {
        Self {
            source: connection.source,
            destination: connection.destination,
            source_port: connection.source_port,
            destination_port: connection.destination_port,
        }
    }

    /// The other direction's addresses and ports, the other way round: what the receiver of this translation's
    /// packets sent itself.
    #[inline(always)]
    pub const fn reversed(&self) -> Self {
        Self {
            source: self.destination,
            destination: self.source,
            source_port: self.destination_port,
            destination_port: self.source_port,
        }
    }
}

/// Offset of the checksum in a transport header, for the protocols whose checksum is a sum.
#[inline(always)]
const fn sum_offset(protocol: u8) -> Option<u32> {
    match protocol {
        6 => Some(16),
        17 => Some(6),
        _ => None,
    }
}

const SCTP: u8 = 132;
const UDP: u8 = 17;

/// Translates a TCP, UDP or SCTP packet, or any fragment of one.
#[inline(always)]
pub fn apply<E: Editor + ?Sized>(editor: &mut E, packet: &Packet, to: &Rewrite) -> Result<(), Refused> {
    let key = &packet.key;
    let addresses = match packet.family {
        Family::V4 => Difference::ZERO
            .word(key.source.v4_word(), to.source.v4_word())
            .word(key.destination.v4_word(), to.destination.v4_word()),
        Family::V6 => address_difference(key, to),
    };
    let together = packet.has_plain_header() && !matches!(packet.kind, Kind::LaterFragment);
    if together {
        write_headers(editor, packet, to, addresses)?;
    } else {
        write_addresses(editor, packet, to, addresses, Sum::Changed)?;
    }
    if matches!(packet.kind, Kind::LaterFragment) {
        return Ok(());
    }
    let ports = port_difference(key, to);
    if let Some(offset) = sum_offset(key.protocol) {
        let zero_means_none = key.protocol == UDP;
        let field = Field { pseudo_header: true, zero_means_none };
        editor.fix_transport(packet.transport + offset, addresses, field)?;
        if !ports.is_zero() {
            let field = Field { pseudo_header: false, ..field };
            editor.fix_transport(packet.transport + offset, ports, field)?;
        }
    } else if key.protocol == SCTP && !ports.is_zero() {
        fix_sctp(editor, packet, to)?;
    }
    if together { Ok(()) } else { write_ports(editor, packet, to, Sum::of(packet)) }
}

/// Writes addresses and ports that stand side by side, with the IPv4 header checksum before them, in one go: in BPF
/// each write is a call.
#[inline(always)]
fn write_headers<E: Editor + ?Sized>(
    editor: &mut E,
    packet: &Packet,
    to: &Rewrite,
    difference: Difference,
) -> Result<(), Refused> {
    let ports: u32 = bytemuck::cast([to.source_port.0, to.destination_port.0]);
    match packet.family {
        Family::V4 => {
            // TTL, protocol, checksum.
            let [before] = editor.read_words::<1>(packet.network + 8).ok_or(Refused)?;
            let [hops_and_protocol, old]: [u16; 2] = bytemuck::cast(before);
            let word = bytemuck::cast([hops_and_protocol, difference.update(old)]);
            // The header checksum undoes the addresses; what is left is the ports.
            let words = [word, to.source.v4_word(), to.destination.v4_word(), ports];
            editor.store_words(packet.network + 8, words, Sum::of(packet))
        }
        Family::V6 => {
            let [a, b, c, d] = to.source.words;
            let [e, f, g, h] = to.destination.words;
            editor.store_words(packet.network + 8, [a, b, c, d, e, f, g, h], Sum::Changed)?;
            editor.store_words(packet.network + 40, [ports], Sum::of(packet))
        }
    }
}

#[inline(always)]
fn address_difference(key: &ConnectionKey, to: &Rewrite) -> Difference {
    // v4-mapped prefixes cancel out, so four words serve both families.
    Difference::ZERO.address(&key.source, &to.source).address(&key.destination, &to.destination)
}

#[inline(always)]
fn port_difference(key: &ConnectionKey, to: &Rewrite) -> Difference {
    Difference::ZERO.half(key.source_port.0, to.source_port.0).half(key.destination_port.0, to.destination_port.0)
}

/// Writes both addresses where they differ, and the IPv4 header checksum. `sum` is that of IPv6 addresses.
#[inline(always)]
fn write_addresses<E: Editor + ?Sized>(
    editor: &mut E,
    packet: &Packet,
    to: &Rewrite,
    difference: Difference,
    sum: Sum,
) -> Result<(), Refused> {
    let (key, network) = (&packet.key, packet.network);
    match packet.family {
        Family::V4 => {
            if key.source != to.source {
                editor.store(network + 12, to.source.v4_word().to_ne_bytes(), Sum::Kept)?;
            }
            if key.destination != to.destination {
                editor.store(network + 16, to.destination.v4_word().to_ne_bytes(), Sum::Kept)?;
            }
            editor.fix_network(network + 10, difference)
        }
        Family::V6 => {
            if key.source != to.source {
                editor.store::<16>(network + 8, bytemuck::cast(to.source.words), sum)?;
            }
            if key.destination != to.destination {
                editor.store::<16>(network + 24, bytemuck::cast(to.destination.words), sum)?;
            }
            Ok(())
        }
    }
}

#[inline(always)]
fn write_ports<E: Editor + ?Sized>(editor: &mut E, packet: &Packet, to: &Rewrite, sum: Sum) -> Result<(), Refused> {
    let (key, transport) = (&packet.key, packet.transport);
    if key.source_port != to.source_port {
        editor.store(transport, to.source_port.0.to_ne_bytes(), sum)?;
    }
    if key.destination_port != to.destination_port {
        editor.store(transport + 2, to.destination_port.0.to_ne_bytes(), sum)?;
    }
    Ok(())
}

/// Offset of the checksum in an SCTP packet.
const SCTP_CHECKSUM: u32 = 8;

/// Brings an SCTP checksum up to date with new ports, or refuses: a fragment's checksum cannot follow.
#[inline(always)]
fn fix_sctp<E: Editor + ?Sized>(editor: &mut E, packet: &Packet, to: &Rewrite) -> Result<(), Refused> {
    let (_, new) = sctp_checksum(editor, packet, to).ok_or(Refused)?;
    editor.store(packet.transport + SCTP_CHECKSUM, new.to_le_bytes(), Sum::Changed)
}

/// An SCTP packet's checksum, and what it becomes with new ports. CRC32c is linear, so the change depends on the
/// changed bits and on how many bytes follow them, not on the data; `None` where that number is not known.
#[inline(always)]
fn sctp_checksum<E: Editor + ?Sized>(editor: &E, packet: &Packet, to: &Rewrite) -> Option<(u32, u32)> {
    let end = packet.network + packet.length;
    if !matches!(packet.kind, Kind::Whole) || end < packet.transport + 12 {
        return None;
    }
    let old = u32::from_le_bytes(editor.read::<4>(packet.transport + SCTP_CHECKSUM)?);
    let changed = u32::from(packet.key.source_port.0 ^ to.source_port.0)
        | u32::from(packet.key.destination_port.0 ^ to.destination_port.0) << 16;
    Some((old, old ^ crc32c::change(changed.to_ne_bytes(), end - packet.transport - 4)))
}

/// Adds to an ICMPv6 checksum what new outer addresses change in its pseudo-header; ICMP over IPv4 has none.
#[inline(always)]
fn fix_icmp_addresses<E: Editor + ?Sized>(
    editor: &mut E,
    packet: &Packet,
    difference: Difference,
) -> Result<(), Refused> {
    if packet.key.protocol != PROTOCOL_ICMPV6 {
        return Ok(());
    }
    let field = Field { pseudo_header: true, zero_means_none: false };
    editor.fix_transport(packet.transport + 2, difference, field)
}
