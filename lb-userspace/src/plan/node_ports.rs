//! On which addresses of the node its node ports are served.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipnet::IpNet;

use super::{Node, NodePortAddresses, Options};

/// The addresses that [`Scope::NodePort`](super::Scope::NodePort) stands for.
pub(super) fn addresses(node: &Node, options: &Options) -> BTreeSet<IpAddr> {
    if !options.node_ports {
        return BTreeSet::new();
    }
    let wanted = match &options.node_port_addresses {
        NodePortAddresses::Networks(networks) => networks.clone(),
        NodePortAddresses::Primary => primary(node, options),
    };
    let candidates = options.addresses.iter().map(IpAddr::to_canonical).filter(can_serve);
    candidates
        .filter(|address| {
            // A family without a network is not restricted.
            let mut own = wanted.iter().filter(|network| network.addr().is_ipv4() == address.is_ipv4()).peekable();
            own.peek().is_none() || own.any(|network| network.contains(address))
        })
        .collect()
}

/// The addresses that stand for the node, one of each family.
fn primary(node: &Node, options: &Options) -> Vec<IpNet> {
    let stated = options.node_address.iter().chain(&node.addresses).map(IpAddr::to_canonical);
    let found = options.addresses.iter().map(IpAddr::to_canonical).filter(can_serve);
    let mut primary: Vec<IpNet> = Vec::new();
    for address in stated.chain(found) {
        if primary.iter().all(|other| other.addr().is_ipv4() != address.is_ipv4()) {
            primary.push(address.into());
        }
    }
    primary
}

/// Loopback and IPv6 link-local addresses serve no node ports, whatever the networks say (NP-3). The plan does not depend
/// on them, which come with every interface.
pub fn can_serve(address: &IpAddr) -> bool {
    let link_local = matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local());
    !(address.is_loopback() || address.is_unspecified() || address.is_multicast() || link_local)
}
