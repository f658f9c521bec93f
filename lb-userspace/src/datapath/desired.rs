//! What the writer is asked for: the virtual services of this node, each with its set of real servers.

use std::{collections::BTreeMap, net::IpAddr};

use lb_common::{address::Protocol, scheduler::Scheduler};

/// What a packet must match to be balanced.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Frontend {
    /// Virtual address.
    pub address: IpAddr,
    /// Virtual port.
    pub port: u16,
    /// Transport protocol.
    pub protocol: Protocol,
}

/// A real server of a virtual service.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct DesiredDestination {
    /// Address of the real server.
    pub address: IpAddr,
    /// Port of the real server.
    pub port: u16,
    /// Weight, 0 to 2147483647.
    pub weight: i32,
}

/// A virtual service as it should be.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DesiredService {
    /// The object that asked for it, for messages.
    pub origin: String,
    /// How new connections are spread.
    pub scheduler: Scheduler,
    /// IPVS's `sh-port`.
    pub hash_port: bool,
    /// IPVS's `sh-fallback`.
    pub hash_fallback: bool,
    /// The real servers: unique, ascending by address and port.
    pub destinations: Vec<DesiredDestination>,
}

/// Everything this node should balance.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Plan {
    /// The virtual services by what they match.
    pub services: BTreeMap<Frontend, DesiredService>,
}
