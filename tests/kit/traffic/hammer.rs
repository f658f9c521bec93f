//! New connections at a steady rate while other things happen, with every failure kept.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};

use super::client::{DialError, open_here};
use crate::namespace::Namespace;

/// Failures kept word for word; all are counted.
const KEPT: usize = 10;
/// Linux sends a SYN again after this time (`TCP_TIMEOUT_INIT`). A handshake that takes as long has lost its first one, which would
/// not be seen otherwise: the second one gets to a server.
const SYN_AGAIN: Duration = Duration::from_secs(1);

/// A running hammer. Dropping it stops it.
#[derive(Debug)]
pub struct Hammer {
    stop: Arc<AtomicBool>,
    done: Arc<AtomicU64>,
    report: Arc<Mutex<HammerReport>>,
    thread: Option<JoinHandle<()>>,
}

/// What a hammer saw.
#[derive(Debug, Clone, Default)]
pub struct HammerReport {
    /// Connections tried.
    pub attempts: u64,
    /// Of these, not opened, not by the first SYN, not echoed or not closed as they should.
    pub failed: u64,
    /// The first few failures: time since the start, and what happened.
    pub failures: Vec<(Duration, String)>,
    /// Connections that went well, per server.
    pub per_server: BTreeMap<u16, u64>,
    /// Longest handshake among those that went well.
    pub slowest: Duration,
}

impl Hammer {
    /// Opens `per_second` connections a second for at most `limit`: handshake, echo of a few bytes, close by both
    /// ends. A slow answer makes the rate lower, never the number of open connections higher.
    pub fn start(from: &Namespace, to: SocketAddr, per_second: u32, limit: Duration) -> Result<Self> {
        Self::start_with(from, to, per_second, limit, super::DEADLINE)
    }

    /// The same with a deadline for each step of a connection.
    pub fn start_with(
        from: &Namespace,
        to: SocketAddr,
        per_second: u32,
        limit: Duration,
        deadline: Duration,
    ) -> Result<Self> {
        let (stop, done) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let report = Arc::new(Mutex::new(HammerReport::default()));
        let pause = Duration::from_secs(1) / per_second.max(1);
        let thread = from.thread("hammer", {
            let (stop, done, report) = (Arc::clone(&stop), Arc::clone(&done), Arc::clone(&report));
            move || {
                let begin = Instant::now();
                let mut next = begin;
                while !stop.load(Ordering::Relaxed) && begin.elapsed() < limit {
                    let result = one(to, deadline);
                    let mut report = report.lock().unwrap_or_else(PoisonError::into_inner);
                    report.count(begin.elapsed(), result);
                    drop(report);
                    done.fetch_add(1, Ordering::Relaxed);
                    // Do not make up for time lost: a stall must not turn into a burst.
                    next = (next + pause).max(Instant::now());
                    std::thread::sleep(next.saturating_duration_since(Instant::now()));
                }
            }
        })?;
        Ok(Self { stop, done, report, thread: Some(thread) })
    }

    /// Connections tried so far.
    pub fn attempts(&self) -> u64 {
        self.done.load(Ordering::Relaxed)
    }

    /// Waits for this many more attempts.
    pub fn advance(&self, attempts: u64, deadline: Duration) -> Result<()> {
        let (end, from) = (Instant::now() + deadline, self.attempts());
        while self.attempts() < from + attempts {
            if Instant::now() >= end {
                anyhow::bail!("{} of {attempts} connections in {deadline:.1?}", self.attempts() - from);
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(())
    }

    /// What it saw so far.
    pub fn report(&self) -> HammerReport {
        self.report.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Stops it and returns what it saw.
    pub fn stop(mut self) -> Result<HammerReport> {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.join().map_err(|_| anyhow!("the hammer's thread panicked"))?;
        }
        Ok(self.report())
    }
}

impl Drop for Hammer {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // Whoever wants the result calls `stop`.
            let _unread = thread.join();
        }
    }
}

impl HammerReport {
    fn count(&mut self, at: Duration, result: Result<(u16, Duration), DialError>) {
        self.attempts += 1;
        let failure = match result {
            Ok((server, took)) if took < SYN_AGAIN => {
                *self.per_server.entry(server).or_default() += 1;
                self.slowest = self.slowest.max(took);
                return;
            }
            Ok((server, took)) => format!("server {server} answered after {took:.1?}: a SYN was lost"),
            Err(error) => error.to_string(),
        };
        self.failed += 1;
        if self.failures.len() < KEPT {
            self.failures.push((at, failure));
        }
    }
}

fn one(to: SocketAddr, deadline: Duration) -> Result<(u16, Duration), DialError> {
    let mut held = open_here(None, to, deadline)?;
    held.exchange(b"hammer")?;
    let found = (held.server, held.took);
    held.close()?;
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handshake_that_took_a_second_syn_has_failed() {
        let mut report = HammerReport::default();
        report.count(Duration::ZERO, Ok((1, Duration::from_millis(999))));
        assert_eq!((report.failed, report.per_server[&1]), (0, 1));
        report.count(Duration::ZERO, Ok((1, Duration::from_millis(1_004))));
        assert_eq!((report.attempts, report.failed, report.per_server[&1]), (2, 1, 1));
        assert!(report.failures[0].1.contains("a SYN was lost"), "{report:?}");
    }
}
