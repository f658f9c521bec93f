//! When to try again, and when to say so.

use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::time::Duration;

use kube::runtime::watcher::Error;
use tokio::time::Instant;
use tracing::{info, warn};

/// Trouble that long ago has nothing to do with that of now.
const FORGET: Duration = Duration::from_secs(60);

/// Delays that double from the shortest to the longest, with jitter: after an outage all nodes come back at once.
pub(super) struct Backoff {
    shortest: Duration,
    longest: Duration,
    next: Duration,
    last: Option<Instant>,
    /// The next delay, once.
    rest: Option<Duration>,
}

impl Backoff {
    pub(super) fn new(shortest: Duration, longest: Duration) -> Self {
        Self { shortest, longest, next: shortest, last: None, rest: None }
    }

    /// The next delay is this one, with jitter.
    pub(super) fn rest(&mut self, time: Duration) {
        self.rest = Some(time);
    }

    pub(super) fn delay(&mut self) -> Duration {
        if let Some(rest) = self.rest.take() {
            return jittered(rest);
        }
        let now = Instant::now();
        if self.last.is_none_or(|last| now.duration_since(last) > FORGET + self.next) {
            self.next = self.shortest;
        }
        self.last = Some(now);
        let delay = jittered(self.next);
        self.next = (self.next * 2).min(self.longest);
        delay
    }
}

/// A time from half to one and a half of the given one.
pub(super) fn jittered(time: Duration) -> Duration {
    // Each `RandomState` has random keys, which is all the randomness that is needed.
    let random = RandomState::new().build_hasher().finish();
    time / 2 + time.mul_f64(random as f64 / u64::MAX as f64)
}

/// Says when watching breaks and when it works again, and nothing in between.
pub(super) struct Health {
    what: &'static str,
    /// The trouble that was told of: its HTTP status, or `None` for trouble without one.
    trouble: Option<Option<u16>>,
}

impl Health {
    pub(super) fn new(what: &'static str) -> Self {
        Self { what, trouble: None }
    }

    pub(super) fn works(&mut self) {
        if self.trouble.take().is_some() {
            info!("API server: {}: listed again", self.what);
        }
    }

    /// True if what is asked for is `optional`, and not to be had here.
    pub(super) fn fails(&mut self, error: &Error, optional: bool) -> bool {
        let (what, status) = (self.what, status(error));
        let absent = optional && matches!(status, Some(403 | 404));
        if !self.is_news(status) {
            return absent;
        }
        match status {
            _ if absent => info!(
                "API server: {what}: {error}; the networks of cluster addresses are not known: what is sent to an address \
                 that no Service has goes on by the routes"
            ),
            Some(401 | 403) => warn!(
                "API server: {what}: {error}; list and watch on {what} must be allowed, as the role system:node-proxier \
                 does. What was stated last stays"
            ),
            _ => warn!("API server: {what}: {error}; what was stated last stays until it answers again"),
        }
        absent
    }

    /// A version that is too old is part of normal life: listing again is the answer to it.
    fn is_news(&mut self, status: Option<u16>) -> bool {
        status != Some(410) && self.trouble.replace(status) != Some(status)
    }
}

fn status(error: &Error) -> Option<u16> {
    match error {
        Error::WatchError(status) => Some(status.code),
        Error::InitialListFailed(kube::Error::Api(status))
        | Error::WatchStartFailed(kube::Error::Api(status))
        | Error::WatchFailed(kube::Error::Api(status)) => Some(status.code),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::{Backoff, Duration, Health, jittered};

    #[test]
    fn delays_double_with_jitter_up_to_the_longest() {
        let mut backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(5));
        for expected in [1.0, 2.0, 4.0, 5.0, 5.0] {
            let delay = backoff.delay().as_secs_f64();
            assert!((expected / 2.0..=expected * 1.5).contains(&delay), "{delay} for {expected}");
        }
        assert_ne!(jittered(Duration::from_secs(1)), jittered(Duration::from_secs(1)));
    }

    #[test]
    fn trouble_is_told_when_it_begins_and_when_it_changes() {
        let mut health = Health::new("services");
        let told = [Some(410), None, None, Some(503), Some(503), Some(410), Some(403), None]
            .map(|status| health.is_news(status));
        assert_eq!(told, [false, true, false, true, false, false, true, true]);
        health.works();
        assert!(health.is_news(None));
    }
}
