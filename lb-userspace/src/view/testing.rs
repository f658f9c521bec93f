//! Maps in memory, for tests of views and renderers.

use std::collections::HashMap;
use std::net::IpAddr;

use anyhow::Result;
use lb_common::address::{Port, Protocol};
use lb_common::layout::{
    Connection, ConnectionKey, Destination, DestinationLoad, DestinationSlot, Service, ServiceKey, Settings,
    SocketConnection, SocketFlow, SocketFlowKey, Traffic,
};
use lb_common::scheduler::Scheduler;

use super::tables::Tables;
use crate::datapath::{Frontend, Key, Network, PrefixKey, Virtual};

/// Maps in memory.
#[derive(Debug, Default)]
pub struct Memory {
    /// `services`.
    pub services: Vec<(ServiceKey, Service)>,
    /// `service_prefixes`.
    pub prefixes: Vec<(PrefixKey, Service)>,
    /// `networks`.
    pub networks: Vec<Network>,
    /// `destination_slots`.
    pub slots: Vec<DestinationSlot>,
    /// `destinations`, from id 1.
    pub destinations: Vec<Destination>,
    /// `destination_load`.
    pub load: HashMap<u32, DestinationLoad>,
    /// `destination_traffic`.
    pub traffic: HashMap<u32, Traffic>,
    /// `service_retired`.
    pub retired: HashMap<u32, Traffic>,
    /// `connections`.
    pub connections: Vec<(ConnectionKey, Connection)>,
    /// `sockets`.
    pub sockets: Vec<(u64, SocketConnection)>,
    /// `socket_flows`.
    pub socket_flows: Vec<(SocketFlowKey, SocketFlow)>,
    /// `settings`.
    pub settings: Settings,
}

impl Memory {
    /// Adds a service with destinations of these addresses and weights, all on port 8080. Returns their ids.
    pub fn add_service(
        &mut self,
        protocol: Protocol,
        address: &str,
        port: u16,
        scheduler: Scheduler,
        destinations: &[(&str, i32)],
    ) -> Vec<u32> {
        self.add(&Frontend::new(address.parse().unwrap(), port, protocol), scheduler, destinations)
    }

    /// The same for any frontend.
    pub fn add(&mut self, frontend: &Frontend, scheduler: Scheduler, destinations: &[(&str, i32)]) -> Vec<u32> {
        let id = (self.services.len() + self.prefixes.len()) as u32 + 1;
        let set_base = self.slots.len() as u32;
        let mut ids = Vec::new();
        for (address, weight) in destinations {
            let address: IpAddr = address.parse().unwrap();
            self.destinations.push(Destination {
                address: address.into(),
                port: Port::new(8080),
                service: id,
                weight: *weight,
                ..Destination::default()
            });
            ids.push(self.destinations.len() as u32);
            self.slots.push(DestinationSlot { destination: self.destinations.len() as u32, weight: *weight });
        }
        let service =
            Service { id, scheduler: scheduler as u8, set_base, set_length: ids.len() as u32, ..Service::default() };
        match Virtual::from(frontend).key() {
            Key::Service(key) => self.services.push((key, service)),
            Key::Prefix(key) => self.prefixes.push((key, service)),
        }
        ids
    }
}

impl Tables for Memory {
    fn services(&self) -> Result<Vec<(ServiceKey, Service)>> {
        Ok(self.services.clone())
    }
    fn service(&self, key: &ServiceKey) -> Result<Option<Service>> {
        Ok(self.services.iter().find(|(known, _)| known == key).map(|(_, service)| *service))
    }
    fn prefixes(&self) -> Result<Vec<(PrefixKey, Service)>> {
        Ok(self.prefixes.clone())
    }
    fn prefix(&self, key: &PrefixKey) -> Result<Option<Service>> {
        Ok(self.prefixes.iter().find(|(known, _)| known == key).map(|(_, service)| *service))
    }
    fn networks(&self) -> Result<Vec<Network>> {
        Ok(self.networks.clone())
    }
    fn service_capacity(&self) -> u32 {
        4096
    }
    fn slot(&self, index: u32) -> Result<DestinationSlot> {
        Ok(self.slots[index as usize])
    }
    fn destination(&self, id: u32) -> Result<Destination> {
        Ok(self.destinations[id as usize - 1])
    }
    fn destinations(&self) -> Result<Vec<(u32, Destination)>> {
        Ok((1..).zip(self.destinations.iter().copied()).filter(|(_, destination)| destination.service != 0).collect())
    }
    fn load(&self, id: u32) -> Result<DestinationLoad> {
        Ok(self.load.get(&id).copied().unwrap_or_default())
    }
    fn traffic(&self, id: u32) -> Result<Traffic> {
        Ok(self.traffic.get(&id).copied().unwrap_or_default())
    }
    fn retired(&self, service: u32) -> Result<Traffic> {
        Ok(self.retired.get(&service).copied().unwrap_or_default())
    }
    fn connections(&self) -> Result<Vec<(ConnectionKey, Connection)>> {
        Ok(self.connections.clone())
    }
    fn sockets(&self) -> Result<Vec<(u64, SocketConnection)>> {
        Ok(self.sockets.clone())
    }
    fn socket_flows(&self) -> Result<Vec<(SocketFlowKey, SocketFlow)>> {
        Ok(self.socket_flows.clone())
    }
    fn settings(&self) -> Result<Settings> {
        Ok(self.settings)
    }
}
