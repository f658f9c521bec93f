//! Traffic as counted, and as differences of counts over time.

use lb_common::layout::Traffic;
use serde::Serialize;

use super::services::ServiceRow;

/// Traffic, as totals or per second.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Counters {
    /// Connections scheduled.
    pub connections: u64,
    /// Packets from clients.
    pub in_packets: u64,
    /// Packets to clients.
    pub out_packets: u64,
    /// Bytes from clients.
    pub in_bytes: u64,
    /// Bytes to clients.
    pub out_bytes: u64,
}

impl From<Traffic> for Counters {
    fn from(traffic: Traffic) -> Self {
        Self {
            connections: traffic.connections,
            in_packets: traffic.in_packets,
            out_packets: traffic.out_packets,
            in_bytes: traffic.in_bytes,
            out_bytes: traffic.out_bytes,
        }
    }
}

impl Counters {
    pub(super) fn plus(self, other: Self) -> Self {
        self.map(other, u64::saturating_add)
    }

    /// Per second, from the counts `then` to these, rounded to nearest. A count that went back began anew.
    fn since(self, then: Self, seconds: f64) -> Self {
        self.map(then, |now, then| {
            let delta = if now >= then { now - then } else { now };
            (delta as f64 / seconds).round() as u64
        })
    }

    fn map(self, other: Self, f: impl Fn(u64, u64) -> u64) -> Self {
        Self {
            connections: f(self.connections, other.connections),
            in_packets: f(self.in_packets, other.in_packets),
            out_packets: f(self.out_packets, other.out_packets),
            in_bytes: f(self.in_bytes, other.in_bytes),
            out_bytes: f(self.out_bytes, other.out_bytes),
        }
    }
}

/// Traffic per second between two readings [`with_totals`](super::services::with_totals). Services and destinations that were not in the first
/// are counted from 0; a counter that went back belongs to a new destination and is too.
pub fn rates(before: &[ServiceRow], after: Vec<ServiceRow>, seconds: f64) -> Vec<ServiceRow> {
    after
        .into_iter()
        .map(|mut service| {
            let key = |row: &ServiceRow| (row.protocol, row.address, row.port, row.scope);
            let old = before.iter().find(|old| key(old) == key(&service));
            for destination in &mut service.destinations {
                let old = old.and_then(|service| {
                    service
                        .destinations
                        .iter()
                        .find(|old| (old.address, old.port) == (destination.address, destination.port))
                });
                let old = old.map_or(Counters::default(), |old| old.traffic);
                destination.traffic = destination.traffic.since(old, seconds);
            }
            let old = old.map_or(Counters::default(), |old| old.traffic);
            service.traffic = service.traffic.since(old, seconds);
            service
        })
        .collect()
}
