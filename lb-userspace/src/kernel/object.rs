//! The embedded BPF object: its maps made or adopted, its programs loaded.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, bail};
use aya::maps::{Map, MapData, MapInfo};
use aya::programs::{Program, ProgramError};
use aya::{Ebpf, EbpfLoader};
use lb_common::layout::VERSION;

use super::attach::{Direction, Forwarding, xdp};
use super::bpf::{self, Kind, XdpMode};
use super::pins::Pins;
use super::sizes::Sizes;

/// The BPF object that this binary was built with.
pub static OBJECT: &[u8] = aya::include_bytes_aligned!(env!("BPVS_BPF_OBJECT"));

/// The program that sweeps.
pub const SWEEP: &str = "bpvs_sweep";

/// Which programs are loaded besides the one that sweeps: what is not wanted is not verified, which takes its time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Wanted {
    /// How packets are forwarded.
    pub forwarding: Forwarding,
    /// Those of the cgroup.
    pub sockets: bool,
    /// XDP's for this mode.
    pub uplinks: Option<XdpMode>,
}

/// The programs of the cgroup, where sockets of this node are balanced.
pub const SOCKET_PROGRAMS: [&str; 9] = [
    "bpvs_connect4",
    "bpvs_connect6",
    "bpvs_sendmsg4",
    "bpvs_sendmsg6",
    "bpvs_recvmsg4",
    "bpvs_recvmsg6",
    "bpvs_getpeername4",
    "bpvs_getpeername6",
    "bpvs_release",
];

/// What a map must be to be ours.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shape {
    /// `BPF_MAP_TYPE_*`.
    pub map_type: u32,
    /// Bytes of a key.
    pub key_size: u32,
    /// Bytes of a value.
    pub value_size: u32,
    /// Entries.
    pub entries: u32,
}

/// The maps of the object that are pinned, by name, with the sizes asked for.
pub fn expected_maps(sizes: &Sizes) -> Result<BTreeMap<String, Shape>> {
    let object = aya_obj::Object::parse(OBJECT).context("the embedded BPF object is damaged: build bpvs again")?;
    let maps = object.maps.iter().filter(|(name, _)| !name.starts_with('.'));
    Ok(maps
        .map(|(name, map)| {
            let shape = Shape {
                map_type: map.map_type(),
                key_size: map.key_size(),
                value_size: map.value_size(),
                entries: sizes.entries(name).unwrap_or(map.max_entries()),
            };
            (name.clone(), shape)
        })
        .collect())
}

/// The object in the kernel.
#[derive(Debug)]
pub struct Loaded {
    /// aya's handle. Links are not in it: pinned ones outlive this process.
    pub ebpf: Ebpf,
    /// How many maps were found pinned and kept.
    pub adopted: usize,
    /// Entries that each map has, which are the pinned map's where one was adopted.
    pub entries: BTreeMap<String, u32>,
}

/// Makes the maps, or adopts those that are pinned; loads the programs. Pinned maps keep the size that they were made
/// with: another size cannot be had without losing what they hold, so a difference is a warning that says how.
///
/// # Errors
///
/// Says which pin is in the way and why. Nothing that was there before is changed then, and nothing new stays.
pub fn load(pins: &Pins, sizes: &Sizes, wanted: Wanted) -> Result<Loaded> {
    let mut expected = expected_maps(sizes)?;
    let present = inspect(pins, &mut expected)?;
    pins.create()?;
    let result = load_into(pins, &expected, wanted);
    if result.is_err() {
        // What this attempt has made holds nothing yet; without it the next attempt starts clean.
        for name in expected.keys().filter(|name| !present.contains(name)) {
            let _gone_already = std::fs::remove_file(pins.map(name));
        }
    }
    result.map(|ebpf| Loaded {
        ebpf,
        adopted: present.len(),
        entries: expected.into_iter().map(|(name, shape)| (name, shape.entries)).collect(),
    })
}

fn load_into(pins: &Pins, expected: &BTreeMap<String, Shape>, wanted: Wanted) -> Result<Ebpf> {
    let mut loader = EbpfLoader::new();
    for (name, shape) in expected {
        loader.map_max_entries(name, shape.entries);
        loader.map_pin_path(name, pins.map(name));
    }
    let mut ebpf = loader.load(OBJECT).map_err(|error| {
        anyhow::Error::from(error).context("cannot create the BPF maps; smaller --max-... settings need less memory")
    })?;
    let sockets: &[&str] = if wanted.sockets { &SOCKET_PROGRAMS } else { &[] };
    let classifiers = Direction::ALL.map(|direction| direction.program(wanted.forwarding));
    let uplinks = wanted.uplinks.map(xdp::program);
    for name in classifiers.iter().chain(&[SWEEP]).chain(sockets).chain(&uplinks) {
        load_program(&mut ebpf, name)?;
    }
    Ok(ebpf)
}

fn load_program(ebpf: &mut Ebpf, name: &str) -> Result<()> {
    let program = ebpf.program_mut(name).with_context(|| format!("the BPF object has no program `{name}`"))?;
    let result = match program {
        Program::SchedClassifier(program) => program.load(),
        Program::Xdp(program) => program.load(),
        Program::CgroupSockAddr(program) => program.load(),
        Program::CgroupSock(program) => program.load(),
        other => {
            bail!("program `{name}` of the BPF object is of type {:?}, which bpvs does not load", other.prog_type())
        }
    };
    match result {
        Err(ProgramError::LoadError { io_error, verifier_log }) => {
            let log = verifier_log.to_string();
            tracing::debug!("the verifier's log of `{name}`:\n{log}");
            let reason = reason(&log).unwrap_or("no reason given");
            bail!("the kernel refuses program `{name}`: {io_error}: {reason} (RUST_LOG=debug shows the whole log)")
        }
        other => other.with_context(|| format!("cannot load program `{name}`")),
    }
}

/// What the verifier objects to: the last line of its log that is no statistics.
fn reason(log: &str) -> Option<&str> {
    const STATISTICS: [&str; 3] = ["processed ", "verification time ", "stack depth "];
    let is_reason = |line: &&str| !line.trim().is_empty() && !STATISTICS.iter().any(|start| line.starts_with(start));
    log.lines().rev().find(is_reason)
}

/// Looks at what is pinned already, and takes over the sizes of what fits. Returns the names of the maps there.
fn inspect(pins: &Pins, expected: &mut BTreeMap<String, Shape>) -> Result<Vec<String>> {
    let root = pins.root().display();
    let names = pins.map_names().with_context(|| format!("cannot read {root}"))?;
    check_version(pins, &names)?;
    let mut kept = BTreeMap::new();
    for name in &names {
        let path = pins.map(name);
        let Some(shape) = expected.get_mut(name) else {
            bail!(
                "{} is not a map of this bpvs: remove it, or give another --pin-path; if another version of bpvs made \
                 it, run `bpvs cleanup --pin-path {root}` with that version",
                path.display()
            );
        };
        let found = found_shape(&path)?;
        let wanted = shape.entries;
        *shape = Shape { entries: found.entries, ..*shape };
        if found != *shape {
            bail!(
                "{} is a map of another layout: found {}, expected {}; run `bpvs cleanup --pin-path {root}` (open \
                 connections are lost) or give another --pin-path",
                path.display(),
                describe(&found),
                describe(shape)
            );
        }
        if found.entries != wanted {
            let option = Sizes::option(name).unwrap_or("its size");
            kept.entry(option).or_insert((name.clone(), found.entries, wanted));
        }
    }
    for name in pins.link_file_names()? {
        if super::pins::LinkName::parse(&name).is_none() {
            bail!("{} is not a link of bpvs: remove it, or give another --pin-path", pins.links().join(name).display());
        }
    }
    for (option, (name, found, wanted)) in kept {
        tracing::warn!(
            "{option} does not hold for pinned maps: `{name}` keeps its {found} entries instead of {wanted}; to change \
             that, stop the agent and run `bpvs cleanup --pin-path {root}` (open connections are lost)"
        );
    }
    Ok(names)
}

/// Reads the layout's version before anything else: after it, all other differences are to be expected.
fn check_version(pins: &Pins, names: &[String]) -> Result<()> {
    let path = pins.map("settings");
    if !names.iter().any(|name| name == "settings") {
        return Ok(());
    }
    let found = found_shape(&path)?;
    if found.value_size < 4 || found.key_size != 4 {
        // No settings of any version; the comparison of shapes will say so.
        return Ok(());
    }
    let version = stored_version(&path)?;
    // 0: an agent died between making the map and writing to it.
    if version != 0 && version != VERSION {
        bail!(
            "the maps under {root} have layout version {version}, this bpvs has {VERSION}: run `bpvs cleanup --pin-path \
             {root}` (open connections are lost), or the bpvs that made them",
            root = pins.root().display()
        );
    }
    Ok(())
}

fn stored_version(path: &Path) -> Result<u32> {
    use aya::maps::Array;
    use lb_common::layout::Settings;

    use super::raw::Raw;

    let map = Map::from_map_data(MapData::from_pin(path)?)?;
    match Array::<_, Raw<Settings>>::try_from(&map) {
        Ok(array) => Ok(array.get(&0, 0)?.0.version),
        // Of another size, hence of another version; which one does not matter.
        Err(_) => Ok(0),
    }
}

/// What a pinned map is.
fn found_shape(path: &Path) -> Result<Shape> {
    let (_, kind) = bpf::open_pin(path).with_context(|| {
        format!("{} is not a pinned BPF map: remove it, or give another --pin-path", path.display())
    })?;
    if kind != Kind::Map {
        bail!("{} is a BPF {}, not a map: remove it, or give another --pin-path", path.display(), kind.name());
    }
    let info = MapInfo::from_pin(path).with_context(|| format!("cannot read {}", path.display()))?;
    let map_type = info.map_type().map_or(0, |map_type| map_type as u32);
    Ok(Shape { map_type, key_size: info.key_size(), value_size: info.value_size(), entries: info.max_entries() })
}

fn describe(shape: &Shape) -> String {
    format!("type {} with keys of {} and values of {} bytes", shape.map_type, shape.key_size, shape.value_size)
}

#[cfg(test)]
mod tests {
    use std::mem::size_of;

    use lb_common::layout;

    use super::*;

    #[test]
    fn the_object_has_the_layouts_of_this_side() {
        let maps = expected_maps(&Sizes::default()).unwrap();
        let check = |name: &str, key: usize, value: usize| {
            let shape = maps.get(name).unwrap_or_else(|| panic!("no map {name}"));
            assert_eq!((shape.key_size as usize, shape.value_size as usize), (key, value), "{name}");
        };
        check("services", size_of::<layout::ServiceKey>(), size_of::<layout::Service>());
        check("service_prefixes", 4 + size_of::<layout::ServicePrefix>(), size_of::<layout::Service>());
        check("networks", 4 + size_of::<layout::NetworkKey>(), 4);
        check("lookups", 4, 4);
        check("destination_slots", 4, size_of::<layout::DestinationSlot>());
        check("destinations", 4, size_of::<layout::Destination>());
        check("destination_load", 4, size_of::<layout::DestinationLoad>());
        check("destination_traffic", 4, size_of::<layout::Traffic>());
        check("service_retired", 4, size_of::<layout::Traffic>());
        check("affinity_timeouts", 4, size_of::<layout::AffinityTimeout>());
        check("scheduler_state", 4, 8);
        check("connections", size_of::<layout::ConnectionKey>(), size_of::<layout::Connection>());
        check("socket_flows", size_of::<layout::SocketFlowKey>(), size_of::<layout::SocketFlow>());
        check("settings", 4, size_of::<layout::Settings>());
    }

    #[test]
    fn the_reason_of_a_refusal_is_found_before_the_verifiers_statistics() {
        let log = "1: (85) call bpf_loop#181\nR3 min value is outside\nverification time 5 usec\nstack depth 8+320\n\
                   processed 4242 insns (limit 1000000)\n\n";
        assert_eq!(reason(log), Some("R3 min value is outside"));
        assert_eq!(reason("\nprocessed 1 insns\n"), None);
    }

    #[test]
    fn the_object_has_every_program() {
        let object = aya_obj::Object::parse(OBJECT).unwrap();
        let classifiers = Direction::ALL.into_iter().flat_map(Direction::programs).chain([SWEEP]);
        for name in classifiers.chain(SOCKET_PROGRAMS) {
            assert!(object.programs.contains_key(name), "{name}");
        }
    }
}
