//! The maps as observers read them.

use crate::datapath::{Network, PrefixKey};
use anyhow::Result;
use lb_common::layout::{
    Connection, ConnectionKey, Destination, DestinationLoad, DestinationSlot, Service, ServiceKey, Settings,
    SocketConnection, SocketFlow, SocketFlowKey, Traffic,
};

/// Read access to the maps.
pub trait Tables {
    /// All virtual services, in no order.
    fn services(&self) -> Result<Vec<(ServiceKey, Service)>>;
    /// One virtual service.
    fn service(&self, key: &ServiceKey) -> Result<Option<Service>>;
    /// All virtual services that are whole networks, in no order.
    fn prefixes(&self) -> Result<Vec<(PrefixKey, Service)>>;
    /// One of them. If it is gone, a wider network's may stand for it.
    fn prefix(&self, key: &PrefixKey) -> Result<Option<Service>>;
    /// All networks of clients and of node ports, in no order.
    fn networks(&self) -> Result<Vec<Network>>;
    /// How many services there can be.
    fn service_capacity(&self) -> u32;
    /// A place in a destination set.
    fn slot(&self, index: u32) -> Result<DestinationSlot>;
    /// A real server.
    fn destination(&self, id: u32) -> Result<Destination>;
    /// All real servers, those that drain among them, in order of their ids.
    fn destinations(&self) -> Result<Vec<(u32, Destination)>>;
    /// Its connection counts.
    fn load(&self, id: u32) -> Result<DestinationLoad>;
    /// Its traffic, summed over the CPUs.
    fn traffic(&self, id: u32) -> Result<Traffic>;
    /// Traffic of a service's real servers that are gone, by service id.
    fn retired(&self, service: u32) -> Result<Traffic>;
    /// All entries of the connection table, requests and replies.
    fn connections(&self) -> Result<Vec<(ConnectionKey, Connection)>>;
    /// Connected sockets of local processes, by cookie.
    fn sockets(&self) -> Result<Vec<(u64, SocketConnection)>>;
    /// Flows of their unconnected sockets, requests and replies.
    fn socket_flows(&self) -> Result<Vec<(SocketFlowKey, SocketFlow)>>;
    /// What the agent told the programs.
    fn settings(&self) -> Result<Settings>;
}
