//! kube-proxy's metrics: its names, labels and bounds, for the dashboards and alerts that there are (ME-1 to ME-3).

use std::time::Duration;

use prometheus::{GaugeVec, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Registry};

use super::define::{self, counter, counters, doubling, gauge, gauges, histograms, times};
use crate::plan::NoLocal;

/// Label of a family. Both are programmed together, and measured together.
const FAMILY: &str = "ip_family";
/// IPv4, then IPv6.
const FAMILIES: [&str; 2] = ["IPv4", "IPv6"];

/// kube-proxy's metrics.
#[derive(Clone, Debug)]
pub struct KubeProxy {
    sync_duration: HistogramVec,
    last_sync: GaugeVec,
    last_queued: GaugeVec,
    programming: HistogramVec,
    endpoint_changes_pending: IntGauge,
    endpoint_changes: IntCounter,
    service_changes_pending: IntGauge,
    service_changes: IntCounter,
    no_local_endpoints: IntGaugeVec,
    healthz: IntCounterVec,
    livez: IntCounterVec,
}

impl KubeProxy {
    pub(super) fn new(registry: &Registry) -> Self {
        let name = |name: &str| format!("kubeproxy_{name}");
        let sync = |rest: &str| format!("kubeproxy_sync_proxy_rules_{rest}");
        Self {
            sync_duration: histograms(
                registry,
                &sync("duration_seconds"),
                "How long it took to bring the maps to what is stated, whether all of it could be programmed or not",
                FAMILY,
                doubling(0.001, 15),
            ),
            last_sync: times(
                registry,
                &sync("last_timestamp_seconds"),
                "When everything that is stated was programmed last, in seconds since 1970",
                &[FAMILY],
            ),
            last_queued: times(
                registry,
                &sync("last_queued_timestamp_seconds"),
                "When a change that is to be programmed came last, in seconds since 1970",
                &[FAMILY],
            ),
            programming: histograms(
                registry,
                &name("network_programming_duration_seconds"),
                "From the change of a pod or Service, as its EndpointSlice dates it, until it was programmed here",
                FAMILY,
                programming_bounds(),
            ),
            endpoint_changes_pending: gauge(
                registry,
                &sync("endpoint_changes_pending"),
                "EndpointSlices whose changes are not programmed yet",
            ),
            endpoint_changes: counter(registry, &sync("endpoint_changes_total"), "Changes of EndpointSlices"),
            service_changes_pending: gauge(
                registry,
                &sync("service_changes_pending"),
                "Services whose changes are not programmed yet",
            ),
            service_changes: counter(registry, &sync("service_changes_total"), "Changes of Services"),
            no_local_endpoints: gauges(
                registry,
                &sync("no_local_endpoints_total"),
                "Ports of Services that have endpoints, of which the traffic policy allows none as none is on this node",
                &["traffic_policy", FAMILY],
            ),
            healthz: counters(registry, &name("proxy_healthz_total"), "Answers of /healthz", &["code"]),
            livez: counters(registry, &name("proxy_livez_total"), "Answers of /livez", &["code"]),
        }
    }

    /// A change came that is to be programmed.
    pub fn queued(&self) {
        for family in FAMILIES {
            define::set_now(&self.last_queued.with_label_values(&[family]));
        }
    }

    /// So many Services and EndpointSlices changed.
    pub fn changed(&self, services: usize, slices: usize) {
        self.service_changes.inc_by(services as u64);
        self.endpoint_changes.inc_by(slices as u64);
    }

    /// So many have changes that are not programmed.
    pub fn set_pending(&self, services: usize, slices: usize) {
        self.service_changes_pending.set(services as i64);
        self.endpoint_changes_pending.set(slices as i64);
    }

    /// The maps were brought to what is stated, or what could be of it.
    pub fn synced(&self, took: Duration, complete: [bool; 2], no_local: NoLocal) {
        for (index, family) in FAMILIES.into_iter().enumerate() {
            self.sync_duration.with_label_values(&[family]).observe(took.as_secs_f64());
            if complete[index] {
                define::set_now(&self.last_sync.with_label_values(&[family]));
            }
            // 0 is told too (ME-1).
            for (policy, counts) in [("internal", no_local.internal), ("external", no_local.external)] {
                self.no_local_endpoints.with_label_values(&[policy, family]).set(counts[index] as i64);
            }
        }
    }

    /// A change of endpoints that happened so long ago is programmed (ME-2).
    pub fn programmed(&self, v4: bool, delay: Duration) {
        self.programming.with_label_values(&[FAMILIES[usize::from(!v4)]]).observe(delay.as_secs_f64());
    }

    /// `/healthz` was answered (HZ-8).
    pub fn healthz(&self, code: u16) {
        self.healthz.with_label_values(&[&code.to_string()]).inc();
    }

    /// `/livez` was answered.
    pub fn livez(&self, code: u16) {
        self.livez.with_label_values(&[&code.to_string()]).inc();
    }
}

/// A quarter and half a second, each second of the first minute, every 5 s of the second, every 30 s up to five minutes.
fn programming_bounds() -> Vec<f64> {
    let steps = |from: u16, to: u16, by: usize| (from..=to).step_by(by).map(f64::from);
    [0.25, 0.5].into_iter().chain(steps(1, 59, 1)).chain(steps(60, 115, 5)).chain(steps(120, 300, 30)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bounds_are_kube_proxys() {
        let bounds = programming_bounds();
        assert_eq!(bounds.len(), 2 + 59 + 12 + 7);
        assert_eq!((bounds[1], bounds[2], bounds[60], bounds[61]), (0.5, 1.0, 59.0, 60.0));
        assert_eq!(bounds[72..], [115.0, 120.0, 150.0, 180.0, 210.0, 240.0, 270.0, 300.0]);
        let sync = doubling(0.001, 15);
        assert_eq!((sync.len(), sync[0]), (15, 0.001));
        assert!((sync[14] - 16.384).abs() < 1e-9, "{sync:?}");
    }
}
