//! What this node should do: a pure function from the model to the virtual services. All Kubernetes policy is here.
//! Rules as `ipvsadm` states them are taken as they stand.

mod access;
mod claims;
mod cluster;
mod contest;
mod frontends;
mod health;
mod local;
mod node_ports;
mod options;
pub mod planner;
mod rules;
mod selection;
pub mod services;
mod weight;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
use lb_common::scheduler::Scheduler;

pub use crate::model::{AffinityGroup, Frontend, Method, Node, Persistence, Problem, ProblemLog, Scope, Thresholds};
use crate::model::{Changes, EndpointSlice, Model, Service, ServiceName};
pub use access::{Access, Masquerade};
pub use health::HealthCheck;
pub use local::NoLocal;
pub use node_ports::{can_serve as can_serve_node_ports, oddities as node_port_oddities};
pub use options::{Defaults, Detector, NodePortAddresses, Options, PodInterfaces};
pub use planner::Planner;
pub use services::Services;

/// A real server of a virtual service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DesiredDestination {
    /// Address.
    pub address: IpAddr,
    /// Port. 0: the port that the client asked for.
    pub port: u16,
    /// Weight, from 0 to 2147483647. 0 takes no new connections.
    pub weight: i32,
    /// How many connections it takes.
    pub thresholds: Thresholds,
    /// How packets reach it.
    pub method: Method,
}

impl DesiredDestination {
    /// A real server without thresholds, by NAT.
    pub const fn new(address: IpAddr, port: u16, weight: i32) -> Self {
        Self { address, port, weight, thresholds: Thresholds { upper: 0, lower: 0 }, method: Method::Nat }
    }
}

/// A virtual service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DesiredService {
    /// `namespace/name:port`, or the file and line of a rule, for messages.
    pub origin: String,
    /// Scheduler.
    pub scheduler: Scheduler,
    /// Hash the source port too (`sh-port`, `mh-port`).
    pub hash_port: bool,
    /// Take another destination when the hashed one is unusable (`sh-fallback`,
    /// `mh-fallback`).
    pub hash_fallback: bool,
    /// Whether clients keep their server, and for how long.
    pub persistence: Option<Persistence>,
    /// With persistence: who shares what is remembered of clients, in Kubernetes' way, where the persistence that is stated
    /// now holds for whoever is bound. None: it is this service's own, in IPVS's way.
    pub affinity: Option<AffinityGroup>,
    /// UDP: each datagram is scheduled for itself (`ipvsadm -o`).
    pub one_packet: bool,
    /// The destinations: unique by (address, port), in the order in which new ones are to be added, each at the head of
    /// the list, as IPVS does. Kubernetes states no order: ascending by (address, port) (EP-12). None means that there is
    /// nothing to send to, and clients are to be told so.
    pub destinations: Vec<DesiredDestination>,
    /// Which clients it takes, and under whose address they reach its real servers.
    pub access: Access,
}

impl DesiredService {
    /// A service with nothing but these.
    pub fn new(origin: impl Into<String>, scheduler: Scheduler, destinations: Vec<DesiredDestination>) -> Self {
        Self {
            origin: origin.into(),
            scheduler,
            hash_port: false,
            hash_fallback: false,
            persistence: None,
            affinity: None,
            one_packet: false,
            destinations,
            access: Access::default(),
        }
    }
}

/// What this node should do, and what stands in the way of what was stated.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// The virtual services.
    pub services: Services,
    /// Addresses of the node that [`Scope::NodePort`] stands for.
    pub node_port_addresses: BTreeSet<IpAddr>,
    /// It stands for 127.0.0.0/8 too, for processes of the node.
    pub loopback_node_ports: bool,
    /// Networks of the cluster's pods: clients from anywhere else are external. None: every client is.
    pub pod_networks: BTreeSet<IpNet>,
    /// Cluster addresses, where what is for no virtual service is refused.
    pub cluster_addresses: BTreeSet<IpAddr>,
    /// Networks that cluster addresses are taken from: what is sent there and is for no virtual service does not leave the
    /// node.
    pub service_networks: BTreeSet<IpNet>,
    /// Ports on which load balancers ask for the endpoints of a Service on this node, by its namespace and name.
    pub health_checks: BTreeMap<(String, String), HealthCheck>,
    /// Addresses that they may ask at; unspecified ones stand for all of their family.
    pub health_check_addresses: BTreeSet<IpAddr>,
    /// Conflicts and exceeded limits. What is wrong inside an object stands in [`Model::problems`].
    pub problems: Vec<Problem>,
}

/// What states each virtual service: [`DesiredService::origin`].
pub type Holders = BTreeMap<Frontend, Arc<DesiredService>>;

impl Plan {
    fn set_health_check(&mut self, service: &ServiceName, check: Option<HealthCheck>) {
        let key = (service.namespace.to_string(), service.name.to_string());
        match check {
            Some(check) => drop(self.health_checks.insert(key, check)),
            None => drop(self.health_checks.remove(&key)),
        }
    }
}

/// Decides what this node should do. Depends on nothing but its arguments, and not on the order in which the model
/// learned what it holds.
pub fn plan(model: &Model, node: &Node, defaults: &Defaults) -> Plan {
    let mut planner = Planner::new(defaults.clone());
    planner.update(model, node, &Changes::default());
    planner.into_plan()
}

/// Slices in files that name a Service that nobody states: most likely a misspelt label. At an API server that is
/// everyday life (headless Services, other proxies' Services) and no problem.
fn orphans(slices: &[&EndpointSlice]) -> impl Iterator<Item = Problem> {
    let of_files = slices.iter().filter(|slice| slice.origin.file.is_some());
    of_files.map(|slice| Problem {
        object: format!("EndpointSlice {}/{}", slice.namespace, slice.name),
        location: slice.origin.location(0),
        field: format!("metadata.labels[{}]", crate::model::slice::SERVICE_NAME_LABEL),
        value: crate::model::problem::shown(&slice.service),
        message: "no such Service in this namespace: its endpoints wait for it".to_owned(),
    })
}

fn problem(service: &Service, field: String, value: String, message: String) -> Problem {
    Problem {
        object: format!("Service {}/{}", service.namespace, service.name),
        location: service.origin.location(0),
        field,
        value,
        message,
    }
}

#[cfg(test)]
mod tests;
