//! The maps that the writer fills, as a trait with three implementations.

pub mod faulty;
pub mod kernel;
mod mapping;
pub mod memory;

use super::{
    frontend::{Key, PrefixKey},
    networks::Network,
};

use std::{collections::HashMap, time::Duration};

use lb_common::layout::{AffinityTimeout, Destination, DestinationLoad, DestinationSlot, Service, ServiceKey, Traffic};

/// Names of the maps as they are pinned and as messages call them.
pub mod names {
    /// Virtual services by what packets match.
    pub const SERVICES: &str = "services";
    /// Virtual services that are whole networks.
    pub const PREFIXES: &str = "service_prefixes";
    /// Networks of clients and of node ports.
    pub const NETWORKS: &str = "networks";
    /// Which kinds of services there are to look for.
    pub const LOOKUPS: &str = "lookups";
    /// Sets and tables.
    pub const SLOTS: &str = "destination_slots";
    /// Real servers by id.
    pub const DESTINATIONS: &str = "destinations";
    /// Connection counts by destination id.
    pub const LOAD: &str = "destination_load";
    /// Counters by destination id.
    pub const TRAFFIC: &str = "destination_traffic";
    /// Traffic of destinations that are gone, by service id.
    pub const RETIRED: &str = "service_retired";
    /// How long clients of services of affinity groups are bound, by service id.
    pub const AFFINITY: &str = "affinity_timeouts";
    /// rr's and wrr's place in the list by service id.
    pub const WORDS: &str = "scheduler_state";
    /// Connections and persistence templates.
    pub const CONNECTIONS: &str = "connections";
}

/// How many entries the maps have. Index 0 of arrays that are indexed by id is never used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Capacity {
    /// Entries of `services`.
    pub services: u32,
    /// Entries of `service_prefixes`.
    pub prefixes: u32,
    /// Entries of `networks`.
    pub networks: u32,
    /// Entries of `scheduler_state`, `service_retired` and `affinity_timeouts`, whichever has fewest: the highest service id is one less.
    pub service_ids: u32,
    /// Entries of `destinations`, `destination_load` and `destination_traffic`, whichever has fewest.
    pub destinations: u32,
    /// Entries of `destination_slots`.
    pub slots: u32,
}

/// Why a map operation failed.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// An index beyond the map.
    #[error("map `{map}` has {capacity} entries, so entry {index} does not exist")]
    OutOfRange {
        /// The map.
        map: &'static str,
        /// What was asked for.
        index: u64,
        /// What there is.
        capacity: u32,
    },
    /// No room for another entry.
    #[error("map `{map}` is full with {capacity} entries")]
    Full {
        /// The map.
        map: &'static str,
        /// Its size.
        capacity: u32,
    },
    /// The kernel refused.
    #[error("map `{map}`: {operation} failed")]
    Kernel {
        /// The map.
        map: &'static str,
        /// What was tried.
        operation: &'static str,
        /// The kernel's answer.
        source: aya::maps::MapError,
    },
    /// A map that cannot be used at all.
    #[error("map `{map}` cannot be used: {problem}")]
    Unusable {
        /// The map.
        map: &'static str,
        /// What is wrong with it, and what was expected.
        problem: String,
    },
    /// A failure made on purpose by [`faulty::FaultyStore`].
    #[error("map `{map}`: failure injected into {operation}")]
    Injected {
        /// The map.
        map: &'static str,
        /// The operation.
        operation: &'static str,
    },
}

/// The maps as the writer needs them.
///
/// A write that returns an error has had no effect. `scheduler_state` and the connection counts are changed by BPF at the
/// same time, hence the compare-and-exchange; everything else that is written here is written by one writer only.
pub trait MapStore {
    /// Sizes of the maps.
    fn capacity(&self) -> Capacity;

    /// All of `services`, in no order.
    fn services(&self) -> Result<Vec<(ServiceKey, Service)>, StoreError>;
    /// Creates or replaces an entry of `services`, atomically for packets.
    fn set_service(&mut self, key: &ServiceKey, value: &Service) -> Result<(), StoreError>;
    /// Deletes an entry of `services`; an entry that is not there is deleted already.
    fn delete_service(&mut self, key: &ServiceKey) -> Result<(), StoreError>;

    /// All of `service_prefixes`, in no order.
    fn prefixes(&self) -> Result<Vec<(PrefixKey, Service)>, StoreError>;
    /// Creates or replaces an entry of `service_prefixes`, atomically for packets.
    fn set_prefix(&mut self, key: &PrefixKey, value: &Service) -> Result<(), StoreError>;
    /// Deletes an entry of `service_prefixes`; an entry that is not there is deleted already.
    fn delete_prefix(&mut self, key: &PrefixKey) -> Result<(), StoreError>;

    /// All of `networks`, in no order.
    fn networks(&self) -> Result<Vec<Network>, StoreError>;
    /// Adds an entry of `networks`.
    fn set_network(&mut self, network: &Network) -> Result<(), StoreError>;
    /// Deletes an entry of `networks`; one that is not there is deleted already.
    fn delete_network(&mut self, network: &Network) -> Result<(), StoreError>;

    /// Reads which kinds of services packets look for.
    fn lookups(&self) -> Result<u32, StoreError>;
    /// Writes it.
    fn set_lookups(&mut self, value: u32) -> Result<(), StoreError>;

    /// All virtual services, in no order.
    fn entries(&self) -> Result<Vec<(Key, Service)>, StoreError> {
        let services = self.services()?.into_iter().map(|(key, value)| (Key::Service(key), value));
        let prefixes = self.prefixes()?.into_iter().map(|(key, value)| (Key::Prefix(key), value));
        Ok(services.chain(prefixes).collect())
    }
    /// Creates or replaces the entry of a virtual service, atomically for packets.
    fn set_entry(&mut self, key: &Key, value: &Service) -> Result<(), StoreError> {
        match key {
            Key::Service(key) => self.set_service(key, value),
            Key::Prefix(key) => self.set_prefix(key, value),
        }
    }
    /// Deletes the entry of a virtual service; one that is not there is deleted already.
    fn delete_entry(&mut self, key: &Key) -> Result<(), StoreError> {
        match key {
            Key::Service(key) => self.delete_service(key),
            Key::Prefix(key) => self.delete_prefix(key),
        }
    }

    /// Reads `length` slots from `base` on.
    fn slots(&self, base: u32, length: u32) -> Result<Vec<DestinationSlot>, StoreError>;
    /// Writes slots from `base` on.
    fn set_slots(&mut self, base: u32, slots: &[DestinationSlot]) -> Result<(), StoreError>;

    /// Reads a destination.
    fn destination(&self, id: u32) -> Result<Destination, StoreError>;
    /// Writes a destination.
    fn set_destination(&mut self, id: u32, value: &Destination) -> Result<(), StoreError>;

    /// Reads a destination's connection counts.
    fn load(&self, id: u32) -> Result<DestinationLoad, StoreError>;
    /// Sets a destination's connection counts to 0, with its flag of overload, and counts that as a change.
    fn reset_load(&mut self, id: u32) -> Result<(), StoreError>;
    /// Replaces [`DestinationLoad::connections`] if they are still `current`; otherwise `Err` with what they are now.
    fn exchange_connections(&mut self, id: u32, current: u64, new: u64) -> Result<Result<(), u64>, StoreError>;
    /// The destinations that persistence templates name by their ids, with how long the last one of each lasts. Reads all connections.
    fn templates(&self) -> Result<HashMap<u32, Duration>, StoreError>;
    /// Reads a destination's traffic counters, summed over the CPUs.
    fn traffic(&self, id: u32) -> Result<Traffic, StoreError>;
    /// Sets a destination's traffic counters to 0 on every CPU.
    fn reset_traffic(&mut self, id: u32) -> Result<(), StoreError>;

    /// Reads the traffic of a service's destinations that are gone.
    fn retired(&self, service: u32) -> Result<Traffic, StoreError>;
    /// Writes it.
    fn set_retired(&mut self, service: u32, value: &Traffic) -> Result<(), StoreError>;

    /// Reads how long a service's clients are bound, as the sweep has it.
    fn affinity(&self, service: u32) -> Result<AffinityTimeout, StoreError>;
    /// Writes it.
    fn set_affinity(&mut self, service: u32, value: &AffinityTimeout) -> Result<(), StoreError>;

    /// Reads a service's packed scheduler word.
    fn word(&self, service: u32) -> Result<u64, StoreError>;
    /// Replaces a service's scheduler word if it is still `current`; otherwise `Err` with what it is now.
    fn exchange_word(&mut self, service: u32, current: u64, new: u64) -> Result<Result<(), u64>, StoreError>;
}

/// Checks that `length` entries from `first` on are inside a map.
pub(crate) fn check(map: &'static str, first: u32, length: u32, capacity: u32) -> Result<(), StoreError> {
    let end = u64::from(first) + u64::from(length);
    if end > u64::from(capacity) {
        return Err(StoreError::OutOfRange { map, index: end - 1, capacity });
    }
    Ok(())
}
