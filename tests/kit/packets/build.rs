//! Ethernet frames from their parts.

use std::net::{IpAddr, SocketAddr};

use etherparse::{IpFragOffset, IpNumber, Ipv4Header, Ipv6FragmentHeader, Ipv6Header, Ipv6RawExtHeader};

use super::transport::Transport;

/// An IPv6 extension header, of eight bytes and without effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Extension {
    /// Hop-by-hop options; must be the first.
    HopByHop,
    /// Routing header with no segments left.
    Routing,
    /// Destination options. In a fragmented packet they are part of what is fragmented.
    DestinationOptions,
}

impl Extension {
    fn number(self) -> u8 {
        match self {
            Self::HopByHop => 0,
            Self::Routing => 43,
            Self::DestinationOptions => 60,
        }
    }

    fn bytes(self, next: u8) -> Vec<u8> {
        let payload = match self {
            // Type 4 (segment routing), no segments left, then reserved.
            Self::Routing => [4, 0, 0, 0, 0, 0],
            // PadN over four bytes.
            Self::HopByHop | Self::DestinationOptions => [1, 4, 0, 0, 0, 0],
        };
        let header = Ipv6RawExtHeader::new_raw(IpNumber(next), &payload).expect("six bytes are a valid length");
        header.to_bytes().to_vec()
    }
}

/// Everything outside the transport header; a recipe for any number of frames.
#[derive(Debug, Clone)]
pub struct Packet {
    pub(super) from: SocketAddr,
    pub(super) to: SocketAddr,
    macs: ([u8; 6], [u8; 6]),
    vlan: Option<u16>,
    hop_limit: u8,
    identification: u32,
    options: Vec<u8>,
    extensions: Vec<Extension>,
}

impl Packet {
    /// A packet of one family between two addresses.
    pub fn new(from: SocketAddr, to: SocketAddr) -> Self {
        assert_eq!(from.is_ipv4(), to.is_ipv4(), "a packet has one family");
        Self {
            from,
            to,
            macs: ([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]),
            vlan: None,
            hop_limit: 64,
            identification: 1,
            options: Vec::new(),
            extensions: Vec::new(),
        }
    }

    /// Hardware addresses, source first.
    pub fn macs(mut self, source: [u8; 6], destination: [u8; 6]) -> Self {
        self.macs = (source, destination);
        self
    }

    /// Puts an 802.1Q tag on it, 0 to 4095.
    pub fn vlan(mut self, id: u16) -> Self {
        self.vlan = Some(id);
        self
    }

    /// TTL or hop limit. Default 64.
    pub fn hop_limit(mut self, hops: u8) -> Self {
        self.hop_limit = hops;
        self
    }

    /// Identification: 16 bits in IPv4, 32 in IPv6 fragments. Default 1.
    pub fn identification(mut self, identification: u32) -> Self {
        self.identification = identification;
        self
    }

    /// IPv4 options, up to 40 bytes, a multiple of four.
    pub fn ipv4_options(mut self, options: &[u8]) -> Self {
        self.options = options.to_vec();
        self
    }

    /// Adds an IPv6 extension header behind those that it has.
    pub fn extension(mut self, extension: Extension) -> Self {
        self.extensions.push(extension);
        self
    }

    /// The same packet in the other direction.
    pub fn reversed(&self) -> Self {
        Self { from: self.to, to: self.from, macs: (self.macs.1, self.macs.0), ..self.clone() }
    }

    /// One frame.
    pub fn frame(&self, transport: &Transport) -> Vec<u8> {
        self.ethernet(self.ip(transport))
    }

    /// One IP packet, without Ethernet: to embed in an ICMP error.
    pub fn ip(&self, transport: &Transport) -> Vec<u8> {
        match self.to.ip() {
            IpAddr::V4(_) => self.ipv4(transport.protocol, &transport.bytes, 0, false),
            IpAddr::V6(_) => {
                let (first, payload) = chain(&self.extensions, transport.protocol, &transport.bytes);
                self.ipv6(first, &payload)
            }
        }
    }

    /// Several frames, each with at most `size` bytes behind the IP header (IPv6: behind the fragment header); `size`
    /// is a multiple of eight.
    pub fn fragments(&self, transport: &Transport, size: usize) -> Vec<Vec<u8>> {
        assert!(size > 0 && size.is_multiple_of(8), "fragments are cut at multiples of eight bytes, not {size}");
        // RFC 8200 4.5: up to the routing header goes into each fragment, the rest is fragmented.
        let split = self.extensions.iter().position(|&extension| extension == Extension::DestinationOptions);
        let (each, rest) = self.extensions.split_at(split.unwrap_or(self.extensions.len()));
        let (protocol, whole) = match self.to.ip() {
            IpAddr::V4(_) => (transport.protocol, transport.bytes.clone()),
            IpAddr::V6(_) => chain(rest, transport.protocol, &transport.bytes),
        };
        let cut = |(index, piece): (usize, &[u8])| {
            let offset = index * size;
            let more = offset + piece.len() < whole.len();
            let units = u16::try_from(offset / 8).expect("the packet is smaller than 64 KiB");
            if self.to.is_ipv4() {
                return self.ethernet(self.ipv4(protocol, piece, units, more));
            }
            let units = IpFragOffset::try_new(units).expect("the offset fits 13 bits");
            let header = Ipv6FragmentHeader::new(IpNumber(protocol), units, more, self.identification);
            let (first, payload) = chain(each, 44, &[&header.to_bytes(), piece].concat());
            self.ethernet(self.ipv6(first, &payload))
        };
        whole.chunks(size).enumerate().map(cut).collect()
    }

    fn ipv4(&self, protocol: u8, payload: &[u8], fragment: u16, more: bool) -> Vec<u8> {
        let (IpAddr::V4(from), IpAddr::V4(to)) = (self.from.ip(), self.to.ip()) else {
            unreachable!("checked when made")
        };
        let mut header = Ipv4Header {
            protocol: IpNumber(protocol),
            source: from.octets(),
            destination: to.octets(),
            time_to_live: self.hop_limit,
            identification: self.identification as u16,
            dont_fragment: false,
            more_fragments: more,
            fragment_offset: IpFragOffset::try_new(fragment).expect("the offset fits 13 bits"),
            ..Ipv4Header::default()
        };
        header.options =
            self.options.as_slice().try_into().expect("IPv4 options: at most 40 bytes, a multiple of four");
        header.set_payload_len(payload.len()).expect("the payload fits a packet");
        header.header_checksum = header.calc_header_checksum();
        [&header.to_bytes(), payload].concat()
    }

    fn ipv6(&self, next: u8, payload: &[u8]) -> Vec<u8> {
        let (IpAddr::V6(from), IpAddr::V6(to)) = (self.from.ip(), self.to.ip()) else {
            unreachable!("checked when made")
        };
        let mut header = Ipv6Header {
            next_header: IpNumber(next),
            hop_limit: self.hop_limit,
            source: from.octets(),
            destination: to.octets(),
            ..Ipv6Header::default()
        };
        header.set_payload_length(payload.len()).expect("the payload fits a packet");
        [&header.to_bytes(), payload].concat()
    }

    fn ethernet(&self, ip: Vec<u8>) -> Vec<u8> {
        let mut frame = [self.macs.1, self.macs.0].concat();
        if let Some(id) = self.vlan {
            frame.extend(0x8100_u16.to_be_bytes());
            frame.extend((id & 0xfff).to_be_bytes());
        }
        let kind: u16 = if self.to.is_ipv4() { 0x0800 } else { 0x86dd };
        frame.extend(kind.to_be_bytes());
        frame.extend(ip);
        frame
    }
}

/// Puts extension headers in front of a payload; returns the number of the first header.
fn chain(extensions: &[Extension], protocol: u8, payload: &[u8]) -> (u8, Vec<u8>) {
    let (mut next, mut bytes) = (protocol, payload.to_vec());
    for extension in extensions.iter().rev() {
        bytes = [extension.bytes(next), bytes].concat();
        next = extension.number();
    }
    (next, bytes)
}
