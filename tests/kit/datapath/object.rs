//! The BPF object: found, loaded with small maps, verified by the running kernel.

use std::{env, fs, path::PathBuf};

use anyhow::{Context, Result, bail};
use aya::{Ebpf, EbpfLoader, programs::Program};

/// Names another BPF object than the one that was built last.
pub const OBJECT_VARIABLE: &str = "BPVS_BPF_OBJECT";

/// Entries of the maps. Small by default, so that many tests can hold a datapath of their own at a time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sizes {
    /// `services` and `service_prefixes`; `networks` holds as many cluster addresses, and networks beside them.
    pub services: u32,
    /// `scheduler_state`: the highest service id is one less.
    pub service_ids: u32,
    /// `destination_slots`.
    pub slots: u32,
    /// `destinations` and the maps with the same index.
    pub destinations: u32,
    /// `connections`; a connection has two entries.
    pub connections: u32,
    /// `locality` and `locality_sets`. LRU maps free in batches for each CPU: what must not be forgotten takes many
    /// times its size.
    pub locality: u32,
    /// `fragments`, LRU likewise.
    pub fragments: u32,
    /// `sockets` and `socket_flows`.
    pub sockets: u32,
}

impl Default for Sizes {
    fn default() -> Self {
        Self {
            services: 64,
            service_ids: 128,
            slots: 16_384,
            destinations: 512,
            connections: 4_096,
            locality: 4_096,
            fragments: 1_024,
            sockets: 256,
        }
    }
}

/// The file with the BPF programs.
pub fn object_path() -> PathBuf {
    match env::var_os(OBJECT_VARIABLE) {
        Some(path) if !path.is_empty() => path.into(),
        _ => PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../target/bpf/bpvs.o"),
    }
}

/// Creates the maps and reads the programs, without loading any. Nothing is pinned: all is gone when dropped.
pub fn open(sizes: &Sizes) -> Result<Ebpf> {
    let path = object_path();
    let object = fs::read(&path).with_context(|| {
        format!(
            "reading the BPF programs from {}: build them with `cargo xtask build-ebpf`, or name another file with \
             {OBJECT_VARIABLE}",
            path.display()
        )
    })?;
    let mut loader = EbpfLoader::new();
    loader
        .map_max_entries("services", sizes.services)
        .map_max_entries("service_prefixes", sizes.services)
        .map_max_entries("networks", sizes.services + 16_384)
        .map_max_entries("scheduler_state", sizes.service_ids)
        .map_max_entries("affinity_timeouts", sizes.service_ids)
        .map_max_entries("destination_slots", sizes.slots)
        .map_max_entries("connections", sizes.connections)
        .map_max_entries("locality", sizes.locality)
        .map_max_entries("locality_sets", sizes.locality)
        .map_max_entries("fragments", sizes.fragments)
        .map_max_entries("sockets", sizes.sockets)
        .map_max_entries("socket_flows", sizes.sockets);
    for map in ["destinations", "destination_load", "destination_traffic", "sweep_recount"] {
        loader.map_max_entries(map, sizes.destinations);
    }
    loader.load(&object).with_context(|| {
        format!("creating the maps of {}; this needs root (CAP_BPF, CAP_NET_ADMIN, CAP_PERFMON)", path.display())
    })
}

/// Lets the kernel verify programs: those whose name `wanted` accepts.
pub fn load_programs(object: &mut Ebpf, wanted: impl Fn(&str) -> bool) -> Result<()> {
    for (name, program) in object.programs_mut().filter(|(name, _)| wanted(name)) {
        let loaded = match program {
            Program::SchedClassifier(program) => program.load(),
            Program::Xdp(program) => program.load(),
            Program::CgroupSockAddr(program) => program.load(),
            Program::CgroupSock(program) => program.load(),
            other => bail!("program {name} is of type {:?}, which this kit does not load: add it", other.prog_type()),
        };
        loaded.with_context(|| format!("the kernel refuses program {name}"))?;
    }
    Ok(())
}
