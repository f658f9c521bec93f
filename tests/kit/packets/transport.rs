//! What goes inside an IP packet: headers and payload of the transport, checksum in place.

use std::net::IpAddr;

use etherparse::{Icmpv4Header, Icmpv4Type, Icmpv6Header, Icmpv6Type, TcpHeader, UdpHeader};
use etherparse::{icmpv4, icmpv6};

use super::build::Packet;
use super::checksum::crc32c;
use super::protocol;

/// Bits of a TCP header's flags byte.
pub mod flags {
    /// No more data from the sender.
    pub const FIN: u8 = 1;
    /// Opens a connection.
    pub const SYN: u8 = 2;
    /// Ends a connection at once.
    pub const RST: u8 = 4;
    /// Push.
    pub const PSH: u8 = 8;
    /// The acknowledgement number counts.
    pub const ACK: u8 = 16;
    /// Urgent.
    pub const URG: u8 = 32;
}

/// Fields of a TCP header other than ports and checksum.
#[derive(Debug, Clone, Copy, Default)]
pub struct Tcp<'a> {
    /// See [`flags`].
    pub flags: u8,
    /// Sequence number.
    pub sequence: u32,
    /// Acknowledgement number.
    pub acknowledgment: u32,
    /// Options, up to 40 bytes; padded to a multiple of four.
    pub options: &'a [u8],
}

/// Transport header and payload, complete.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Transport {
    /// IANA protocol number.
    pub protocol: u8,
    /// The bytes behind the IP header.
    pub bytes: Vec<u8>,
}

/// An ICMP or ICMPv6 error; the packet's family decides which numbers it gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IcmpError {
    /// Destination unreachable: port.
    PortUnreachable,
    /// Destination unreachable: host (IPv6: address).
    HostUnreachable,
    /// Fragmentation needed (IPv6: packet too big), with the MTU of the next hop.
    TooBig(u16),
    /// Time exceeded in transit.
    TimeExceeded,
}

impl Packet {
    /// A TCP segment.
    pub fn tcp(&self, fields: Tcp<'_>, payload: &[u8]) -> Transport {
        let mut header = TcpHeader::new(self.from.port(), self.to.port(), fields.sequence, 65_535);
        header.acknowledgment_number = fields.acknowledgment;
        let has = |bit| fields.flags & bit != 0;
        (header.fin, header.syn, header.rst) = (has(flags::FIN), has(flags::SYN), has(flags::RST));
        (header.psh, header.ack, header.urg) = (has(flags::PSH), has(flags::ACK), has(flags::URG));
        header.set_options_raw(fields.options).expect("TCP options are at most 40 bytes");
        let checksum = match self.addresses() {
            Addresses::V4(from, to) => header.calc_checksum_ipv4_raw(from, to, payload),
            Addresses::V6(from, to) => header.calc_checksum_ipv6_raw(from, to, payload),
        };
        header.checksum = checksum.expect("the segment fits a packet");
        Transport { protocol: protocol::TCP, bytes: [&header.to_bytes(), payload].concat() }
    }

    /// A UDP datagram.
    pub fn udp(&self, payload: &[u8]) -> Transport {
        let (from, to) = (self.from.port(), self.to.port());
        let mut header = UdpHeader::without_ipv4_checksum(from, to, payload.len()).expect("the datagram fits a packet");
        let checksum = match self.addresses() {
            Addresses::V4(from, to) => header.calc_checksum_ipv4_raw(from, to, payload),
            Addresses::V6(from, to) => header.calc_checksum_ipv6_raw(from, to, payload),
        };
        header.checksum = checksum.expect("the datagram fits a packet");
        Transport { protocol: protocol::UDP, bytes: [&header.to_bytes(), payload].concat() }
    }

    /// A UDP datagram whose checksum field is 0: allowed in IPv4 only.
    pub fn udp_without_checksum(&self, payload: &[u8]) -> Transport {
        let mut datagram = self.udp(payload);
        datagram.bytes[6..8].fill(0);
        datagram
    }

    /// An SCTP packet with these chunks.
    pub fn sctp(&self, verification_tag: u32, chunks: &[u8]) -> Transport {
        let mut bytes = Vec::new();
        bytes.extend(self.from.port().to_be_bytes());
        bytes.extend(self.to.port().to_be_bytes());
        bytes.extend(verification_tag.to_be_bytes());
        bytes.extend([0; 4]);
        bytes.extend(chunks);
        let checksum = crc32c(&[&bytes]);
        // RFC 9260, appendix A: the only field that goes least significant byte first.
        bytes[8..12].copy_from_slice(&checksum.to_le_bytes());
        Transport { protocol: protocol::SCTP, bytes }
    }

    /// An ICMP error about `embedded`, an IP packet from its IP header on, whole or cut.
    pub fn icmp_error(&self, error: IcmpError, embedded: &[u8]) -> Transport {
        match self.addresses() {
            Addresses::V4(..) => {
                use icmpv4::{DestUnreachableHeader as Unreachable, TimeExceededCode};
                let kind = match error {
                    IcmpError::PortUnreachable => Icmpv4Type::DestinationUnreachable(Unreachable::Port),
                    IcmpError::HostUnreachable => Icmpv4Type::DestinationUnreachable(Unreachable::Host),
                    IcmpError::TooBig(next_hop_mtu) => {
                        Icmpv4Type::DestinationUnreachable(Unreachable::FragmentationNeeded { next_hop_mtu })
                    }
                    IcmpError::TimeExceeded => Icmpv4Type::TimeExceeded(TimeExceededCode::TtlExceededInTransit),
                };
                self.icmpv4(kind, embedded)
            }
            Addresses::V6(..) => {
                use icmpv6::{DestUnreachableCode as Unreachable, TimeExceededCode};
                let kind = match error {
                    IcmpError::PortUnreachable => Icmpv6Type::DestinationUnreachable(Unreachable::Port),
                    IcmpError::HostUnreachable => Icmpv6Type::DestinationUnreachable(Unreachable::Address),
                    IcmpError::TooBig(mtu) => Icmpv6Type::PacketTooBig { mtu: mtu.into() },
                    IcmpError::TimeExceeded => Icmpv6Type::TimeExceeded(TimeExceededCode::HopLimitExceeded),
                };
                self.icmpv6(kind, embedded)
            }
        }
    }

    /// An echo request.
    pub fn echo_request(&self, id: u16, seq: u16, payload: &[u8]) -> Transport {
        let header = etherparse::IcmpEchoHeader { id, seq };
        match self.addresses() {
            Addresses::V4(..) => self.icmpv4(Icmpv4Type::EchoRequest(header), payload),
            Addresses::V6(..) => self.icmpv6(Icmpv6Type::EchoRequest(header), payload),
        }
    }

    fn icmpv4(&self, kind: Icmpv4Type, payload: &[u8]) -> Transport {
        let header = Icmpv4Header::with_checksum(kind, payload);
        Transport { protocol: protocol::ICMP, bytes: [&header.to_bytes(), payload].concat() }
    }

    fn icmpv6(&self, kind: Icmpv6Type, payload: &[u8]) -> Transport {
        let Addresses::V6(from, to) = self.addresses() else { unreachable!("ICMPv6 over IPv4") };
        let header = Icmpv6Header::with_checksum(kind, from, to, payload).expect("the error fits a packet");
        Transport { protocol: protocol::ICMPV6, bytes: [&header.to_bytes(), payload].concat() }
    }

    fn addresses(&self) -> Addresses {
        match (self.from.ip(), self.to.ip()) {
            (IpAddr::V4(from), IpAddr::V4(to)) => Addresses::V4(from.octets(), to.octets()),
            (IpAddr::V6(from), IpAddr::V6(to)) => Addresses::V6(from.octets(), to.octets()),
            (from, to) => panic!("a packet from {from} to {to} mixes families"),
        }
    }
}

enum Addresses {
    V4([u8; 4], [u8; 4]),
    V6([u8; 16], [u8; 16]),
}
