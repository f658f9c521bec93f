//! The IPVS schedulers.
//!
//! A scheduler is one of three shapes, and the shape decides where its loop runs:
//!
//! - **cursor** ([`cursor`]: rr, wrr): a position in the list that moves on, kept in one 64-bit
//!   [`word`] per service and advanced by compare-and-swap;
//! - **scan** ([`scan`]: lc, wlc, sed, nq, fo, ovf, and the least-loaded half of lblc and lblcr; [`twos`], which scans
//!   twice): a small state that is shown every destination in list order; the loop is the caller's (`bpf_loop` in BPF, an
//!   iterator on the host);
//! - **table** ([`table`]: sh, dh; [`maglev`]: mh): built by user space, indexed by a hash.
//!
//! List order is IPVS's everywhere: position 0 is the head, the newest destination.

pub mod cursor;
pub mod hash;
pub mod locality;
pub mod maglev;
pub mod scan;
pub mod table;
pub mod twos;
pub mod word;

/// A scheduler, by the number that [`Service::scheduler`](crate::layout::Service::scheduler) holds.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
#[repr(u8)]
pub enum Scheduler {
    /// Round robin (`ip_vs_rr.c`).
    RoundRobin = 1,
    /// Weighted round robin (`ip_vs_wrr.c`).
    WeightedRoundRobin = 2,
    /// Least connection (`ip_vs_lc.c`).
    LeastConnection = 3,
    /// Weighted least connection (`ip_vs_wlc.c`).
    WeightedLeastConnection = 4,
    /// Locality-based least connection (`ip_vs_lblc.c`).
    LocalityLeastConnection = 5,
    /// Locality-based least connection with replication (`ip_vs_lblcr.c`).
    LocalityReplicated = 6,
    /// Destination hashing (`ip_vs_dh.c`).
    DestinationHash = 7,
    /// Source hashing (`ip_vs_sh.c`).
    SourceHash = 8,
    /// Shortest expected delay (`ip_vs_sed.c`).
    ShortestExpectedDelay = 9,
    /// Never queue (`ip_vs_nq.c`).
    NeverQueue = 10,
    /// Weighted failover (`ip_vs_fo.c`).
    Failover = 11,
    /// Weighted overflow (`ip_vs_ovf.c`).
    Overflow = 12,
    /// Maglev hashing (`ip_vs_mh.c`).
    Maglev = 13,
    /// The power of two random choices (`ip_vs_twos.c`).
    TwoChoices = 14,
}

impl Scheduler {
    /// All schedulers, in the order that the documentation lists them.
    pub const ALL: [Self; 14] = [
        Self::RoundRobin,
        Self::WeightedRoundRobin,
        Self::LeastConnection,
        Self::WeightedLeastConnection,
        Self::LocalityLeastConnection,
        Self::LocalityReplicated,
        Self::DestinationHash,
        Self::SourceHash,
        Self::ShortestExpectedDelay,
        Self::NeverQueue,
        Self::Failover,
        Self::Overflow,
        Self::Maglev,
        Self::TwoChoices,
    ];

    /// The name that `ipvsadm -s` takes.
    pub const fn name(self) -> &'static str {
        match self {
            Self::RoundRobin => "rr",
            Self::WeightedRoundRobin => "wrr",
            Self::LeastConnection => "lc",
            Self::WeightedLeastConnection => "wlc",
            Self::LocalityLeastConnection => "lblc",
            Self::LocalityReplicated => "lblcr",
            Self::DestinationHash => "dh",
            Self::SourceHash => "sh",
            Self::ShortestExpectedDelay => "sed",
            Self::NeverQueue => "nq",
            Self::Failover => "fo",
            Self::Overflow => "ovf",
            Self::Maglev => "mh",
            Self::TwoChoices => "twos",
        }
    }

    /// The scheduler that `ipvsadm -s` calls by this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|scheduler| scheduler.name() == name)
    }

    /// The names that `ipvsadm -b` has for this scheduler's flags: of
    /// [`SERVICE_HASH_PORT`](crate::layout::SERVICE_HASH_PORT), then of
    /// [`SERVICE_HASH_FALLBACK`](crate::layout::SERVICE_HASH_FALLBACK). Only sh and mh heed them.
    pub const fn flag_names(self) -> [&'static str; 2] {
        match self {
            Self::SourceHash => ["sh-port", "sh-fallback"],
            Self::Maglev => ["mh-port", "mh-fallback"],
            _ => ["flag-2", "flag-1"],
        }
    }

    /// True for the schedulers that heed flags.
    pub const fn has_flags(self) -> bool {
        matches!(self, Self::SourceHash | Self::Maglev)
    }

    /// The scheduler with this number.
    #[inline(always)]
    pub const fn from_number(number: u8) -> Option<Self> {
        Some(match number {
            1 => Self::RoundRobin,
            2 => Self::WeightedRoundRobin,
            3 => Self::LeastConnection,
            4 => Self::WeightedLeastConnection,
            5 => Self::LocalityLeastConnection,
            6 => Self::LocalityReplicated,
            7 => Self::DestinationHash,
            8 => Self::SourceHash,
            9 => Self::ShortestExpectedDelay,
            10 => Self::NeverQueue,
            11 => Self::Failover,
            12 => Self::Overflow,
            13 => Self::Maglev,
            14 => Self::TwoChoices,
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::Scheduler;

    #[test]
    fn numbers_and_names_lead_back_to_the_scheduler() {
        for scheduler in Scheduler::ALL {
            assert_eq!(Scheduler::from_number(scheduler as u8), Some(scheduler));
            assert_eq!(Scheduler::from_name(scheduler.name()), Some(scheduler));
        }
        assert_eq!(Scheduler::from_number(0), None);
        assert_eq!(Scheduler::from_name("RR"), None);
    }
}
