//! One map write as a value: what the writer makes lists of, and how it is carried out.

use std::{fmt, hint};

use lb_common::{
    layout::{AffinityTimeout, Destination, DestinationLoad, DestinationSlot, Service, Traffic},
    scheduler::word::SchedulerWord,
};

use super::{
    MapStore, Network, StoreError,
    frontend::{Key, Virtual},
    word::WordChange,
};

/// A write to one map.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum Write {
    /// Connection counts to 0, for an id that is given to another destination.
    ResetLoad { destination: u32 },
    /// Traffic counters to 0.
    ResetTraffic { destination: u32 },
    /// The traffic of a service's destinations that are gone.
    Retired { service: u32, value: Traffic },
    /// A destination's record.
    Destination { id: u32, value: Destination },
    /// A new run: a set or a table.
    Slots { base: u32, slots: Vec<DestinationSlot> },
    /// The scheduler word, by compare-and-swap.
    Word { service: u32, change: WordChange },
    /// How long clients of a service of an affinity group are bound, for the sweep.
    Affinity { service: u32, value: AffinityTimeout },
    /// Lets packets look for these kinds of services.
    Lookups { value: u32 },
    /// Adds a network.
    Network { network: Network },
    /// Removes a network.
    DeleteNetwork { network: Network },
    /// Publishes a version of a service.
    Service { key: Key, value: Service },
    /// Removes a service.
    DeleteService { key: Key },
    /// Whether a destination with this record is overloaded, by compare-and-swap.
    Overload { id: u32, record: Destination },
}

impl Write {
    /// Carries the write out. On an error it had no effect.
    pub(super) fn perform(&self, store: &mut impl MapStore) -> Result<(), StoreError> {
        match self {
            Self::ResetLoad { destination } => store.reset_load(*destination),
            Self::ResetTraffic { destination } => store.reset_traffic(*destination),
            Self::Retired { service, value } => store.set_retired(*service, value),
            Self::Destination { id, value } => store.set_destination(*id, value),
            Self::Slots { base, slots } => store.set_slots(*base, slots),
            Self::Word { service, change } => exchange(store, *service, change),
            Self::Affinity { service, value } => store.set_affinity(*service, value),
            Self::Lookups { value } => store.set_lookups(*value),
            Self::Network { network } => store.set_network(network),
            Self::DeleteNetwork { network } => store.delete_network(network),
            Self::Service { key, value } => store.set_entry(key, value),
            Self::DeleteService { key } => store.delete_entry(key),
            Self::Overload { id, record } => evaluate(store, *id, record),
        }
    }
}

/// Picks go on meanwhile: look again until none came between. Each failure means that a pick was published, so this
/// ends as soon as one pick on the new version comes first, or none comes between.
fn exchange(store: &mut impl MapStore, service: u32, change: &WordChange) -> Result<(), StoreError> {
    let mut current = store.word(service)?;
    while let Some(next) = change.next(SchedulerWord::unpack(current)) {
        match store.exchange_word(service, current, next.pack())? {
            Ok(()) => break,
            Err(now) => current = now,
        }
        hint::spin_loop();
    }
    Ok(())
}

/// Compares a destination's connections with its thresholds, as the programs do at its next new connection. They count
/// meanwhile: look again until nothing came between.
fn evaluate(store: &mut impl MapStore, id: u32, record: &Destination) -> Result<(), StoreError> {
    let mut current = store.load(id)?.connections;
    while let Some(next) = evaluated(current, record) {
        match store.exchange_connections(id, current, next)? {
            Ok(()) => break,
            Err(now) => current = now,
        }
        hint::spin_loop();
    }
    Ok(())
}

/// The connections of a destination with this record, with the right flag; `None` if it is right already.
pub(super) fn evaluated(connections: u64, record: &Destination) -> Option<u64> {
    let load = DestinationLoad { connections, ..DestinationLoad::default() };
    let flag = if record.overload(load.total(), load.overloaded()) { DestinationLoad::OVERLOADED } else { 0 };
    let next = connections & !DestinationLoad::OVERLOADED | flag;
    (next != connections).then_some(next)
}

impl fmt::Display for Write {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ResetLoad { destination } => write!(f, "clear the connection counts of destination {destination}"),
            Self::ResetTraffic { destination } => write!(f, "clear the traffic counters of destination {destination}"),
            Self::Retired { service, .. } => write!(f, "write the past traffic of service id {service}"),
            Self::Destination { id, .. } => write!(f, "write destination {id}"),
            Self::Slots { base, slots } => write!(f, "write {} slots from {base} on", slots.len()),
            Self::Word { service, .. } => write!(f, "move the scheduler word of service id {service}"),
            Self::Affinity { service, value } => {
                write!(f, "write {} ms as the affinity timeout of service id {service}", value.timeout)
            }
            Self::Lookups { value } => write!(f, "write the kinds of services to look for ({value:#b})"),
            Self::Network { network } => write!(f, "add {network}"),
            Self::DeleteNetwork { network } => write!(f, "delete {network}"),
            Self::Overload { id, .. } => write!(f, "compare destination {id} with its thresholds"),
            Self::Service { key, value } => match Virtual::from_key(key) {
                Some(service) => write!(f, "publish version {} of {service}", value.version),
                None => write!(f, "publish {key:?}"),
            },
            Self::DeleteService { key } => match Virtual::from_key(key) {
                Some(service) => write!(f, "delete {service}"),
                None => write!(f, "delete {key:?}"),
            },
        }
    }
}
