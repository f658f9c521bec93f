//! What this node should do: a pure function from the model to the virtual services. All Kubernetes policy is here.
//! Rules as `ipvsadm` states them are taken as they stand.

mod access;
mod destinations;
mod rules;
mod weight;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;
use lb_common::layout::MAX_DESTINATIONS_PER_SERVICE;
use lb_common::scheduler::Scheduler;

use crate::model::service::{SCHEDULER_ANNOTATION, SCHEDULER_FLAGS_ANNOTATION};
use crate::model::{EndpointSlice, Model, SchedulerFlags, Service, ServicePort};
pub use crate::model::{Frontend, Node, Persistence, Problem, ProblemLog, Scope, Thresholds};
pub use access::{Access, Masquerade};

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
}

impl DesiredDestination {
    /// A real server without thresholds.
    pub const fn new(address: IpAddr, port: u16, weight: i32) -> Self {
        Self { address, port, weight, thresholds: Thresholds { upper: 0, lower: 0 } }
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
    pub services: BTreeMap<Frontend, DesiredService>,
    /// Addresses of the node that [`Scope::NodePort`] stands for.
    pub node_port_addresses: BTreeSet<IpAddr>,
    /// Networks of the cluster's pods: clients from anywhere else are external. None: every client is.
    pub pod_networks: BTreeSet<IpNet>,
    /// Conflicts and exceeded limits. What is wrong inside an object stands in [`Model::problems`].
    pub problems: Vec<Problem>,
}

/// What holds where nothing else is stated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Defaults {
    /// Scheduler of services that state none. `rr`, as kube-proxy's ipvs mode has it.
    pub scheduler: Scheduler,
    /// Most virtual services.
    pub max_services: usize,
    /// Most destinations of one virtual service.
    pub max_destinations_per_service: usize,
}

impl Default for Defaults {
    fn default() -> Self {
        Self {
            scheduler: Scheduler::RoundRobin,
            max_services: 65_536,
            max_destinations_per_service: MAX_DESTINATIONS_PER_SERVICE as usize,
        }
    }
}

/// Slices by the namespace and name of their Service.
type SlicesOfServices<'a> = BTreeMap<(&'a str, &'a str), Vec<&'a EndpointSlice>>;

/// Who has each frontend: [`DesiredService::origin`].
pub type Holders = BTreeMap<Frontend, String>;

/// Decides what this node should do. Depends on nothing but its arguments, and not on the order in which the model
/// learned what it holds.
pub fn plan(model: &Model, node: &Node, defaults: &Defaults) -> Plan {
    plan_after(&Holders::new(), model, node, defaults)
}

/// The same where something is programmed already: of Services of one age that state one frontend, the one that has it
/// keeps it. A Service in a file has no age; without this, one that is added by mistake could take a frontend that works.
pub fn plan_after<'a>(held: &Holders, model: &'a Model, _node: &Node, defaults: &Defaults) -> Plan {
    let mut slices = SlicesOfServices::<'a>::new();
    for slice in model.slices() {
        slices.entry((&slice.namespace, &slice.service)).or_default().push(slice);
    }
    let mut services: Vec<&Service> = model.services().collect();
    // Whoever was there first has the older right to an address; objects without a time come last.
    services.sort_by_key(|service| {
        (service.created.unwrap_or(i64::MAX), service.namespace.as_str(), service.name.as_str())
    });
    let mut plan = Plan { problems: report_orphans(&services, &slices), ..Plan::default() };
    let with_slices = |service: &'a Service| {
        let Service { namespace, name, .. } = service;
        (service, slices.get(&(namespace.as_str(), name.as_str())).map_or(&[][..], Vec::as_slice))
    };
    let services: Vec<(&Service, &[&EndpointSlice])> = services.into_iter().map(with_slices).collect();
    for of_one_age in services.chunk_by(|(a, _), (b, _)| a.created == b.created) {
        // Frontends that `keep` has added and `add` has not met.
        let mut kept = BTreeSet::new();
        for (service, slices) in of_one_age {
            plan.keep(held, service, slices, defaults, &mut kept);
        }
        for (service, slices) in of_one_age {
            plan.add(service, slices, defaults, &mut kept);
        }
    }
    plan.add_rules(model.rules(), defaults);
    plan
}

impl Plan {
    /// Who has what.
    pub fn holders(&self) -> Holders {
        self.services.iter().map(|(frontend, service)| (*frontend, service.origin.clone())).collect()
    }

    /// Adds those frontends of a Service that it has already.
    fn keep(
        &mut self,
        held: &Holders,
        service: &Service,
        slices: &[&EndpointSlice],
        defaults: &Defaults,
        kept: &mut BTreeSet<Frontend>,
    ) {
        for port in &service.ports {
            for &address in &service.addresses {
                let frontend = Frontend::new(address, port.port, port.protocol);
                let has_it = held.get(&frontend).is_some_and(|holder| *holder == origin(service, port));
                let free = !self.services.contains_key(&frontend) && self.services.len() < defaults.max_services;
                if has_it && free {
                    let mut destinations = destinations::of(service, port, address.is_ipv4(), slices);
                    self.limit(service, &frontend, &mut destinations, defaults);
                    self.services.insert(frontend, desired(service, port, address.is_ipv4(), destinations, defaults));
                    kept.insert(frontend);
                }
            }
        }
    }

    fn add(
        &mut self,
        service: &Service,
        slices: &[&EndpointSlice],
        defaults: &Defaults,
        kept: &mut BTreeSet<Frontend>,
    ) {
        self.check_flags(service, defaults);
        let mut left_out = 0;
        for (index, port) in service.ports.iter().enumerate() {
            for &address in &service.addresses {
                let frontend = Frontend::new(address, port.port, port.protocol);
                let winner = self.services.get(&frontend);
                // Once: a Service that states a frontend twice is told of it.
                if winner.is_some_and(|winner| winner.origin == origin(service, port)) && kept.remove(&frontend) {
                    continue;
                }
                if let Some(winner) = winner {
                    let message = format!(
                        "{} belongs to {}: the older Service has it until it is deleted, then this one",
                        frontend, winner.origin
                    );
                    self.problems.push(problem(
                        service,
                        format!("spec.ports[{index}]"),
                        port.port.to_string(),
                        message,
                    ));
                    continue;
                }
                if self.services.len() >= defaults.max_services {
                    left_out += 1;
                    continue;
                }
                let mut destinations = destinations::of(service, port, address.is_ipv4(), slices);
                self.limit(service, &frontend, &mut destinations, defaults);
                self.services.insert(frontend, desired(service, port, address.is_ipv4(), destinations, defaults));
            }
        }
        if left_out > 0 {
            let message = format!(
                "{left_out} of its virtual services are left out: there is room for {} (max_services), older ones first",
                defaults.max_services
            );
            self.problems.push(problem(service, "spec.ports".to_owned(), String::new(), message));
        }
    }

    /// Flags of a Service that names no scheduler must be those of the default one. If it names one, the model has
    /// compared them.
    fn check_flags(&mut self, service: &Service, defaults: &Defaults) {
        let Some(scheduler) = service.flags.scheduler else { return };
        if service.scheduler.is_none() && scheduler != defaults.scheduler && !service.addresses.is_empty() {
            let (of, default) = (scheduler.name(), defaults.scheduler.name());
            let message = format!(
                "flags of {of}, but the Service names no scheduler and the default is {default}: they are ignored; state \
                 {SCHEDULER_ANNOTATION}: {of}, or leave them out"
            );
            let field = format!("metadata.annotations[{SCHEDULER_FLAGS_ANNOTATION}]");
            self.problems.push(problem(service, field, service.flags.to_string(), message));
        }
    }

    fn limit(
        &mut self,
        service: &Service,
        frontend: &Frontend,
        destinations: &mut Vec<DesiredDestination>,
        defaults: &Defaults,
    ) {
        let limit = defaults.max_destinations_per_service;
        if destinations.len() > limit {
            let message = format!(
                "destinations of {}: the first {limit} are used, a service can have no more (max_destinations_per_service)",
                frontend
            );
            let count = destinations.len().to_string();
            self.problems.push(problem(service, "endpoints".to_owned(), count, message));
            destinations.truncate(limit);
        }
    }
}

fn desired(
    service: &Service,
    port: &ServicePort,
    v4: bool,
    destinations: Vec<DesiredDestination>,
    defaults: &Defaults,
) -> DesiredService {
    let scheduler = service.scheduler.unwrap_or(defaults.scheduler);
    let flags = if service.flags.belong_to(scheduler) { service.flags } else { SchedulerFlags::default() };
    DesiredService {
        origin: origin(service, port),
        scheduler,
        hash_port: flags.hash_port,
        hash_fallback: flags.hash_fallback,
        persistence: service.affinity.persistence(v4),
        one_packet: service.affinity.one_packet(port.protocol),
        destinations,
        access: Access::default(),
    }
}

/// A port of a Service, for messages.
fn origin(service: &Service, port: &ServicePort) -> String {
    let Service { namespace, name, .. } = service;
    match port.name.as_str() {
        "" => format!("{namespace}/{name}:{}", port.port),
        port => format!("{namespace}/{name}:{port}"),
    }
}

/// Slices in files that name a Service that nobody states: most likely a misspelt label. At an API server that is
/// everyday life (headless Services, other proxies' Services) and no problem.
fn report_orphans(services: &[&Service], slices: &SlicesOfServices<'_>) -> Vec<Problem> {
    let known: BTreeSet<_> =
        services.iter().map(|service| (service.namespace.as_str(), service.name.as_str())).collect();
    let orphans = slices.iter().filter(|(service, _)| !known.contains(*service)).flat_map(|(_, slices)| slices);
    orphans
        .filter(|slice| slice.origin.file.is_some())
        .map(|slice| Problem {
            object: format!("EndpointSlice {}/{}", slice.namespace, slice.name),
            location: slice.origin.location(0),
            field: format!("metadata.labels[{}]", crate::model::slice::SERVICE_NAME_LABEL),
            value: crate::model::problem::shown(&slice.service),
            message: "no such Service in this namespace: its endpoints wait for it".to_owned(),
        })
        .collect()
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
