//! What the agent knows of itself.

use std::time::Duration;

use prometheus::{Histogram, IntCounter, IntGauge, Registry};

use super::define::{counter, doubling, gauge, gauges, histogram};

/// bpvs's own metrics that are counted as things happen.
#[derive(Clone, Debug)]
pub struct Own {
    sync_failures: IntCounter,
    programming: Histogram,
    problems: IntGauge,
    interfaces: IntGauge,
    sweep: Histogram,
    /// Events that the API server did not take.
    pub lost_events: IntCounter,
    /// Looks at the maps that failed.
    pub(super) scrape_errors: IntCounter,
}

impl Own {
    pub(super) fn new(registry: &Registry) -> Self {
        gauges(registry, "bpvs_build_info", "1; the label says which bpvs this is", &["version"])
            .with_label_values(&[env!("CARGO_PKG_VERSION")])
            .set(1);
        Self {
            sync_failures: counter(
                registry,
                "bpvs_sync_failures_total",
                "Syncs after which something that is stated was not programmed; the log names it",
            ),
            programming: histogram(
                registry,
                "bpvs_programming_duration_seconds",
                "From the first change that came to the agent until it and all that came with it was programmed",
                doubling(0.001, 17),
            ),
            problems: gauge(
                registry,
                "bpvs_input_problems",
                "What is wrong in what is stated, or cannot be done; the log names each",
            ),
            interfaces: gauge(registry, "bpvs_interfaces", "Network interfaces that have the programs"),
            sweep: histogram(
                registry,
                "bpvs_sweep_duration_seconds",
                "How long a sweep over all connections took",
                doubling(0.0001, 16),
            ),
            lost_events: counter(registry, "bpvs_lost_events_total", "Events that the API server did not take"),
            scrape_errors: counter(
                registry,
                "bpvs_scrape_errors_total",
                "Scrapes that could not read a map and lack what is in it; the log says why",
            ),
        }
    }

    /// The maps were brought to what is stated, or what could be of it.
    pub fn synced(&self, complete: bool, problems: usize) {
        self.sync_failures.inc_by(u64::from(!complete));
        self.problems.set(problems as i64);
    }

    /// All that came is programmed, the first of it so long after it came.
    pub fn programmed(&self, delay: Duration) {
        self.programming.observe(delay.as_secs_f64());
    }

    /// So many interfaces have the programs.
    pub fn set_interfaces(&self, count: usize) {
        self.interfaces.set(count as i64);
    }

    /// A sweep ended.
    pub fn swept(&self, took: Duration) {
        self.sweep.observe(took.as_secs_f64());
    }
}
