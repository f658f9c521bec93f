//! How many requests the API server is asked in a second at most (`clientConnection.qps`, `burst`; IN-8): a bucket of
//! tokens, as client-go has it. Watches count once, when they begin. A list counts once too, however many pages it is
//! read in: kube-proxy reads it in one.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::http::Request;
use tokio::time::{Instant, Sleep, sleep_until};
use tower::{Layer, Service};

/// Requests in a second, on average and at once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RequestLimit {
    /// Requests in 1000 seconds; 0: no limit.
    pub per_thousand_seconds: u32,
    /// Requests at once after a pause, at least 1.
    pub burst: u32,
}

impl Default for RequestLimit {
    /// kube-proxy's.
    fn default() -> Self {
        Self { per_thousand_seconds: 5_000, burst: 10 }
    }
}

impl RequestLimit {
    /// As kube-proxy reads it: 0 or nothing stands for the default, and fewer than 0 in a second for no limit.
    pub fn stated(per_second: Option<f64>, burst: Option<u32>) -> Self {
        let default = Self::default();
        let per_thousand_seconds = match per_second {
            Some(number) if number < 0.0 => 0,
            // Saturating; less than one in 1000 seconds is one.
            Some(number) if number > 0.0 => ((number * 1_000.0).round() as u32).max(1),
            _ => default.per_thousand_seconds,
        };
        Self { per_thousand_seconds, burst: burst.filter(|number| *number > 0).unwrap_or(default.burst) }
    }

    /// Requests in a second as [`Self::stated`] takes them.
    pub fn per_second(&self) -> f64 {
        if self.per_thousand_seconds == 0 { -1.0 } else { f64::from(self.per_thousand_seconds) / 1_000.0 }
    }

    /// Time between two requests that wait; none without a limit.
    fn interval(&self) -> Option<Duration> {
        (self.per_thousand_seconds != 0).then(|| Duration::from_secs(1_000) / self.per_thousand_seconds)
    }
}

impl<S> Layer<S> for RequestLimit {
    type Service = Limited<S>;

    fn layer(&self, inner: S) -> Limited<S> {
        Limited { inner, limit: *self, full: Instant::now(), waits: None }
    }
}

/// A service that is asked no more often than the limit says.
#[derive(Debug)]
pub struct Limited<S> {
    inner: S,
    limit: RequestLimit,
    /// When the bucket is full again.
    full: Instant,
    waits: Option<Pin<Box<Sleep>>>,
}

impl<S, B> Service<Request<B>> for Limited<S>
where
    S: Service<Request<B>>,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        if let Some(interval) = self.limit.interval() {
            // The bucket has a token if no more than all but one are missing.
            let missing = interval * self.limit.burst.saturating_sub(1);
            if self.full.saturating_duration_since(Instant::now()) > missing {
                let at = self.full - missing;
                let waits = self.waits.get_or_insert_with(|| Box::pin(sleep_until(at)));
                ready!(waits.as_mut().poll(context));
            }
            self.waits = None;
        }
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> S::Future {
        if let Some(interval) = self.limit.interval()
            && !is_next_page(request.uri().query())
        {
            self.full = self.full.max(Instant::now()) + interval;
        }
        self.inner.call(request)
    }
}

/// Whether a list goes on that an earlier request began.
fn is_next_page(query: Option<&str>) -> bool {
    query.is_some_and(|query| {
        query.split('&').any(|pair| pair.strip_prefix("continue=").is_some_and(|it| !it.is_empty()))
    })
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::future::{Ready, poll_fn, ready};
    use std::task::Waker;

    use super::*;

    struct Answers;

    impl Service<Request<()>> for Answers {
        type Response = ();
        type Error = Infallible;
        type Future = Ready<Result<(), Infallible>>;

        fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
            Poll::Ready(Ok(()))
        }

        fn call(&mut self, _: Request<()>) -> Self::Future {
            ready(Ok(()))
        }
    }

    /// Which of some requests are let through without waiting.
    fn at_once(service: &mut Limited<Answers>, count: usize, uri: &str) -> Vec<bool> {
        let mut request = || {
            let ready = service.poll_ready(&mut Context::from_waker(Waker::noop())).is_ready();
            if ready {
                drop(service.call(Request::get(uri).body(()).unwrap()));
            }
            ready
        };
        (0..count).map(|_| request()).collect()
    }

    #[tokio::test]
    async fn so_many_at_once_and_then_one_after_the_other() {
        let mut service = RequestLimit { per_thousand_seconds: 20_000, burst: 3 }.layer(Answers);
        let begin = Instant::now();
        for place in 0..6_u32 {
            poll_fn(|context| service.poll_ready(context)).await.unwrap();
            service.call(Request::get("/api/v1/services?watch=true").body(()).unwrap()).await.unwrap();
            // Timers are of whole milliseconds.
            let least = Duration::from_millis(50) * place.saturating_sub(2);
            assert!(begin.elapsed() + Duration::from_millis(2) >= least, "request {place}: {:?}", begin.elapsed());
        }
    }

    #[tokio::test]
    async fn pages_of_one_list_are_one_request_and_without_a_limit_nothing_waits() {
        let mut service = RequestLimit { per_thousand_seconds: 1, burst: 2 }.layer(Answers);
        let pages = at_once(&mut service, 100, "/api/v1/services?limit=500&continue=abc");
        assert!(pages.into_iter().all(|it| it));
        assert_eq!(at_once(&mut service, 3, "/api/v1/services?continue="), [true, true, false]);
        let mut service = RequestLimit::stated(Some(-1.0), Some(1)).layer(Answers);
        assert!(at_once(&mut service, 100, "/api/v1/services").into_iter().all(|it| it));
    }

    #[tokio::test]
    async fn a_pause_fills_the_bucket_and_no_more() {
        // One in 1000 seconds: however slow this is, no token comes meanwhile.
        let mut service = RequestLimit { per_thousand_seconds: 1, burst: 2 }.layer(Answers);
        assert_eq!(at_once(&mut service, 3, "/"), [true, true, false]);
        // As if it had been full for long.
        (service.full, service.waits) = (Instant::now(), None);
        assert_eq!(at_once(&mut service, 3, "/"), [true, true, false], "two, not ten");
    }

    #[test]
    fn nothing_and_zero_stand_for_kube_proxys_own_and_less_for_no_limit() {
        let default = RequestLimit { per_thousand_seconds: 5_000, burst: 10 };
        for (per_second, burst, expected) in [
            (None, None, default),
            (Some(0.0), Some(0), default),
            (Some(-1.0), None, RequestLimit { per_thousand_seconds: 0, ..default }),
            (Some(2.5), Some(7), RequestLimit { per_thousand_seconds: 2_500, burst: 7 }),
            (Some(0.000_1), None, RequestLimit { per_thousand_seconds: 1, ..default }),
            (Some(1e30), None, RequestLimit { per_thousand_seconds: u32::MAX, ..default }),
        ] {
            let limit = RequestLimit::stated(per_second, burst);
            assert_eq!(limit, expected, "{per_second:?}, {burst:?}");
            assert_eq!(RequestLimit::stated(Some(limit.per_second()), Some(limit.burst)), limit);
        }
    }
}
