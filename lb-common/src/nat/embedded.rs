//! ICMP errors: the outer addresses, and the packet that the error quotes, follow the connection's translation.

use super::{
    Editor, Field, Refused, Rewrite, SCTP_CHECKSUM, Sum, address_difference, checksum::Difference, fix_icmp_addresses,
    port_difference, sctp_checksum, sum_offset, write_addresses, write_ports,
};
use crate::{
    address::Address,
    layout::ConnectionKey,
    packet::{Family, Packet},
};

/// Translates an ICMP error.
///
/// `outer` is the error's own packet with its new addresses; `inner` the quoted packet as the receiver of the error
/// once sent it. A checksum inside the quoted packet is updated if the quotation is long enough to have it, so that
/// the receiver sees its own packet byte for byte.
#[inline(always)]
pub fn apply_embedded<E: Editor + ?Sized>(
    editor: &mut E,
    outer: &Packet,
    source: Address,
    destination: Address,
    inner: &Packet,
    inner_to: &Rewrite,
) -> Result<(), Refused> {
    let to = Rewrite {
        source,
        destination,
        source_port: outer.key.source_port,
        destination_port: outer.key.destination_port,
    };
    let outer_difference = address_difference(&outer.key, &to);
    write_addresses(editor, outer, &to, outer_difference, Sum::Changed)?;
    fix_icmp_addresses(editor, outer, outer_difference)?;

    let inner_addresses = address_difference(&inner.key, inner_to);
    let inner_ports = port_difference(&inner.key, inner_to);
    let quoted_sum = fix_quoted_sum(editor, outer, inner, inner_addresses.and(inner_ports), inner_to)?;
    write_addresses(editor, inner, inner_to, inner_addresses, Sum::Kept)?;
    write_ports(editor, inner, inner_to, Sum::Kept)?;

    // What the error's own checksum must follow. An IPv4 header and its checksum cancel out; IPv6 has none.
    let mut change = inner_ports.and(quoted_sum);
    if matches!(inner.family, Family::V6) {
        change = change.and(inner_addresses);
    }
    if change.is_zero() {
        return Ok(());
    }
    let field = Field { pseudo_header: false, zero_means_none: false };
    editor.fix_transport(outer.transport + 2, change, field)
}

/// Updates the quoted transport checksum, if it was quoted, and returns how that changed the sum over the quotation.
#[inline(always)]
fn fix_quoted_sum<E: Editor + ?Sized>(
    editor: &mut E,
    outer: &Packet,
    inner: &Packet,
    change: Difference,
    to: &Rewrite,
) -> Result<Difference, Refused> {
    let Some(offset) = sum_offset(inner.key.protocol) else {
        return fix_quoted_sctp(editor, outer, inner, to);
    };
    let offset = inner.transport + offset;
    if !outer.reaches(offset + 2) {
        return Ok(Difference::ZERO);
    }
    let Some(bytes) = editor.read::<2>(offset) else {
        return Ok(Difference::ZERO);
    };
    let old = u16::from_ne_bytes(bytes);
    let is_udp = inner.key.protocol == 17;
    if is_udp && old == 0 {
        return Ok(Difference::ZERO);
    }
    let new = match change.update(old) {
        0 if is_udp => 0xffff,
        new => new,
    };
    editor.store(offset, new.to_ne_bytes(), Sum::Kept)?;
    Ok(Difference::ZERO.half(old, new))
}

/// The same for SCTP, whose change follows from the ports and the length that the quoted IP header states.
#[inline(always)]
fn fix_quoted_sctp<E: Editor + ?Sized>(
    editor: &mut E,
    outer: &Packet,
    inner: &Packet,
    to: &Rewrite,
) -> Result<Difference, Refused> {
    let offset = inner.transport + SCTP_CHECKSUM;
    match sctp_checksum(editor, inner, to) {
        Some((old, new)) if outer.reaches(offset + 4) => {
            editor.store(offset, new.to_le_bytes(), Sum::Kept)?;
            Ok(Difference::ZERO.word(u32::from_ne_bytes(old.to_le_bytes()), u32::from_ne_bytes(new.to_le_bytes())))
        }
        _ => Ok(Difference::ZERO),
    }
}

/// The key under which a quoted packet's connection is found: the quoted packet went the other way.
#[inline(always)]
pub const fn quoted_key(inner: &Packet) -> ConnectionKey {
    inner.key.reversed()
}
