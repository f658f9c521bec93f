//! What the writer remembers of a service and its destinations.

use std::{collections::BTreeMap, net::IpAddr, sync::Arc, time::Instant};

use lb_common::{
    address::{Address, Port},
    layout::{DESTINATION_AVAILABLE, DESTINATION_WIDE, Destination, DestinationSlot, Service},
    scheduler::{Scheduler, maglev, table},
};

use super::{DesiredDestination, DesiredService, Method, Thresholds, allocate::Run, frontend::Virtual, word::WordLog};

/// What tells a service's destinations apart.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Server {
    pub(super) address: IpAddr,
    pub(super) port: u16,
}

impl Server {
    /// The destination's record in the map; `wide` if its service is not of one address and port.
    pub(super) fn record(&self, service: u32, epoch: u32, member: &Member, wide: bool) -> Destination {
        Destination {
            address: Address::from(self.address),
            port: Port::new(self.port),
            flags: DESTINATION_AVAILABLE | member.method.flags() | if wide { DESTINATION_WIDE } else { 0 },
            service,
            epoch,
            weight: member.weight,
            last_weight: member.last_weight,
            upper: member.thresholds.upper,
            lower: member.thresholds.lower,
        }
    }
}

impl From<&DesiredDestination> for Server {
    fn from(desired: &DesiredDestination) -> Self {
        Self { address: Address::from(desired.address).into(), port: desired.port }
    }
}

impl From<&Destination> for Server {
    fn from(record: &Destination) -> Self {
        Self { address: record.address.into(), port: record.port.number() }
    }
}

/// A place in a service's published list.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Member {
    pub(super) server: Server,
    pub(super) id: u32,
    pub(super) weight: i32,
    /// [`Destination::last_weight`].
    pub(super) last_weight: i32,
    /// How many connections it takes.
    pub(super) thresholds: Thresholds,
    /// How packets reach it.
    pub(super) method: Method,
}

impl Member {
    /// A member as it stands in the maps. The slot is what is published; the record may be newer, where a writer was
    /// stopped, and is asked only for what the slot does not say.
    pub(super) fn restored(slot: &DestinationSlot, record: &Destination) -> Self {
        let last_weight = if slot.weight == 0 { record.last_weight } else { slot.weight };
        let thresholds = Thresholds { upper: record.upper, lower: record.lower };
        let (server, method) = (Server::from(record), Method::of(record.flags));
        Self { server, id: slot.destination, weight: slot.weight, last_weight, thresholds, method }
    }

    /// One that is added, and has no id as yet.
    pub(super) fn added(desired: &DesiredDestination) -> Self {
        let DesiredDestination { weight, thresholds, method, .. } = *desired;
        Self { server: Server::from(desired), id: 0, weight, last_weight: weight, thresholds, method }
    }

    /// It is edited to what is desired.
    pub(super) fn edited(self, desired: &DesiredDestination) -> Self {
        let last_weight = if desired.weight == 0 { self.last_weight } else { desired.weight };
        Self { id: self.id, last_weight, ..Self::added(desired) }
    }

    fn slot(&self) -> DestinationSlot {
        DestinationSlot { destination: self.id, weight: self.weight }
    }
}

/// A service id in use: published, or removed while its destinations drain.
#[derive(Debug, Default)]
pub(super) struct ServiceState {
    /// What packets match. `None` if the service was removed before this writer started: it cannot come back.
    pub(super) virtual_service: Option<Virtual>,
    /// The entry in `services`; `None` when there is none.
    pub(super) published: Option<Service>,
    /// The newest version that was published.
    pub(super) last_version: u16,
    /// The set of the published version, head first.
    pub(super) list: Vec<Member>,
    /// Ids of the destinations that drain: they get them back if they return.
    pub(super) ids: BTreeMap<Server, u32>,
    /// How many destinations drain.
    pub(super) draining: u32,
    /// Slots that the published entry names.
    pub(super) set: Vec<Run>,
    /// Slots of the table.
    pub(super) table: Vec<Run>,
    /// Edits that the scheduler word may not have seen.
    pub(super) word_log: WordLog,
    /// What was asked for when everything was last written; `None` if something is missing.
    pub(super) applied: Option<Arc<DesiredService>>,
    /// The maps were inconsistent: write a new version whatever the difference.
    pub(super) rewrite: bool,
}

/// A destination that is in no set, until nothing refers to it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Draining {
    /// Its service id.
    pub(super) service: u32,
    /// Since when no connection was seen on it.
    pub(super) idle_since: Option<Instant>,
    /// Its traffic already stands in `service_retired`.
    pub(super) counted: bool,
    /// Until when persistence templates may name it.
    pub(super) named_until: Option<Instant>,
}

impl Draining {
    /// A destination of this service that has just left its set.
    pub(super) fn of(service: u32) -> Self {
        Self { service, idle_since: None, counted: false, named_until: None }
    }
}

/// The slots that hold a list.
pub(super) fn slots(list: &[Member]) -> Vec<DestinationSlot> {
    list.iter().map(Member::slot).collect()
}

/// The table that a scheduler needs beside its set. An empty set has none, nor has mh where no weight was ever above 0:
/// there is nothing to find in it.
pub(super) fn table(scheduler: Option<Scheduler>, list: &[Member]) -> Option<Vec<DestinationSlot>> {
    let mut cells = [DestinationSlot::default(); table::TABLE_LENGTH];
    match scheduler {
        _ if list.is_empty() => return None,
        Some(Scheduler::SourceHash) => table::fill_source_hash(&slots(list), &mut cells),
        Some(Scheduler::DestinationHash) => table::fill_destination_hash(&slots(list), &mut cells),
        Some(Scheduler::Maglev) => return maglev_table(list),
        _ => return None,
    }
    Some(cells.to_vec())
}

fn maglev_table(list: &[Member]) -> Option<Vec<DestinationSlot>> {
    let claim = |member: &Member| {
        let (address, port) = (Address::from(member.server.address), Port::new(member.server.port));
        maglev::Claim::new(member.slot(), &address, port, member.last_weight)
    };
    let mut cells = [DestinationSlot::default(); maglev::TABLE_LENGTH];
    let mut claims: Vec<_> = list.iter().map(claim).collect();
    maglev::fill(&mut claims, &mut cells).then(|| cells.to_vec())
}

/// True for the schedulers that have a place in the list.
pub(super) const fn has_cursor(scheduler: Scheduler) -> bool {
    matches!(scheduler, Scheduler::RoundRobin | Scheduler::WeightedRoundRobin)
}
