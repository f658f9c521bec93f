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

    /// What `ipvsadm --set tcp tcpfin udp` does: other times for ESTABLISHED, FIN_WAIT and UDP, in milliseconds; 0
    /// keeps the one that is there. TCP only: SCTP's ESTABLISHED stays.
    pub const fn set(mut self, established: u32, fin_wait: u32, udp: u32) -> Self {
        if established != 0 {
            self.tcp[tcp::State::Established as usize] = established;
        }
        if fin_wait != 0 {
            self.tcp[tcp::State::FinWait as usize] = fin_wait;
        }
        if udp != 0 {
            self.udp = udp;
        }
        self
    }

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn set_changes_three_times_and_zero_keeps() {
        assert_eq!(Timeouts::IPVS.set(0, 0, 0), Timeouts::IPVS);
        let set = Timeouts::IPVS.set(1, 2, 3);
        assert_eq!(set.of(Protocol::Tcp, tcp::State::Established as u8), 1);
        assert_eq!(set.of(Protocol::Tcp, tcp::State::FinWait as u8), 2);
        assert_eq!(set.of(Protocol::Udp, 0), 3);
        for state in tcp::State::ALL.map(|state| state as u8) {
            if ![tcp::State::Established as u8, tcp::State::FinWait as u8].contains(&state) {
                assert_eq!(set.of(Protocol::Tcp, state), Timeouts::IPVS.of(Protocol::Tcp, state));
            }
        }
        assert_eq!(set.sctp, Timeouts::IPVS.sctp);
    }
}
