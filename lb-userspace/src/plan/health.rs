//! What load balancers are told that ask whether a Service has endpoints on this node.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use super::{Node, selection};
use crate::model::{Endpoint, EndpointSlice, Service};

/// A `healthCheckNodePort`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HealthCheck {
    /// Port of the node that load balancers ask.
    pub port: u16,
    /// Ready endpoints on this node, by IPv4 address; none if the Service has no IPv4 (HC-6).
    pub v4: Option<usize>,
    /// The same for IPv6.
    pub v6: Option<usize>,
}

/// The health check of a Service that has one. What counts is the number of addresses of ready endpoints on this node,
/// over all ports (HC-5): one that terminates may still serve, but should get no new load.
pub(super) fn check(service: &Service, slices: &[&EndpointSlice], node: &Node) -> Option<HealthCheck> {
    let port = service.exposure.health_check_port()?;
    let mut found = BTreeMap::new();
    for slice in slices {
        for port in &slice.ports {
            for endpoint in &slice.endpoints {
                let key = (&port.name, port.protocol, port.port, endpoint.address);
                let known: &mut &Endpoint = found.entry(key).or_insert(endpoint);
                if selection::precedence(endpoint) >= selection::precedence(known) {
                    *known = endpoint;
                }
            }
        }
    }
    let ready = found.values().filter(|endpoint| endpoint.ready && selection::is_local(endpoint, node));
    let addresses: BTreeSet<IpAddr> = ready.map(|endpoint| endpoint.address).collect();
    let count = |v4| {
        let served = service.addresses.iter().any(|address| address.is_ipv4() == v4);
        served.then(|| addresses.iter().filter(|address| address.is_ipv4() == v4).count())
    };
    let check = HealthCheck { port, v4: count(true), v6: count(false) };
    (!service.addresses.is_empty()).then_some(check)
}
