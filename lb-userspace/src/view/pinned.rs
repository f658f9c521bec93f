//! The maps under a pin directory.

use std::path::Path;

use anyhow::{Context, Result};
use aya::maps::lpm_trie::{Key, LpmTrie};
use aya::maps::{Array, HashMap, Map, MapData, MapError, MapInfo, PerCpuArray};
use lb_common::layout::{
    Connection, ConnectionKey, Destination, DestinationLoad, DestinationSlot, NetworkKey, Service, ServiceKey,
    ServicePrefix, Settings, SocketConnection, SocketFlow, SocketFlowKey, Traffic, VERSION,
};

use super::tables::Tables;
use crate::datapath::{Network, PrefixKey};
use crate::kernel::pins::Pins;
use crate::kernel::raw::Raw;

/// Pinned maps, opened.
pub struct Pinned {
    services: HashMap<MapData, Raw<ServiceKey>, Raw<Service>>,
    prefixes: LpmTrie<MapData, Raw<ServicePrefix>, Raw<Service>>,
    networks: LpmTrie<MapData, Raw<NetworkKey>, u32>,
    service_capacity: u32,
    slots: Array<MapData, Raw<DestinationSlot>>,
    destinations: Array<MapData, Raw<Destination>>,
    load: Array<MapData, Raw<DestinationLoad>>,
    traffic: PerCpuArray<MapData, Raw<Traffic>>,
    retired: Array<MapData, Raw<Traffic>>,
    connections: HashMap<MapData, Raw<ConnectionKey>, Raw<Connection>>,
    sockets: HashMap<MapData, Raw<u64>, Raw<SocketConnection>>,
    socket_flows: HashMap<MapData, Raw<SocketFlowKey>, Raw<SocketFlow>>,
    settings: Array<MapData, Raw<Settings>>,
}

impl Pinned {
    /// Opens the maps.
    ///
    /// # Errors
    ///
    /// Says which pin is missing or of another version, and what to do.
    pub fn open(pins: &Pins) -> Result<Self> {
        let settings = open::<Array<_, _>>(pins, "settings")?;
        let opened = Self {
            services: open(pins, "services")?,
            prefixes: open(pins, "service_prefixes")?,
            networks: open(pins, "networks")?,
            service_capacity: info(&pins.map("services"))?.max_entries(),
            slots: open(pins, "destination_slots")?,
            destinations: open(pins, "destinations")?,
            load: open(pins, "destination_load")?,
            traffic: open(pins, "destination_traffic")?,
            retired: open(pins, "service_retired")?,
            connections: open(pins, "connections")?,
            sockets: open(pins, "sockets")?,
            socket_flows: open(pins, "socket_flows")?,
            settings,
        };
        let version = opened.settings()?.version;
        anyhow::ensure!(
            version == VERSION || version == 0,
            "the maps under {} have layout version {version}, this bpvs reads {VERSION}: use the bpvs that made them",
            pins.root().display()
        );
        Ok(opened)
    }
}

fn info(path: &Path) -> Result<MapInfo> {
    MapInfo::from_pin(path).with_context(|| format!("cannot read the map {}", path.display()))
}

/// Opens one pinned map as the type it should have.
pub(crate) fn open<M: TryFrom<Map, Error = MapError>>(pins: &Pins, name: &str) -> Result<M> {
    let path = pins.map(name);
    match std::fs::symlink_metadata(&path) {
        Ok(_) => {}
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => anyhow::bail!(
            "no map {}: start `bpvs run`, or give the --pin-path that it has{}",
            path.display(),
            if pins.root().exists() { "" } else { " (`ip netns exec` hides /sys/fs/bpf, `nsenter --net=` does not)" }
        ),
        Err(error) => {
            return Err(error).with_context(|| format!("cannot look at the map {} (this needs root)", path.display()));
        }
    }
    let data = MapData::from_pin(&path)
        .with_context(|| format!("cannot open the map {} (this needs root)", path.display()))?;
    Map::from_map_data(data)
        .and_then(M::try_from)
        .with_context(|| format!("{} has another layout: use the bpvs that made it", path.display()))
}

/// All entries of a hash map. Entries that come or go meanwhile may or may not be among them.
fn entries<K: bytemuck::Pod, V: bytemuck::Pod>(map: &HashMap<MapData, Raw<K>, Raw<V>>) -> Result<Vec<(K, V)>> {
    map.iter()
        .filter_map(|entry| match entry {
            Ok((key, value)) => Some(Ok((key.0, value.0))),
            Err(MapError::KeyNotFound) => None,
            Err(error) => Some(Err(error.into())),
        })
        .collect()
}

impl Tables for Pinned {
    fn services(&self) -> Result<Vec<(ServiceKey, Service)>> {
        entries(&self.services).context("cannot read the map `services`")
    }

    fn service(&self, key: &ServiceKey) -> Result<Option<Service>> {
        match self.services.get(&Raw(*key), 0) {
            Ok(service) => Ok(Some(service.0)),
            Err(MapError::KeyNotFound) => Ok(None),
            Err(error) => Err(error).context("cannot read the map `services`"),
        }
    }

    fn prefixes(&self) -> Result<Vec<(PrefixKey, Service)>> {
        let entries = self.prefixes.iter().filter_map(|entry| match entry {
            Ok((key, value)) => Some(Ok((PrefixKey { length: key.prefix_len(), prefix: key.data().0 }, value.0))),
            Err(MapError::KeyNotFound) => None,
            Err(error) => Some(Err(error)),
        });
        entries.collect::<Result<_, _>>().context("cannot read the map `service_prefixes`")
    }

    fn prefix(&self, key: &PrefixKey) -> Result<Option<Service>> {
        match self.prefixes.get(&Key::new(key.length, Raw(key.prefix)), 0) {
            Ok(service) => Ok(Some(service.0)),
            Err(MapError::KeyNotFound) => Ok(None),
            Err(error) => Err(error).context("cannot read the map `service_prefixes`"),
        }
    }

    fn networks(&self) -> Result<Vec<Network>> {
        let read =
            |key: Result<Key<Raw<NetworkKey>>, _>| key.map(|key| Network::from_key(key.prefix_len(), &key.data().0));
        self.networks.keys().map(read).collect::<Result<_, _>>().context("cannot read the map `networks`")
    }

    fn service_capacity(&self) -> u32 {
        self.service_capacity
    }

    fn slot(&self, index: u32) -> Result<DestinationSlot> {
        Ok(self.slots.get(&index, 0).context("cannot read the map `destination_slots`")?.0)
    }

    fn destination(&self, id: u32) -> Result<Destination> {
        Ok(self.destinations.get(&id, 0).context("cannot read the map `destinations`")?.0)
    }

    fn destinations(&self) -> Result<Vec<(u32, Destination)>> {
        let all = (1..self.destinations.len()).map(|id| Ok((id, self.destination(id)?)));
        all.filter(|entry| entry.as_ref().map_or(true, |(_, destination)| destination.service != 0)).collect()
    }

    fn load(&self, id: u32) -> Result<DestinationLoad> {
        Ok(self.load.get(&id, 0).context("cannot read the map `destination_load`")?.0)
    }

    fn traffic(&self, id: u32) -> Result<Traffic> {
        let values = self.traffic.get(&id, 0).context("cannot read the map `destination_traffic`")?;
        Ok(values.iter().fold(Traffic::default(), |sum, Raw(cpu)| sum.plus(cpu)))
    }

    fn retired(&self, service: u32) -> Result<Traffic> {
        Ok(self.retired.get(&service, 0).context("cannot read the map `service_retired`")?.0)
    }

    fn connections(&self) -> Result<Vec<(ConnectionKey, Connection)>> {
        entries(&self.connections).context("cannot read the map `connections`")
    }

    fn sockets(&self) -> Result<Vec<(u64, SocketConnection)>> {
        entries(&self.sockets).context("cannot read the map `sockets`")
    }

    fn socket_flows(&self) -> Result<Vec<(SocketFlowKey, SocketFlow)>> {
        entries(&self.socket_flows).context("cannot read the map `socket_flows`")
    }

    fn settings(&self) -> Result<Settings> {
        Ok(self.settings.get(&0, 0).context("cannot read the map `settings`")?.0)
    }
}
