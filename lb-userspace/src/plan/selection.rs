//! From the slices of a Service to the destinations of one of its ports, for one family.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use super::{DesiredDestination, Method, Node, weight};
use crate::model::{Endpoint, EndpointSlice, Service, ServicePort, SlicePort};

/// The endpoints of a port, each address and port once.
pub(super) struct Candidates<'a> {
    service: &'a Service,
    found: BTreeMap<(IpAddr, u16), (&'a Endpoint, i32)>,
}

impl<'a> Candidates<'a> {
    pub(super) fn of(service: &'a Service, port: &ServicePort, v4: bool, slices: &[&'a EndpointSlice]) -> Self {
        let mut found: BTreeMap<(IpAddr, u16), (&Endpoint, i32)> = BTreeMap::new();
        for slice in slices {
            let matching = |other: &&SlicePort| other.name == port.name && other.protocol == port.protocol;
            for slice_port in slice.ports.iter().filter(matching) {
                for endpoint in slice.endpoints.iter().filter(|endpoint| endpoint.address.is_ipv4() == v4) {
                    let candidate = (endpoint, weight::of(service, slice, endpoint));
                    let known = found.entry((endpoint.address, slice_port.port)).or_insert(candidate);
                    if precedence(candidate.0) >= precedence(known.0) {
                        *known = candidate;
                    }
                }
            }
        }
        Self { service, found }
    }

    /// Destinations of the whole cluster: the ready ones, as topology has it; if there is none, all that still serve
    /// while they terminate (SEL-3). Empty only if there is nothing anywhere (SEL-5).
    pub(super) fn cluster(&self, node: &Node) -> Vec<DesiredDestination> {
        let topology = self.topology(node);
        let ready = self.select(node, |endpoint| endpoint.ready && topology.takes(endpoint, node));
        if ready.is_empty() { self.select(node, still_serves) } else { ready }
    }

    /// Destinations on this node, topology or not: the ready ones; if there is none, those that still serve (SEL-4).
    pub(super) fn local(&self, node: &Node) -> Vec<DesiredDestination> {
        let ready = self.select(node, |endpoint| endpoint.ready && is_local(endpoint, node));
        if ready.is_empty() {
            self.select(node, |endpoint| still_serves(endpoint) && is_local(endpoint, node))
        } else {
            ready
        }
    }

    /// Hints count while every ready endpoint has one and some endpoint is meant for here (SEL-1): what is not
    /// ready has none, and a hint that is missing says that they are being changed.
    fn topology(&self, node: &Node) -> Topology {
        let ready = || self.found.values().map(|(endpoint, _)| *endpoint).filter(|endpoint| endpoint.ready);
        let counts = |topology: Topology| {
            ready().all(|endpoint| !topology.names(endpoint).is_empty())
                && ready().any(|endpoint| topology.takes(endpoint, node))
        };
        let wanted = [Topology::SameNode, Topology::SameZone].into_iter().find(|topology| counts(*topology));
        wanted.unwrap_or(Topology::None)
    }

    fn select(&self, node: &Node, wanted: impl Fn(&Endpoint) -> bool) -> Vec<DesiredDestination> {
        let thresholds = self.service.affinity.thresholds;
        let selected = self.found.iter().filter(|(_, (endpoint, _))| wanted(endpoint));
        selected
            .map(|(&(address, port), &(endpoint, weight))| {
                let method = self.method(endpoint, node);
                DesiredDestination { address, port, weight, thresholds, method }
            })
            .collect()
    }

    /// With direct server return, endpoints of other nodes are reached in tunnels, which their nodes unwrap. Where no node is
    /// stated, nobody would.
    fn method(&self, endpoint: &Endpoint, node: &Node) -> Method {
        match endpoint.node {
            Some(_) if !self.service.affinity.direct_return => Method::Nat,
            Some(_) if is_local(endpoint, node) => Method::OwnTunnel,
            Some(_) => Method::Tunnel,
            None => Method::Nat,
        }
    }
}

/// Whose endpoints are taken.
#[derive(Clone, Copy)]
enum Topology {
    None,
    SameNode,
    SameZone,
}

impl Topology {
    fn names(self, endpoint: &Endpoint) -> &[Arc<str>] {
        match (&endpoint.hints, self) {
            (Some(hints), Self::SameNode) => &hints.nodes,
            (Some(hints), Self::SameZone) => &hints.zones,
            _ => &[],
        }
    }

    fn takes(self, endpoint: &Endpoint, node: &Node) -> bool {
        let own = match self {
            Self::None => return true,
            Self::SameNode => Some(&node.name),
            // A node without a zone is in none of those that endpoints are meant for (SEL-2).
            Self::SameZone => node.zone.as_ref(),
        };
        own.is_some_and(|own| self.names(endpoint).iter().any(|name| **name == **own))
    }
}

/// On this node, as its slice says: addresses say nothing about that (EP-8).
pub(super) fn is_local(endpoint: &Endpoint, node: &Node) -> bool {
    endpoint.node.as_deref() == Some(&node.name)
}

fn still_serves(endpoint: &Endpoint) -> bool {
    endpoint.serving && endpoint.terminating
}

/// Which of two statements about one address holds: the one that does not terminate (EP-10), then the one that is
/// ready, then the one that serves. Among equals the last slice by name, so that the order of arrival is irrelevant.
pub(super) fn precedence(endpoint: &Endpoint) -> (bool, bool, bool) {
    (!endpoint.terminating, endpoint.ready, endpoint.serving)
}
