//! What signals look like on the wire.

use lb_common::address::Protocol;

use super::script::{Side, Signal};
use crate::packets::{Packet, Tcp, Transport, flags};

/// True if a client's packet may begin a connection where another with its addresses is known.
pub fn opens(protocol: Protocol, signal: Signal) -> bool {
    match protocol {
        Protocol::Tcp => matches!(signal, Signal::Open | Signal::Crossed),
        Protocol::Udp => true,
        Protocol::Sctp => signal == Signal::Open,
    }
}

/// The flags byte of a TCP segment.
pub fn tcp_flags(from: Side, signal: Signal) -> u8 {
    match (signal, from) {
        (Signal::Open, Side::Client) | (Signal::Crossed, Side::Server) => flags::SYN,
        (Signal::Open, Side::Server) | (Signal::Crossed, Side::Client) => flags::SYN | flags::ACK,
        (Signal::Accept, _) => flags::ACK,
        (Signal::Data, _) => flags::ACK | flags::PSH,
        (Signal::Finish, _) => flags::FIN | flags::ACK,
        (Signal::Abort, _) => flags::RST,
        (Signal::Nothing, _) => flags::PSH,
        (Signal::Finished, _) => flags::RST | flags::ACK,
    }
}

/// The first chunk's type of an SCTP packet (RFC 9260, 3.2).
pub fn sctp_chunk(from: Side, signal: Signal) -> u8 {
    match (signal, from) {
        (Signal::Data, _) => 0,
        (Signal::Open, Side::Client) | (Signal::Crossed, Side::Server) => 1,
        (Signal::Open, Side::Server) | (Signal::Crossed, Side::Client) => 2,
        (Signal::Abort, _) => 6,
        (Signal::Finish, _) => 7,
        (Signal::Finished, _) => 8,
        (Signal::Accept, Side::Client) => 10,
        (Signal::Accept, Side::Server) => 11,
        (Signal::Nothing, _) => 14,
    }
}

/// The transport part of a packet.
pub fn transport(protocol: Protocol, packet: &Packet, from: Side, signal: Signal) -> Transport {
    match protocol {
        Protocol::Tcp => {
            let data: &[u8] = if signal == Signal::Data { b"data" } else { b"" };
            let fields = Tcp { flags: tcp_flags(from, signal), sequence: 1000, acknowledgment: 2000, options: &[] };
            packet.tcp(fields, data)
        }
        Protocol::Udp => packet.udp(b"data"),
        Protocol::Sctp => {
            let chunk = sctp_chunk(from, signal);
            // INIT and INIT ACK are 20 bytes, DATA 16 and its payload; of the others a header and a word do.
            let length: u8 = match chunk {
                0..=2 => 20,
                _ => 8,
            };
            let mut bytes = vec![0; usize::from(length)];
            (bytes[0], bytes[3]) = (chunk, length);
            packet.sctp(if chunk == 1 { 0 } else { 7 }, &bytes)
        }
    }
}
