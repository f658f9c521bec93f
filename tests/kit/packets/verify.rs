//! Reads a frame and checks every length and checksum in it.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use anyhow::{Context, Result, bail, ensure};

use super::checksum::{crc32c, ones_complement};
use super::protocol;

/// What could be said about the transport's checksum. A wrong one is an error and has no value here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Checksum {
    /// Right.
    Right,
    /// UDP over IPv4 without one.
    Absent,
    /// Not all bytes are here: a fragment, or cut in an ICMP error.
    Incomplete,
    /// A protocol that this reader does not know.
    Unknown,
}

/// A frame that is right, taken apart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Summary {
    /// Source and destination hardware address; zero inside an ICMP error.
    pub macs: ([u8; 6], [u8; 6]),
    /// VLAN id, if tagged.
    pub vlan: Option<u16>,
    /// Source address and port; port 0 where the packet has none.
    pub from: SocketAddr,
    /// Destination address and port.
    pub to: SocketAddr,
    /// Transport protocol.
    pub protocol: u8,
    /// TTL or hop limit.
    pub hop_limit: u8,
    /// Offset in bytes and whether more follow, if this is a fragment.
    pub fragment: Option<(usize, bool)>,
    /// Identification (IPv6: of the fragment header, else 0).
    pub identification: u32,
    /// The transport's checksum.
    pub checksum: Checksum,
    /// Flags byte of a TCP header; type of an ICMP message.
    pub kind: u8,
    /// Code of an ICMP message.
    pub code: u8,
    /// What follows the transport header (fragment: the IPv4 or the fragment header).
    pub payload: Vec<u8>,
    /// Number of the first header of `payload` in a fragment; else the protocol.
    pub next_header: u8,
    /// The packet that an ICMP error is about.
    pub embedded: Option<Box<Summary>>,
}

/// Reads an Ethernet frame; an error says what is wrong in it.
pub fn verify(frame: &[u8]) -> Result<Summary> {
    let mut kind = u16_at(frame, 12).context("the frame ends inside its Ethernet header")?;
    let (mut vlan, mut at) = (None, 14);
    if kind == 0x8100 {
        vlan = Some(u16_at(frame, 14).context("the frame ends inside its VLAN tag")? & 0xfff);
        kind = u16_at(frame, 16).context("the frame ends inside its VLAN tag")?;
        at = 18;
    }
    let packet = &frame[at..];
    ensure!(matches!(kind, 0x0800 | 0x86dd), "EtherType {kind:#06x} is not IP");
    let version = packet.first().map(|byte| byte >> 4);
    ensure!(version == Some(if kind == 0x0800 { 4 } else { 6 }), "EtherType {kind:#06x} with IP version {version:?}");
    let mut summary = ip(packet, false)?;
    summary.vlan = vlan;
    summary.macs = (frame[6..12].try_into()?, frame[..6].try_into()?);
    Ok(summary)
}

/// Puts the fragments of one datagram together and returns it as one frame, without the extension
/// headers that each fragment had. Overlaps, holes and fragments of two datagrams are errors.
pub fn reassemble(frames: &[Vec<u8>]) -> Result<Vec<u8>> {
    let mut pieces = Vec::new();
    for frame in frames {
        pieces.push(verify(frame)?);
    }
    let of = |piece: &Summary| (piece.from.ip(), piece.to.ip(), piece.next_header, piece.identification);
    pieces.sort_by_key(|piece| piece.fragment.map(|(offset, _)| offset));
    let mut whole = Vec::new();
    let last = pieces.len().checked_sub(1).context("no fragments")?;
    for (index, piece) in pieces.iter().enumerate() {
        let (offset, more) = piece.fragment.context("a whole packet among the fragments")?;
        ensure!(of(piece) == of(&pieces[0]), "fragments of two datagrams");
        ensure!(offset == whole.len(), "a fragment at {offset}, where {} bytes came before", whole.len());
        ensure!(more == (index < last), "`more fragments` of fragment {index} of {} is {more}", last + 1);
        whole.extend_from_slice(&piece.payload);
    }
    let first = &pieces[0];
    let transport = super::Transport { protocol: first.next_header, bytes: whole };
    Ok(super::Packet::new(first.from, first.to).macs(first.macs.0, first.macs.1).frame(&transport))
}

struct Ip<'a> {
    from: IpAddr,
    to: IpAddr,
    protocol: u8,
    hop_limit: u8,
    identification: u32,
    fragment: Option<(usize, bool)>,
    payload: &'a [u8],
    /// What was fragmented, and the number of its first header.
    fragmented: (u8, &'a [u8]),
    /// All bytes that the header promises are there.
    complete: bool,
}

/// `cut`: the packet may end early, as inside an ICMP error.
fn ip(packet: &[u8], cut: bool) -> Result<Summary> {
    let ip = match packet.first().context("an empty packet")? >> 4 {
        4 => ipv4(packet, cut)?,
        6 => ipv6(packet, cut)?,
        version => bail!("IP version {version}"),
    };
    let mut summary = Summary {
        macs: Default::default(),
        vlan: None,
        from: SocketAddr::new(ip.from, 0),
        to: SocketAddr::new(ip.to, 0),
        protocol: ip.protocol,
        hop_limit: ip.hop_limit,
        fragment: ip.fragment,
        identification: ip.identification,
        checksum: Checksum::Incomplete,
        kind: 0,
        code: 0,
        payload: ip.fragmented.1.to_vec(),
        next_header: ip.fragmented.0,
        embedded: None,
    };
    if ip.fragment.is_some_and(|(offset, _)| offset > 0) {
        return Ok(summary);
    }
    let whole = ip.complete && ip.fragment.is_none();
    transport(&ip, whole, &mut summary)
        .with_context(|| format!("in protocol {} from {} to {}", ip.protocol, ip.from, ip.to))?;
    Ok(summary)
}

fn ipv4(packet: &[u8], cut: bool) -> Result<Ip<'_>> {
    let header = usize::from(packet[0] & 15) * 4;
    ensure!(header >= 20 && packet.len() >= header, "IPv4 header length {header} in {} bytes", packet.len());
    ensure!(ones_complement(&[&packet[..header]]) == 0, "wrong IPv4 header checksum");
    let total = usize::from(u16_at(packet, 2)?);
    ensure!(total >= header, "IPv4 total length {total} below its header's {header}");
    ensure!(cut || packet.len() >= total, "IPv4 total length {total} in {} bytes", packet.len());
    let flags = u16_at(packet, 6)?;
    let (offset, more) = (usize::from(flags & 0x1fff) * 8, flags & 0x2000 != 0);
    let payload = &packet[header..packet.len().min(total)];
    Ok(Ip {
        from: Ipv4Addr::from(<[u8; 4]>::try_from(&packet[12..16])?).into(),
        to: Ipv4Addr::from(<[u8; 4]>::try_from(&packet[16..20])?).into(),
        protocol: packet[9],
        hop_limit: packet[8],
        identification: u16_at(packet, 4)?.into(),
        fragment: (offset > 0 || more).then_some((offset, more)),
        payload,
        fragmented: (packet[9], payload),
        complete: packet.len() >= total,
    })
}

fn ipv6(packet: &[u8], cut: bool) -> Result<Ip<'_>> {
    ensure!(packet.len() >= 40, "an IPv6 packet of {} bytes", packet.len());
    let total = 40 + usize::from(u16_at(packet, 4)?);
    ensure!(cut || packet.len() >= total, "IPv6 length {total} in {} bytes", packet.len());
    let (mut protocol, mut rest) = (packet[6], &packet[40..packet.len().min(total)]);
    let (mut fragment, mut identification, mut fragmented) = (None, 0, None);
    while matches!(protocol, 0 | 43 | 44 | 60) && fragment.is_none_or(|(offset, _)| offset == 0) {
        ensure!(rest.len() >= 8, "an IPv6 extension header of {} bytes", rest.len());
        let mut length = 8 + 8 * usize::from(rest[1]);
        if protocol == 44 {
            length = 8;
            let place = u16_at(rest, 2)?;
            let (offset, more) = (usize::from(place & 0xfff8), place & 1 != 0);
            fragment = (offset > 0 || more).then_some((offset, more));
            identification = u32::from_be_bytes(rest[4..8].try_into()?);
        }
        ensure!(rest.len() >= length, "an IPv6 extension header of {length} in {} bytes", rest.len());
        let extension = std::mem::replace(&mut protocol, rest[0]);
        rest = &rest[length..];
        if extension == 44 {
            fragmented = Some((protocol, rest));
        }
    }
    Ok(Ip {
        from: Ipv6Addr::from(<[u8; 16]>::try_from(&packet[8..24])?).into(),
        to: Ipv6Addr::from(<[u8; 16]>::try_from(&packet[24..40])?).into(),
        protocol,
        hop_limit: packet[7],
        identification,
        fragment,
        payload: rest,
        fragmented: fragmented.unwrap_or((protocol, rest)),
        complete: packet.len() >= total,
    })
}

fn transport(ip: &Ip<'_>, whole: bool, summary: &mut Summary) -> Result<()> {
    let bytes = ip.payload;
    let header = match ip.protocol {
        protocol::TCP if bytes.len() >= 20 => usize::from(bytes[12] >> 4) * 4,
        // An ICMP error may hold eight bytes only (RFC 792): the ports, and not the checksum.
        protocol::TCP | protocol::UDP | protocol::ICMP | protocol::ICMPV6 => 8,
        protocol::SCTP if bytes.len() >= 12 => 12,
        protocol::SCTP => 8,
        _ => {
            summary.checksum = Checksum::Unknown;
            return Ok(());
        }
    };
    ensure!(bytes.len() >= header, "{} bytes where the header needs {header}", bytes.len());
    let (checks, pseudo) = (|at| u16_at(bytes, at), pseudo_header(ip));
    if matches!(ip.protocol, protocol::TCP | protocol::UDP | protocol::SCTP) {
        summary.from.set_port(checks(0)?);
        summary.to.set_port(checks(2)?);
    }
    let summed = |pieces: &[&[u8]]| match ones_complement(pieces) {
        0 => Ok(Checksum::Right),
        _ => bail!("wrong checksum"),
    };
    let mut checksum = Checksum::Incomplete;
    match ip.protocol {
        protocol::TCP => {
            if bytes.len() >= 20 {
                summary.kind = bytes[13];
            }
            if whole {
                ensure!(header >= 20, "TCP data offset {header}");
                checksum = summed(&[&pseudo, bytes])?;
            }
        }
        protocol::UDP => {
            let length = usize::from(checks(4)?);
            ensure!(!whole || length == bytes.len(), "UDP length {length} in {} bytes", bytes.len());
            checksum = match checks(6)? {
                0 if ip.to.is_ipv4() => Checksum::Absent,
                0 => bail!("UDP checksum 0 over IPv6"),
                _ if whole => summed(&[&pseudo, bytes])?,
                _ => Checksum::Incomplete,
            };
        }
        protocol::SCTP if whole => {
            ensure!(bytes.len() >= 12, "an SCTP packet of {} bytes", bytes.len());
            let found = u32::from_le_bytes(bytes[8..12].try_into()?);
            ensure!(found == crc32c(&[&bytes[..8], &[0; 4], &bytes[12..]]), "wrong SCTP checksum");
            checksum = Checksum::Right;
        }
        protocol::ICMP | protocol::ICMPV6 => {
            (summary.kind, summary.code) = (bytes[0], bytes[1]);
            if whole {
                let pseudo: &[u8] = if ip.protocol == protocol::ICMP { &[] } else { &pseudo };
                checksum = summed(&[pseudo, bytes])?;
            }
            let error = match ip.protocol {
                protocol::ICMP => matches!(bytes[0], 3 | 4 | 5 | 11 | 12),
                _ => bytes[0] < 128,
            };
            if error && whole {
                let embedded = self::ip(&bytes[8..], true).context("in the packet that the error is about")?;
                summary.embedded = Some(Box::new(embedded));
            }
        }
        _ => {}
    }
    summary.checksum = checksum;
    if ip.fragment.is_none() {
        summary.payload = bytes[header..].to_vec();
    }
    Ok(())
}

fn pseudo_header(ip: &Ip<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    for address in [ip.from, ip.to] {
        match address {
            IpAddr::V4(address) => bytes.extend(address.octets()),
            IpAddr::V6(address) => bytes.extend(address.octets()),
        }
    }
    bytes.extend((ip.payload.len() as u32).to_be_bytes());
    bytes.extend([0, 0, 0, ip.protocol]);
    bytes
}

fn u16_at(bytes: &[u8], at: usize) -> Result<u16> {
    let pair = bytes.get(at..at + 2).with_context(|| format!("{} bytes end before byte {}", bytes.len(), at + 2))?;
    Ok(u16::from_be_bytes([pair[0], pair[1]]))
}
