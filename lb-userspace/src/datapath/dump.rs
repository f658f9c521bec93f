//! The maps as text, one entry a line, sorted: for tests, `bpvs maps` and bug reports.
//!
//! [`dump`] shows what stands in the maps, ids and places included. [`outline`] shows what it means: one line for
//! each service with its list, ids resolved.

use std::{
    fmt::{self, Write as _},
    net::SocketAddr,
    ops::BitAnd,
};

use lb_common::{
    layout::{
        ACCESS_MASQUERADE, ACCESS_MASQUERADE_EXTERNAL, ACCESS_SILENT, ACCESS_SOURCES, ACCESS_SPLIT, AffinityTimeout,
        DESTINATION_AVAILABLE, Destination, DestinationSlot, LOOKUP_ALL_PORTS, LOOKUP_CLUSTER_ADDRESSES, LOOKUP_MARKS,
        LOOKUP_NODE_PORTS, LOOKUP_PREFIXES, LOOKUP_SERVICE_NETWORKS, LOOKUP_TUNNELS, SERVICE_ALL_PORTS,
        SERVICE_HASH_FALLBACK, SERVICE_HASH_PORT, SERVICE_MARKED, SERVICE_ONE_PACKET, SERVICE_PERSISTENT,
        SERVICE_THRESHOLDS, SERVICE_TUNNELS, Service, Traffic,
    },
    scheduler::{Scheduler, word::SchedulerWord},
};

use super::{
    MapStore, Method, StoreError,
    frontend::{Key, Virtual},
};

/// Everything in the maps that the writer writes.
///
/// ```text
/// service TCP 10.96.0.1:80 id=1 version=1 scheduler=rr flags=- set=0+2 table=- mw=1 di=1
/// set TCP 10.96.0.1:80 0 destination=2 weight=1
/// word 1 version=1 cursor=0 cw=0
/// retired 1 connections=4 in=40/2400 out=36/9000
/// destination 2 10.1.0.2:8080 service=1 available weight=1 epoch=1 active=0 inactive=0 remote=0
/// lookups marks,prefixes
/// ```
///
/// Persistence (milliseconds and bits of a client's address, and the affinity group), thresholds, what a destination is over them, and how
/// packets reach it are there only where there is something to say.
///
/// # Errors
/// Maps that cannot be read.
pub fn dump(store: &impl MapStore) -> Result<String, StoreError> {
    let mut text = String::new();
    let services = sorted(store)?;
    for (key, value) in &services {
        let _ = writeln!(text, "service {} {}", Name(key), Fields(value));
    }
    for (key, value) in &services {
        for (kind, base, length) in
            [("set", value.set_base, value.set_length), ("table", value.table_base, value.table_length)]
        {
            match store.slots(base, length) {
                Ok(slots) => write_slots(&mut text, kind, key, &slots),
                Err(error) => {
                    let _ = writeln!(text, "{kind} {} unreadable: {error}", Name(key));
                }
            }
        }
    }
    let mut ids: Vec<u32> = services.iter().map(|(_, value)| value.id).collect();
    ids.sort_unstable();
    ids.dedup();
    for id in ids {
        if let affinity = store.affinity(id)?
            && affinity != AffinityTimeout::default()
        {
            let AffinityTimeout { group, timeout } = affinity;
            let _ = writeln!(text, "affinity {id} group={group:08x} timeout={timeout}");
        }
        let _ = match store.word(id).map(SchedulerWord::unpack) {
            Ok(SchedulerWord { version, cursor, current_weight }) => {
                writeln!(text, "word {id} version={version} cursor={cursor} cw={current_weight}")
            }
            Err(error) => writeln!(text, "word {id} unreadable: {error}"),
        };
    }
    for id in 1..store.capacity().service_ids {
        let past = store.retired(id)?;
        if past != Traffic::default() {
            let Traffic { connections, in_packets, out_packets, in_bytes, out_bytes } = past;
            let _ = writeln!(
                text,
                "retired {id} connections={connections} in={in_packets}/{in_bytes} out={out_packets}/{out_bytes}"
            );
        }
    }
    for id in 1..store.capacity().destinations {
        let record = store.destination(id)?;
        if record.service == 0 {
            continue;
        }
        let load = store.load(id)?;
        let _ = write!(
            text,
            "destination {id} {} service={} {} weight={} epoch={} active={} inactive={} remote={}",
            SocketAddr::new(record.address.into(), record.port.number()),
            record.service,
            if record.flags & DESTINATION_AVAILABLE == 0 { "removed" } else { "available" },
            record.weight,
            record.epoch,
            load.active(),
            load.inactive(),
            load.remote_active,
        );
        if (record.upper, record.lower) != (0, 0) {
            let _ = write!(text, " upper={} lower={}", record.upper, record.lower);
        }
        let _ = write!(text, "{}", Way(&record));
        text.push_str(if load.overloaded() { " overloaded\n" } else { "\n" });
    }
    let mut networks = store.networks()?;
    networks.sort_unstable();
    for network in networks {
        let _ = writeln!(text, "network {network}");
    }
    let lookups = store.lookups()?;
    if lookups != 0 {
        let kinds = [
            (LOOKUP_MARKS, "marks"),
            (LOOKUP_ALL_PORTS, "all-ports"),
            (LOOKUP_PREFIXES, "prefixes"),
            (LOOKUP_NODE_PORTS, "node-ports"),
            (LOOKUP_CLUSTER_ADDRESSES, "cluster-addresses"),
            (LOOKUP_SERVICE_NETWORKS, "service-networks"),
            (LOOKUP_TUNNELS, "tunnels"),
        ];
        let _ = writeln!(text, "lookups {}", list(lookups, &kinds));
    }
    Ok(text)
}

/// One line for each service: scheduler, flags, persistence, and the destinations in list order, newest first, with
/// weights, thresholds and methods.
///
/// ```text
/// TCP 10.96.0.1:80 rr: 10.1.0.2:8080 w1, 10.1.0.1:8080 w1 x8 y6
/// ```
///
/// # Errors
/// Maps that cannot be read.
pub fn outline(store: &impl MapStore) -> Result<String, StoreError> {
    let mut text = String::new();
    for (key, value) in sorted(store)? {
        let _ = write!(text, "{} {}", Name(&key), SchedulerName(value.scheduler));
        if value.flags != 0 {
            let _ = write!(text, " ({}){}", Flags(&value), Persistent(&value));
        }
        let _ = write!(text, "{}", Clients(&value));
        text.push(':');
        match store.slots(value.set_base, value.set_length) {
            Ok(slots) => {
                for (position, slot) in slots.iter().enumerate() {
                    let separator = if position == 0 { " " } else { ", " };
                    let _ = match store.destination(slot.destination) {
                        Ok(record) if slot.destination != 0 && record.service == value.id => {
                            write!(
                                text,
                                "{separator}{} w{}{}{}",
                                Server(&record),
                                slot.weight,
                                Limits(&record),
                                Way(&record)
                            )
                        }
                        _ => write!(text, "{separator}dangling {} w{}", slot.destination, slot.weight),
                    };
                }
            }
            Err(error) => {
                let _ = write!(text, " unreadable: {error}");
            }
        }
        text.push('\n');
    }
    Ok(text)
}

fn sorted(store: &impl MapStore) -> Result<Vec<(Key, Service)>, StoreError> {
    let mut services = store.entries()?;
    services.sort_by_key(|(key, _)| (Virtual::from_key(key), key.order()));
    Ok(services)
}

/// Cells that hold the same as the one before are not repeated: a table has runs of them.
fn write_slots(text: &mut String, kind: &str, key: &Key, slots: &[DestinationSlot]) {
    let mut first = 0;
    for cells in slots.chunk_by(|a, b| a == b) {
        let last = first + cells.len() - 1;
        let range = if first == last { first.to_string() } else { format!("{first}-{last}") };
        let DestinationSlot { destination, weight } = cells[0];
        let _ = writeln!(text, "{kind} {} {range} destination={destination} weight={weight}", Name(key));
        first = last + 1;
    }
}

struct Name<'a>(&'a Key);

impl fmt::Display for Name<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (Virtual::from_key(self.0), self.0) {
            (Some(service), _) => service.fmt(f),
            (None, Key::Service(key)) => {
                let address = SocketAddr::new(key.address.into(), key.port.number());
                write!(f, "protocol-{} {address} kind-{}", key.protocol, key.kind)
            }
            (None, Key::Prefix(key)) => {
                let address = SocketAddr::new(key.prefix.network.into(), key.prefix.port.number());
                write!(f, "protocol-{} {address} prefix-{}", key.prefix.protocol, key.length)
            }
        }
    }
}

struct Server<'a>(&'a Destination);

impl fmt::Display for Server<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        SocketAddr::new(self.0.address.into(), self.0.port.number()).fmt(f)
    }
}

struct SchedulerName(u8);

impl fmt::Display for SchedulerName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match Scheduler::from_number(self.0) {
            Some(scheduler) => f.write_str(scheduler.name()),
            None => write!(f, "scheduler-{}", self.0),
        }
    }
}

struct Flags<'a>(&'a Service);

impl fmt::Display for Flags<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = Scheduler::from_number(self.0.scheduler).map_or(["flag-2", "flag-1"], Scheduler::flag_names);
        let names = [
            (SERVICE_HASH_PORT, names[0]),
            (SERVICE_HASH_FALLBACK, names[1]),
            (SERVICE_ONE_PACKET, "ops"),
            (SERVICE_PERSISTENT, "persistent"),
            (SERVICE_ALL_PORTS, "all-ports"),
            (SERVICE_MARKED, "marked"),
            (SERVICE_THRESHOLDS, "thresholds"),
            (SERVICE_TUNNELS, "tunnels"),
        ];
        f.write_str(&list(self.0.flags, &names))
    }
}

/// The names of the bits that are set; `-` for none.
fn list<B: Copy + Default + PartialEq + BitAnd<Output = B>>(bits: B, names: &[(B, &str)]) -> String {
    let set = names.iter().filter(|(bit, _)| bits & *bit != B::default());
    let set: Vec<&str> = set.map(|(_, name)| *name).collect();
    if set.is_empty() { "-".to_owned() } else { set.join(",") }
}

/// Which clients, and under whose address; nothing where that is as in IPVS.
struct Clients<'a>(&'a Service);

impl fmt::Display for Clients<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = [
            (ACCESS_SPLIT, "split"),
            (ACCESS_MASQUERADE_EXTERNAL, "masquerade-external"),
            (ACCESS_MASQUERADE, "masquerade"),
            (ACCESS_SILENT, "silent"),
            (ACCESS_SOURCES, "sources"),
        ];
        match self.0.access {
            0 => Ok(()),
            access => write!(f, " access={}", list(access, &names)),
        }
    }
}

/// Milliseconds, and bits of a client's address.
struct Persistent<'a>(&'a Service);

impl fmt::Display for Persistent<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Service { persistence_prefix: 0, persistence_timeout: 0, .. } => Ok(()),
            Service { persistence_prefix, persistence_timeout, .. } => {
                write!(f, " persistence={persistence_timeout}/{persistence_prefix}")?;
                match self.0.affinity_group {
                    [0, 0] => Ok(()),
                    [high, low] => write!(f, " group={high:08x}{low:08x}"),
                }
            }
        }
    }
}

/// Thresholds.
struct Limits<'a>(&'a Destination);

impl fmt::Display for Limits<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Destination { upper: 0, lower: 0, .. } => Ok(()),
            Destination { upper, lower, .. } => write!(f, " x{upper} y{lower}"),
        }
    }
}

/// How packets reach a server; nothing for NAT.
struct Way<'a>(&'a Destination);

impl fmt::Display for Way<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match Method::of(self.0.flags) {
            Method::Nat => "",
            Method::Route => " route",
            Method::Tunnel => " tunnel",
            Method::OwnTunnel => " own-tunnel",
        })
    }
}

struct Fields<'a>(&'a Service);

impl fmt::Display for Fields<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Service { id, version, scheduler, set_base, set_length, .. } = *self.0;
        let (scheduler, flags) = (SchedulerName(scheduler), Flags(self.0));
        write!(f, "id={id} version={version} scheduler={scheduler} flags={flags} set={set_base}+{set_length} ")?;
        let Service { table_base, table_length, max_weight, weight_step, .. } = *self.0;
        match table_length {
            0 => f.write_str("table=-")?,
            length => write!(f, "table={table_base}+{length}")?,
        }
        write!(f, " mw={max_weight} di={weight_step}{}{}", Persistent(self.0), Clients(self.0))
    }
}
