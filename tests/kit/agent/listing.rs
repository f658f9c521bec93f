//! `bpvs list -o json` as values.

use std::net::{IpAddr, SocketAddr};

use anyhow::{Context, Result};
use serde_json::Value;

use super::Agent;

/// All virtual services.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listing {
    /// In the order of the output.
    pub services: Vec<ListedService>,
}

/// A virtual service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedService {
    /// `TCP`, `UDP` or `SCTP`.
    pub protocol: String,
    /// The frontend.
    pub address: SocketAddr,
    /// The scheduler's name.
    pub scheduler: String,
    /// Its servers.
    pub servers: Vec<ListedServer>,
}

/// A real server of a virtual service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ListedServer {
    /// Where it is.
    pub address: SocketAddr,
    /// Its weight.
    pub weight: i64,
    /// Active connections.
    pub active: u64,
    /// Inactive connections.
    pub inactive: u64,
    /// Connections, packets in and out, bytes in and out.
    pub traffic: [u64; 5],
}

impl Listing {
    /// Asks the agent's maps.
    pub fn read(agent: &Agent<'_>) -> Result<Self> {
        let text = agent.command(&["list", "--stats", "-o", "json"])?;
        let document: Value = serde_json::from_str(&text).with_context(|| format!("`bpvs list` printed {text}"))?;
        let services = document["services"].as_array().into_iter().flatten().map(service).collect::<Option<_>>();
        Ok(Self { services: services.with_context(|| format!("`bpvs list` printed {text}"))? })
    }

    /// The service at this frontend.
    pub fn service(&self, protocol: &str, address: SocketAddr) -> Option<&ListedService> {
        self.services.iter().find(|service| service.protocol == protocol && service.address == address)
    }
}

impl ListedService {
    /// The server with this number, the last part of its address.
    pub fn server(&self, number: u16) -> Option<&ListedServer> {
        self.servers.iter().find(|server| server.number() == number)
    }

    /// Active and inactive connections of all servers.
    pub fn counts(&self) -> (u64, u64) {
        self.servers.iter().fold((0, 0), |sum, server| (sum.0 + server.active, sum.1 + server.inactive))
    }
}

impl ListedServer {
    /// Number of the server, the last part of its address.
    pub fn number(&self) -> u16 {
        match self.address.ip() {
            IpAddr::V4(address) => address.octets()[3].into(),
            IpAddr::V6(address) => address.segments()[7],
        }
    }
}

fn socket(value: &Value) -> Option<SocketAddr> {
    Some(SocketAddr::new(value["address"].as_str()?.parse().ok()?, value["port"].as_u64()?.try_into().ok()?))
}

fn service(value: &Value) -> Option<ListedService> {
    Some(ListedService {
        protocol: value["protocol"].as_str()?.to_owned(),
        address: socket(value)?,
        scheduler: value["scheduler"].as_str()?.to_owned(),
        servers: value["destinations"].as_array()?.iter().map(server).collect::<Option<_>>()?,
    })
}

fn server(value: &Value) -> Option<ListedServer> {
    let mut traffic = [0; 5];
    let fields = ["connections", "in_packets", "out_packets", "in_bytes", "out_bytes"];
    for (place, field) in traffic.iter_mut().zip(fields) {
        *place = value["traffic"][field].as_u64()?;
    }
    Some(ListedServer {
        address: socket(value)?,
        weight: value["weight"].as_i64()?,
        active: value["active_connections"].as_u64()?,
        inactive: value["inactive_connections"].as_u64()?,
        traffic,
    })
}
