//! Making metrics that are kept. Their names are constants: a wrong or doubled one shows at the first start of any agent.

use prometheus::core::Collector;
use prometheus::{
    Gauge, GaugeVec, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts,
    Registry,
};

/// Registers a metric.
pub(super) fn keep<C: Collector + Clone + 'static>(registry: &Registry, made: prometheus::Result<C>) -> C {
    let kept = made.and_then(|metric| registry.register(Box::new(metric.clone())).map(|()| metric));
    kept.expect("the names of metrics are valid, and no two are the same")
}

pub(super) fn counter(registry: &Registry, name: &str, help: &str) -> IntCounter {
    keep(registry, IntCounter::new(name, help))
}

pub(super) fn counters(registry: &Registry, name: &str, help: &str, labels: &[&str]) -> IntCounterVec {
    keep(registry, IntCounterVec::new(Opts::new(name, help), labels))
}

pub(super) fn gauge(registry: &Registry, name: &str, help: &str) -> IntGauge {
    keep(registry, IntGauge::new(name, help))
}

pub(super) fn gauges(registry: &Registry, name: &str, help: &str, labels: &[&str]) -> IntGaugeVec {
    keep(registry, IntGaugeVec::new(Opts::new(name, help), labels))
}

/// A gauge of times, which are no whole numbers.
pub(super) fn times(registry: &Registry, name: &str, help: &str, labels: &[&str]) -> GaugeVec {
    keep(registry, GaugeVec::new(Opts::new(name, help), labels))
}

pub(super) fn histogram(registry: &Registry, name: &str, help: &str, buckets: Vec<f64>) -> Histogram {
    keep(registry, Histogram::with_opts(HistogramOpts::new(name, help).buckets(buckets)))
}

pub(super) fn histograms(registry: &Registry, name: &str, help: &str, label: &str, buckets: Vec<f64>) -> HistogramVec {
    keep(registry, HistogramVec::new(HistogramOpts::new(name, help).buckets(buckets), &[label]))
}

/// From one bound to the next double.
pub(super) fn doubling(first: f64, count: usize) -> Vec<f64> {
    std::iter::successors(Some(first), |bound| Some(2.0 * bound)).take(count).collect()
}

/// The time of day, in seconds.
pub(super) fn set_now(gauge: &Gauge) {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    gauge.set(now.unwrap_or_default().as_secs_f64());
}
