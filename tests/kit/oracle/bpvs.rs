//! bpvs as a director: the real programs on the interfaces of a network, and the real writer behind `ipvsadm`'s terms.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use lb_common::address::Protocol;
use lb_common::layout::{
    Connection, ConnectionKey, DestinationSlot, KEY_TEMPLATE, SETTING_EXPIRE_NODEST, SETTING_EXPIRE_QUIESCENT,
    SETTING_SLOPPY_TCP, Settings,
};
use lb_userspace::datapath::MapStore;
use lb_userspace::plan::{Access, DesiredDestination, DesiredService, Frontend, Persistence, Plan, Scope, Thresholds};

use super::control::{Director, RealServer, RealServerState, Switches, VirtualKey, VirtualService};
use super::marks;
use super::network::{CLIENT_SIDE, Network, SERVER_SIDE};
use super::played::Playable;
use crate::datapath::{Datapath, Sizes};

/// Enough for one script at a time.
const SIZES: Sizes = Sizes {
    services: 16,
    service_ids: 64,
    slots: 1 << 17,
    destinations: 512,
    connections: 4_096,
    locality: 4_096,
    fragments: 256,
    sockets: 16,
};

/// Longer than any timeout.
const FOREVER: Duration = Duration::from_secs(1_000_000);

/// bpvs on a network.
#[derive(Debug)]
pub struct Bpvs {
    datapath: Datapath,
    /// What is programmed.
    services: BTreeMap<Frontend, DesiredService>,
    /// The writer's clock: slots that were freed rest for a second.
    clock: Instant,
    /// What services by mark are here instead: the networks that their addresses are of, for packets of this protocol.
    networks: Option<Protocol>,
}

impl Bpvs {
    /// Loads the programs and puts them on the director's interfaces.
    pub fn new(network: &Network) -> Result<Self> {
        let mut datapath = Datapath::load(SIZES)?;
        datapath.attach(network.director(), &[CLIENT_SIDE, SERVER_SIDE])?;
        Ok(Self { datapath, services: BTreeMap::new(), clock: Instant::now(), networks: None })
    }

    /// From now on services by mark are services of a network, on every port, for packets of this protocol: for the same
    /// packets, in a script, of which a director of marks need not know.
    pub fn serve_networks(&mut self, protocol: Protocol) {
        self.networks = Some(protocol);
    }

    /// The programs and maps.
    pub fn datapath(&mut self) -> &mut Datapath {
        &mut self.datapath
    }

    /// One edit, as one call of `ipvsadm` is.
    fn apply(&mut self) -> Result<()> {
        // No packet is on its way between two edits.
        self.clock += Duration::from_secs(2);
        let plan = Plan { services: self.services.clone().into_iter().collect(), ..Plan::default() };
        let applied = self.datapath.apply_at(&plan, self.clock);
        ensure!(applied.is_ok(), "the writer could not apply it: {applied:?}");
        Ok(())
    }

    /// With `expire_nodest_conn`, what the agent's next sweeps do after a removal: a template may be looked at before its
    /// connections.
    fn flush(&mut self) -> Result<()> {
        if self.datapath.settings()?.switches & SETTING_EXPIRE_NODEST != 0 {
            for _ in 0..2 {
                self.pass_time(Duration::ZERO, true)?;
            }
        }
        Ok(())
    }

    fn service(&mut self, key: &VirtualKey) -> Result<&mut DesiredService> {
        let frontend = self.frontend(key);
        self.services.get_mut(&frontend).with_context(|| format!("there is no service {frontend:?}"))
    }

    fn frontend(&self, key: &VirtualKey) -> Frontend {
        match (*key, self.networks) {
            (VirtualKey::Address { protocol, address, port }, _) => Frontend::new(address, port, protocol),
            (VirtualKey::Mark { mark, v6 }, None) => {
                let address = if v6 { Ipv6Addr::UNSPECIFIED.into() } else { Ipv4Addr::UNSPECIFIED.into() };
                Frontend { scope: Scope::Mark(mark), ..Frontend::new(address, 0, Protocol::Tcp) }
            }
            (VirtualKey::Mark { v6, .. }, Some(protocol)) => {
                let (address, bits) = marks::network(v6);
                Frontend { scope: Scope::Prefix(bits), ..Frontend::new(address, 0, protocol) }
            }
        }
    }
}

fn desired(service: &VirtualService, destinations: Vec<DesiredDestination>) -> DesiredService {
    let VirtualService { persistence, netmask, .. } = *service;
    DesiredService {
        origin: "oracle/script".to_owned(),
        scheduler: service.scheduler,
        hash_port: service.hash_port,
        hash_fallback: service.hash_fallback,
        persistence: (persistence != 0).then_some(Persistence { timeout: persistence, netmask }),
        affinity: None,
        one_packet: service.one_packet,
        destinations,
        access: Access::default(),
    }
}

fn destination(server: &RealServer) -> DesiredDestination {
    let &RealServer { address, port, weight, upper, lower } = server;
    DesiredDestination { thresholds: Thresholds { upper, lower }, ..DesiredDestination::new(address, port, weight) }
}

impl Director for Bpvs {
    fn add_service(&mut self, service: &VirtualService) -> Result<()> {
        let frontend = self.frontend(&service.key);
        ensure!(!self.services.contains_key(&frontend), "{frontend:?} is there already");
        self.services.insert(frontend, desired(service, Vec::new()));
        self.apply()
    }

    fn edit_service(&mut self, service: &VirtualService) -> Result<()> {
        let programmed = self.service(&service.key)?;
        *programmed = desired(service, std::mem::take(&mut programmed.destinations));
        self.apply()
    }

    fn delete_service(&mut self, key: &VirtualKey) -> Result<()> {
        let frontend = self.frontend(key);
        self.services.remove(&frontend).with_context(|| format!("there is no service {frontend:?}"))?;
        self.apply()?;
        self.flush()
    }

    fn add_server(&mut self, key: &VirtualKey, server: &RealServer) -> Result<()> {
        let (destination, service) = (destination(server), self.service(key)?);
        let at = |other: &DesiredDestination| (other.address, other.port).cmp(&(server.address, server.port));
        match service.destinations.binary_search_by(at) {
            Ok(_) => bail!("{}:{} is there already", server.address, server.port),
            Err(place) => service.destinations.insert(place, destination),
        }
        self.apply()
    }

    fn edit_server(&mut self, key: &VirtualKey, server: &RealServer) -> Result<()> {
        let (destination, service) = (destination(server), self.service(key)?);
        let place = place(service, server.address, server.port)?;
        service.destinations[place] = destination;
        self.apply()
    }

    fn delete_server(&mut self, key: &VirtualKey, address: IpAddr, port: u16) -> Result<()> {
        let service = self.service(key)?;
        service.destinations.remove(place(service, address, port)?);
        self.apply()?;
        self.flush()
    }

    fn set_timeouts(&mut self, tcp: u32, tcp_fin: u32, udp: u32) -> Result<()> {
        let now = self.datapath.settings()?.timeouts;
        self.datapath.set_timeouts(now.set(tcp * 1000, tcp_fin * 1000, udp * 1000))
    }

    fn set_switches(&mut self, switches: &Switches) -> Result<()> {
        let settings = self.datapath.settings()?;
        let switch = |on: bool, bit: u32| if on { bit } else { 0 };
        let switches = switch(switches.expire_nodest_conn, SETTING_EXPIRE_NODEST)
            | switch(switches.expire_quiescent_template, SETTING_EXPIRE_QUIESCENT)
            | switch(switches.sloppy_tcp, SETTING_SLOPPY_TCP);
        self.datapath.set_settings(Settings { switches, ..settings })
    }

    fn servers(&mut self, key: &VirtualKey) -> Result<Vec<RealServerState>> {
        let frontend = self.frontend(key);
        let service = self.datapath.service(&frontend)?.with_context(|| format!("{frontend:?} is not programmed"))?;
        let slots = self.datapath.writer().store().slots(service.set_base, service.set_length)?;
        let connections = self.datapath.connections()?;
        let templates = |server| {
            let is_its =
                |(key, value): &&(ConnectionKey, Connection)| key.kind == KEY_TEMPLATE && value.server == server;
            connections.iter().filter(is_its).count() as u32
        };
        let state = |slot: &DestinationSlot| {
            let record = self.datapath.destination(slot.destination)?;
            let (active, inactive) = self.datapath.counts(slot.destination)?;
            let address = IpAddr::from(record.address);
            Ok(RealServerState {
                address,
                port: record.port.number(),
                weight: slot.weight,
                active,
                inactive,
                persistent: templates(slot.destination),
            })
        };
        slots.iter().map(state).collect()
    }
}

fn place(service: &DesiredService, address: IpAddr, port: u16) -> Result<usize> {
    let found = service.destinations.iter().position(|other| (other.address, other.port) == (address, port));
    found.with_context(|| format!("there is no server {address} port {port}"))
}

impl Playable for Bpvs {
    const NAME: &'static str = "bpvs";
    const ENDS_LATER: bool = false;

    fn pass_time(&mut self, time: Duration, passed: bool) -> Result<bool> {
        if !passed {
            self.datapath.age(time)?;
        }
        let result = self.datapath.sweep(true)?;
        ensure!((result.corrections, result.orphans) == (0, 0), "the sweep found faults: {result:?}");
        Ok(false)
    }

    fn forget(&mut self) -> Result<()> {
        // Twice: a template may be looked at before its connections, and goes on then.
        for _ in 0..2 {
            self.pass_time(FOREVER, false)?;
        }
        let left = self.datapath.connections()?;
        ensure!(left.is_empty(), "{} entries outlive every timeout: {left:?}", left.len());
        // Twice: the first call begins the time that a removed server rests.
        for _ in 0..2 {
            self.clock += Duration::from_secs(130);
            self.datapath.collect(self.clock)?;
        }
        Ok(())
    }
}
