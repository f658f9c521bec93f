//! The maps in the kernel: `services` by system calls, the arrays through shared memory.
//!
//! Values are written into the mapped arrays before `services` publishes them. That order holds for packets too: the
//! stores are atomics that no compiler moves across the system call, the kernel links a hash element in with release
//! ordering, and a program finds slots and destinations only through what it read from that element.

use std::{
    fmt,
    os::fd::AsFd,
    path::Path,
    sync::atomic::Ordering::{AcqRel, Acquire, Release},
};

use aya::maps::{HashMap, Map, MapData, MapError, PerCpuArray, PerCpuValues};
use bytemuck::Zeroable;
use lb_common::layout::{Destination, DestinationLoad, DestinationSlot, Service, ServiceKey, Traffic};

use super::{Capacity, MapStore, StoreError, check, mapping::MappedArray, names};

/// Gives a type of `lb-common` to aya. Both crates mean the same by `Pod`, but each has a trait of its own.
#[derive(Clone, Copy)]
#[repr(transparent)]
struct Plain<T>(T);

// SAFETY: bytemuck's `Pod` says that every bit pattern is a value and that there is no padding, which is what aya asks
// for; the wrapper is transparent.
unsafe impl<T: bytemuck::Pod> aya::Pod for Plain<T> {}

/// The maps that the store needs, by name.
#[derive(Debug)]
pub struct KernelMaps {
    /// Map `services`.
    pub services: MapData,
    /// Map `destination_slots`.
    pub slots: MapData,
    /// Map `destinations`.
    pub destinations: MapData,
    /// Map `destination_load`.
    pub load: MapData,
    /// Map `destination_traffic`.
    pub traffic: MapData,
    /// Map `service_retired`.
    pub retired: MapData,
    /// Map `scheduler_state`.
    pub words: MapData,
}

impl KernelMaps {
    /// The maps that `find` returns for each name.
    ///
    /// # Errors
    /// The first error of `find`.
    pub fn find<E>(mut find: impl FnMut(&'static str) -> Result<MapData, E>) -> Result<Self, E> {
        Ok(Self {
            services: find(names::SERVICES)?,
            slots: find(names::SLOTS)?,
            destinations: find(names::DESTINATIONS)?,
            load: find(names::LOAD)?,
            traffic: find(names::TRAFFIC)?,
            retired: find(names::RETIRED)?,
            words: find(names::WORDS)?,
        })
    }

    /// The maps pinned by their names in a folder of a BPF file system.
    ///
    /// # Errors
    /// A pin that is missing or may not be opened.
    pub fn pinned(folder: &Path) -> Result<Self, StoreError> {
        Self::find(|map| {
            MapData::from_pin(folder.join(map)).map_err(|source| StoreError::Kernel {
                map,
                operation: "open pin",
                source,
            })
        })
    }

    /// Second handles to the maps of a loaded object, which keeps its own.
    ///
    /// # Errors
    /// A map that the object lacks, or that is of another type than expected.
    pub fn of(object: &aya::Ebpf) -> Result<Self, StoreError> {
        Self::find(|map| {
            let data = match object.map(map) {
                Some(Map::HashMap(data) | Map::Array(data) | Map::PerCpuArray(data)) => data,
                Some(_) => return Err(unusable(map, "it is of another type than expected".to_owned())),
                None => return Err(unusable(map, "the BPF object does not have it".to_owned())),
            };
            let kernel = |source| StoreError::Kernel { map, operation: "duplicate descriptor", source };
            let fd = data.fd().as_fd().try_clone_to_owned().map_err(|error| kernel(MapError::IoError(error)))?;
            MapData::from_fd(fd).map_err(kernel)
        })
    }
}

/// Maps in the kernel.
pub struct KernelStore {
    services: HashMap<MapData, Plain<ServiceKey>, Plain<Service>>,
    traffic: PerCpuArray<MapData, Plain<Traffic>>,
    slots: MappedArray,
    destinations: MappedArray,
    load: MappedArray,
    retired: MappedArray,
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
        let kernel = |map, operation| move |source| StoreError::Kernel { map, operation, source };
        let slots = mapped::<DestinationSlot>(names::SLOTS, &maps.slots)?;
        let destinations = mapped::<Destination>(names::DESTINATIONS, &maps.destinations)?;
        let load = mapped::<DestinationLoad>(names::LOAD, &maps.load)?;
        let retired = mapped::<Traffic>(names::RETIRED, &maps.retired)?;
        let words = mapped::<u64>(names::WORDS, &maps.words)?;
        let services = entries(names::SERVICES, &maps.services)?;
        let services_map =
            HashMap::try_from(Map::from_map_data(maps.services).map_err(kernel(names::SERVICES, "open"))?)
                .map_err(kernel(names::SERVICES, "check of its type and sizes"))?;
        let traffic = PerCpuArray::try_from(Map::from_map_data(maps.traffic).map_err(kernel(names::TRAFFIC, "open"))?)
            .map_err(kernel(names::TRAFFIC, "check of its type and sizes"))?;
        let capacity = Capacity {
            services,
            service_ids: words.entries().min(retired.entries()),
            destinations: destinations.entries().min(load.entries()).min(traffic.len()),
            slots: slots.entries(),
        };
        let cpus = aya::util::nr_cpus().map_err(|(file, error)| {
            unusable(names::TRAFFIC, format!("the CPUs cannot be counted from {file}: {error}"))
        })?;
        Ok(Self { services: services_map, traffic, slots, destinations, load, retired, words, capacity, cpus })
    }
}

fn unusable(map: &'static str, problem: String) -> StoreError {
    StoreError::Unusable { map, problem }
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

/// Reads a value in words of eight bytes. Each word is read at once; a value of several is whole only if nobody
/// writes meanwhile, and the writer is the only one that does.
fn read<T: bytemuck::Pod>(map: &'static str, array: &MappedArray, index: u32) -> Result<T, StoreError> {
    check(map, index, 1, array.entries())?;
    let mut value = T::zeroed();
    for (number, bytes) in bytemuck::bytes_of_mut(&mut value).chunks_exact_mut(8).enumerate() {
        if let Some(word) = array.u64(index, number * 8) {
            bytes.copy_from_slice(&word.load(Acquire).to_ne_bytes());
        }
    }
    Ok(value)
}

/// Writes a value in words of eight bytes.
fn write<T: bytemuck::Pod>(map: &'static str, array: &MappedArray, index: u32, value: &T) -> Result<(), StoreError> {
    check(map, index, 1, array.entries())?;
    for (number, bytes) in bytemuck::bytes_of(value).chunks_exact(8).enumerate() {
        if let Some(word) = array.u64(index, number * 8) {
            word.store(bytemuck::pod_read_unaligned(bytes), Release);
        }
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
        self.services.insert(Plain(*key), Plain(*value), 0).map_err(|source| match &source {
            MapError::SyscallError(error) if error.io_error.raw_os_error() == Some(nix::libc::E2BIG) => {
                StoreError::Full { map: names::SERVICES, capacity: self.capacity.services }
            }
            _ => StoreError::Kernel { map: names::SERVICES, operation: "update", source },
        })
    }

    fn delete_service(&mut self, key: &ServiceKey) -> Result<(), StoreError> {
        match self.services.remove(&Plain(*key)) {
            Ok(()) | Err(MapError::KeyNotFound) => Ok(()),
            Err(MapError::SyscallError(error)) if error.io_error.raw_os_error() == Some(nix::libc::ENOENT) => Ok(()),
            Err(source) => Err(StoreError::Kernel { map: names::SERVICES, operation: "delete", source }),
        }
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
