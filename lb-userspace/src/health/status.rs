//! What there is to say of the agent: whether the maps follow what is stated, and whether the node is to get new load.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

/// How long a change may wait to be programmed before the agent is not well: kube-proxy's `2 * syncPeriod` (HZ-3).
const LONGEST_WAIT: Duration = Duration::from_secs(60);

/// Shared by the agent, which tells, and the servers, which answer.
#[derive(Clone, Debug)]
pub struct Health(Arc<Mutex<Told>>);

#[derive(Debug)]
struct Told {
    /// IPv4, IPv6.
    families: [Family; 2],
    eligible: bool,
    /// Sources that have not told all that they have, by name.
    missing: Vec<String>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Family {
    /// Since when a change waits. What fails waits on.
    pending: Option<Instant>,
    /// When all of it was programmed last.
    updated: Option<SystemTime>,
}

/// What is true now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Now {
    /// Of IPv4, and of IPv6.
    pub families: [FamilyNow; 2],
    /// Load balancers may send new connections to this node (HZ-4, KEP-3836).
    pub eligible: bool,
}

/// What is true now of one family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FamilyNow {
    /// No change waits too long.
    pub healthy: bool,
    /// When all was programmed last; none before the first time.
    pub updated: Option<SystemTime>,
}

impl Now {
    /// No change of either family waits too long.
    pub fn healthy(&self) -> bool {
        self.families.iter().all(|family| family.healthy)
    }

    /// When all of both was programmed last; none before the first time.
    pub fn updated(&self) -> Option<SystemTime> {
        let [v4, v6] = self.families.map(|family| family.updated);
        Some(v4?.min(v6?))
    }
}

impl Health {
    /// Nothing waits, nothing was programmed.
    pub fn new(eligible: bool) -> Self {
        Self(Arc::new(Mutex::new(Told { families: Default::default(), eligible, missing: Vec::new() })))
    }

    fn told(&self) -> MutexGuard<'_, Told> {
        // A thread that panicked with the lock has changed a field or not: both are values.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A change came that is to be programmed.
    pub fn queued(&self, now: Instant) {
        for family in &mut self.told().families {
            family.pending.get_or_insert(now);
        }
    }

    /// Everything that came is programmed, of IPv4 and of IPv6.
    pub fn programmed(&self, families: [bool; 2]) {
        for (family, _) in self.told().families.iter_mut().zip(families).filter(|(_, done)| *done) {
            *family = Family { pending: None, updated: Some(SystemTime::now()) };
        }
    }

    /// Whether the node may get new load.
    pub fn set_eligible(&self, eligible: bool) {
        self.told().eligible = eligible;
    }

    /// Which sources have not delivered their first list.
    pub fn set_missing(&self, sources: Vec<String>) {
        self.told().missing = sources;
    }

    /// Why the agent is not ready yet. Once it is, it stays so: what goes wrong later is for `/healthz` to tell.
    pub fn waits_for(&self) -> Option<String> {
        let told = self.told();
        match (told.families.iter().all(|family| family.updated.is_some()), told.missing.as_slice()) {
            (true, _) => None,
            (false, []) => Some("not everything that is stated is programmed yet: the log says what fails".to_owned()),
            (false, missing) => Some(format!("waiting for the first list of: {}", missing.join(", "))),
        }
    }

    /// What is true at a moment.
    pub fn at(&self, now: Instant) -> Now {
        let told = self.told();
        let families = told.families.map(|Family { pending, updated }| {
            let waits = pending.is_some_and(|since| now.saturating_duration_since(since) >= LONGEST_WAIT);
            FamilyNow { healthy: !waits, updated }
        });
        Now { families, eligible: told.eligible }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_that_waits_too_long_is_not_well_until_all_is_programmed() {
        let (health, begin) = (Health::new(true), Instant::now());
        let healthy = |seconds| health.at(begin + Duration::from_secs(seconds)).healthy();
        assert!(healthy(100_000), "nothing waits");
        health.queued(begin);
        // A later one does not start the clock anew.
        health.queued(begin + Duration::from_secs(50));
        assert!(healthy(59));
        assert!(!healthy(60));
        assert_eq!(health.at(begin).updated(), None);
        // One family is late, and the other is not.
        health.programmed([false, true]);
        assert!(!healthy(60));
        let late = health.at(begin + LONGEST_WAIT).families.map(|family| (family.healthy, family.updated.is_some()));
        assert_eq!(late, [(false, false), (true, true)]);
        health.programmed([true, false]);
        assert!(healthy(100_000));
        assert!(health.at(begin).updated().is_some());
        health.set_eligible(false);
        assert_eq!((health.at(begin).healthy(), health.at(begin).eligible), (true, false));
    }

    #[test]
    fn it_is_ready_once_all_lists_are_there_and_programmed_and_stays_so() {
        let health = Health::new(true);
        health.set_missing(vec!["manifests".to_owned(), "rules".to_owned()]);
        assert_eq!(health.waits_for().unwrap(), "waiting for the first list of: manifests, rules");
        health.set_missing(Vec::new());
        assert!(health.waits_for().unwrap().contains("programmed"));
        health.programmed([true, true]);
        assert_eq!(health.waits_for(), None);
        health.queued(Instant::now());
        assert_eq!(health.waits_for(), None);
    }
}
