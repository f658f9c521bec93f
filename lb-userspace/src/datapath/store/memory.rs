//! The maps in memory: for tests, and to try a plan without a kernel.

use std::{
    collections::{BTreeSet, HashMap},
    time::Duration,
};

use lb_common::layout::{AffinityTimeout, Destination, DestinationLoad, DestinationSlot, Service, ServiceKey, Traffic};

use super::{Capacity, Key, MapStore, Network, PrefixKey, StoreError, check, names};

/// Maps that live in this process.
#[derive(Clone, Debug)]
pub struct MemoryStore {
    capacity: Capacity,
    services: HashMap<ServiceKey, Service>,
    prefixes: HashMap<PrefixKey, Service>,
    networks: BTreeSet<Network>,
    lookups: u32,
    templates: HashMap<u32, Duration>,
    slots: Vec<DestinationSlot>,
    destinations: Vec<Destination>,
    load: Vec<DestinationLoad>,
    traffic: Vec<Traffic>,
    retired: Vec<Traffic>,
    affinity: Vec<AffinityTimeout>,
    words: Vec<u64>,
}

impl MemoryStore {
    /// Empty maps of these sizes.
    pub fn new(capacity: Capacity) -> Self {
        Self {
            capacity,
            services: HashMap::new(),
            prefixes: HashMap::new(),
            networks: BTreeSet::new(),
            lookups: 0,
            templates: HashMap::new(),
            slots: vec![DestinationSlot::default(); capacity.slots as usize],
            destinations: vec![Destination::default(); capacity.destinations as usize],
            load: vec![DestinationLoad::default(); capacity.destinations as usize],
            traffic: vec![Traffic::default(); capacity.destinations as usize],
            retired: vec![Traffic::default(); capacity.service_ids as usize],
            affinity: vec![AffinityTimeout::default(); capacity.service_ids as usize],
            words: vec![0; capacity.service_ids as usize],
        }
    }

    /// Looks a service up as a packet does.
    pub fn service(&self, key: &ServiceKey) -> Option<Service> {
        self.services.get(key).copied()
    }

    /// The entry of any virtual service.
    pub fn entry(&self, key: &Key) -> Option<Service> {
        match key {
            Key::Service(key) => self.service(key),
            Key::Prefix(key) => self.prefixes.get(key).copied(),
        }
    }

    /// Lets persistence templates name a destination for this long, as traffic would; `None` for no longer.
    pub fn set_template(&mut self, destination: u32, left: Option<Duration>) {
        match left {
            Some(left) => self.templates.insert(destination, left),
            None => self.templates.remove(&destination),
        };
    }

    /// A destination's connection counts, to change as traffic would. `None` beyond the map.
    pub fn load_mut(&mut self, id: u32) -> Option<&mut DestinationLoad> {
        self.load.get_mut(id as usize)
    }

    /// A destination's traffic counters, to change as traffic would. `None` beyond the map.
    pub fn traffic_mut(&mut self, id: u32) -> Option<&mut Traffic> {
        self.traffic.get_mut(id as usize)
    }
}

impl MapStore for MemoryStore {
    fn capacity(&self) -> Capacity {
        self.capacity
    }

    fn services(&self) -> Result<Vec<(ServiceKey, Service)>, StoreError> {
        Ok(self.services.iter().map(|(key, value)| (*key, *value)).collect())
    }

    fn set_service(&mut self, key: &ServiceKey, value: &Service) -> Result<(), StoreError> {
        let capacity = self.capacity.services;
        if self.services.len() >= capacity as usize && !self.services.contains_key(key) {
            return Err(StoreError::Full { map: names::SERVICES, capacity });
        }
        self.services.insert(*key, *value);
        Ok(())
    }

    fn delete_service(&mut self, key: &ServiceKey) -> Result<(), StoreError> {
        self.services.remove(key);
        Ok(())
    }

    fn prefixes(&self) -> Result<Vec<(PrefixKey, Service)>, StoreError> {
        Ok(self.prefixes.iter().map(|(key, value)| (*key, *value)).collect())
    }

    fn set_prefix(&mut self, key: &PrefixKey, value: &Service) -> Result<(), StoreError> {
        let capacity = self.capacity.prefixes;
        if self.prefixes.len() >= capacity as usize && !self.prefixes.contains_key(key) {
            return Err(StoreError::Full { map: names::PREFIXES, capacity });
        }
        self.prefixes.insert(*key, *value);
        Ok(())
    }

    fn delete_prefix(&mut self, key: &PrefixKey) -> Result<(), StoreError> {
        self.prefixes.remove(key);
        Ok(())
    }

    fn networks(&self) -> Result<Vec<Network>, StoreError> {
        Ok(self.networks.iter().copied().collect())
    }

    fn set_network(&mut self, network: &Network) -> Result<(), StoreError> {
        let capacity = self.capacity.networks;
        if self.networks.len() >= capacity as usize && !self.networks.contains(network) {
            return Err(StoreError::Full { map: names::NETWORKS, capacity });
        }
        self.networks.insert(*network);
        Ok(())
    }

    fn delete_network(&mut self, network: &Network) -> Result<(), StoreError> {
        self.networks.remove(network);
        Ok(())
    }

    fn lookups(&self) -> Result<u32, StoreError> {
        Ok(self.lookups)
    }

    fn set_lookups(&mut self, value: u32) -> Result<(), StoreError> {
        self.lookups = value;
        Ok(())
    }

    fn slots(&self, base: u32, length: u32) -> Result<Vec<DestinationSlot>, StoreError> {
        check(names::SLOTS, base, length, self.capacity.slots)?;
        Ok(self.slots[base as usize..][..length as usize].to_vec())
    }

    fn set_slots(&mut self, base: u32, slots: &[DestinationSlot]) -> Result<(), StoreError> {
        check(names::SLOTS, base, slots.len() as u32, self.capacity.slots)?;
        self.slots[base as usize..][..slots.len()].copy_from_slice(slots);
        Ok(())
    }

    fn destination(&self, id: u32) -> Result<Destination, StoreError> {
        check(names::DESTINATIONS, id, 1, self.capacity.destinations)?;
        Ok(self.destinations[id as usize])
    }

    fn set_destination(&mut self, id: u32, value: &Destination) -> Result<(), StoreError> {
        check(names::DESTINATIONS, id, 1, self.capacity.destinations)?;
        self.destinations[id as usize] = *value;
        Ok(())
    }

    fn load(&self, id: u32) -> Result<DestinationLoad, StoreError> {
        check(names::LOAD, id, 1, self.capacity.destinations)?;
        Ok(self.load[id as usize])
    }

    fn reset_load(&mut self, id: u32) -> Result<(), StoreError> {
        check(names::LOAD, id, 1, self.capacity.destinations)?;
        let load = &mut self.load[id as usize];
        *load = DestinationLoad { changes: load.changes.wrapping_add(1), ..DestinationLoad::default() };
        Ok(())
    }

    fn exchange_connections(&mut self, id: u32, current: u64, new: u64) -> Result<Result<(), u64>, StoreError> {
        check(names::LOAD, id, 1, self.capacity.destinations)?;
        let connections = &mut self.load[id as usize].connections;
        if *connections != current {
            return Ok(Err(*connections));
        }
        *connections = new;
        Ok(Ok(()))
    }

    fn templates(&self) -> Result<HashMap<u32, Duration>, StoreError> {
        Ok(self.templates.clone())
    }

    fn traffic(&self, id: u32) -> Result<Traffic, StoreError> {
        check(names::TRAFFIC, id, 1, self.capacity.destinations)?;
        Ok(self.traffic[id as usize])
    }

    fn reset_traffic(&mut self, id: u32) -> Result<(), StoreError> {
        check(names::TRAFFIC, id, 1, self.capacity.destinations)?;
        self.traffic[id as usize] = Traffic::default();
        Ok(())
    }

    fn retired(&self, service: u32) -> Result<Traffic, StoreError> {
        check(names::RETIRED, service, 1, self.capacity.service_ids)?;
        Ok(self.retired[service as usize])
    }

    fn set_retired(&mut self, service: u32, value: &Traffic) -> Result<(), StoreError> {
        check(names::RETIRED, service, 1, self.capacity.service_ids)?;
        self.retired[service as usize] = *value;
        Ok(())
    }

    fn affinity(&self, service: u32) -> Result<AffinityTimeout, StoreError> {
        check(names::AFFINITY, service, 1, self.capacity.service_ids)?;
        Ok(self.affinity[service as usize])
    }

    fn set_affinity(&mut self, service: u32, value: &AffinityTimeout) -> Result<(), StoreError> {
        check(names::AFFINITY, service, 1, self.capacity.service_ids)?;
        self.affinity[service as usize] = *value;
        Ok(())
    }

    fn word(&self, service: u32) -> Result<u64, StoreError> {
        check(names::WORDS, service, 1, self.capacity.service_ids)?;
        Ok(self.words[service as usize])
    }

    fn exchange_word(&mut self, service: u32, current: u64, new: u64) -> Result<Result<(), u64>, StoreError> {
        check(names::WORDS, service, 1, self.capacity.service_ids)?;
        let word = &mut self.words[service as usize];
        if *word != current {
            return Ok(Err(*word));
        }
        *word = new;
        Ok(Ok(()))
    }
}
