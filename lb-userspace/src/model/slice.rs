//! EndpointSlices.

use std::net::IpAddr;
use std::sync::Arc;

use jiff::Timestamp;
use lb_common::address::Protocol;

use super::address;
use super::field::{Field, Noted, Report};
use super::object::{Object, Origin};
use super::problem::Problem;
use super::service::read_protocol;
use super::weights::{WEIGHT_ANNOTATION, read_weight};

/// Label that names the Service of a slice.
pub const SERVICE_NAME_LABEL: &str = "kubernetes.io/service-name";
/// Annotation that says when the change happened that the slice was written for (EP-13).
pub const TRIGGER_ANNOTATION: &str = "endpoints.kubernetes.io/last-change-trigger-time";
/// Label that hides a slice from proxies, whatever its value.
pub const HEADLESS_LABEL: &str = "service.kubernetes.io/headless";

/// An EndpointSlice as stated. A slice that feeds nothing (of names, hidden, of no Service) has no endpoints.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndpointSlice {
    /// Namespace.
    pub namespace: Arc<str>,
    /// Name.
    pub name: Arc<str>,
    /// Where it was written.
    pub origin: Origin,
    /// Name of its Service, in its namespace.
    pub service: Arc<str>,
    /// Ports that are stated whole.
    pub ports: Vec<SlicePort>,
    /// Endpoints; the same address may stand several times.
    pub endpoints: Vec<Endpoint>,
    /// Weight of its endpoints, unless the Service states one.
    pub weight: Option<i32>,
    /// When the change happened that it was written for, where that is told.
    pub trigger: Option<Trigger>,
}

/// The time of a change of endpoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trigger {
    /// When.
    pub at: Timestamp,
    /// Whether it is about IPv4.
    pub v4: bool,
}

/// A port of a slice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlicePort {
    /// Name of the Service's port that it belongs to.
    pub name: Arc<str>,
    /// Protocol of that port.
    pub protocol: Protocol,
    /// Number at the endpoints.
    pub port: u16,
}

/// An endpoint of a slice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// Address.
    pub address: IpAddr,
    /// Takes new connections.
    pub ready: bool,
    /// Would answer, ready or not.
    pub serving: bool,
    /// Is going away.
    pub terminating: bool,
    /// Name of the node it runs on.
    pub node: Option<Arc<str>>,
    /// Its zone.
    pub zone: Option<Arc<str>>,
    /// Name of its `targetRef`.
    pub pod: Option<Box<str>>,
    /// Whom it is meant for. None for an endpoint that is for all.
    pub hints: Option<Box<Hints>>,
}

/// Whom an endpoint is meant for, while all endpoints say so (KEP-2433, KEP-3015).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hints {
    /// Zones.
    pub zones: Box<[Arc<str>]>,
    /// Nodes.
    pub nodes: Box<[Arc<str>]>,
}

impl EndpointSlice {
    /// Reads a slice. A wrong part keeps its value of `previous` where it can be told which part it is (ports,
    /// annotations); a wrong endpoint is left out.
    pub(crate) fn read(object: &Object, previous: Option<&Self>) -> (Option<Self>, Vec<Problem>) {
        let mut report = Report::new(object.key.to_string(), &object.origin);
        let slice = match Self::read_parts(object, previous, &mut report) {
            Ok(slice) => slice,
            Err(Noted) => previous.cloned(),
        };
        (slice, report.problems)
    }

    fn read_parts(object: &Object, previous: Option<&Self>, report: &mut Report<'_>) -> Result<Option<Self>, Noted> {
        let root = Field::root(&object.tree);
        let metadata = root.key("metadata");
        let labels = metadata.key("labels");
        labels.entries(report)?;
        if labels.key(HEADLESS_LABEL).stated() {
            return Ok(None);
        }
        let label = labels.key(SERVICE_NAME_LABEL);
        let service = match label.text(report, "must be the name of a Service")? {
            Some(service) if !service.is_empty() => service.into(),
            _ if report.in_file() => {
                report.wrong(&label, "must name the Service that the slice belongs to");
                return Err(Noted);
            }
            _ => return Ok(None),
        };
        let allowed = "must be IPv4, IPv6 or FQDN";
        let family = root.key("addressType");
        let v4 = match family.text(report, allowed)? {
            Some("IPv4") => true,
            Some("IPv6") => false,
            Some("FQDN") => return Ok(None),
            _ => {
                report.wrong(&family, allowed);
                return Err(Noted);
            }
        };
        let ports = read_ports(&root.key("ports"), report, previous.map_or(&[], |slice| &slice.ports))?;
        let list = root.key("endpoints");
        let mut endpoints = Vec::new();
        for entry in list.items(report)? {
            if let Ok(Some(endpoint)) = read_endpoint(&entry, report, v4) {
                endpoints.push(endpoint);
            }
        }
        endpoints.shrink_to_fit();
        let annotations = metadata.key("annotations");
        let annotated = annotations.entries(report);
        let weight = previous.and_then(|slice| slice.weight);
        Ok(Some(Self {
            namespace: object.key.namespace.clone(),
            name: object.key.name.clone(),
            origin: object.origin.clone(),
            service,
            ports,
            endpoints,
            weight: match annotated {
                Ok(()) => read_weight(&annotations.key(WEIGHT_ANNOTATION), report, weight),
                Err(Noted) => weight,
            },
            trigger: annotated.ok().and_then(|()| read_trigger(&annotations.key(TRIGGER_ANNOTATION), report, v4)),
        }))
    }
}

/// A wrong time is none: only a measurement is lost with it.
fn read_trigger(field: &Field<'_>, report: &mut Report<'_>, v4: bool) -> Option<Trigger> {
    const ALLOWED: &str = "must be a time as in RFC 3339, such as 2026-01-31T09:30:00Z";
    let text = field.text(report, ALLOWED).ok()??;
    let at = text.parse().map_err(|_| report.wrong(field, ALLOWED)).ok()?;
    Some(Trigger { at, v4 })
}

/// A port without name or number is none of a proxy's business, and no error (EP-3). The API server's 0 is no number;
/// in a file it is a mistake.
fn read_ports(list: &Field<'_>, report: &mut Report<'_>, previous: &[SlicePort]) -> Result<Vec<SlicePort>, Noted> {
    let mut ports = Vec::new();
    for entry in list.items(report)? {
        if !entry.is_map(report) {
            continue;
        }
        let Ok(name) = entry.key("name").text(report, "must be text") else { continue };
        let Ok(protocol) = read_protocol(&entry.key("protocol"), report) else { continue };
        let Some(name) = name else { continue };
        let number = entry.key("port");
        if number.zero() && !report.in_file() {
            continue;
        }
        match number.port(report) {
            Ok(Some(port)) => ports.push(SlicePort { name: name.into(), protocol, port }),
            Ok(None) => {}
            Err(Noted) => {
                ports.extend(previous.iter().find(|port| *port.name == *name && port.protocol == protocol).cloned());
            }
        }
    }
    ports.shrink_to_fit();
    Ok(ports)
}

fn read_endpoint(entry: &Field<'_>, report: &mut Report<'_>, v4: bool) -> Result<Option<Endpoint>, Noted> {
    const TEXT: &str = "must be text";
    if !entry.is_map(report) {
        return Err(Noted);
    }
    let list = entry.key("addresses");
    let Some(first) = list.items(report)?.next() else { return Ok(None) };
    let allowed = if v4 {
        "must be a usable IPv4 address, such as 10.1.0.5"
    } else {
        "must be a usable IPv6 address, such as fd00::5"
    };
    let address = first.text(report, allowed)?.and_then(address::parse).filter(|address| address.is_ipv4() == v4);
    let Some(address) = address else {
        report.wrong(&first, allowed);
        return Err(Noted);
    };
    let conditions = entry.key("conditions");
    let target = entry.key("targetRef");
    Ok(Some(Endpoint {
        address,
        ready: conditions.key("ready").truth(report)?.unwrap_or(true),
        serving: conditions.key("serving").truth(report)?.unwrap_or(true),
        terminating: conditions.key("terminating").truth(report)?.unwrap_or(false),
        node: entry.key("nodeName").text(report, TEXT)?.map(Arc::from),
        zone: entry.key("zone").text(report, TEXT)?.map(Arc::from),
        pod: target.key("name").text(report, TEXT)?.map(Box::from),
        hints: read_hints(&entry.key("hints"), report),
    }))
}

/// Hints that are wrong are none: without them the endpoint still serves.
fn read_hints(field: &Field<'_>, report: &mut Report<'_>) -> Option<Box<Hints>> {
    field.fields(report).ok()?;
    let zones = read_names(&field.key("forZones"), report);
    let nodes = read_names(&field.key("forNodes"), report);
    (!zones.is_empty() || !nodes.is_empty()).then(|| Box::new(Hints { zones, nodes }))
}

fn read_names(list: &Field<'_>, report: &mut Report<'_>) -> Box<[Arc<str>]> {
    let Ok(entries) = list.items(report) else { return Box::default() };
    let mut names = Vec::new();
    for entry in entries {
        if !entry.is_map(report) {
            continue;
        }
        if let Ok(Some(name)) = entry.key("name").text(report, "must be text") {
            names.push(name.into());
        }
    }
    names.into()
}
