//! Raw packets: built from their parts, sent and received on a wire, and verified by a reader of its own.
//!
//! The builder leans on etherparse; the verifier shares no code with it or with bpvs, so that one fault cannot hide in
//! both.

mod build;
mod checksum;
mod raw;
mod transport;
mod verify;

pub use build::{Extension, Packet};
pub use checksum::{crc32c, ones_complement};
pub use raw::RawSocket;
pub use transport::{IcmpError, Tcp, Transport, flags};
pub use verify::{Checksum, Summary, reassemble, verify};

/// IANA protocol numbers.
pub mod protocol {
    /// ICMP.
    pub const ICMP: u8 = 1;
    /// TCP.
    pub const TCP: u8 = 6;
    /// UDP.
    pub const UDP: u8 = 17;
    /// ICMPv6.
    pub const ICMPV6: u8 = 58;
    /// SCTP.
    pub const SCTP: u8 = 132;
}
