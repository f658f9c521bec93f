//! A store that fails on purpose, to show what the writer does when the kernel says no.

use std::{collections::HashMap, time::Duration};

use lb_common::layout::{AffinityTimeout, Destination, DestinationLoad, DestinationSlot, Service, ServiceKey, Traffic};

use super::{Capacity, MapStore, Network, PrefixKey, StoreError, names};

/// Which operations fail.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Faults {
    /// None.
    Never,
    /// About `percent` of all writes, chosen by the seed.
    Random {
        /// How many in a hundred.
        percent: u8,
    },
    /// Every write after the next `writes`: what a killed agent leaves behind.
    After {
        /// Writes that still succeed.
        writes: u64,
    },
    /// Every write to one map.
    Map(
        /// The map's name, of [`names`].
        &'static str,
    ),
}

/// Wraps another store and makes its writes fail.
#[derive(Clone, Debug)]
pub struct FaultyStore<S> {
    inner: S,
    faults: Faults,
    random: u64,
    writes: u64,
}

impl<S> FaultyStore<S> {
    /// Faults over `inner`; `seed` decides which of [`Faults::Random`].
    pub fn new(inner: S, faults: Faults, seed: u64) -> Self {
        Self { inner, faults, random: seed, writes: 0 }
    }

    /// Changes which operations fail from now on.
    pub fn set_faults(&mut self, faults: Faults) {
        self.faults = faults;
    }

    /// Writes that succeeded so far.
    pub fn writes(&self) -> u64 {
        self.writes
    }

    /// The store inside.
    pub fn inner(&self) -> &S {
        &self.inner
    }

    /// The store inside, to change it as traffic would.
    pub fn inner_mut(&mut self) -> &mut S {
        &mut self.inner
    }

    /// The store inside, without the faults.
    pub fn into_inner(self) -> S {
        self.inner
    }

    fn attempt(&mut self, map: &'static str, operation: &'static str) -> Result<(), StoreError> {
        let fails = match &mut self.faults {
            Faults::Never => false,
            Faults::Random { percent } => next(&mut self.random) % 100 < u64::from(*percent),
            Faults::After { writes: 0 } => true,
            Faults::After { writes } => {
                *writes -= 1;
                false
            }
            Faults::Map(name) => *name == map,
        };
        if fails {
            return Err(StoreError::Injected { map, operation });
        }
        self.writes += 1;
        Ok(())
    }
}

/// SplitMix64: a step of a fixed stride, then a mix of its bits.
fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

impl<S: MapStore> MapStore for FaultyStore<S> {
    fn capacity(&self) -> Capacity {
        self.inner.capacity()
    }

    fn services(&self) -> Result<Vec<(ServiceKey, Service)>, StoreError> {
        self.inner.services()
    }

    fn set_service(&mut self, key: &ServiceKey, value: &Service) -> Result<(), StoreError> {
        self.attempt(names::SERVICES, "update")?;
        self.inner.set_service(key, value)
    }

    fn delete_service(&mut self, key: &ServiceKey) -> Result<(), StoreError> {
        self.attempt(names::SERVICES, "delete")?;
        self.inner.delete_service(key)
    }

    fn prefixes(&self) -> Result<Vec<(PrefixKey, Service)>, StoreError> {
        self.inner.prefixes()
    }

    fn set_prefix(&mut self, key: &PrefixKey, value: &Service) -> Result<(), StoreError> {
        self.attempt(names::PREFIXES, "update")?;
        self.inner.set_prefix(key, value)
    }

    fn delete_prefix(&mut self, key: &PrefixKey) -> Result<(), StoreError> {
        self.attempt(names::PREFIXES, "delete")?;
        self.inner.delete_prefix(key)
    }

    fn networks(&self) -> Result<Vec<Network>, StoreError> {
        self.inner.networks()
    }

    fn set_network(&mut self, network: &Network) -> Result<(), StoreError> {
        self.attempt(names::NETWORKS, "update")?;
        self.inner.set_network(network)
    }

    fn delete_network(&mut self, network: &Network) -> Result<(), StoreError> {
        self.attempt(names::NETWORKS, "delete")?;
        self.inner.delete_network(network)
    }

    fn lookups(&self) -> Result<u32, StoreError> {
        self.inner.lookups()
    }

    fn set_lookups(&mut self, value: u32) -> Result<(), StoreError> {
        self.attempt(names::LOOKUPS, "update")?;
        self.inner.set_lookups(value)
    }

    fn slots(&self, base: u32, length: u32) -> Result<Vec<DestinationSlot>, StoreError> {
        self.inner.slots(base, length)
    }

    fn set_slots(&mut self, base: u32, slots: &[DestinationSlot]) -> Result<(), StoreError> {
        self.attempt(names::SLOTS, "update")?;
        self.inner.set_slots(base, slots)
    }

    fn destination(&self, id: u32) -> Result<Destination, StoreError> {
        self.inner.destination(id)
    }

    fn set_destination(&mut self, id: u32, value: &Destination) -> Result<(), StoreError> {
        self.attempt(names::DESTINATIONS, "update")?;
        self.inner.set_destination(id, value)
    }

    fn load(&self, id: u32) -> Result<DestinationLoad, StoreError> {
        self.inner.load(id)
    }

    fn reset_load(&mut self, id: u32) -> Result<(), StoreError> {
        self.attempt(names::LOAD, "reset")?;
        self.inner.reset_load(id)
    }

    fn exchange_connections(&mut self, id: u32, current: u64, new: u64) -> Result<Result<(), u64>, StoreError> {
        self.attempt(names::LOAD, "exchange")?;
        self.inner.exchange_connections(id, current, new)
    }

    fn templates(&self) -> Result<HashMap<u32, Duration>, StoreError> {
        self.inner.templates()
    }

    fn traffic(&self, id: u32) -> Result<Traffic, StoreError> {
        self.inner.traffic(id)
    }

    fn reset_traffic(&mut self, id: u32) -> Result<(), StoreError> {
        self.attempt(names::TRAFFIC, "reset")?;
        self.inner.reset_traffic(id)
    }

    fn retired(&self, service: u32) -> Result<Traffic, StoreError> {
        self.inner.retired(service)
    }

    fn set_retired(&mut self, service: u32, value: &Traffic) -> Result<(), StoreError> {
        self.attempt(names::RETIRED, "update")?;
        self.inner.set_retired(service, value)
    }

    fn affinity(&self, service: u32) -> Result<AffinityTimeout, StoreError> {
        self.inner.affinity(service)
    }

    fn set_affinity(&mut self, service: u32, value: &AffinityTimeout) -> Result<(), StoreError> {
        self.attempt(names::AFFINITY, "update")?;
        self.inner.set_affinity(service, value)
    }

    fn word(&self, service: u32) -> Result<u64, StoreError> {
        self.inner.word(service)
    }

    fn exchange_word(&mut self, service: u32, current: u64, new: u64) -> Result<Result<(), u64>, StoreError> {
        self.attempt(names::WORDS, "exchange")?;
        self.inner.exchange_word(service, current, new)
    }
}
