//! Nodes.

use std::net::IpAddr;

use ipnet::IpNet;

use super::address;
use super::field::{Field, Noted, Report};
use super::object::Object;
use super::problem::Problem;

/// Label that names the zone of a node.
pub const ZONE_LABEL: &str = "topology.kubernetes.io/zone";
/// Key of the taint on a node that the cluster autoscaler is about to delete, whatever its value and effect.
pub const TO_BE_DELETED_TAINT: &str = "ToBeDeletedByClusterAutoscaler";

/// A node, as far as it matters to the services on it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Node {
    /// Name. Endpoints whose `nodeName` is this are local.
    pub name: String,
    /// Zone, if it is in one.
    pub zone: Option<String>,
    /// Networks of its pods (`spec.podCIDRs`), in their order.
    pub pod_networks: Vec<IpNet>,
    /// Its addresses for the cluster, at most one of each family: `InternalIP`, else `ExternalIP` (ND-2).
    pub addresses: Vec<IpAddr>,
    /// False while nothing but the name is known.
    pub known: bool,
    /// It is being deleted, or about to be.
    pub leaving: bool,
}

impl Node {
    /// A node of which only the name is known.
    pub fn named(name: impl Into<String>) -> Self {
        Self { name: name.into(), ..Self::default() }
    }

    /// Whether load balancers may send new connections to this node (HZ-4, KEP-3836).
    pub fn is_eligible(&self) -> bool {
        self.known && !self.leaving
    }

    /// Reads a Node. What is wrong keeps its value of `previous`, or is missing.
    pub(crate) fn read(object: &Object, previous: Option<&Self>) -> (Option<Self>, Vec<Problem>) {
        let mut report = Report::new(object.key.to_string(), &object.origin);
        let node = Self::read_parts(object, previous, &mut report);
        (Some(node), report.problems)
    }

    fn read_parts(object: &Object, previous: Option<&Self>, report: &mut Report<'_>) -> Self {
        let root = Field::root(&object.tree);
        let nothing = Self::default();
        let before = previous.unwrap_or(&nothing);
        let (metadata, spec, status) = (root.key("metadata"), root.key("spec"), root.key("status"));
        let fields = [&spec, &status].map(|map| map.fields(report));
        let zone = match metadata.key("labels").key(ZONE_LABEL).text(report, TEXT) {
            Ok(zone) => zone.filter(|zone| !zone.is_empty()).map(str::to_owned),
            Err(Noted) => before.zone.clone(),
        };
        let pod_networks = fields[0].and_then(|()| read_pod_networks(&spec, report));
        let tainted = fields[0].and_then(|()| read_taints(&spec, report));
        let addresses = fields[1].and_then(|()| read_addresses(&status, report));
        let deleted = metadata.key("deletionTimestamp");
        Self {
            name: object.key.name.to_string(),
            zone,
            pod_networks: pod_networks.unwrap_or_else(|Noted| before.pod_networks.clone()),
            addresses: addresses.unwrap_or_else(|Noted| before.addresses.clone()),
            known: true,
            leaving: (deleted.stated() && !deleted.null()) || tainted.unwrap_or(before.leaving),
        }
    }
}

const TEXT: &str = "must be text";

/// `podCIDRs`, and for objects from before there were two families `podCIDR`.
fn read_pod_networks(spec: &Field<'_>, report: &mut Report<'_>) -> Result<Vec<IpNet>, Noted> {
    let (list, single) = (spec.key("podCIDRs"), spec.key("podCIDR"));
    let mut fields: Vec<_> = list.items(report)?.collect();
    if fields.is_empty() {
        fields.push(single);
    }
    let mut networks = Vec::new();
    for field in fields {
        match field.text(report, address::NETWORK_ALLOWED)? {
            None | Some("") => {}
            Some(text) => match address::parse_network(text) {
                Some(network) => networks.push(network),
                None => {
                    report.wrong(&field, address::NETWORK_ALLOWED);
                    return Err(Noted);
                }
            },
        }
    }
    Ok(networks)
}

/// Whether the node is about to be deleted.
fn read_taints(spec: &Field<'_>, report: &mut Report<'_>) -> Result<bool, Noted> {
    let list = spec.key("taints");
    let mut found = false;
    for taint in list.items(report)? {
        found |= taint.key("key").text(report, TEXT)? == Some(TO_BE_DELETED_TAINT);
    }
    Ok(found)
}

/// What is no usable address is no business of services (host names, other types, broken entries): it is skipped.
fn read_addresses(status: &Field<'_>, report: &mut Report<'_>) -> Result<Vec<IpAddr>, Noted> {
    let list = status.key("addresses");
    let (mut internal, mut external) = (Vec::new(), Vec::new());
    for entry in list.items(report)? {
        let of_type = match entry.key("type").text(report, TEXT)? {
            Some("InternalIP") => &mut internal,
            Some("ExternalIP") => &mut external,
            _ => continue,
        };
        of_type.extend(entry.key("address").text(report, TEXT)?.and_then(address::parse));
    }
    let mut addresses: Vec<IpAddr> = Vec::new();
    for address in internal.into_iter().chain(external) {
        if addresses.iter().all(|other| other.is_ipv4() != address.is_ipv4()) {
            addresses.push(address);
        }
    }
    Ok(addresses)
}
