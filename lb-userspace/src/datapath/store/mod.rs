//! The maps that the writer fills, as a trait with three implementations.

pub mod faulty;
pub mod kernel;
mod mapping;
pub mod memory;

use lb_common::layout::{Destination, DestinationLoad, DestinationSlot, Service, ServiceKey, Traffic};

/// Names of the maps as they are pinned and as messages call them.
pub mod names {
    /// Virtual services by what packets match.
    pub const SERVICES: &str = "services";
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
    /// rr's and wrr's place in the list by service id.
    pub const WORDS: &str = "scheduler_state";
}

/// How many entries the maps have. Index 0 of arrays that are indexed by id is never used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Capacity {
    /// Entries of `services`.
    pub services: u32,
    /// Entries of `scheduler_state` and `service_retired`, whichever has fewer: the highest service id is one less.
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
/// A write that returns an error has had no effect. `scheduler_state` is changed by BPF at the same time, hence the
/// compare-and-exchange; everything else that is written here is written by one writer only.
pub trait MapStore {
    /// Sizes of the maps.
    fn capacity(&self) -> Capacity;

    /// All of `services`, in no order.
    fn services(&self) -> Result<Vec<(ServiceKey, Service)>, StoreError>;
    /// Creates or replaces an entry of `services`, atomically for packets.
    fn set_service(&mut self, key: &ServiceKey, value: &Service) -> Result<(), StoreError>;
    /// Deletes an entry of `services`; an entry that is not there is deleted already.
    fn delete_service(&mut self, key: &ServiceKey) -> Result<(), StoreError>;

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
    /// Sets a destination's connection counts to 0, and counts that as a change.
    fn reset_load(&mut self, id: u32) -> Result<(), StoreError>;
    /// Reads a destination's traffic counters, summed over the CPUs.
    fn traffic(&self, id: u32) -> Result<Traffic, StoreError>;
    /// Sets a destination's traffic counters to 0 on every CPU.
    fn reset_traffic(&mut self, id: u32) -> Result<(), StoreError>;

    /// Reads the traffic of a service's destinations that are gone.
    fn retired(&self, service: u32) -> Result<Traffic, StoreError>;
    /// Writes it.
    fn set_retired(&mut self, service: u32, value: &Traffic) -> Result<(), StoreError>;

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
