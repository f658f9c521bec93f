//! Connections, packets and bytes of each service and each destination, read from the maps.
//!
//! Whoever states Services decides how many lines these are, so there is a limit. Services are taken in the order of
//! their frontends, each with all its destinations or not at all, so that the same ones are there from scrape to scrape;
//! what is left out is counted.

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;

use lb_common::layout::{DESTINATION_AVAILABLE, Destination, Service, Traffic};
use prometheus::proto::MetricFamily;

use super::family::{Family, Kind};
use crate::datapath::store::StoreError;
use crate::datapath::{Key, MapStore, Virtual};
use crate::plan::Holders;

/// Which services and destinations there are.
pub(super) struct Existing {
    /// The services, in no order.
    pub(super) services: Vec<(Key, Service)>,
    /// The destinations of each service id, those among them that were removed and may still have connections.
    pub(super) members: HashMap<u32, Vec<(u32, Destination)>>,
}

impl Existing {
    /// Reads all of both maps: one by system calls, one through shared memory.
    pub(super) fn read(store: &impl MapStore) -> Result<Self, StoreError> {
        let mut members: HashMap<u32, Vec<_>> = HashMap::new();
        for id in 1..store.capacity().destinations {
            let destination = store.destination(id)?;
            if destination.service != 0 {
                members.entry(destination.service).or_default().push((id, destination));
            }
        }
        Ok(Self { services: store.entries()?, members })
    }
}

/// The metrics of services, of which `names` says what states them; at most `limit` services and destinations.
pub(super) fn families(
    store: &impl MapStore,
    existing: &Existing,
    names: &Holders,
    limit: usize,
) -> Result<Vec<MetricFamily>, StoreError> {
    let names: BTreeMap<Virtual, &str> =
        names.iter().map(|(frontend, service)| (Virtual::from(frontend), service.origin.as_str())).collect();
    let services = existing.services.iter();
    let mut services: Vec<_> =
        services.filter_map(|(key, service)| Some((Virtual::from_key(key)?, service.id))).collect();
    services.sort_unstable();
    let mut shown = Shown::new();
    let (mut room, mut left_out) = (limit, [0, 0]);
    for (service, id) in services {
        let members = existing.members.get(&id).map_or(&[][..], Vec::as_slice);
        match room.checked_sub(1 + members.len()) {
            Some(rest) => room = rest,
            None => {
                left_out = [left_out[0] + 1, left_out[1] + members.len() as u64];
                continue;
            }
        }
        let origin = names.get(&service).copied().unwrap_or_default();
        shown.add(store, origin, &service.to_string(), id, members)?;
    }
    Ok(shown.done(left_out))
}

/// The metrics of services, and those of destinations.
struct Shown {
    services: Measured,
    destinations: Measured,
    weight: Family,
}

impl Shown {
    fn new() -> Self {
        Self {
            services: Measured::new("service", "of the service, also with servers that were removed since"),
            destinations: Measured::new("destination", "with the server"),
            weight: Family::new(Kind::Gauge, "bpvs_destination_weight", "Weight of the server; 0: no new connections"),
        }
    }

    fn add(
        &mut self,
        store: &impl MapStore,
        origin: &str,
        frontend: &str,
        id: u32,
        members: &[(u32, Destination)],
    ) -> Result<(), StoreError> {
        let of_service = [("origin", origin), ("frontend", frontend)];
        let mut total = Values { traffic: store.retired(id)?, active: 0, inactive: 0 };
        for (id, record) in members {
            let (load, traffic) = (store.load(*id)?, store.traffic(*id)?);
            // One that was freed meanwhile counts among those that are gone.
            let now = store.destination(*id)?;
            if (now.service, now.epoch) != (record.service, record.epoch) {
                continue;
            }
            let values = Values { traffic, active: load.active().into(), inactive: load.inactive().into() };
            total = total.plus(&values);
            // One that is in no set any more is no server of the service: as in a listing, only the totals have it.
            if now.flags & DESTINATION_AVAILABLE != 0 {
                let destination = SocketAddr::new(now.address.into(), now.port.number()).to_string();
                let labels = [of_service[0], of_service[1], ("destination", destination.as_str())];
                self.destinations.add(&labels, &values);
                self.weight.add(&labels, now.weight.unsigned_abs().into());
            }
        }
        self.services.add(&of_service, &total);
        Ok(())
    }

    fn done(self, [services, destinations]: [u64; 2]) -> Vec<MetricFamily> {
        let mut left_out = Family::new(
            Kind::Gauge,
            "bpvs_scrape_left_out",
            "What has no metrics of its own, as --metrics-limit is reached",
        );
        left_out.add(&[("kind", "service")], services);
        left_out.add(&[("kind", "destination")], destinations);
        let single = [self.weight.done(), left_out.done()].into_iter().flatten();
        self.services.done().chain(self.destinations.done()).chain(single).collect()
    }
}

/// What is measured of a service, and of a destination.
struct Values {
    traffic: Traffic,
    active: u64,
    inactive: u64,
}

impl Values {
    fn plus(&self, other: &Self) -> Self {
        Self {
            traffic: self.traffic.plus(&other.traffic),
            active: self.active + other.active,
            inactive: self.inactive + other.inactive,
        }
    }
}

struct Measured {
    connections: Family,
    packets: Family,
    bytes: Family,
    active: Family,
    inactive: Family,
}

impl Measured {
    fn new(what: &str, of: &str) -> Self {
        let family =
            |kind, name: &str, help: &str| Family::new(kind, format!("bpvs_{what}_{name}"), format!("{help} {of}"));
        Self {
            connections: family(Kind::Counter, "connections_total", "Connections scheduled,"),
            packets: family(Kind::Counter, "packets_total", "Packets from clients (in) and to them (out),"),
            bytes: family(
                Kind::Counter,
                "bytes_total",
                "Bytes of whole IP packets from clients (in) and to them (out),",
            ),
            active: family(Kind::Gauge, "active_connections", "Active connections now, as ipvsadm has it,"),
            inactive: family(Kind::Gauge, "inactive_connections", "Inactive connections now, as ipvsadm has it,"),
        }
    }

    fn add(&mut self, labels: &[(&str, &str)], values: &Values) {
        let Traffic { connections, in_packets, out_packets, in_bytes, out_bytes } = values.traffic;
        self.connections.add(labels, connections);
        for (family, counts) in
            [(&mut self.packets, [in_packets, out_packets]), (&mut self.bytes, [in_bytes, out_bytes])]
        {
            for (direction, count) in ["in", "out"].into_iter().zip(counts) {
                family.add(&[labels, &[("direction", direction)]].concat(), count);
            }
        }
        self.active.add(labels, values.active);
        self.inactive.add(labels, values.inactive);
    }

    fn done(self) -> impl Iterator<Item = MetricFamily> {
        let all = [self.connections, self.packets, self.bytes, self.active, self.inactive];
        all.into_iter().filter_map(Family::done)
    }
}

#[cfg(test)]
mod tests;
