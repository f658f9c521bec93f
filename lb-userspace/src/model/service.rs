//! Services.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use lb_common::address::Protocol;
use lb_common::scheduler::Scheduler;

use super::address;
use super::affinity::Affinity;
use super::exposure::Exposure;
use super::field::{Field, Noted, Report};
use super::object::{Object, Origin};
use super::problem::{Problem, shown};
use super::weights::{WEIGHTS_ANNOTATION, Weights};

/// Annotation of a Service: the name of its scheduler.
pub const SCHEDULER_ANNOTATION: &str = "bpvs.io/scheduler";
/// Annotation of a Service: what its scheduler does differently, separated by commas.
pub const SCHEDULER_FLAGS_ANNOTATION: &str = "bpvs.io/scheduler-flags";
/// Label that gives a Service to another proxy, whatever its value.
pub const SERVICE_PROXY_LABEL: &str = "service.kubernetes.io/service-proxy-name";

/// A Service as stated, with nothing in it that could not be programmed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Service {
    /// Namespace.
    pub namespace: Arc<str>,
    /// Name.
    pub name: Arc<str>,
    /// Where it was written.
    pub origin: Origin,
    /// `creationTimestamp`, seconds since 1970.
    pub created: Option<i64>,
    /// Cluster addresses, at most one per family. Empty for a Service that has no virtual address (headless,
    /// ExternalName, another proxy's).
    pub addresses: Vec<IpAddr>,
    /// Ports; (name, protocol) and (number, protocol) are unique.
    pub ports: Vec<ServicePort>,
    /// How it is reached from outside, and its traffic policies. For a Service without addresses: the default.
    pub exposure: Arc<Exposure>,
    /// Scheduler; the default one if not stated.
    pub scheduler: Option<Scheduler>,
    /// Flags of the scheduler.
    pub flags: SchedulerFlags,
    /// Session affinity and its like.
    pub affinity: Affinity,
    /// Weights of endpoints.
    pub weights: Weights,
}

/// A port of a Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServicePort {
    /// Name, which may be empty. Slices refer to it.
    pub name: Arc<str>,
    /// Protocol.
    pub protocol: Protocol,
    /// Number.
    pub port: u16,
    /// Its port at the node's own addresses, if it has one; for any type of Service (SV-6).
    pub node_port: Option<u16>,
}

/// What `bpvs.io/scheduler-flags` states.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SchedulerFlags {
    /// Whose flags they are: sh's or mh's. `None` if there are none.
    pub scheduler: Option<Scheduler>,
    /// `sh-port`, `mh-port`: hash the source port too.
    pub hash_port: bool,
    /// `sh-fallback`, `mh-fallback`: take another destination when the hashed one is unusable.
    pub hash_fallback: bool,
}

impl SchedulerFlags {
    /// True if they are this scheduler's flags, or none.
    pub fn belong_to(&self, scheduler: Scheduler) -> bool {
        self.scheduler.is_none_or(|own| own == scheduler)
    }
}

impl fmt::Display for SchedulerFlags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = self.scheduler.map_or([""; 2], Scheduler::flag_names);
        let set = [self.hash_port, self.hash_fallback].into_iter().zip(names).filter(|(set, _)| *set);
        f.write_str(&set.map(|(_, name)| name).collect::<Vec<_>>().join(","))
    }
}

impl Service {
    /// Reads a Service. What is wrong keeps its value of `previous`, the version that was read before; where there is
    /// none it is left out (addresses, ports) or default (annotations).
    pub(crate) fn read(object: &Object, previous: Option<&Self>) -> (Option<Self>, Vec<Problem>) {
        let mut report = Report::new(object.key.to_string(), &object.origin);
        let service = Self::read_parts(object, previous, &mut report);
        (service, report.problems)
    }

    fn read_parts(object: &Object, previous: Option<&Self>, report: &mut Report<'_>) -> Option<Self> {
        let root = Field::root(&object.tree);
        let (metadata, spec) = (root.key("metadata"), root.key("spec"));
        if !spec.is_map(report) {
            return previous.cloned();
        }
        let annotations = metadata.key("annotations");
        let annotated = annotations.entries(report);
        let _told = metadata.key("labels").entries(report);
        let kind = read_type(&spec, report);
        let served = kind != Ok(Some("ExternalName")) && !metadata.key("labels").key(SERVICE_PROXY_LABEL).stated();
        let addresses = if served { read_addresses(&spec, report) } else { Ok(Vec::new()) };
        let scheduler = annotated
            .and_then(|()| read_scheduler(&annotations.key(SCHEDULER_ANNOTATION), report))
            .unwrap_or_else(|Noted| previous.and_then(|service| service.scheduler));
        Some(Self {
            namespace: object.key.namespace.clone(),
            name: object.key.name.clone(),
            origin: object.origin.clone(),
            created: read_created(&metadata.key("creationTimestamp"), report)
                .unwrap_or_else(|Noted| previous.and_then(|service| service.created)),
            addresses: addresses.unwrap_or_else(|usable| match previous {
                Some(service) if !service.addresses.is_empty() => service.addresses.clone(),
                _ => usable,
            }),
            exposure: if served {
                Exposure::read(&root, kind, previous.map(|service| &*service.exposure), report).shared()
            } else {
                Exposure::default().shared()
            },
            ports: read_ports(&spec.key("ports"), report, previous.map_or(&[], |service| &service.ports)),
            scheduler,
            flags: annotated
                .and_then(|()| read_flags(&annotations.key(SCHEDULER_FLAGS_ANNOTATION), scheduler, report))
                .unwrap_or_else(|Noted| previous.map_or_else(Default::default, |service| service.flags)),
            affinity: {
                let annotations = annotated.is_ok().then_some(&annotations);
                Affinity::read(&spec, annotations, previous.map(|service| &service.affinity), report)
            },
            weights: {
                let none = Weights::default();
                let previous = previous.map_or(&none, |service| &service.weights);
                match annotated {
                    Ok(()) => Weights::read(&annotations.key(WEIGHTS_ANNOTATION), report, previous),
                    Err(Noted) => previous.clone(),
                }
            },
        })
    }
}

/// The type. An ExternalName has no virtual address whatever `clusterIP` says (SV-1); types of the future are served.
fn read_type<'a>(spec: &'a Field<'a>, report: &mut Report<'_>) -> Result<Option<&'a str>, Noted> {
    spec.key("type").text(report, "must be ClusterIP, NodePort, LoadBalancer or ExternalName")
}

/// The cluster address of each family (SV-3). `Err` holds those that are right when some are wrong.
fn read_addresses(spec: &Field<'_>, report: &mut Report<'_>) -> Result<Vec<IpAddr>, Vec<IpAddr>> {
    let mut usable: Vec<IpAddr> = Vec::new();
    let mut wrong = false;
    let single = spec.key("clusterIP");
    let Ok(stated) = single.text(report, address::ALLOWED) else { return Err(usable) };
    if matches!(stated, Some("None" | "")) {
        return Ok(usable);
    }
    let (several, families) = (spec.key("clusterIPs"), spec.key("ipFamilies"));
    let (Ok(entries), Ok(families)) = (several.items(report), families.items(report)) else { return Err(usable) };
    let mut fields: Vec<_> = entries.collect();
    let families: Vec<_> = families.map(|field| field.text(report, FAMILY)).collect();
    if fields.is_empty() {
        fields.push(single);
    }
    for (index, field) in fields.iter().enumerate() {
        let text = match field.text(report, address::ALLOWED) {
            Ok(Some("None" | "")) => continue,
            Ok(Some(text)) => text,
            Ok(None) if !report.in_file() => continue,
            Ok(None) => {
                let message = "no address is allocated for it here: state one, or None for a headless Service";
                report.wrong(field, message);
                wrong = true;
                continue;
            }
            Err(Noted) => {
                wrong = true;
                continue;
            }
        };
        let Some(address) = address::parse(text) else {
            report.wrong(field, address::ALLOWED);
            wrong = true;
            continue;
        };
        let family = if address.is_ipv4() { "IPv4" } else { "IPv6" };
        match families.get(index) {
            Some(Ok(Some(stated))) if *stated != family => {
                report.wrong(field, format!("must be an {stated} address, as spec.ipFamilies[{index}] says"));
                wrong = true;
            }
            Some(Err(Noted)) => wrong = true,
            None if !families.is_empty() => {}
            _ if usable.iter().any(|other| other.is_ipv4() == address.is_ipv4()) => {
                report.wrong(field, "a Service has at most one address of each family: the first one holds");
            }
            _ => usable.push(address),
        }
    }
    usable.shrink_to_fit();
    if wrong { Err(usable) } else { Ok(usable) }
}

const FAMILY: &str = "must be IPv4 or IPv6";

fn read_created(field: &Field<'_>, report: &mut Report<'_>) -> Result<Option<i64>, Noted> {
    let allowed = "must be a time such as 2026-01-31T12:00:00Z";
    let Some(text) = field.text(report, allowed)? else { return Ok(None) };
    match text.parse::<k8s_openapi::jiff::Timestamp>() {
        Ok(time) => Ok(Some(time.as_second())),
        Err(_) => {
            report.wrong(field, allowed);
            Err(Noted)
        }
    }
}

fn read_ports(list: &Field<'_>, report: &mut Report<'_>, previous: &[ServicePort]) -> Vec<ServicePort> {
    let mut ports: Vec<ServicePort> = Vec::new();
    let Ok(entries) = list.items(report) else { return previous.to_vec() };
    for entry in entries {
        let Ok(port) = read_port(&entry, report, previous) else { continue };
        let same = |other: &&ServicePort| other.protocol == port.protocol;
        if ports.iter().filter(same).any(|other| other.port == port.port) {
            let message = format!("port {}/{} is stated twice: the first one holds", port.port, port.protocol.name());
            report.wrong(&entry.key("port"), message);
        } else if ports.iter().filter(same).any(|other| other.name == port.name) {
            report.wrong(&entry.key("name"), "ports of one protocol need different names: the first one holds");
        } else {
            ports.push(port);
        }
    }
    ports.shrink_to_fit();
    ports
}

fn read_port(entry: &Field<'_>, report: &mut Report<'_>, previous: &[ServicePort]) -> Result<ServicePort, Noted> {
    if !entry.is_map(report) {
        return Err(Noted);
    }
    let name = entry.key("name").text(report, "must be text")?.unwrap_or_default();
    let protocol = read_protocol(&entry.key("protocol"), report)?;
    let number = entry.key("port");
    let before = previous.iter().find(|port| *port.name == *name && port.protocol == protocol);
    match number.port(report) {
        Ok(Some(port)) => {
            let node_port = entry.key("nodePort").optional_port(report);
            let node_port = node_port.unwrap_or_else(|Noted| before.and_then(|port| port.node_port));
            Ok(ServicePort { name: name.into(), protocol, port, node_port })
        }
        missing => {
            if missing.is_ok() {
                report.wrong(&number, "must be a number from 1 to 65535");
            }
            before.cloned().ok_or(Noted)
        }
    }
}

/// The protocol of a port; TCP if it is missing.
pub(crate) fn read_protocol(field: &Field<'_>, report: &mut Report<'_>) -> Result<Protocol, Noted> {
    let allowed = "must be TCP, UDP or SCTP";
    let Some(text) = field.text(report, allowed)? else { return Ok(Protocol::Tcp) };
    Protocol::ALL.into_iter().find(|protocol| protocol.name() == text).ok_or_else(|| {
        report.wrong(field, allowed);
        Noted
    })
}

fn read_scheduler(field: &Field<'_>, report: &mut Report<'_>) -> Result<Option<Scheduler>, Noted> {
    let allowed = || format!("must be one of {}", Scheduler::ALL.map(Scheduler::name).join(", "));
    let Some(text) = field.text(report, &allowed())? else { return Ok(None) };
    match Scheduler::from_name(text.trim()) {
        Some(scheduler) => Ok(Some(scheduler)),
        None => {
            report.wrong(field, allowed());
            Err(Noted)
        }
    }
}

/// The flags, which must be of one scheduler, and of the one that is stated, if one is.
fn read_flags(
    field: &Field<'_>,
    scheduler: Option<Scheduler>,
    report: &mut Report<'_>,
) -> Result<SchedulerFlags, Noted> {
    let allowed = "must be sh-port, sh-fallback or both with scheduler sh, mh-port, mh-fallback or both with scheduler \
                   mh, separated by a comma";
    let mut flags = SchedulerFlags::default();
    let text = field.text(report, allowed)?.unwrap_or_default();
    for flag in text.split(',').map(str::trim).filter(|flag| !flag.is_empty()) {
        let named = |owner: &Scheduler| owner.has_flags() && owner.flag_names().contains(&flag);
        let Some(owner) = Scheduler::ALL.into_iter().find(named) else {
            report.wrong_part(field, shown(flag), allowed);
            return Err(Noted);
        };
        let differs = |other: &Scheduler| *other != owner;
        if let Some(other) = scheduler.filter(differs) {
            let message = format!("is a flag of {}, but the scheduler is {}: {allowed}", owner.name(), other.name());
            report.wrong_part(field, shown(flag), message);
            return Err(Noted);
        }
        if let Some(other) = flags.scheduler.filter(differs) {
            let message =
                format!("is a flag of {}, and stands beside one of {}: {allowed}", owner.name(), other.name());
            report.wrong_part(field, shown(flag), message);
            return Err(Noted);
        }
        flags.scheduler = Some(owner);
        let [port, _] = owner.flag_names();
        *if flag == port { &mut flags.hash_port } else { &mut flags.hash_fallback } = true;
    }
    Ok(flags)
}
