//! The maps in the kernel: `services` and `service_prefixes` by system calls, the arrays through shared memory.
//!
//! Values are written into the mapped arrays before `services` publishes them. That order holds for packets too: the
//! stores are atomics that no compiler moves across the system call, the kernel links an element of a hash or a trie in
//! with release ordering, and a program finds slots and destinations only through what it read from that element.

use std::{
    collections, fmt,
    os::fd::AsFd,
    sync::atomic::Ordering::{AcqRel, Acquire, Release},
    time::Duration,
};

use aya::maps::{
    Array, HashMap, Map, MapData, MapError, PerCpuArray, PerCpuValues,
    lpm_trie::{Key as TrieKey, LpmTrie},
};
use bytemuck::Zeroable;
use lb_common::layout::{
    AffinityTimeout, Connection, ConnectionKey, Destination, DestinationLoad, DestinationSlot, KEY_TEMPLATE,
    NetworkKey, Service, ServiceKey, ServicePrefix, Traffic,
};

use super::{Capacity, MapStore, Network, PrefixKey, StoreError, check, mapping::MappedArray, names};
use crate::kernel::namespace::monotonic_now;

mod maps;

pub use maps::KernelMaps;

/// Gives a type of `lb-common` to aya. Both crates mean the same by `Pod`, but each has a trait of its own.
#[derive(Clone, Copy)]
#[repr(transparent)]
struct Plain<T>(T);

// SAFETY: bytemuck's `Pod` says that every bit pattern is a value and that there is no padding, which is what aya asks
// for; the wrapper is transparent.
unsafe impl<T: bytemuck::Pod> aya::Pod for Plain<T> {}

/// Maps in the kernel.
pub struct KernelStore {
    services: HashMap<MapData, Plain<ServiceKey>, Plain<Service>>,
    prefixes: LpmTrie<MapData, Plain<ServicePrefix>, Plain<Service>>,
    networks: LpmTrie<MapData, Plain<NetworkKey>, u32>,
    lookups: Array<MapData, u32>,
    connections: HashMap<MapData, Plain<ConnectionKey>, Plain<Connection>>,
    traffic: PerCpuArray<MapData, Plain<Traffic>>,
    slots: MappedArray,
    destinations: MappedArray,
    load: MappedArray,
    retired: MappedArray,
    affinity: MappedArray,
    words: MappedArray,
    capacity: Capacity,
    cpus: usize,
}

impl fmt::Debug for KernelStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KernelStore").field("capacity", &self.capacity).finish_non_exhaustive()
    }
}

impl KernelStore {
    /// A store over these maps.
    ///
    /// # Errors
    /// A map of another type or size than expected, or one that cannot be mapped.
    pub fn new(maps: KernelMaps) -> Result<Self, StoreError> {
        let slots = mapped::<DestinationSlot>(names::SLOTS, &maps.slots)?;
        let destinations = mapped::<Destination>(names::DESTINATIONS, &maps.destinations)?;
        let load = mapped::<DestinationLoad>(names::LOAD, &maps.load)?;
        let retired = mapped::<Traffic>(names::RETIRED, &maps.retired)?;
        let affinity = mapped::<AffinityTimeout>(names::AFFINITY, &maps.affinity)?;
        let words = mapped::<u64>(names::WORDS, &maps.words)?;
        let services = entries(names::SERVICES, &maps.services)?;
        let prefixes = entries(names::PREFIXES, &maps.prefixes)?;
        let networks = entries(names::NETWORKS, &maps.networks)?;
        let traffic: PerCpuArray<_, _> = typed(names::TRAFFIC, maps.traffic)?;
        let capacity = Capacity {
            services,
            prefixes,
            networks,
            service_ids: words.entries().min(retired.entries()).min(affinity.entries()),
            destinations: destinations.entries().min(load.entries()).min(traffic.len()),
            slots: slots.entries(),
        };
        let cpus = aya::util::nr_cpus().map_err(|(file, error)| {
            unusable(names::TRAFFIC, format!("the CPUs cannot be counted from {file}: {error}"))
        })?;
        Ok(Self {
            services: typed(names::SERVICES, maps.services)?,
            prefixes: typed(names::PREFIXES, maps.prefixes)?,
            networks: typed(names::NETWORKS, maps.networks)?,
            lookups: typed(names::LOOKUPS, maps.lookups)?,
            connections: typed(names::CONNECTIONS, maps.connections)?,
            traffic,
            slots,
            destinations,
            load,
            retired,
            affinity,
            words,
            capacity,
            cpus,
        })
    }
}

fn unusable(map: &'static str, problem: String) -> StoreError {
    StoreError::Unusable { map, problem }
}

/// A map as the type that it should have.
fn typed<M: TryFrom<Map, Error = MapError>>(map: &'static str, data: MapData) -> Result<M, StoreError> {
    let kernel = |operation| move |source| StoreError::Kernel { map, operation, source };
    let opened = Map::from_map_data(data).map_err(kernel("open"))?;
    M::try_from(opened).map_err(kernel("check of its type and sizes"))
}

/// The outcome of an update of an entry.
fn updated(map: &'static str, capacity: u32, outcome: Result<(), MapError>) -> Result<(), StoreError> {
    // A hash map is full with E2BIG, a trie with ENOSPC.
    const FULL: [i32; 2] = [nix::libc::E2BIG, nix::libc::ENOSPC];
    outcome.map_err(|source| match &source {
        MapError::SyscallError(error) if error.io_error.raw_os_error().is_some_and(|code| FULL.contains(&code)) => {
            StoreError::Full { map, capacity }
        }
        _ => StoreError::Kernel { map, operation: "update", source },
    })
}

/// The outcome of a deletion: what is not there is deleted already.
fn deleted(map: &'static str, outcome: Result<(), MapError>) -> Result<(), StoreError> {
    match outcome {
        Ok(()) | Err(MapError::KeyNotFound) => Ok(()),
        Err(MapError::SyscallError(error)) if error.io_error.raw_os_error() == Some(nix::libc::ENOENT) => Ok(()),
        Err(source) => Err(StoreError::Kernel { map, operation: "delete", source }),
    }
}

fn trie_key(key: &PrefixKey) -> TrieKey<Plain<ServicePrefix>> {
    TrieKey::new(key.length, Plain(key.prefix))
}

fn entries(map: &'static str, data: &MapData) -> Result<u32, StoreError> {
    Ok(info(map, data)?.max_entries())
}

fn info(map: &'static str, data: &MapData) -> Result<aya::maps::MapInfo, StoreError> {
    data.info().map_err(|source| StoreError::Kernel { map, operation: "query", source })
}

/// Maps an array of `T` values.
fn mapped<T: bytemuck::Pod>(map: &'static str, data: &MapData) -> Result<MappedArray, StoreError> {
    let info = info(map, data)?;
    let kind = info.map_type().map_err(|source| StoreError::Kernel { map, operation: "query", source })?;
    if kind != aya::maps::MapType::Array || info.value_size() as usize != size_of::<T>() {
        let expected = size_of::<T>();
        return Err(unusable(
            map,
            format!("it is {kind:?} with values of {} bytes, expected Array with {expected}", info.value_size()),
        ));
    }
    MappedArray::new(data.fd().as_fd(), size_of::<T>(), info.max_entries()).map_err(|errno| {
        unusable(map, format!("mapping it failed: {errno} (it must be created with BPF_F_MMAPABLE, kernel 5.5)"))
    })
}

/// Reads a value in words of eight bytes, and one of four where its size asks for it. Each word is read at once; a value of several is whole only if nobody
/// writes meanwhile, and the writer is the only one that does.
fn read<T: bytemuck::Pod>(map: &'static str, array: &MappedArray, index: u32) -> Result<T, StoreError> {
    check(map, index, 1, array.entries())?;
    let mut value = T::zeroed();
    let (words, rest) = bytemuck::bytes_of_mut(&mut value).as_chunks_mut::<8>();
    let end = words.len() * 8;
    for (number, bytes) in words.iter_mut().enumerate() {
        if let Some(word) = array.u64(index, number * 8) {
            *bytes = word.load(Acquire).to_ne_bytes();
        }
    }
    if let (Ok(bytes), Some(word)) = (<&mut [u8; 4]>::try_from(rest), array.u32(index, end)) {
        *bytes = word.load(Acquire).to_ne_bytes();
    }
    Ok(value)
}

/// Writes a value in the same words.
fn write<T: bytemuck::Pod>(map: &'static str, array: &MappedArray, index: u32, value: &T) -> Result<(), StoreError> {
    check(map, index, 1, array.entries())?;
    let (words, rest) = bytemuck::bytes_of(value).as_chunks::<8>();
    for (number, bytes) in words.iter().enumerate() {
        if let Some(word) = array.u64(index, number * 8) {
            word.store(u64::from_ne_bytes(*bytes), Release);
        }
    }
    if let (Ok(bytes), Some(word)) = (<[u8; 4]>::try_from(rest), array.u32(index, words.len() * 8)) {
        word.store(u32::from_ne_bytes(bytes), Release);
    }
    Ok(())
}

impl MapStore for KernelStore {
    fn capacity(&self) -> Capacity {
        self.capacity
    }

    fn services(&self) -> Result<Vec<(ServiceKey, Service)>, StoreError> {
        let read = |entry: Result<_, _>| entry.map(|(key, value): (Plain<_>, Plain<_>)| (key.0, value.0));
        self.services.iter().map(read).collect::<Result<_, _>>().map_err(|source| StoreError::Kernel {
            map: names::SERVICES,
            operation: "iterate",
            source,
        })
    }

    fn set_service(&mut self, key: &ServiceKey, value: &Service) -> Result<(), StoreError> {
        let outcome = self.services.insert(Plain(*key), Plain(*value), 0);
        updated(names::SERVICES, self.capacity.services, outcome)
    }

    fn delete_service(&mut self, key: &ServiceKey) -> Result<(), StoreError> {
        deleted(names::SERVICES, self.services.remove(&Plain(*key)))
    }

    fn prefixes(&self) -> Result<Vec<(PrefixKey, Service)>, StoreError> {
        let read = |entry: Result<(TrieKey<Plain<ServicePrefix>>, Plain<Service>), _>| {
            entry.map(|(key, value)| (PrefixKey { length: key.prefix_len(), prefix: key.data().0 }, value.0))
        };
        let kernel = |source| StoreError::Kernel { map: names::PREFIXES, operation: "iterate", source };
        self.prefixes.iter().map(read).collect::<Result<_, _>>().map_err(kernel)
    }

    fn set_prefix(&mut self, key: &PrefixKey, value: &Service) -> Result<(), StoreError> {
        let outcome = self.prefixes.insert(&trie_key(key), Plain(*value), 0);
        updated(names::PREFIXES, self.capacity.prefixes, outcome)
    }

    fn delete_prefix(&mut self, key: &PrefixKey) -> Result<(), StoreError> {
        deleted(names::PREFIXES, self.prefixes.remove(&trie_key(key)))
    }

    fn networks(&self) -> Result<Vec<Network>, StoreError> {
        let read = |key: Result<TrieKey<Plain<NetworkKey>>, _>| {
            key.map(|key| Network::from_key(key.prefix_len(), &key.data().0))
        };
        let kernel = |source| StoreError::Kernel { map: names::NETWORKS, operation: "iterate", source };
        self.networks.keys().map(read).collect::<Result<_, _>>().map_err(kernel)
    }

    fn set_network(&mut self, network: &Network) -> Result<(), StoreError> {
        let outcome = self.networks.insert(&TrieKey::new(network.length, Plain(network.key())), 1, 0);
        updated(names::NETWORKS, self.capacity.networks, outcome)
    }

    fn delete_network(&mut self, network: &Network) -> Result<(), StoreError> {
        deleted(names::NETWORKS, self.networks.remove(&TrieKey::new(network.length, Plain(network.key()))))
    }

    fn lookups(&self) -> Result<u32, StoreError> {
        let kernel = |source| StoreError::Kernel { map: names::LOOKUPS, operation: "read", source };
        self.lookups.get(&0, 0).map_err(kernel)
    }

    fn set_lookups(&mut self, value: u32) -> Result<(), StoreError> {
        let kernel = |source| StoreError::Kernel { map: names::LOOKUPS, operation: "update", source };
        self.lookups.set(0, value, 0).map_err(kernel)
    }

    fn slots(&self, base: u32, length: u32) -> Result<Vec<DestinationSlot>, StoreError> {
        check(names::SLOTS, base, length, self.capacity.slots)?;
        (base..base + length).map(|slot| read(names::SLOTS, &self.slots, slot)).collect()
    }

    fn set_slots(&mut self, base: u32, slots: &[DestinationSlot]) -> Result<(), StoreError> {
        check(names::SLOTS, base, slots.len() as u32, self.capacity.slots)?;
        (base..).zip(slots).try_for_each(|(slot, value)| write(names::SLOTS, &self.slots, slot, value))
    }

    fn destination(&self, id: u32) -> Result<Destination, StoreError> {
        read(names::DESTINATIONS, &self.destinations, id)
    }

    fn set_destination(&mut self, id: u32, value: &Destination) -> Result<(), StoreError> {
        write(names::DESTINATIONS, &self.destinations, id, value)
    }

    fn load(&self, id: u32) -> Result<DestinationLoad, StoreError> {
        read(names::LOAD, &self.load, id)
    }

    fn reset_load(&mut self, id: u32) -> Result<(), StoreError> {
        check(names::LOAD, id, 1, self.load.entries())?;
        let connections = self.load.u64(id, std::mem::offset_of!(DestinationLoad, connections));
        let remote = self.load.u32(id, std::mem::offset_of!(DestinationLoad, remote_active));
        let changes = self.load.u32(id, std::mem::offset_of!(DestinationLoad, changes));
        connections.into_iter().for_each(|word| word.store(0, Release));
        remote.into_iter().for_each(|word| word.store(0, Release));
        changes.into_iter().for_each(|word| {
            word.fetch_add(1, AcqRel);
        });
        Ok(())
    }

    fn exchange_connections(&mut self, id: u32, current: u64, new: u64) -> Result<Result<(), u64>, StoreError> {
        check(names::LOAD, id, 1, self.load.entries())?;
        let word = self.load.u64(id, std::mem::offset_of!(DestinationLoad, connections));
        Ok(word.map_or(Ok(()), |word| word.compare_exchange(current, new, AcqRel, Acquire).map(|_| ())))
    }

    fn templates(&self) -> Result<collections::HashMap<u32, Duration>, StoreError> {
        let kernel = |source| StoreError::Kernel { map: names::CONNECTIONS, operation: "iterate", source };
        let now = monotonic_now();
        let mut named = collections::HashMap::new();
        for key in self.connections.keys() {
            let key = key.map_err(kernel)?;
            if key.0.kind != KEY_TEMPLATE {
                continue;
            }
            match self.connections.get(&key, 0) {
                Ok(template) => {
                    let end =
                        Duration::from_nanos(template.0.last_seen) + Duration::from_millis(template.0.timeout.into());
                    let left = named.entry(template.0.server).or_insert(Duration::ZERO);
                    *left = end.saturating_sub(now).max(*left);
                }
                Err(MapError::KeyNotFound) => {}
                Err(source) => return Err(kernel(source)),
            }
        }
        Ok(named)
    }

    fn traffic(&self, id: u32) -> Result<Traffic, StoreError> {
        let values = self.traffic.get(&id, 0).map_err(|source| StoreError::Kernel {
            map: names::TRAFFIC,
            operation: "read",
            source,
        })?;
        Ok(values.iter().fold(Traffic::zeroed(), |sum, cpu| sum.plus(&cpu.0)))
    }

    fn reset_traffic(&mut self, id: u32) -> Result<(), StoreError> {
        let zero = vec![Plain(Traffic::zeroed()); self.cpus];
        PerCpuValues::try_from(zero)
            .map_err(MapError::IoError)
            .and_then(|values| self.traffic.set(id, values, 0))
            .map_err(|source| StoreError::Kernel { map: names::TRAFFIC, operation: "update", source })
    }

    fn retired(&self, service: u32) -> Result<Traffic, StoreError> {
        read(names::RETIRED, &self.retired, service)
    }

    fn set_retired(&mut self, service: u32, value: &Traffic) -> Result<(), StoreError> {
        write(names::RETIRED, &self.retired, service, value)
    }

    fn affinity(&self, service: u32) -> Result<AffinityTimeout, StoreError> {
        read(names::AFFINITY, &self.affinity, service)
    }

    fn set_affinity(&mut self, service: u32, value: &AffinityTimeout) -> Result<(), StoreError> {
        write(names::AFFINITY, &self.affinity, service, value)
    }

    fn word(&self, service: u32) -> Result<u64, StoreError> {
        read(names::WORDS, &self.words, service)
    }

    fn exchange_word(&mut self, service: u32, current: u64, new: u64) -> Result<Result<(), u64>, StoreError> {
        check(names::WORDS, service, 1, self.words.entries())?;
        Ok(self
            .words
            .u64(service, 0)
            .map_or(Ok(()), |word| word.compare_exchange(current, new, AcqRel, Acquire).map(|_| ())))
    }
}
