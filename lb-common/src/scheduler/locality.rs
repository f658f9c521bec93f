//! What lblc and lblcr add to the scan: a memory of which server serves an address (`ip_vs_lblc.c`,
//! `ip_vs_lblcr.c`). Where the memory lives is the caller's business; these are its decisions.

use super::scan::Candidate;

/// True if a remembered server should no longer be used alone: it has more active connections than its weight while
/// some other is relaxed (IPVS `is_overloaded`).
#[inline(always)]
pub const fn busy(server: &Candidate, relaxed_exists: bool) -> bool {
    server.active as i64 > server.weight as i64 && relaxed_exists
}

/// Could [`busy`] hold at all? If not, the destinations need no scan.
#[inline(always)]
pub const fn may_be_busy(server: &Candidate) -> bool {
    server.active as i64 > server.weight as i64
}

/// The least loaded server of lblcr's set (`ip_vs_dest_set_min`), shown newest first.
#[derive(Clone, Copy, Debug, Default)]
pub struct SetMinimum {
    best: Candidate,
}

impl SetMinimum {
    /// Shows the next server of the set. `available` says that it is still in its service.
    #[inline(always)]
    pub const fn step(&mut self, server: &Candidate, available: bool) {
        if !available {
            return;
        }
        // One that is over its threshold has 0 for weight here, and replaces nobody.
        if self.best.destination == 0 {
            if server.usable_weight > 0 {
                self.best = *server;
            }
        } else if self.best.overhead() as i64 * server.usable_weight as i64
            > server.overhead() as i64 * self.best.weight as i64
        {
            self.best = *server;
        }
    }

    /// The server; its destination id is 0 if there is none.
    #[inline(always)]
    pub const fn chosen(&self) -> &Candidate {
        &self.best
    }
}

/// The most loaded server of lblcr's set (`ip_vs_dest_set_max`), shown newest first: the one to take out.
#[derive(Clone, Copy, Debug, Default)]
pub struct SetMaximum {
    best: Candidate,
    place: u32,
}

impl SetMaximum {
    /// Shows the server at `place` of the set.
    #[inline(always)]
    pub const fn step(&mut self, server: &Candidate, place: u32) {
        if server.weight <= 0 {
            return;
        }
        if self.best.destination == 0
            || (self.best.overhead() as i64 * server.weight as i64) < server.overhead() as i64 * self.best.weight as i64
        {
            self.best = *server;
            self.place = place;
        }
    }

    /// Place of the server to take out, if the set has one.
    #[inline(always)]
    pub const fn place(&self) -> Option<u32> {
        if self.best.destination == 0 { None } else { Some(self.place) }
    }
}

/// How long lblcr keeps a set unchanged before it takes the most loaded server out: `lblcr_expiration`, nanoseconds.
pub const REPLICATION_EXPIRY_NS: u64 = 24 * 3600 * 1_000_000_000;

/// How long an address that nobody asks for is remembered: `lblc_expiration`, `lblcr_expiration`, nanoseconds. IPVS's
/// timer forgets up to half an hour later.
pub const FORGET_NS: u64 = 24 * 3600 * 1_000_000_000;
