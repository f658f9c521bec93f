//! The datapath without a network: the BPF programs, maps of their own, a writer over them, and packets by
//! `BPF_PROG_TEST_RUN`.
//!
//! | file | idea |
//! |---|---|
//! | `attach` | the programs on interfaces |
//! | `object` | finds and loads the BPF object |
//! | `run` | a frame through a program |
//! | `tables` | maps as values |

mod attach;
mod object;
mod run;
mod tables;

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    path::Path,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, anyhow, bail, ensure};
use aya::Ebpf;
use lb_common::{
    address::{Address, Port},
    drops::Drop,
    layout::{
        Connection, ConnectionKey, ConnectionState, Destination, DestinationLoad, Service, ServiceKey, Settings,
        SweepResult, Traffic, VERSION,
    },
    timeouts::Timeouts,
};
use lb_userspace::{
    datapath::{
        ApplyError, Key, Limits, MapStore, Summary, Virtual, Writer,
        store::kernel::{KernelMaps, KernelStore},
    },
    kernel::{interfaces::HostAddress, sources},
    plan::{Frontend, Plan},
};
use nix::time::ClockId;

pub use object::{OBJECT_VARIABLE, Sizes, load_programs, object_path, open};
pub use run::{DROPPED, NEXT, Options, REDIRECTED, Run, XDP_DROP, XDP_PASS, XDP_REDIRECT, XDP_TX};

/// The node's IPv4 address, as hairpin connections get it.
pub const NODE_V4: Ipv4Addr = Ipv4Addr::new(10, 1, 0, 1);
/// The node's IPv6 address, likewise.
pub const NODE_V6: Ipv6Addr = Ipv6Addr::new(0xfd00, 1, 0, 0, 0, 0, 0, 1);

/// Which program that sees packets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Hook {
    /// `bpvs_ingress`: requests.
    Ingress,
    /// `bpvs_egress`: replies.
    Egress,
    /// `bpvs_uplink`, XDP in native mode: both. Only in a datapath of [`Datapath::load_with_uplink`].
    Uplink,
}

impl Hook {
    /// The program's name.
    pub fn program(self) -> &'static str {
        match self {
            Self::Ingress => "bpvs_ingress",
            Self::Egress => "bpvs_egress",
            Self::Uplink => "bpvs_uplink",
        }
    }
}

/// Loaded programs, their maps, and the writer that fills them. Nothing is attached or pinned.
#[derive(Debug)]
pub struct Datapath {
    object: Ebpf,
    writer: Writer<KernelStore>,
}

impl Datapath {
    /// Loads the tc programs and writes the settings: IPVS's timeouts, node addresses [`NODE_V4`] and [`NODE_V6`].
    pub fn load(sizes: Sizes) -> Result<Self> {
        Self::load_with(sizes, &[])
    }

    /// The same with the XDP program of native mode.
    pub fn load_with_uplink(sizes: Sizes) -> Result<Self> {
        Self::load_with(sizes, &[Hook::Uplink])
    }

    fn load_with(sizes: Sizes, more: &[Hook]) -> Result<Self> {
        let mut object = open(&sizes)?;
        let tc = ["bpvs_ingress", "bpvs_egress", "bpvs_sweep"];
        load_programs(&mut object, |name| tc.contains(&name) || more.iter().any(|hook| hook.program() == name))?;
        let settings = Settings {
            version: VERSION,
            max_destinations: sizes.destinations,
            node_v4: Address::from(NODE_V4),
            node_v6: Address::from(NODE_V6),
            namespace_cookie: 0,
            timeouts: Timeouts::IPVS,
            switches: 0,
            local_ports_first: 32_768,
            local_ports_last: 60_999,
        };
        tables::set(&mut object, "settings", 0, settings)?;
        let store = KernelStore::new(KernelMaps::of(&object)?)?;
        let limits = Limits::of(store.capacity());
        let writer = Writer::restore(store, limits).context("starting the writer on empty maps")?;
        ensure!(writer.findings().is_empty(), "fresh maps are not empty: {:?}", writer.findings());
        Ok(Self { object, writer })
    }

    /// The object, for maps and programs that have no method here.
    pub fn object(&self) -> &Ebpf {
        &self.object
    }

    /// The writer.
    pub fn writer(&self) -> &Writer<KernelStore> {
        &self.writer
    }

    /// Brings the maps to `plan`.
    pub fn apply(&mut self, plan: &Plan) -> Result<Summary, Vec<ApplyError>> {
        self.writer.apply(plan, Instant::now())
    }

    /// [`Self::apply`] at a time of the caller's choice: slots that were freed a second before are written again.
    pub fn apply_at(&mut self, plan: &Plan, now: Instant) -> Result<Summary, Vec<ApplyError>> {
        self.writer.apply(plan, now)
    }

    /// Frees the ids of what was removed long ago, at a time of the caller's choice.
    pub fn collect(&mut self, now: Instant) -> Result<()> {
        self.writer.collect(now).map(drop).map_err(|errors| anyhow!("{errors:?}"))
    }

    /// Gives a frontend's service another address, as services on a firewall mark have several in IPVS: same
    /// destinations, same counts. To be repeated after each apply that changes the service; the writer knows nothing
    /// of it.
    pub fn publish_as(&mut self, frontend: &Frontend, address: IpAddr) -> Result<()> {
        let Some(value) = self.service(frontend)? else { bail!("{frontend:?} is not programmed") };
        let Key::Service(own) = key(frontend) else { bail!("{frontend:?} is a network") };
        let key = ServiceKey { address: Address::from(address), ..own };
        Ok(self.writer.store_mut().set_service(&key, &value)?)
    }

    /// Changes a destination's record. To be repeated after each apply that changes it; the writer knows nothing of it.
    pub fn change_destination(&mut self, id: u32, change: impl FnOnce(&mut Destination)) -> Result<()> {
        let mut record = self.destination(id)?;
        change(&mut record);
        self.set("destinations", id, record)
    }

    /// Changes a frontend's entry, likewise.
    pub fn change_service(&mut self, frontend: &Frontend, change: impl FnOnce(&mut Service)) -> Result<()> {
        let Some(mut value) = self.service(frontend)? else { bail!("{frontend:?} is not programmed") };
        change(&mut value);
        let Key::Service(key) = key(frontend) else { bail!("{frontend:?} is a network") };
        Ok(self.writer.store_mut().set_service(&key, &value)?)
    }

    /// A frame from a client's side.
    pub fn ingress(&self, frame: &[u8]) -> Result<Run> {
        self.run(Hook::Ingress, frame, Options::default())
    }

    /// A frame on its way out.
    pub fn egress(&self, frame: &[u8]) -> Result<Run> {
        self.run(Hook::Egress, frame, Options::default())
    }

    /// [`Self::ingress`] several times; the time is the mean. Each run meets the frame as the one before left it.
    pub fn ingress_repeat(&self, frame: &[u8], repeat: u32) -> Result<Run> {
        self.run(Hook::Ingress, frame, Options { repeat, ..Options::default() })
    }

    /// [`Self::egress`] several times, likewise.
    pub fn egress_repeat(&self, frame: &[u8], repeat: u32) -> Result<Run> {
        self.run(Hook::Egress, frame, Options { repeat, ..Options::default() })
    }

    /// A frame through a program.
    pub fn run(&self, hook: Hook, frame: &[u8], options: Options) -> Result<Run> {
        match hook {
            Hook::Uplink => run::run_xdp(&self.object, hook.program(), frame, options),
            _ => run::run(&self.object, hook.program(), frame, options),
        }
    }

    /// A frame as the driver of an uplink has it, an interface of the caller's network namespace.
    pub fn uplink(&self, frame: &[u8], options: Options) -> Result<Run> {
        self.run(Hook::Uplink, frame, options)
    }

    /// One sweep, with a recount if asked for: what it left in `sweep_result`.
    pub fn sweep(&mut self, recount: bool) -> Result<SweepResult> {
        let result: SweepResult = self.get("sweep_result", 0)?;
        self.set("sweep_result", 0, SweepResult { recount_asked: recount.into(), ..result })?;
        // The program takes no packet, but the kernel runs it only with one.
        let run = run::run(&self.object, "bpvs_sweep", &[0; 64], Options::default())?;
        ensure!(run.verdict == 0, "bpvs_sweep ended with {}: it did not find its settings", run.verdict);
        self.get("sweep_result", 0)
    }

    /// One sweep without a recount, while others use the maps.
    pub fn sweep_beside(&self) -> Result<()> {
        let run = run::run(&self.object, "bpvs_sweep", &[0; 64], Options::default())?;
        ensure!(run.verdict == 0, "bpvs_sweep ended with {}: it did not find its settings", run.verdict);
        Ok(())
    }

    /// Active and inactive connections of a destination.
    pub fn counts(&self, destination: u32) -> Result<(u32, u32)> {
        let load = self.destination_load(destination)?;
        Ok((load.active(), load.inactive()))
    }

    /// The load of a destination.
    pub fn destination_load(&self, destination: u32) -> Result<DestinationLoad> {
        Ok(self.writer.store().load(destination)?)
    }

    /// Overwrites the load of a destination.
    pub fn set_destination_load(&mut self, destination: u32, load: DestinationLoad) -> Result<()> {
        self.set("destination_load", destination, load)
    }

    /// The traffic of a destination, summed over CPUs.
    pub fn traffic(&self, destination: u32) -> Result<Traffic> {
        let values = tables::get_per_cpu::<Traffic>(&self.object, "destination_traffic", destination)?;
        Ok(values.into_iter().fold(Traffic::default(), |sum, cpu| Traffic {
            connections: sum.connections + cpu.connections,
            in_packets: sum.in_packets + cpu.in_packets,
            out_packets: sum.out_packets + cpu.out_packets,
            in_bytes: sum.in_bytes + cpu.in_bytes,
            out_bytes: sum.out_bytes + cpu.out_bytes,
        }))
    }

    /// All entries of `connections`, in no order.
    pub fn connections(&self) -> Result<Vec<(ConnectionKey, Connection)>> {
        tables::entries(&self.object, "connections")
    }

    /// The request entry of a connection.
    pub fn connection(&self, key: &ConnectionKey) -> Result<Option<Connection>> {
        Ok(self.connections()?.into_iter().find(|(found, _)| found == key).map(|(_, value)| value))
    }

    /// Writes an entry of `connections`.
    pub fn set_connection(&mut self, key: ConnectionKey, value: Connection) -> Result<()> {
        tables::insert(&mut self.object, "connections", key, value)
    }

    /// Deletes one entry of `connections`, and nothing that belongs to it. A busy flow may be served without it until the
    /// [next instant](next_instant).
    pub fn remove_connection(&mut self, key: ConnectionKey) -> Result<()> {
        tables::remove::<_, Connection>(&mut self.object, "connections", key)
    }

    /// Lets all connections be older by that much. BPF programs have a clock that no test can set: the past moves
    /// instead.
    pub fn age(&mut self, by: Duration) -> Result<()> {
        self.age_if(by, |_, _| true)
    }

    /// [`Self::age`], only for the entries that `wanted` accepts.
    pub fn age_if(&mut self, by: Duration, wanted: impl Fn(&ConnectionKey, &Connection) -> bool) -> Result<()> {
        for (key, value) in self.connections()? {
            if wanted(&key, &value) {
                let last_seen = value.last_seen.wrapping_sub(by.as_nanos() as u64);
                self.set_connection(key, Connection { last_seen, ..value })?;
            }
        }
        next_instant();
        Ok(())
    }

    /// Packets dropped or refused for this reason, summed over CPUs.
    pub fn drops(&self, reason: Drop) -> Result<u64> {
        Ok(tables::get_per_cpu::<u64>(&self.object, "drops", reason as u32)?.into_iter().sum())
    }

    /// Every reason that packets were dropped or refused for, with how many.
    pub fn all_drops(&self) -> Result<Vec<(&'static str, u64)>> {
        let counted = |reason: &Drop| self.drops(*reason).map(|count| (reason.name(), count));
        let all = Drop::ALL.iter().map(counted).collect::<Result<Vec<_>>>()?;
        Ok(all.into_iter().filter(|&(_, count)| count != 0).collect())
    }

    /// The settings that the programs read.
    pub fn settings(&self) -> Result<Settings> {
        self.get("settings", 0)
    }

    /// Replaces the settings that the programs read, for busy flows too.
    pub fn set_settings(&mut self, settings: Settings) -> Result<()> {
        self.set("settings", 0, settings)?;
        next_instant();
        Ok(())
    }

    /// Replaces the timeouts; each connection takes its own from its next packet on.
    pub fn set_timeouts(&mut self, timeouts: Timeouts) -> Result<()> {
        let settings = self.settings()?;
        self.set_settings(Settings { timeouts, ..settings })
    }

    /// The entry of a frontend in `services` or `service_prefixes`.
    pub fn service(&self, frontend: &Frontend) -> Result<Option<Service>> {
        let key = key(frontend);
        Ok(self.writer.store().entries()?.into_iter().find(|(found, _)| *found == key).map(|(_, value)| value))
    }

    /// A destination's record.
    pub fn destination(&self, id: u32) -> Result<Destination> {
        Ok(self.writer.store().destination(id)?)
    }

    /// The lowest id of a destination with this address and port, of any service.
    pub fn destination_of(&self, address: IpAddr, port: u16) -> Result<Option<u32>> {
        self.find_destination(|record| is(record, address, port))
    }

    /// The id of a frontend's destination with this address and port.
    pub fn destination_in(&self, frontend: &Frontend, address: IpAddr, port: u16) -> Result<Option<u32>> {
        let Some(service) = self.service(frontend)? else { return Ok(None) };
        self.find_destination(|record| record.service == service.id && is(record, address, port))
    }

    fn find_destination(&self, wanted: impl Fn(&Destination) -> bool) -> Result<Option<u32>> {
        let store = self.writer.store();
        for id in 1..store.capacity().destinations {
            let record = store.destination(id)?;
            if record.service != 0 && wanted(&record) {
                return Ok(Some(id));
            }
        }
        Ok(None)
    }

    /// Reads a value of an array map.
    pub fn get<V: bytemuck::Pod>(&self, map: &str, index: u32) -> Result<V> {
        tables::get(&self.object, map, index)
    }

    /// Writes a value of an array map.
    pub fn set<V: bytemuck::Pod>(&mut self, map: &str, index: u32, value: V) -> Result<()> {
        tables::set(&mut self.object, map, index, value)
    }

    /// Writes an entry of a hash map.
    pub fn insert<K: bytemuck::Pod, V: bytemuck::Pod>(&mut self, map: &str, key: K, value: V) -> Result<()> {
        tables::insert(&mut self.object, map, key, value)
    }

    /// Tells the programs of the node's addresses, as the agent does.
    pub fn set_source_addresses(&mut self, addresses: &[HostAddress]) -> Result<()> {
        sources::write(&mut self.object, &sources::entries(addresses))
    }

    /// Deletes an entry of a hash map with values of `V`.
    pub fn remove<K: bytemuck::Pod, V: bytemuck::Pod>(&mut self, map: &str, key: K) -> Result<()> {
        tables::remove::<K, V>(&mut self.object, map, key)
    }

    /// All entries of a hash map, in no order.
    pub fn entries<K: bytemuck::Pod, V: bytemuck::Pod>(&self, map: &str) -> Result<Vec<(K, V)>> {
        tables::entries(&self.object, map)
    }

    /// Pins every map into a folder of a BPF file system; their names, sorted.
    pub fn pin_maps(&self, folder: &Path) -> Result<Vec<String>> {
        tables::pin_all(&self.object, folder)
    }
}

fn key(frontend: &Frontend) -> Key {
    Virtual::from(frontend).key()
}

fn is(record: &Destination, address: IpAddr, port: u16) -> bool {
    record.address == Address::from(address) && record.port == Port::new(port)
}

/// True for a reply entry of `connections`.
pub fn is_reply(value: &Connection) -> bool {
    ConnectionState(value.state).has(ConnectionState::REPLY)
}

/// Waits until the coarse clock has moved, 1 to 10 ms: what programs keep of busy flows holds no longer.
pub fn next_instant() {
    let clock = || ClockId::CLOCK_MONOTONIC_COARSE.now().expect("a clock that every Linux has");
    let begin = clock();
    while clock() == begin {
        std::thread::sleep(Duration::from_micros(200));
    }
}
