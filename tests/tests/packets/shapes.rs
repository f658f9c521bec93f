//! Packets of every make, as recipes from addresses to frames.

use std::net::SocketAddr;

use bpvs_tests::packets::{Extension, Packet, Tcp, Transport, flags, protocol};

/// What is inside the IP packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Inside {
    /// Opens a TCP connection, with an option.
    Syn,
    /// A segment with these flags and an odd number of bytes.
    Segment(u8),
    /// A datagram.
    Udp,
    /// A datagram without a checksum.
    UdpUnchecked,
    /// Opens an SCTP association.
    Init,
    /// SCTP data.
    Data,
}

impl Inside {
    /// One that opens a connection, for each protocol.
    pub(crate) const OPENING: [Self; 3] = [Self::Syn, Self::Udp, Self::Init];

    /// One of each step in a connection's life.
    pub(crate) const OF_A_CONNECTION: [Self; 7] = [
        Self::Syn,
        Self::Segment(flags::ACK),
        Self::Segment(flags::FIN | flags::ACK),
        Self::Segment(flags::RST),
        Self::Udp,
        Self::Init,
        Self::Data,
    ];

    /// A later packet of the same connection.
    pub(crate) fn following(self) -> Self {
        match self {
            Self::Syn => Self::Segment(flags::ACK | flags::PSH),
            Self::Init => Self::Data,
            other => other,
        }
    }

    /// What the server answers an opening packet with.
    pub(crate) fn answer(self) -> Self {
        match self {
            Self::Syn => Self::Segment(flags::SYN | flags::ACK),
            other => other.following(),
        }
    }

    pub(crate) fn transport(self, packet: &Packet) -> Transport {
        let tcp = |flags, options| Tcp { flags, sequence: 0x8000_0001, acknowledgment: 0xfffe_0002, options };
        match self {
            Self::Syn => packet.tcp(tcp(flags::SYN, &[2, 4, 5, 180]), b""),
            Self::Segment(flags) => packet.tcp(tcp(flags, &[]), b"seventeen bytes!!"),
            Self::Udp => packet.udp(b"odd"),
            Self::UdpUnchecked => packet.udp_without_checksum(b"odd"),
            Self::Init => packet.sctp(0, &[1, 0, 0, 20, 1, 2, 3, 4, 0, 1, 0, 0, 0, 10, 0, 10, 0, 0, 0, 1]),
            Self::Data => packet.sctp(0x1020_3040, &[0, 3, 0, 20, 0, 0, 0, 9, 0, 1, 0, 2, 0, 0, 0, 0, 1, 2, 3, 4]),
        }
    }
}

/// What is around it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Around {
    Plain,
    Vlan,
    QinQ,
    /// IPv4 options (IPv6: no difference).
    Options,
    HopByHop,
    Routing,
    DestinationOptions,
    Authentication,
    /// Four extension headers.
    ManyExtensions,
}

impl Around {
    /// All that make a difference in the family.
    pub(crate) fn all(v6: bool) -> &'static [Self] {
        match v6 {
            false => &[Self::Plain, Self::Vlan, Self::QinQ, Self::Options],
            true => &[
                Self::Plain,
                Self::Vlan,
                Self::QinQ,
                Self::HopByHop,
                Self::Routing,
                Self::DestinationOptions,
                Self::Authentication,
                Self::ManyExtensions,
            ],
        }
    }

    /// The packet with what the kit's builder can put around it.
    pub(crate) fn packet(self, from: SocketAddr, to: SocketAddr) -> Packet {
        let packet = Packet::new(from, to);
        match self {
            Self::Plain | Self::QinQ | Self::Authentication => packet,
            Self::Vlan => packet.vlan(7),
            Self::Options => packet.ipv4_options(&[1, 1, 1, 1, 1, 1, 1, 0]),
            Self::HopByHop => packet.extension(Extension::HopByHop),
            Self::Routing => packet.extension(Extension::Routing),
            Self::DestinationOptions => packet.extension(Extension::DestinationOptions),
            Self::ManyExtensions => packet
                .extension(Extension::HopByHop)
                .extension(Extension::DestinationOptions)
                .extension(Extension::Routing)
                .extension(Extension::DestinationOptions),
        }
    }

    /// The frame.
    pub(crate) fn frame(self, from: SocketAddr, to: SocketAddr, inside: Inside) -> Vec<u8> {
        let packet = self.packet(from, to);
        let frame = packet.frame(&inside.transport(&packet));
        match self {
            Self::QinQ => [&frame[..12], &QINQ, &frame[12..]].concat(),
            Self::Authentication => authenticated(&frame),
            _ => frame,
        }
    }
}

/// The outer tag and the inner one.
const QINQ: [u8; 8] = [0x88, 0xa8, 0, 5, 0x81, 0, 0, 7];
/// An authentication header of 24 bytes: next header, length, then what nobody here can check.
const AUTHENTICATION: usize = 24;

/// Puts an authentication header behind the IPv6 header of an untagged frame.
fn authenticated(frame: &[u8]) -> Vec<u8> {
    let mut header = [0xaa; AUTHENTICATION];
    header[0] = frame[20];
    header[1] = (AUTHENTICATION / 4 - 2) as u8;
    let mut out = [&frame[..54], &header, &frame[54..]].concat();
    let length = u16::from_be_bytes([frame[18], frame[19]]) + AUTHENTICATION as u16;
    out[18..20].copy_from_slice(&length.to_be_bytes());
    out[20] = 51;
    out
}

/// The frame without what the verifier does not know: two tags, the authentication header.
pub(crate) fn plain(frame: &[u8]) -> Vec<u8> {
    if frame[12..].starts_with(&[0x88, 0xa8]) && frame.len() >= 20 {
        return [&frame[..12], &frame[20..]].concat();
    }
    let units = (AUTHENTICATION / 4 - 2) as u8;
    let is_authenticated = frame[12..].starts_with(&[0x86, 0xdd]) && frame.get(20) == Some(&51);
    if is_authenticated && frame.len() >= 54 + AUTHENTICATION && frame[55] == units {
        let mut out = [&frame[..54], &frame[54 + AUTHENTICATION..]].concat();
        let length = u16::from_be_bytes([frame[18], frame[19]]).wrapping_sub(AUTHENTICATION as u16);
        out[18..20].copy_from_slice(&length.to_be_bytes());
        out[20] = frame[54];
        return out;
    }
    frame.to_vec()
}

/// The protocol of services that a packet is of.
pub(crate) fn protocol_of(inside: Inside) -> lb_common::address::Protocol {
    let number = match inside {
        Inside::Syn | Inside::Segment(_) => protocol::TCP,
        Inside::Udp | Inside::UdpUnchecked => protocol::UDP,
        Inside::Init | Inside::Data => protocol::SCTP,
    };
    lb_common::address::Protocol::from_number(number).expect("one of the three")
}

/// The frame with its hardware addresses the other way round, as a packet that goes back has them.
pub(crate) fn turned(frame: &[u8]) -> Vec<u8> {
    [&frame[6..12], &frame[..6], &frame[12..]].concat()
}
