//! Rows of `bpvs maps`.

use std::os::fd::{AsFd, AsRawFd};

use anyhow::{Context, Result};
use aya::maps::{MapData, MapInfo, MapType};
use lb_common::layout::Service;
use serde::Serialize;

use super::pinned::Pinned;
use super::tables::Tables;
use crate::kernel::pins::Pins;

/// A map.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct MapRow {
    /// Name.
    pub name: String,
    /// Type, as bpftool names it.
    pub map_type: String,
    /// Bytes of a key.
    pub key_bytes: u32,
    /// Bytes of a value.
    pub value_bytes: u32,
    /// Entries that it can hold.
    pub max_entries: u32,
    /// Entries in use, where the map tells.
    pub used_entries: Option<u64>,
    /// Memory that it takes, in bytes, where the kernel tells.
    pub memory_bytes: Option<u64>,
}

/// All maps under a pin directory, by name.
pub fn maps(pins: &Pins) -> Result<Vec<MapRow>> {
    let tables = Pinned::open(pins)?;
    let used = Used::count(&tables)?;
    pins.map_names()?
        .into_iter()
        .map(|name| {
            let path = pins.map(&name);
            let context = || format!("cannot read the map {}", path.display());
            let info = MapInfo::from_pin(&path).with_context(context)?;
            let data = MapData::from_pin(&path).with_context(context)?;
            let fdinfo = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", data.fd().as_fd().as_raw_fd()));
            Ok(MapRow {
                map_type: info.map_type().map_or_else(|_| "?".to_owned(), type_name),
                key_bytes: info.key_size(),
                value_bytes: info.value_size(),
                max_entries: info.max_entries(),
                used_entries: used.of(&name),
                memory_bytes: fdinfo.ok().as_deref().and_then(locked_memory),
                name,
            })
        })
        .collect()
}

/// Entries in use. Of the maps that only BPF reads, none are counted.
struct Used {
    services: u64,
    prefixes: u64,
    destinations: u64,
    slots: u64,
    connections: u64,
    sockets: u64,
    socket_flows: u64,
}

impl Used {
    fn count(tables: &Pinned) -> Result<Self> {
        let services = tables.services()?;
        let prefixes = tables.prefixes()?;
        let entries = services.iter().map(|(_, service)| service).chain(prefixes.iter().map(|(_, service)| service));
        Ok(Self {
            services: services.len() as u64,
            prefixes: prefixes.len() as u64,
            destinations: tables.destinations()?.len() as u64,
            slots: entries.map(slots).sum(),
            connections: tables.connections()?.len() as u64,
            sockets: tables.sockets()?.len() as u64,
            socket_flows: tables.socket_flows()?.len() as u64,
        })
    }

    fn of(&self, map: &str) -> Option<u64> {
        Some(match map {
            "services" => self.services,
            "service_prefixes" => self.prefixes,
            "scheduler_state" | "service_retired" | "affinity_timeouts" => self.services + self.prefixes,
            "destinations" | "destination_load" | "destination_traffic" => self.destinations,
            "destination_slots" => self.slots,
            "connections" => self.connections,
            "sockets" => self.sockets,
            "socket_flows" => self.socket_flows,
            _ => return None,
        })
    }
}

fn slots(service: &Service) -> u64 {
    u64::from(service.set_length) + u64::from(service.table_length)
}

fn type_name(map_type: MapType) -> String {
    match map_type {
        MapType::Hash => "hash".to_owned(),
        MapType::LruHash => "lru_hash".to_owned(),
        MapType::LpmTrie => "lpm_trie".to_owned(),
        MapType::Array => "array".to_owned(),
        MapType::PerCpuArray => "percpu_array".to_owned(),
        other => format!("{other:?}").to_lowercase(),
    }
}

/// The `memlock` line of a map's fdinfo.
fn locked_memory(fdinfo: &str) -> Option<u64> {
    fdinfo.lines().find_map(|line| line.strip_prefix("memlock:"))?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_read_from_the_descriptor() {
        assert_eq!(locked_memory("pos:\t0\nmap_type:\t1\nmemlock:\t4096\nfrozen:\t0\n"), Some(4096));
        assert_eq!(locked_memory("pos:\t0\n"), None);
    }
}
