//! Rows of `bpvs list`.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;

use anyhow::Result;
use lb_common::address::Protocol;
use lb_common::layout::{
    ACCESS_SOURCES, ConnectionState, KEY_AFFINITY, KEY_TEMPLATE, SERVICE_HASH_FALLBACK, SERVICE_HASH_PORT,
    SERVICE_ONE_PACKET, Service,
};
use lb_common::scheduler::Scheduler;
use serde::Serialize;

use super::filter::Filter;
use super::order;
use super::tables::Tables;
pub use super::traffic::{Counters, rates};
use crate::datapath::{Access, AffinityGroup, Frontend, Key, Method, Persistence, Scope, Thresholds, Virtual, entry};

/// A virtual service.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct ServiceRow {
    /// `TCP`, `UDP` or `SCTP`; by mark `FWM`.
    pub protocol: &'static str,
    /// Virtual address; a network's first; by mark the family's unspecified address.
    pub address: IpAddr,
    /// Virtual port; 0 for every port.
    pub port: u16,
    /// Whether it is one address, a network or a firewall mark.
    pub scope: Scope,
    /// Scheduler, as `ipvsadm` names it.
    pub scheduler: &'static str,
    /// Scheduler flags, as `ipvsadm` names them.
    pub scheduler_flags: Vec<&'static str>,
    /// Whether clients keep their server, and for how long.
    pub persistence: Option<Persistence>,
    /// With whom it shares what is remembered of clients.
    #[serde(skip)]
    pub affinity: Option<AffinityGroup>,
    /// Each datagram is scheduled for itself.
    pub one_packet: bool,
    /// Which clients it takes, and under whose address they reach the destinations.
    #[serde(skip)]
    pub access: Access,
    /// Traffic of the destinations below, and from [`with_totals`] also of those that were removed since.
    pub traffic: Counters,
    /// Real servers.
    pub destinations: Vec<DestinationRow>,
}

/// A real server of a virtual service.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct DestinationRow {
    /// Its id in the maps.
    #[serde(skip)]
    pub id: u32,
    /// Address.
    pub address: IpAddr,
    /// Port.
    pub port: u16,
    /// How packets reach it: `Masq`, `Route` or `Tunnel`.
    pub forward: Method,
    /// Weight.
    pub weight: i32,
    /// How many connections it takes.
    pub thresholds: Thresholds,
    /// Active connections.
    pub active_connections: u32,
    /// Inactive connections.
    pub inactive_connections: u32,
    /// Clients that keep it (persistence templates), where that was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub persistent_connections: Option<u32>,
    /// Traffic.
    pub traffic: Counters,
}

impl ServiceRow {
    /// Address and port as `ipvsadm` writes them, with the length of a prefix.
    pub fn place(&self) -> String {
        Frontend { address: self.address, port: self.port, protocol: Protocol::Tcp, scope: self.scope }.place()
    }

    /// What packets match. `None` for an entry that no agent of this version makes.
    pub fn frontend(&self) -> Option<Frontend> {
        let protocol = match self.scope {
            Scope::Mark(_) => Protocol::Tcp,
            _ => Protocol::ALL.into_iter().find(|protocol| protocol.name() == self.protocol)?,
        };
        Some(Frontend { address: self.address, port: self.port, protocol, scope: self.scope })
    }
}

/// The services that a filter asks for, in `ipvsadm`'s order.
pub fn services(tables: &impl Tables, filter: Option<&Filter>) -> Result<Vec<ServiceRow>> {
    let mut rows = unsorted(tables, filter, false)?;
    order::sort(&mut rows);
    Ok(rows)
}

/// The same, with totals that outlive destinations. Reads all of `destinations`.
pub fn with_totals(tables: &impl Tables, filter: Option<&Filter>) -> Result<Vec<ServiceRow>> {
    let mut rows = unsorted(tables, filter, true)?;
    order::sort(&mut rows);
    Ok(rows)
}

/// The same, as they stand in the maps: services in no order, the servers of each as schedulers go through them, the
/// newest one first.
pub fn unsorted(tables: &impl Tables, filter: Option<&Filter>, totals: bool) -> Result<Vec<ServiceRow>> {
    if !totals {
        return rows(tables, filter, None);
    }
    let mut members = Members::new();
    for (id, destination) in tables.destinations()? {
        members.entry(destination.service).or_default().push(id);
    }
    rows(tables, filter, Some(&members))
}

/// Ids of all destinations of each service, by service id.
type Members = HashMap<u32, Vec<u32>>;

fn rows(tables: &impl Tables, filter: Option<&Filter>, members: Option<&Members>) -> Result<Vec<ServiceRow>> {
    let services = tables.services()?.into_iter().map(|(key, value)| (Key::Service(key), value));
    let prefixes = tables.prefixes()?.into_iter().map(|(key, value)| (Key::Prefix(key), value));
    let mut rows = Vec::new();
    for (key, entry) in services.chain(prefixes) {
        // What no service has as its key is found by no packet, and the agent deletes it.
        let Some(service) = Virtual::from_key(&key) else { continue };
        if filter.is_none_or(|filter| filter.matches(&service)) {
            rows.extend(row(tables, &key, &service, entry, members)?);
        }
    }
    Ok(rows)
}

/// How often a service is read again when it changes meanwhile.
const ATTEMPTS: usize = 5;

/// One service as one version of it. A set that is replaced while it is read may be reused for another service, so
/// the service is looked at again after it.
fn row(
    tables: &impl Tables,
    key: &Key,
    virtual_service: &Virtual,
    mut service: Service,
    members: Option<&Members>,
) -> Result<Option<ServiceRow>> {
    let mut destinations = Vec::new();
    for _ in 0..ATTEMPTS {
        destinations = destination_rows(tables, &service)?;
        let now = match key {
            Key::Service(key) => tables.service(key)?,
            Key::Prefix(key) => tables.prefix(key)?.filter(|now| now.id == service.id),
        };
        match now {
            None => return Ok(None),
            Some(now) if now == service => break,
            Some(now) => service = now,
        }
    }
    let mut traffic = destinations.iter().fold(Counters::default(), |sum, (_, row)| sum.plus(row.traffic));
    if let Some(members) = members {
        let set: HashSet<u32> = destinations.iter().map(|(id, _)| *id).collect();
        traffic = traffic.plus(removed_traffic(tables, service.id, members, &set)?);
    }
    let Virtual { address, port, protocol, scope } = *virtual_service;
    Ok(Some(ServiceRow {
        protocol: if matches!(scope, Scope::Mark(_)) { "FWM" } else { protocol.name() },
        address,
        port,
        scope,
        persistence: entry::persistence(&service, address.is_ipv4()),
        affinity: AffinityGroup::from_words(service.affinity_group),
        one_packet: service.flags & SERVICE_ONE_PACKET != 0,
        access: access(tables, &service)?,
        scheduler: Scheduler::from_number(service.scheduler).map_or("?", Scheduler::name),
        scheduler_flags: flags(&service),
        traffic,
        destinations: destinations.into_iter().map(|(_, row)| row).collect(),
    }))
}

/// Which clients a service takes, and under whose address they reach its destinations.
fn access(tables: &impl Tables, service: &Service) -> Result<Access> {
    let mut access = entry::access(service);
    if service.access & ACCESS_SOURCES != 0 {
        let own = tables.networks()?.into_iter().filter(|network| network.owner == service.id);
        access.sources = own.filter_map(|network| network.network()).collect();
    }
    Ok(access)
}

/// Traffic of a service's destinations that are not in its set: gone, or draining.
fn removed_traffic(tables: &impl Tables, service: u32, members: &Members, set: &HashSet<u32>) -> Result<Counters> {
    let mut sum = Counters::from(tables.retired(service)?);
    for &id in members.get(&service).into_iter().flatten() {
        // Freed meanwhile: it counts among those that are gone.
        if !set.contains(&id) && tables.destination(id)?.service == service {
            sum = sum.plus(tables.traffic(id)?.into());
        }
    }
    Ok(sum)
}

/// The rows of a set, with their ids.
fn destination_rows(tables: &impl Tables, service: &Service) -> Result<Vec<(u32, DestinationRow)>> {
    let mut rows = Vec::new();
    for index in service.set_base..service.set_base.saturating_add(service.set_length) {
        let slot = tables.slot(index)?;
        let destination = tables.destination(slot.destination)?;
        let load = tables.load(slot.destination)?;
        let row = DestinationRow {
            id: slot.destination,
            address: destination.address.into(),
            port: destination.port.number(),
            forward: Method::of(destination.flags),
            weight: slot.weight,
            thresholds: Thresholds { upper: destination.upper, lower: destination.lower },
            active_connections: load.active(),
            inactive_connections: load.inactive(),
            persistent_connections: None,
            traffic: tables.traffic(slot.destination)?.into(),
        };
        rows.push((slot.destination, row));
    }
    Ok(rows)
}

fn flags(service: &Service) -> Vec<&'static str> {
    let [port, fallback] =
        Scheduler::from_number(service.scheduler).map_or(["flag-2", "flag-1"], Scheduler::flag_names);
    let all = [(SERVICE_HASH_FALLBACK, fallback), (SERVICE_HASH_PORT, port)];
    all.into_iter().filter(|(bit, _)| service.flags & bit != 0).map(|(_, name)| name).collect()
}

/// Adds to each destination how many clients keep it. Reads all connections.
pub fn count_persistent(tables: &impl Tables, rows: &mut [ServiceRow]) -> Result<()> {
    let mut counts: HashMap<u32, u32> = HashMap::new();
    // Those of a group hold no id: whether the server still has it, its address and port tell.
    let mut named: HashMap<(u32, IpAddr, u16), u32> = HashMap::new();
    for (key, template) in tables.connections()? {
        let place = || (template.server, template.destination.into(), template.destination_port.number());
        match key.kind {
            _ if ConnectionState(template.state).has(ConnectionState::CLOSING) => {}
            KEY_TEMPLATE => *counts.entry(template.server).or_default() += 1,
            KEY_AFFINITY => *named.entry(place()).or_default() += 1,
            _ => {}
        }
    }
    for row in rows.iter_mut().flat_map(|row| &mut row.destinations) {
        let of_group = named.get(&(row.id, row.address, row.port)).copied().unwrap_or(0);
        row.persistent_connections = Some(counts.get(&row.id).copied().unwrap_or(0) + of_group);
    }
    Ok(())
}

#[cfg(test)]
mod scopes;
#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::testing::Memory;
    use lb_common::layout::Traffic;

    fn names(rows: &[ServiceRow]) -> Vec<String> {
        rows.iter().map(|row| format!("{} {}:{}", row.protocol, row.address, row.port)).collect()
    }

    #[test]
    fn services_come_in_the_order_of_ipvsadm() {
        let mut memory = Memory::default();
        for (protocol, address) in [
            (Protocol::Tcp, "fd00::1"),
            (Protocol::Sctp, "10.0.0.1"),
            (Protocol::Udp, "10.0.0.1"),
            (Protocol::Tcp, "192.168.0.1"),
            (Protocol::Tcp, "10.0.0.1"),
        ] {
            memory.add_service(protocol, address, 80, Scheduler::RoundRobin, &[]);
        }
        assert_eq!(
            names(&services(&memory, None).unwrap()),
            ["TCP 192.168.0.1:80", "TCP 10.0.0.1:80", "UDP 10.0.0.1:80", "SCTP 10.0.0.1:80", "TCP fd00::1:80"]
        );
        let filter = "udp/10.0.0.1".parse().unwrap();
        assert_eq!(names(&services(&memory, Some(&filter)).unwrap()), ["UDP 10.0.0.1:80"]);
    }

    #[test]
    fn a_service_adds_up_its_destinations() {
        let mut memory = Memory::default();
        let ids = memory.add_service(
            Protocol::Tcp,
            "10.0.0.1",
            80,
            Scheduler::SourceHash,
            &[("10.1.0.2", 1), ("10.1.0.1", 3)],
        );
        memory
            .traffic
            .insert(ids[0], Traffic { connections: 2, in_packets: 10, out_packets: 1, in_bytes: 7, out_bytes: 9 });
        memory
            .traffic
            .insert(ids[1], Traffic { connections: 1, in_packets: 5, out_packets: 0, in_bytes: 7, out_bytes: 0 });
        memory
            .load
            .insert(ids[0], lb_common::layout::DestinationLoad { connections: 3 << 32 | 4, ..Default::default() });
        let rows = services(&memory, None).unwrap();
        assert_eq!(
            rows[0].traffic,
            Counters { connections: 3, in_packets: 15, out_packets: 1, in_bytes: 14, out_bytes: 9 }
        );
        // Sorted by address, whatever the order of the list.
        assert_eq!(rows[0].destinations[0].address.to_string(), "10.1.0.1");
        assert_eq!(rows[0].destinations[1].active_connections, 3);
        assert_eq!(rows[0].destinations[1].inactive_connections, 4);
    }

    #[test]
    fn totals_hold_what_removed_destinations_had() {
        let mut memory = Memory::default();
        let servers = [("10.1.0.1", 1), ("10.1.0.2", 1)];
        let ids = memory.add_service(Protocol::Tcp, "10.0.0.1", 80, Scheduler::RoundRobin, &servers);
        let other = memory.add_service(Protocol::Tcp, "10.0.0.2", 80, Scheduler::RoundRobin, &servers);
        for (id, connections) in [(ids[0], 1), (ids[1], 20), (other[0], 300)] {
            memory.traffic.insert(id, Traffic { connections, ..Traffic::default() });
        }
        memory.retired.insert(1, Traffic { connections: 4000, ..Traffic::default() });
        // The second one drains.
        memory.services[0].1.set_length = 1;
        let connections = |rows: &[ServiceRow]| rows.iter().map(|row| row.traffic.connections).collect::<Vec<_>>();
        assert_eq!(connections(&with_totals(&memory, None).unwrap()), [4021, 300]);
        assert_eq!(connections(&services(&memory, None).unwrap()), [1, 300]);
    }

    #[test]
    fn rates_are_differences_per_second() {
        let mut memory = Memory::default();
        let ids = memory.add_service(
            Protocol::Tcp,
            "10.0.0.1",
            80,
            Scheduler::RoundRobin,
            &[("10.1.0.1", 1), ("10.1.0.2", 1)],
        );
        memory.traffic.insert(ids[0], Traffic { in_bytes: 1000, ..Traffic::default() });
        memory.traffic.insert(ids[1], Traffic { in_bytes: 500, ..Traffic::default() });
        let before = with_totals(&memory, None).unwrap();
        memory.traffic.insert(ids[0], Traffic { in_bytes: 4000, ..Traffic::default() });
        // Counted from anew, as a reused id is; the service keeps what it had.
        memory.retired.insert(1, Traffic { in_bytes: 500, ..Traffic::default() });
        memory.traffic.insert(ids[1], Traffic { in_bytes: 20, ..Traffic::default() });
        let rows = rates(&before, with_totals(&memory, None).unwrap(), 2.0);
        assert_eq!(rows[0].destinations[0].traffic.in_bytes, 1500);
        assert_eq!(rows[0].destinations[1].traffic.in_bytes, 10);
        assert_eq!(rows[0].traffic.in_bytes, 1510);
    }
}
