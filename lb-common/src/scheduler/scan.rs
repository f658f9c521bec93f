//! lc, wlc, sed, nq, fo, ovf, and the scans of lblc and lblcr: a small state that is shown every destination in list order.
//!
//! Products of a load and a weight are taken in 64 bits, as IPVS does; loads are IPVS's signed 32-bit values.

use super::Scheduler;
use crate::layout::DestinationLoad;

/// A destination as a scan sees it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Candidate {
    /// Destination id.
    pub destination: u32,
    /// Weight in this version of the service.
    pub weight: i32,
    /// Active connections, those of other nodes included.
    pub active: u32,
    /// Inactive connections.
    pub inactive: u32,
    /// What new connections may go by: its weight, or 0 while it is over its upper threshold.
    pub usable_weight: i32,
}

impl Candidate {
    /// A candidate from what the maps hold.
    #[inline(always)]
    pub const fn new(destination: u32, weight: i32, load: &DestinationLoad) -> Self {
        Self::with(destination, weight, load.usable(weight), load)
    }

    /// The same with what [`DestinationLoad::usable`] says, for callers that know how to find it out.
    #[inline(always)]
    pub const fn with(destination: u32, weight: i32, usable_weight: i32, load: &DestinationLoad) -> Self {
        Self {
            destination,
            weight,
            active: load.active().wrapping_add(load.remote_active),
            inactive: load.inactive(),
            usable_weight,
        }
    }

    /// IPVS's `ip_vs_dest_conn_overhead`, 256 for each active connection and 1 for each connection: kernels of 2026 keep a
    /// count of all connections where older ones had one of the inactive, so that an active connection counts 257 inactive
    /// ones (`cargo xtask oracle` shows it; on older kernels 256).
    #[inline(always)]
    pub const fn overhead(&self) -> i32 {
        (self.active << 8).wrapping_add(self.active).wrapping_add(self.inactive) as i32
    }

    /// IPVS's shortest expected delay cost.
    #[inline(always)]
    pub const fn expected_delay(&self) -> i32 {
        self.active.wrapping_add(1) as i32
    }
}

/// Whether the caller goes on with the next destination.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Flow {
    /// Show the next destination.
    Continue,
    /// The decision is made.
    Stop,
}

/// How a scan compares destinations.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Rule {
    /// Smallest overhead (`ip_vs_lc.c`).
    Least = 0,
    /// Smallest overhead per weight (`ip_vs_wlc.c`, and lblc's and lblcr's `__ip_vs_lblc_schedule`).
    WeightedLeast = 1,
    /// Smallest expected delay (`ip_vs_sed.c`).
    ExpectedDelay = 2,
    /// First idle, else smallest expected delay (`ip_vs_nq.c`).
    NeverQueue = 3,
    /// Highest weight, whatever the load (`ip_vs_fo.c`).
    Failover = 4,
    /// Highest weight of those with at most as many active connections as weight (`ip_vs_ovf.c`).
    Overflow = 5,
}

impl Rule {
    /// The rule of a scan scheduler; lblc and lblcr scan as wlc does.
    #[inline(always)]
    pub const fn of(scheduler: Scheduler) -> Option<Self> {
        Some(match scheduler {
            Scheduler::LeastConnection => Self::Least,
            Scheduler::WeightedLeastConnection | Scheduler::LocalityLeastConnection | Scheduler::LocalityReplicated => {
                Self::WeightedLeast
            }
            Scheduler::ShortestExpectedDelay => Self::ExpectedDelay,
            Scheduler::NeverQueue => Self::NeverQueue,
            Scheduler::Failover => Self::Failover,
            Scheduler::Overflow => Self::Overflow,
            _ => return None,
        })
    }
}

/// A scan in progress. By which rule is told with each step, by a constant where the scan must be fast: there are some
/// instructions for each destination.
#[derive(Clone, Copy, Debug)]
pub struct Scan {
    best_weight: i64,
    best_cost: i64,
    /// Below 0 if some destination that was looked at has fewer active connections than half its weight (lblc's `is_overloaded`). Gathered
    /// without a branch, which the verifier would follow both ways for every destination.
    relaxed: i64,
    best_destination: u32,
}

impl Scan {
    /// A scan by this rule that has seen nothing.
    #[inline(always)]
    pub const fn new(rule: Rule) -> Self {
        // Such that the first usable destination is better by the rule's own comparison.
        let best_cost = if matches!(rule, Rule::Least) { u32::MAX as i64 } else { 1 };
        Self { best_destination: 0, best_weight: 0, best_cost, relaxed: 0 }
    }

    /// Looks whether a destination is relaxed. IPVS looks among all, unusable ones included.
    #[inline(always)]
    pub const fn relax(&mut self, candidate: &Candidate) {
        self.relaxed |= (candidate.active as i64) * 2 - candidate.weight as i64;
    }

    /// Shows the next destination in list order. The rule is the one that the scan began with.
    #[inline(always)]
    pub const fn step(&mut self, rule: Rule, candidate: &Candidate) -> Flow {
        // The weight of one that is overloaded is 0 from here on.
        let weight = candidate.usable_weight as i64;
        if weight <= 0 {
            return Flow::Continue;
        }
        // A server that is exactly full takes one more, as in IPVS.
        if matches!(rule, Rule::Overflow) && candidate.active as i64 > weight {
            return Flow::Continue;
        }
        let cost = match rule {
            Rule::Failover | Rule::Overflow => 0,
            // Unsigned there alone.
            Rule::Least => candidate.overhead() as u32 as i64,
            Rule::WeightedLeast => candidate.overhead() as i64,
            Rule::ExpectedDelay | Rule::NeverQueue => candidate.expected_delay() as i64,
        };
        if matches!(rule, Rule::NeverQueue) && candidate.active == 0 {
            self.take(candidate.destination, weight, cost);
            return Flow::Stop;
        }
        let better = match rule {
            Rule::Least => cost < self.best_cost,
            Rule::Failover | Rule::Overflow => weight > self.best_weight,
            _ => self.best_cost * weight > cost * self.best_weight,
        };
        if better {
            self.take(candidate.destination, weight, cost);
        }
        Flow::Continue
    }

    #[inline(always)]
    const fn take(&mut self, destination: u32, weight: i64, cost: i64) {
        self.best_destination = destination;
        self.best_weight = weight;
        self.best_cost = cost;
    }

    /// The destination chosen so far; 0 for none.
    #[inline(always)]
    pub const fn chosen(&self) -> u32 {
        self.best_destination
    }

    /// True if some destination that was [looked at](Self::relax) has fewer active connections than half its weight.
    #[inline(always)]
    pub const fn relaxed_exists(&self) -> bool {
        self.relaxed < 0
    }
}
