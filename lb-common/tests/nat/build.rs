//! Frames from a recipe, by hand: a few lines for each header, and checksums from their definitions.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use lb_common::{
    address::{Address, Port},
    nat::Rewrite,
};
use proptest::prelude::*;

pub(crate) const TCP: u8 = 6;
pub(crate) const UDP: u8 = 17;
pub(crate) const SCTP: u8 = 132;

/// Addresses and ports of one direction of a flow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Flow {
    pub(crate) source: IpAddr,
    pub(crate) destination: IpAddr,
    pub(crate) source_port: u16,
    pub(crate) destination_port: u16,
}

impl Flow {
    pub(crate) fn reversed(self) -> Self {
        Self {
            source: self.destination,
            destination: self.source,
            source_port: self.destination_port,
            destination_port: self.source_port,
        }
    }

    pub(crate) fn rewrite(self) -> Rewrite {
        Rewrite {
            source: Address::from(self.source),
            destination: Address::from(self.destination),
            source_port: Port::new(self.source_port),
            destination_port: Port::new(self.destination_port),
        }
    }
}

/// Everything about a packet but its addresses and ports.
#[derive(Clone, Debug)]
pub(crate) struct Recipe {
    pub(crate) protocol: u8,
    /// VLAN tags, outermost first.
    pub(crate) tags: Vec<u16>,
    /// IPv4: bytes of options, a multiple of four.
    pub(crate) options: Vec<u8>,
    /// IPv6: extension headers, by number.
    pub(crate) extensions: Vec<u8>,
    pub(crate) payload: Vec<u8>,
    /// UDP over IPv4 without a checksum.
    pub(crate) no_checksum: bool,
}

/// Two flows of one family: as a client sends, and as its server receives.
pub(crate) fn flows() -> impl Strategy<Value = (Flow, Flow)> {
    let v4 = any::<u32>().prop_map(|bits| IpAddr::V4(Ipv4Addr::from_bits(bits)));
    // Not v4-mapped: those are no addresses of packets.
    let v6 = any::<u128>().prop_map(|bits| IpAddr::V6(Ipv6Addr::from_bits(bits | 1 << 127)));
    let family =
        prop_oneof![(v4.clone(), v4.clone(), v4.clone(), v4).boxed(), (v6.clone(), v6.clone(), v6.clone(), v6).boxed()];
    // A port often stays the same, which takes another path.
    let ports = (any::<[u16; 4]>(), any::<bool>(), any::<bool>());
    (family, ports).prop_map(|((a, b, c, d), (ports, same_source, same_destination))| {
        let before = Flow { source: a, destination: b, source_port: ports[0], destination_port: ports[1] };
        let after = Flow {
            source: c,
            destination: d,
            source_port: if same_source { ports[0] } else { ports[2] },
            destination_port: if same_destination { ports[1] } else { ports[3] },
        };
        (before, after)
    })
}

pub(crate) fn recipes() -> impl Strategy<Value = Recipe> {
    (
        prop::sample::select(vec![TCP, UDP, SCTP]),
        prop::collection::vec(0u16..4096, 0..=2),
        prop::collection::vec(any::<u32>(), 0..=10),
        prop::collection::vec(prop::sample::select(vec![0u8, 43, 51, 60]), 0..=5),
        prop::collection::vec(any::<u8>(), 0..300),
        any::<bool>(),
    )
        .prop_map(|(protocol, tags, options, extensions, payload, no_checksum)| Recipe {
            protocol,
            tags,
            options: options.into_iter().flat_map(u32::to_be_bytes).collect(),
            extensions,
            payload,
            no_checksum,
        })
}

/// The whole frame.
pub(crate) fn frame(recipe: &Recipe, flow: Flow) -> Vec<u8> {
    ethernet(recipe, flow, &ip(recipe, flow))
}

/// Puts a link layer in front of an IP packet.
pub(crate) fn ethernet(recipe: &Recipe, flow: Flow, packet: &[u8]) -> Vec<u8> {
    let mut bytes = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1];
    for (index, tag) in recipe.tags.iter().enumerate() {
        let outer = index + 1 < recipe.tags.len();
        bytes.extend(if outer { [0x88, 0xa8] } else { [0x81, 0x00] });
        bytes.extend(tag.to_be_bytes());
    }
    bytes.extend(if flow.source.is_ipv4() { [0x08, 0x00] } else { [0x86, 0xdd] });
    bytes.extend(packet);
    bytes
}

/// The IP packet.
pub(crate) fn ip(recipe: &Recipe, flow: Flow) -> Vec<u8> {
    network(recipe, flow, recipe.protocol, &transport(recipe, flow))
}

/// An IP packet around any payload.
pub(crate) fn network(recipe: &Recipe, flow: Flow, protocol: u8, payload: &[u8]) -> Vec<u8> {
    match (flow.source, flow.destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            let header = 20 + recipe.options.len();
            let mut bytes = vec![0x40 | (header / 4) as u8, 0];
            bytes.extend(((header + payload.len()) as u16).to_be_bytes());
            bytes.extend([0x12, 0x34, 0x40, 0, 64, protocol, 0, 0]);
            bytes.extend(source.octets());
            bytes.extend(destination.octets());
            bytes.extend(&recipe.options);
            let sum = sum(&[&bytes]);
            bytes[10..12].copy_from_slice(&sum.to_be_bytes());
            bytes.extend(payload);
            bytes
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            let mut chain = Vec::new();
            let mut first = protocol;
            for (index, &number) in recipe.extensions.iter().enumerate() {
                let next = recipe.extensions.get(index + 1).copied().unwrap_or(protocol);
                if index == 0 {
                    first = number;
                }
                // AH counts in words less two, the others in double words less one: 16 bytes each.
                chain.extend([next, if number == 51 { 2 } else { 1 }, 4, 0]);
                chain.extend([0; 12]);
            }
            let mut bytes = vec![0x60, 0, 0, 0];
            bytes.extend(((chain.len() + payload.len()) as u16).to_be_bytes());
            bytes.extend([first, 64]);
            bytes.extend(source.octets());
            bytes.extend(destination.octets());
            bytes.extend(chain);
            bytes.extend(payload);
            bytes
        }
        _ => unreachable!("a flow has one family"),
    }
}

fn transport(recipe: &Recipe, flow: Flow) -> Vec<u8> {
    let mut bytes = flow.source_port.to_be_bytes().to_vec();
    bytes.extend(flow.destination_port.to_be_bytes());
    match recipe.protocol {
        TCP => bytes.extend([1, 2, 3, 4, 5, 6, 7, 8, 5 << 4, 0x10, 0x20, 0, 0, 0, 0, 0]),
        UDP => {
            bytes.extend(((8 + recipe.payload.len()) as u16).to_be_bytes());
            bytes.extend([0, 0]);
        }
        // Verification tag, checksum, the head of a DATA chunk.
        _ => bytes.extend([9, 9, 9, 9, 0, 0, 0, 0, 0, 3, 0, 16]),
    }
    bytes.extend(&recipe.payload);
    fill_in_checksum(recipe, flow, &mut bytes);
    bytes
}

/// The transport's right checksum, in place.
fn fill_in_checksum(recipe: &Recipe, flow: Flow, bytes: &mut [u8]) {
    match recipe.protocol {
        TCP => {
            let right = sum(&[&pseudo_header(flow, TCP, bytes.len()), bytes]);
            bytes[16..18].copy_from_slice(&right.to_be_bytes());
        }
        UDP if recipe.no_checksum && flow.source.is_ipv4() => {}
        UDP => {
            let right = match sum(&[&pseudo_header(flow, UDP, bytes.len()), bytes]) {
                0 => 0xffff,
                right => right,
            };
            bytes[6..8].copy_from_slice(&right.to_be_bytes());
        }
        _ => {
            let right = crc32c(bytes);
            bytes[8..12].copy_from_slice(&right.to_le_bytes());
        }
    }
}

/// An ICMP error about `quoted`, in the flow's family.
pub(crate) fn error(recipe: &Recipe, flow: Flow, quoted: &[u8]) -> Vec<u8> {
    let (protocol, kind, code) = if flow.source.is_ipv4() { (1, 3, 4) } else { (58, 2, 0) };
    let mut bytes = vec![kind, code, 0, 0, 0, 0, 5, 0];
    bytes.extend(quoted);
    let pseudo = if protocol == 58 { pseudo_header(flow, protocol, bytes.len()) } else { Vec::new() };
    let right = sum(&[&pseudo, &bytes]);
    bytes[2..4].copy_from_slice(&right.to_be_bytes());
    ethernet(recipe, flow, &network(recipe, flow, protocol, &bytes))
}

fn pseudo_header(flow: Flow, protocol: u8, length: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    for address in [flow.source, flow.destination] {
        match address {
            IpAddr::V4(address) => bytes.extend(address.octets()),
            IpAddr::V6(address) => bytes.extend(address.octets()),
        }
    }
    bytes.extend((length as u32).to_be_bytes());
    bytes.extend([0, 0, 0, protocol]);
    bytes
}

/// RFC 1071 over pieces, each but the last of an even length.
fn sum(pieces: &[&[u8]]) -> u16 {
    let words = pieces.iter().flat_map(|piece| piece.chunks(2));
    let total: u64 = words.map(|word| u64::from(word[0]) << 8 | word.get(1).map_or(0, |&low| u64::from(low))).sum();
    let mut sum = total;
    while sum > 0xffff {
        sum = (sum >> 16) + (sum & 0xffff);
    }
    !(sum as u16)
}

/// CRC32c, bit by bit.
fn crc32c(data: &[u8]) -> u32 {
    let mut register = !0u32;
    for &byte in data {
        register ^= u32::from(byte);
        for _ in 0..8 {
            register = (register >> 1) ^ (if register & 1 == 1 { 0x82f6_3b78 } else { 0 });
        }
    }
    !register
}
