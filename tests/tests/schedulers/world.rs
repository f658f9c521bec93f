//! The three directors side by side: services, servers and connections by number, and the comparison.

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use bpvs_tests::{
    datapath::{Datapath, Sizes},
    model::{Director, Flags},
    oracle::states::State,
};
use lb_common::{
    address::{Address, Protocol},
    layout::ConnectionState,
};
use lb_userspace::plan::{DesiredDestination, DesiredService, Frontend, Plan};

use crate::{
    event::{Choice, Event},
    host::{self, Host},
};

/// Port of every service.
pub(crate) const PORT: u16 = 80;
/// Port of every server.
pub(crate) const SERVER_PORT: u16 = 8080;
/// Virtual addresses of service 0; the others have one.
pub(crate) const ADDRESSES: usize = 3;

const SIZES: Sizes = Sizes {
    services: 16,
    service_ids: 32,
    slots: 32_768,
    destinations: 64,
    connections: 1_024,
    locality: 1_024,
    fragments: 256,
    sockets: 16,
};

/// The address with this number in a network of the family.
pub(crate) fn address(v6: bool, network: u16, number: u16) -> IpAddr {
    if v6 {
        Ipv6Addr::new(0xfd00, network, 0, 0, 0, 0, number * 7, number).into()
    } else {
        Ipv4Addr::new(10, network as u8, (number >> 8) as u8, number as u8).into()
    }
}

/// A virtual service, three times.
#[derive(Debug)]
pub(crate) struct Service {
    pub(crate) frontend: Frontend,
    pub(crate) addresses: Vec<IpAddr>,
    pub(crate) choice: Choice,
    /// Weights of the servers in the set.
    pub(crate) servers: BTreeMap<u32, i32>,
    pub(crate) model: Director,
    pub(crate) host: Host,
    /// Destination ids of all servers there ever were.
    pub(crate) ids: BTreeMap<u32, u32>,
}

/// A client's name for a connection: client, port, service, its address.
pub(crate) type Name = (usize, u16, usize, usize);

/// A connection as the test sees it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Connection {
    pub(crate) server: u32,
    pub(crate) state: State,
    pub(crate) host: ConnectionState,
    /// Seconds since its last packet.
    pub(crate) idle: u64,
    /// The client as the server sees it.
    pub(crate) source: SocketAddr,
}

/// Everything.
#[derive(Debug)]
pub(crate) struct World {
    pub(crate) v6: bool,
    pub(crate) datapath: Datapath,
    pub(crate) services: Vec<Service>,
    pub(crate) connections: BTreeMap<Name, Connection>,
    /// The writer's clock.
    clock: Instant,
    /// Seconds that passed for lblc and lblcr.
    pub(crate) now: u64,
    pub(crate) history: Vec<String>,
}

pub(crate) fn model_flags(choice: &Choice) -> Flags {
    Flags { port: choice.port, fallback: choice.fallback }
}

impl World {
    /// Services without servers.
    pub(crate) fn new(v6: bool, choices: &[Choice]) -> Result<Self> {
        let datapath = Datapath::load(SIZES)?;
        let mut world = Self {
            v6,
            datapath,
            services: Vec::new(),
            connections: BTreeMap::new(),
            clock: Instant::now(),
            now: 0,
            history: Vec::new(),
        };
        for (number, choice) in choices.iter().enumerate() {
            let count = if number == 0 { ADDRESSES } else { 1 };
            let addresses: Vec<_> =
                (0..count).map(|index| address(v6, 96, (number * 16 + index * 5 + 1) as u16)).collect();
            let model = Director::new(choice.scheduler.name(), model_flags(choice));
            world.services.push(Service {
                frontend: Frontend::new(addresses[0], PORT, Protocol::Tcp),
                addresses,
                choice: *choice,
                servers: BTreeMap::new(),
                model: model.expect("the model knows every scheduler"),
                host: Host::new(choice.scheduler, host::flags(choice.port, choice.fallback)),
                ids: BTreeMap::new(),
            });
        }
        world.apply(None)?;
        Ok(world)
    }

    /// Carries an event out three times and compares; the error has the whole history.
    pub(crate) fn step(&mut self, event: &Event) -> Result<()> {
        self.history.push(event.to_string());
        let outcome = match event {
            &Event::Request { service, address, client, port, flags } => {
                self.request((client, port, service, address), flags)
            }
            &Event::Reply { service, address, client, port, flags } => {
                self.reply((client, port, service, address), flags)
            }
            &Event::Wait { seconds, recount } => self.wait(seconds, recount),
            &Event::Forget { seconds } => self.forget(seconds),
            edit => self.edit(edit),
        };
        outcome.and_then(|()| self.compare()).with_context(|| format!("history:\n{}", self.history.join("\n")))
    }

    /// Adds to the last line of the history.
    pub(crate) fn note(&mut self, text: &str) {
        if let Some(line) = self.history.last_mut() {
            line.push_str(text);
        }
    }

    pub(crate) fn server(&self, number: u32) -> IpAddr {
        address(self.v6, 1, 10 + number as u16)
    }

    /// Programs the services as they stand, but for one that is left out.
    pub(crate) fn apply(&mut self, without: Option<usize>) -> Result<()> {
        let mut plan = Plan::default();
        for (number, service) in self.services.iter().enumerate().filter(|(number, _)| Some(*number) != without) {
            let destination =
                |(&server, &weight): (&u32, &i32)| DesiredDestination::new(self.server(server), SERVER_PORT, weight);
            let destinations = service.servers.iter().map(destination).collect();
            let desired = DesiredService {
                hash_port: service.choice.port,
                hash_fallback: service.choice.fallback,
                ..DesiredService::new(format!("test/{number}"), service.choice.scheduler, destinations)
            };
            plan.services.insert(service.frontend, desired);
        }
        // No packet is on its way while slots rest.
        self.clock += Duration::from_secs(2);
        let applied = self.datapath.apply_at(&plan, self.clock);
        ensure!(applied.is_ok(), "the plan was not applied: {applied:?}");
        for number in (0..self.services.len()).filter(|number| Some(*number) != without) {
            for index in 1..self.services[number].addresses.len() {
                let service = &self.services[number];
                self.datapath.publish_as(&service.frontend, service.addresses[index])?;
            }
            self.learn_ids(number)?;
        }
        Ok(())
    }

    /// Looks the destination ids of a service up.
    fn learn_ids(&mut self, number: usize) -> Result<()> {
        let service = self.datapath.service(&self.services[number].frontend)?.context("a service is not programmed")?;
        for id in 1..SIZES.destinations {
            let record = self.datapath.destination(id)?;
            if record.service == service.id {
                let server = (0..32).find(|&server| Address::from(self.server(server)) == record.address);
                self.services[number].ids.insert(server.context("a destination that no plan had")?, id);
            }
        }
        Ok(())
    }

    /// Every active and inactive count of every server, in the three.
    pub(crate) fn compare(&self) -> Result<()> {
        for (number, service) in self.services.iter().enumerate() {
            for (&server, &id) in &service.ids {
                let (active, inactive) = service.model.counts(server);
                let model = (active as u32, inactive as u32);
                let (host, bpf) = (service.host.counts(server), self.datapath.counts(id)?);
                ensure!(
                    model == host && model == bpf,
                    "service {number} server {server} (active, inactive): model {model:?}, host {host:?}, BPF {bpf:?}"
                );
            }
        }
        Ok(())
    }
}
