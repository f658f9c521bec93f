//! The frontends that a Service states, and the virtual service behind each.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use lb_common::address::Protocol;
use lb_common::scheduler::Scheduler;

use super::access::cluster_masquerade;
use super::selection::Candidates;
use super::{
    Access, AffinityGroup, Defaults, DesiredDestination, DesiredService, Frontend, Masquerade, Method, Node, Problem,
    Scope,
};
use crate::model::{EndpointSlice, SchedulerFlags, Service, ServicePort, TrafficPolicy};

/// What the virtual services of all Services depend on.
pub(super) struct Site<'a> {
    pub(super) node: &'a Node,
    pub(super) defaults: &'a Defaults,
    pub(super) pod_networks: &'a BTreeSet<IpNet>,
    /// The addresses that stand for the node, one of each family.
    pub(super) own: &'a [IpAddr],
}

/// A frontend that somebody states, and the virtual service there.
pub(super) struct Claim {
    pub(super) frontend: Frontend,
    /// Where it is stated.
    pub(super) field: Field,
    /// At a cluster address that the API server has given the Service.
    pub(super) at_cluster_address: bool,
    pub(super) service: DesiredService,
    /// The one for external clients, if they have their own. They are programmed both or not at all.
    pub(super) external: Option<DesiredService>,
}

/// Where a frontend is stated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Field {
    /// As the port of this index of a Service, at the cluster address.
    Port(u32),
    /// As the port of this index, at an address for the outside.
    Address(u32, Outside),
    /// As the node port of the port of this index.
    NodePort(u32),
    /// As the port of its health check, at the address of a load balancer.
    HealthCheck,
    /// By a rule, as a whole.
    Rule,
}

/// Which address for the outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outside {
    /// Of a load balancer.
    LoadBalancer,
    /// An external one.
    External,
}

impl Field {
    /// Its path, and what stands there.
    pub(super) fn of(self, frontend: &Frontend) -> (String, String) {
        match self {
            Self::Port(index) => (format!("spec.ports[{index}]"), frontend.port.to_string()),
            Self::Address(_, which) => {
                let field = match which {
                    Outside::LoadBalancer => "status.loadBalancer.ingress",
                    Outside::External => "spec.externalIPs",
                };
                (field.to_owned(), frontend.address.to_string())
            }
            Self::NodePort(index) => (format!("spec.ports[{index}].nodePort"), frontend.port.to_string()),
            Self::HealthCheck => ("spec.healthCheckNodePort".to_owned(), frontend.port.to_string()),
            Self::Rule => (String::new(), String::new()),
        }
    }
}

/// All frontends of a Service. One without cluster address of a family does not exist for that family, whatever else it
/// states (SV-1, SV-3).
pub(super) fn claims(
    service: &Service,
    slices: &[&EndpointSlice],
    site: &Site<'_>,
    problems: &mut Vec<Problem>,
) -> Vec<Claim> {
    let mut claims = Vec::new();
    for (index, port) in (0..).zip(&service.ports) {
        for &address in &service.addresses {
            let mut claimed = Claimed::new(service, port, address, slices, site, problems);
            claimed.cluster_address(index);
            claimed.external_addresses(index);
            claimed.node_port(index);
            claims.append(&mut claimed.claims);
        }
    }
    health_checks(service, site, &mut claims);
    claims
}

/// The port of its health check at the addresses of load balancers (HC-11): some of them ask there. What answers is on this
/// node, and takes part in nothing that the Service says of its own ports.
fn health_checks(service: &Service, site: &Site<'_>, claims: &mut Vec<Claim>) {
    let Some(port) = service.exposure.health_check_port() else { return };
    for &address in &service.exposure.load_balancer_addresses {
        let of_family = |other: &&IpAddr| other.is_ipv4() == address.is_ipv4();
        let frontend = Frontend::new(address, port, Protocol::Tcp);
        let taken = claims.iter().any(|claim| claim.frontend == frontend);
        let (Some(_), Some(own), false) =
            (service.addresses.iter().find(of_family), site.own.iter().find(of_family), taken)
        else {
            continue;
        };
        let destinations = vec![DesiredDestination::new(*own, port, 1)];
        let origin = health_check_origin(service);
        let service = DesiredService::new(origin, Scheduler::RoundRobin, destinations);
        claims.push(Claim { frontend, field: Field::HealthCheck, at_cluster_address: false, service, external: None });
    }
}

/// The port of a Service's health check, for messages.
pub(super) fn health_check_origin(service: &Service) -> String {
    format!("{}/{}:healthCheckNodePort", service.namespace, service.name)
}

/// The frontends of one port for one family.
struct Claimed<'a> {
    service: &'a Service,
    port: &'a ServicePort,
    address: IpAddr,
    site: &'a Site<'a>,
    /// The destinations of the whole cluster.
    cluster: Vec<DesiredDestination>,
    /// Those on this node, where a policy asks for them.
    local: Vec<DesiredDestination>,
    claims: Vec<Claim>,
}

impl<'a> Claimed<'a> {
    fn new(
        service: &'a Service,
        port: &'a ServicePort,
        address: IpAddr,
        slices: &[&'a EndpointSlice],
        site: &'a Site<'a>,
        problems: &mut Vec<Problem>,
    ) -> Self {
        let candidates = Candidates::of(service, port, address.is_ipv4(), slices);
        let exposure = &service.exposure;
        let uses_local = exposure.internal_policy == TrafficPolicy::Local || exposure.is_external_local();
        let frontend = Frontend::new(address, port.port, port.protocol);
        let limit = site.defaults.max_destinations_per_service;
        let mut limited = |what: &str, mut destinations: Vec<DesiredDestination>| {
            if destinations.len() > limit {
                let message = format!(
                    "destinations of {frontend}{what}: the first {limit} are used, a service can have no more \
                     (max_destinations_per_service)"
                );
                let count = destinations.len().to_string();
                problems.push(super::problem(service, "endpoints".to_owned(), count, message));
                destinations.truncate(limit);
            }
            destinations
        };
        Self {
            service,
            port,
            address,
            site,
            cluster: limited("", candidates.cluster(site.node)),
            local: if uses_local { limited(" on this node", candidates.local(site.node)) } else { Vec::new() },
            claims: Vec::new(),
        }
    }

    fn v4(&self) -> bool {
        self.address.is_ipv4()
    }

    /// The cluster address, where only the internal policy counts (SEL-6, SEL-8).
    fn cluster_address(&mut self, index: u32) {
        let local = self.service.exposure.internal_policy == TrafficPolicy::Local;
        let options = &self.site.defaults.options;
        let access = Access {
            masquerade: cluster_masquerade(self.site.pod_networks, options, self.v4()),
            silent: local && self.is_elsewhere(),
            ..Access::default()
        };
        let frontend = Frontend::new(self.address, self.port.port, self.port.protocol);
        let destinations = if local { &self.local } else { &self.cluster };
        let service = self.desired(destinations, access);
        let at_cluster_address = self.service.origin.file.is_none();
        self.claims.push(Claim { frontend, field: Field::Port(index), at_cluster_address, service, external: None });
    }

    /// Addresses of load balancers, which alone obey the source ranges (SR-1), and `externalIPs`.
    fn external_addresses(&mut self, index: u32) {
        let (service, v4) = (self.service, self.v4());
        let of_family = |addresses: &'a [IpAddr]| addresses.iter().copied().filter(move |a| a.is_ipv4() == v4);
        for address in of_family(&service.exposure.load_balancer_addresses) {
            let sources = service.exposure.sources(v4);
            self.external(Field::Address(index, Outside::LoadBalancer), address, self.port.port, sources);
        }
        if self.site.defaults.options.external_addresses {
            for address in of_family(&service.exposure.external_addresses) {
                self.external(Field::Address(index, Outside::External), address, self.port.port, BTreeSet::new());
            }
        }
    }

    /// The port of each of the node's addresses, once for all of them.
    fn node_port(&mut self, index: u32) {
        let Some(port) = self.port.node_port.filter(|_| self.site.defaults.options.node_ports) else { return };
        let any = if self.v4() { IpAddr::V4(Ipv4Addr::UNSPECIFIED) } else { IpAddr::V6(Ipv6Addr::UNSPECIFIED) };
        self.external(Field::NodePort(index), any, port, BTreeSet::new());
    }

    /// A frontend for traffic from outside, where only the external policy counts (SEL-7, SEL-8). Under `Cluster` every
    /// client comes from the node's address, so that replies of other nodes' servers come back through it. Under `Local`
    /// external clients keep theirs, and reach the servers of this node; the cluster's own clients reach all (section 7).
    fn external(&mut self, field: Field, address: IpAddr, port: u16, sources: BTreeSet<IpNet>) {
        let scope = if address.is_unspecified() { Scope::NodePort } else { Scope::Address };
        let frontend = Frontend { scope, ..Frontend::new(address, port, self.port.protocol) };
        // An address may stand in several fields of a Service: the first one holds, and restricts it the most.
        if self.claims.iter().any(|claim| claim.frontend == frontend) {
            return;
        }
        let split = self.service.exposure.is_external_local();
        let masquerade = if split { Masquerade::Never } else { Masquerade::Always };
        let access = Access { masquerade, split, silent: false, sources: sources.clone() };
        let mut service = self.desired(&self.cluster, access);
        let mut external = split.then(|| {
            let silent = self.is_elsewhere();
            self.desired(&self.local, Access { masquerade: Masquerade::Never, split: false, silent, sources })
        });
        if scope == Scope::NodePort {
            // An address of this node: no other one can answer from it.
            let destinations = external.iter_mut().flat_map(|external| &mut external.destinations);
            service.destinations.iter_mut().chain(destinations).for_each(|server| server.method = Method::Nat);
        }
        self.claims.push(Claim { frontend, field, at_cluster_address: false, service, external });
    }

    /// True if there are endpoints, and none of them here (NE-4).
    fn is_elsewhere(&self) -> bool {
        self.local.is_empty() && !self.cluster.is_empty()
    }

    fn desired(&self, destinations: &[DesiredDestination], access: Access) -> DesiredService {
        let service = self.service;
        let defaults = self.site.defaults;
        let scheduler = service.scheduler.unwrap_or(defaults.scheduler);
        let flags = match (service.scheduler, service.flags.scheduler) {
            (None, None) => SchedulerFlags { hash_port: defaults.hash_port, ..service.flags },
            _ if service.flags.belong_to(scheduler) => service.flags,
            _ => SchedulerFlags::default(),
        };
        let persistence = service.affinity.persistence(self.v4());
        let group = || AffinityGroup::of_port(&service.namespace, &service.name, &self.port.name);
        DesiredService {
            origin: origin(service, self.port),
            scheduler,
            hash_port: flags.hash_port,
            hash_fallback: flags.hash_fallback,
            persistence,
            affinity: persistence.map(|_| group()),
            one_packet: service.affinity.one_packet(self.port.protocol),
            destinations: destinations.to_vec(),
            access,
        }
    }
}

/// A port of a Service, for messages.
pub(super) fn origin(service: &Service, port: &ServicePort) -> String {
    let Service { namespace, name, .. } = service;
    match &*port.name {
        "" => format!("{namespace}/{name}:{}", port.port),
        port => format!("{namespace}/{name}:{port}"),
    }
}
