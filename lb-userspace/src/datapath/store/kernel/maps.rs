//! Which maps the store needs, and where they come from.

use std::{os::fd::AsFd, path::Path};

use aya::maps::{Map, MapData, MapError};

use super::{StoreError, names, unusable};

/// The maps that the store needs, by name.
#[derive(Debug)]
pub struct KernelMaps {
    /// Map `services`.
    pub services: MapData,
    /// Map `service_prefixes`.
    pub prefixes: MapData,
    /// Map `networks`.
    pub networks: MapData,
    /// Map `lookups`.
    pub lookups: MapData,
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
    /// Map `affinity_timeouts`.
    pub affinity: MapData,
    /// Map `scheduler_state`.
    pub words: MapData,
    /// Map `connections`.
    pub connections: MapData,
}

impl KernelMaps {
    /// The maps that `find` returns for each name.
    ///
    /// # Errors
    /// The first error of `find`.
    pub fn find<E>(mut find: impl FnMut(&'static str) -> Result<MapData, E>) -> Result<Self, E> {
        Ok(Self {
            services: find(names::SERVICES)?,
            prefixes: find(names::PREFIXES)?,
            networks: find(names::NETWORKS)?,
            lookups: find(names::LOOKUPS)?,
            slots: find(names::SLOTS)?,
            destinations: find(names::DESTINATIONS)?,
            load: find(names::LOAD)?,
            traffic: find(names::TRAFFIC)?,
            retired: find(names::RETIRED)?,
            affinity: find(names::AFFINITY)?,
            words: find(names::WORDS)?,
            connections: find(names::CONNECTIONS)?,
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
                Some(Map::HashMap(data) | Map::Array(data) | Map::PerCpuArray(data) | Map::LpmTrie(data)) => data,
                Some(_) => return Err(unusable(map, "it is of another type than expected".to_owned())),
                None => return Err(unusable(map, "the BPF object does not have it".to_owned())),
            };
            let kernel = |source| StoreError::Kernel { map, operation: "duplicate descriptor", source };
            let fd = data.fd().as_fd().try_clone_to_owned().map_err(|error| kernel(MapError::IoError(error)))?;
            MapData::from_fd(fd).map_err(kernel)
        })
    }
}
