//! When to try again, and when to say so.

use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::time::Duration;

use kube::core::Status;
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

/// So often a right is missed before it is taken for missing. An API server that has just started does not know its roles
/// for a moment, and says that everything is forbidden.
const REFUSALS: u32 = 7;

/// What to do about trouble, besides trying again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Trouble {
    /// It is not to be had here, and not needed.
    Absent,
    /// The server does not know who asks (401).
    Unknown,
    /// Nothing.
    Other,
}

/// Says when watching breaks and when it works again, and nothing in between.
pub(super) struct Health {
    what: &'static str,
    /// How often in a row it was forbidden.
    refusals: u32,
    /// The trouble that was told of: its HTTP status, or `None` for trouble without one.
    trouble: Option<Option<u16>>,
}

impl Health {
    pub(super) fn new(what: &'static str) -> Self {
        Self { what, refusals: 0, trouble: None }
    }

    pub(super) fn works(&mut self) {
        self.refusals = 0;
        if self.trouble.take().is_some() {
            info!("API server: {}: listed again", self.what);
        }
    }

    /// Says what is wrong, if that is new. What is asked for may be `optional`.
    pub(super) fn fails(&mut self, error: &Error, optional: bool) -> Trouble {
        let (what, status) = (self.what, status(error));
        let (absent, trouble) = self.judge(status, optional);
        if !self.is_news(status) {
            return trouble;
        }
        let said = said(error);
        match status {
            _ if absent => info!(
                "API server: {what}: {said}; the networks of cluster addresses are not known: what is sent to an address \
                 that no Service has goes on by the routes"
            ),
            Some(401 | 403) => warn!(
                "API server: {what}: {said}; list and watch on {what} must be allowed, as the role system:node-proxier \
                 does; one that has just started may say so for a moment. What was stated last stays"
            ),
            _ => warn!("API server: {what}: {said}; what was stated last stays until it answers again"),
        }
        trouble
    }

    /// Whether it may be missing for good, and what to do.
    fn judge(&mut self, status: Option<u16>, optional: bool) -> (bool, Trouble) {
        self.refusals = if status == Some(403) { self.refusals + 1 } else { 0 };
        let trouble = match status {
            Some(404) if optional => Trouble::Absent,
            Some(403) if optional && self.refusals >= REFUSALS => Trouble::Absent,
            Some(401) => Trouble::Unknown,
            _ => Trouble::Other,
        };
        (optional && matches!(status, Some(403 | 404)), trouble)
    }

    /// A version that is too old is part of normal life: listing again is the answer to it.
    fn is_news(&mut self, status: Option<u16>) -> bool {
        status != Some(410) && self.trouble.replace(status) != Some(status)
    }
}

fn status(error: &Error) -> Option<u16> {
    refusal(error).map(|status| status.code)
}

/// What the server answered, if it did.
fn refusal(error: &Error) -> Option<&Status> {
    match error {
        Error::WatchError(status)
        | Error::InitialListFailed(kube::Error::Api(status))
        | Error::WatchStartFailed(kube::Error::Api(status))
        | Error::WatchFailed(kube::Error::Api(status)) => Some(status),
        _ => None,
    }
}

/// The server's own words, or what went wrong on the way, down to the first cause: that a certificate is not trusted, or that
/// nobody listens.
fn said(error: &Error) -> String {
    if let Some(status) = refusal(error) {
        return format!("{} ({})", status.message, status.code);
    }
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(inner) = cause {
        let inner_text = inner.to_string();
        if !text.contains(&inner_text) {
            text = format!("{text}: {inner_text}");
        }
        cause = inner.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::{Backoff, Duration, Error, Health, REFUSALS, Status, Trouble, jittered, said};

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

    #[test]
    fn what_is_forbidden_for_long_or_unknown_is_given_up_if_it_is_not_needed() {
        let mut health = Health::new("servicecidrs");
        for _ in 1..REFUSALS {
            assert_eq!(health.judge(Some(403), true), (true, Trouble::Other));
        }
        assert_eq!(health.judge(Some(403), true), (true, Trouble::Absent));
        assert_eq!(health.judge(Some(503), true), (false, Trouble::Other));
        assert_eq!(health.judge(Some(403), true), (true, Trouble::Other), "counted anew");
        assert_eq!(health.judge(Some(404), true), (true, Trouble::Absent));
        for status in [Some(403), Some(404), Some(503), None].into_iter().cycle().take(40) {
            assert_eq!(health.judge(status, false), (false, Trouble::Other), "{status:?}");
        }
        assert_eq!(health.judge(Some(401), false), (false, Trouble::Unknown));
    }

    #[test]
    fn trouble_is_told_by_its_cause_and_in_the_servers_words() {
        #[derive(Debug, thiserror::Error)]
        #[error("client error (Connect)")]
        struct Outer(#[source] std::io::Error);
        let cause = std::io::Error::other("invalid peer certificate: UnknownIssuer");
        let error = Error::WatchStartFailed(kube::Error::Service(Box::new(Outer(cause))));
        let told = "failed to start watching object: ServiceError: client error (Connect): invalid peer certificate: UnknownIssuer";
        assert_eq!(said(&error), told);
        let status = Status::failure("nodes is forbidden: User \"x\" cannot list", "Forbidden").with_code(403);
        let error = Error::InitialListFailed(kube::Error::Api(status.boxed()));
        assert_eq!(said(&error), "nodes is forbidden: User \"x\" cannot list (403)");
    }
}
