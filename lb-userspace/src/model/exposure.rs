//! How a Service is reached from outside the cluster, and what it says of where its traffic may go.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::{Arc, LazyLock};

use ipnet::IpNet;

use super::address;
use super::field::{Field, Noted, Report};

/// The type of a Service, as far as it matters here. What type it is decides less than it seems: node ports and
/// addresses of load balancers are used wherever they are stated (SV-4, SV-6).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ServiceType {
    /// `ClusterIP`, and types that are not known yet.
    #[default]
    ClusterIp,
    /// `NodePort`.
    NodePort,
    /// `LoadBalancer`.
    LoadBalancer,
}

/// `internalTrafficPolicy`, `externalTrafficPolicy`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TrafficPolicy {
    /// To all endpoints.
    #[default]
    Cluster,
    /// To endpoints on the node that the traffic came to.
    Local,
}

/// What a Service says besides its cluster addresses and ports. The default is what one that says nothing means.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Exposure {
    /// `type`.
    pub kind: ServiceType,
    /// `externalIPs`.
    pub external_addresses: Vec<IpAddr>,
    /// Addresses of load balancers whose traffic arrives here with the load balancer's address as its destination:
    /// `status.loadBalancer.ingress` of `ipMode` VIP (SV-4, KEP-1860).
    pub load_balancer_addresses: Vec<IpAddr>,
    /// `loadBalancerSourceRanges`, of both families.
    pub source_ranges: BTreeSet<IpNet>,
    /// `internalTrafficPolicy`.
    pub internal_policy: TrafficPolicy,
    /// `externalTrafficPolicy` as stated; see [`Self::is_external_local`].
    pub external_policy: TrafficPolicy,
    /// `healthCheckNodePort` as stated; see [`Self::health_check_port`].
    pub health_check_node_port: Option<u16>,
}

impl Exposure {
    /// What most Services say is nothing: kept once.
    pub(crate) fn shared(self) -> Arc<Self> {
        static NOTHING: LazyLock<Arc<Exposure>> = LazyLock::new(Arc::default);
        if self == **NOTHING { NOTHING.clone() } else { self.into() }
    }

    /// Whether traffic from outside stays on the node: the policy means nothing on a Service that by its type and
    /// external addresses has no such traffic (SV-7).
    pub fn is_external_local(&self) -> bool {
        let outside = self.kind != ServiceType::ClusterIp || !self.external_addresses.is_empty();
        outside && self.external_policy == TrafficPolicy::Local
    }

    /// Where load balancers ask whether the node has endpoints (SV-8).
    pub fn health_check_port(&self) -> Option<u16> {
        let asked = self.kind == ServiceType::LoadBalancer && self.external_policy == TrafficPolicy::Local;
        self.health_check_node_port.filter(|_| asked)
    }

    /// The networks that may use the addresses of load balancers, for one family. None: all (SV-10: ranges of the other
    /// family say nothing about this one, and a range of everything makes the others needless).
    pub fn sources(&self, v4: bool) -> BTreeSet<IpNet> {
        let ranges = self.source_ranges.iter().filter(|range| range.addr().is_ipv4() == v4);
        if ranges.clone().any(|range| range.prefix_len() == 0) { BTreeSet::new() } else { ranges.copied().collect() }
    }

    /// Reads a Service's. What is wrong keeps its value of `previous`; where there is none it is left out, or default.
    pub(crate) fn read(
        root: &Field<'_>,
        kind: Result<Option<&str>, Noted>,
        previous: Option<&Self>,
        report: &mut Report<'_>,
    ) -> Self {
        let nothing = Self::default();
        let before = previous.unwrap_or(&nothing);
        let (spec, status) = (root.key("spec"), root.key("status"));
        let health_check = spec.key("healthCheckNodePort").optional_port(report);
        Self {
            kind: match kind {
                Ok(Some("NodePort")) => ServiceType::NodePort,
                Ok(Some("LoadBalancer")) => ServiceType::LoadBalancer,
                Ok(_) => ServiceType::ClusterIp,
                Err(Noted) => before.kind,
            },
            external_addresses: kept(read_addresses(&spec.key("externalIPs"), report), &before.external_addresses),
            load_balancer_addresses: kept(read_ingress(&status, report), &before.load_balancer_addresses),
            source_ranges: kept(read_ranges(&spec.key("loadBalancerSourceRanges"), report), &before.source_ranges),
            internal_policy: read_policy(&spec.key("internalTrafficPolicy"), report).unwrap_or(before.internal_policy),
            external_policy: read_policy(&spec.key("externalTrafficPolicy"), report).unwrap_or(before.external_policy),
            health_check_node_port: health_check.unwrap_or(before.health_check_node_port),
        }
    }
}

/// A list, or, when some of it is wrong, the one before; what is right of it, if there was none.
fn kept<T: Clone + Default + PartialEq>(read: Result<T, T>, before: &T) -> T {
    read.unwrap_or_else(|right| if *before == T::default() { right } else { before.clone() })
}

/// `Err` holds those that are right when some are wrong.
fn read_addresses(list: &Field<'_>, report: &mut Report<'_>) -> Result<Vec<IpAddr>, Vec<IpAddr>> {
    let mut found = Found::default();
    let Ok(entries) = list.items(report) else { return Err(Vec::new()) };
    for entry in entries {
        match entry.text(report, address::ALLOWED) {
            Ok(text) => found.take(&entry, text.unwrap_or_default(), report),
            Err(Noted) => found.wrong = true,
        }
    }
    found.done()
}

/// Load balancers whose traffic arrives with its own address: those that say VIP, or nothing (SV-4). Those that are
/// known by a name have no address here.
fn read_ingress(status: &Field<'_>, report: &mut Report<'_>) -> Result<Vec<IpAddr>, Vec<IpAddr>> {
    let balancer = status.key("loadBalancer");
    for map in [status, &balancer] {
        map.fields(report).map_err(|Noted| Vec::new())?;
    }
    let mut found = Found::default();
    let list = balancer.key("ingress");
    let Ok(entries) = list.items(report) else { return Err(Vec::new()) };
    for entry in entries {
        if !entry.is_map(report) {
            found.wrong = true;
            continue;
        }
        let (address, mode) = (entry.key("ip"), entry.key("ipMode"));
        let read = (address.text(report, address::ALLOWED), mode.text(report, "must be VIP or Proxy"));
        match read {
            (Ok(Some(text)), Ok(None | Some("VIP"))) if !text.is_empty() => found.take(&address, text, report),
            // Modes that are not known yet do not say that the traffic comes here.
            (Ok(_), Ok(_)) => {}
            _ => found.wrong = true,
        }
    }
    found.done()
}

#[derive(Default)]
struct Found {
    addresses: Vec<IpAddr>,
    wrong: bool,
}

impl Found {
    fn take(&mut self, field: &Field<'_>, text: &str, report: &mut Report<'_>) {
        match address::parse(text) {
            Some(address) if self.addresses.contains(&address) => {}
            Some(address) => self.addresses.push(address),
            None => {
                report.wrong(field, address::ALLOWED);
                self.wrong = true;
            }
        }
    }

    fn done(self) -> Result<Vec<IpAddr>, Vec<IpAddr>> {
        if self.wrong { Err(self.addresses) } else { Ok(self.addresses) }
    }
}

fn read_ranges(list: &Field<'_>, report: &mut Report<'_>) -> Result<BTreeSet<IpNet>, BTreeSet<IpNet>> {
    let mut ranges = BTreeSet::new();
    let mut wrong = false;
    let Ok(entries) = list.items(report) else { return Err(ranges) };
    for entry in entries {
        match entry.text(report, address::NETWORK_ALLOWED) {
            Ok(text) => match address::parse_network(text.unwrap_or_default()) {
                Some(range) => {
                    ranges.insert(range);
                }
                None => {
                    report.wrong(&entry, address::NETWORK_ALLOWED);
                    wrong = true;
                }
            },
            Err(Noted) => wrong = true,
        }
    }
    if wrong { Err(ranges) } else { Ok(ranges) }
}

fn read_policy(field: &Field<'_>, report: &mut Report<'_>) -> Result<TrafficPolicy, Noted> {
    let allowed = "must be Cluster or Local";
    match field.text(report, allowed)? {
        None | Some("Cluster" | "") => Ok(TrafficPolicy::Cluster),
        Some("Local") => Ok(TrafficPolicy::Local),
        Some(_) => {
            report.wrong(field, allowed);
            Err(Noted)
        }
    }
}
