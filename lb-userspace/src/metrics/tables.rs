//! How full the maps are, what was dropped, and what sweeps did.

use anyhow::{Context, Result};
use aya::maps::{Array, HashMap, MapData, MapError, MapInfo, PerCpuArray};
use lb_common::drops::Drop;
use lb_common::layout::{Service, SocketConnection, SocketFlow, SocketFlowKey, SweepResult};
use prometheus::proto::MetricFamily;

use super::family::{Family, Kind};
use super::services::Existing;
use crate::datapath::Key;
use crate::kernel::pins::Pins;
use crate::kernel::raw::Raw;
use crate::view::pinned::open;

/// The maps that tell it.
pub(super) struct Tables {
    drops: PerCpuArray<MapData, u64>,
    sweep: Array<MapData, Raw<SweepResult>>,
    sockets: HashMap<MapData, Raw<u64>, Raw<SocketConnection>>,
    socket_flows: HashMap<MapData, Raw<SocketFlowKey>, Raw<SocketFlow>>,
    /// How many entries each map that can be full has room for.
    sizes: Vec<(&'static str, u32)>,
}

/// The maps that can be full, by their names.
const FILLED: [&str; 7] =
    ["connections", "destination_slots", "destinations", "service_prefixes", "services", "socket_flows", "sockets"];

impl Tables {
    pub(super) fn open(pins: &Pins) -> Result<Self> {
        let size = |map| {
            let info = MapInfo::from_pin(pins.map(map)).with_context(|| format!("cannot read the map `{map}`"))?;
            Ok((map, info.max_entries()))
        };
        Ok(Self {
            drops: open(pins, "drops")?,
            sweep: open(pins, "sweep_result")?,
            sockets: open(pins, "sockets")?,
            socket_flows: open(pins, "socket_flows")?,
            sizes: FILLED.into_iter().map(size).collect::<Result<_>>()?,
        })
    }

    pub(super) fn families(&self, existing: &Existing) -> Result<Vec<MetricFamily>> {
        let sweep = self.sweep.get(&0, 0).context("cannot read the map `sweep_result`")?.0;
        let (used, sizes) = self.filled(existing, &sweep)?;
        let mut families = vec![self.dropped()?];
        families.extend([used.done(), sizes.done()].into_iter().flatten());
        families.extend(swept(&sweep));
        Ok(families)
    }

    /// Packets by reason, also those that there were none of.
    fn dropped(&self) -> Result<MetricFamily> {
        let mut dropped =
            Family::new(Kind::Counter, "bpvs_dropped_packets_total", "Packets dropped or refused, by reason");
        for reason in Drop::ALL {
            let values = self.drops.get(&(reason as u32), 0).context("cannot read the map `drops`")?;
            dropped.add(&[("reason", reason.name())], values.iter().sum());
        }
        dropped.done().context("there are no reasons")
    }

    fn filled(&self, existing: &Existing, sweep: &SweepResult) -> Result<(Family, Family)> {
        let prefixes = existing.services.iter().filter(|(key, _)| matches!(key, Key::Prefix(_))).count();
        let slots = |service: &Service| u64::from(service.set_length) + u64::from(service.table_length);
        let mut used =
            Family::new(Kind::Gauge, "bpvs_map_entries", "Entries in use; of connections, when they were last swept");
        let mut sizes = Family::new(Kind::Gauge, "bpvs_map_max_entries", "Entries that there is room for");
        for &(map, size) in &self.sizes {
            let entries = match map {
                "connections" => sweep.entries,
                "destination_slots" => existing.services.iter().map(|(_, service)| slots(service)).sum(),
                "destinations" => existing.members.values().map(|members| members.len() as u64).sum(),
                "service_prefixes" => prefixes as u64,
                "services" => (existing.services.len() - prefixes) as u64,
                "socket_flows" => count(self.socket_flows.keys()).context("cannot read the map `socket_flows`")?,
                "sockets" => count(self.sockets.keys()).context("cannot read the map `sockets`")?,
                other => anyhow::bail!("the entries of the map `{other}` cannot be counted"),
            };
            used.add(&[("map", map)], entries);
            sizes.add(&[("map", map)], size.into());
        }
        Ok((used, sizes))
    }
}

/// Keys that come or go meanwhile may or may not be counted.
fn count<K>(keys: impl Iterator<Item = Result<K, MapError>>) -> Result<u64, MapError> {
    let mut count = 0;
    for key in keys {
        match key {
            Ok(_) => count += 1,
            Err(MapError::KeyNotFound) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(count)
}

fn swept(sweep: &SweepResult) -> impl Iterator<Item = MetricFamily> {
    let counters = [
        (
            "bpvs_sweep_expired_connections_total",
            "Connections that the sweep removed, their time being over",
            sweep.expired,
        ),
        (
            "bpvs_sweep_orphans_total",
            "Reply entries without their connection that the sweep removed; 0 unless the kernel lost a delete",
            sweep.orphans,
        ),
        (
            "bpvs_recounts_total",
            "Times that the connection counts of all destinations were checked against the connections",
            sweep.recounts,
        ),
        (
            "bpvs_recount_corrections_total",
            "Destinations whose connection counts a recount had to correct; 0 unless a change was lost",
            sweep.corrections,
        ),
    ];
    counters.into_iter().filter_map(|(name, help, value)| Family::single(Kind::Counter, name, help, value))
}
