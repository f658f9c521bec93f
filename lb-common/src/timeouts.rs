//! How long a connection lives after its last packet, per protocol state (IPVS `tcp_timeouts`, `sctp_timeouts`,
//! `udp_timeouts`; spec 5.2 to 5.5).

use bytemuck::{Pod, Zeroable};

use crate::{address::Protocol, sctp, tcp};

/// Timeouts in milliseconds, indexed by state number. Part of the `settings` map: a change counts from each
/// connection's next packet, as in IPVS.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct Timeouts {
    /// TCP, by [`tcp::State`].
    pub tcp: [u32; 16],
    /// SCTP, by [`sctp::State`].
    pub sctp: [u32; 16],
    /// UDP.
    pub udp: u32,
    /// Always 0.
    pub pad: u32,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self::IPVS
    }
}

impl Timeouts {
    /// The defaults of Linux IPVS: `900 120 300` for tcp, tcpfin and udp.
    pub const IPVS: Self = Self { tcp: tcp::TIMEOUTS_MS, sctp: sctp::TIMEOUTS_MS, udp: 300_000, pad: 0 };

    /// Timeout in milliseconds of a protocol's state.
    #[inline(always)]
    pub fn of(&self, protocol: Protocol, state: u8) -> u32 {
        let state = (state & 15) as usize;
        match protocol {
            Protocol::Tcp => self.tcp[state],
            Protocol::Sctp => self.sctp[state],
            Protocol::Udp => self.udp,
        }
    }
}
