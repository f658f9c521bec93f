//! On which addresses of the node its node ports are served.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;

use super::{Node, NodePortAddresses, Options};

/// The addresses that [`Scope::NodePort`](super::Scope::NodePort) stands for.
pub(super) fn addresses(node: &Node, options: &Options) -> BTreeSet<IpAddr> {
    if !options.node_ports {
        return BTreeSet::new();
    }
    let wanted = networks(node, options);
    let candidates = options.addresses.iter().map(IpAddr::to_canonical).filter(can_serve);
    candidates
        .filter(|address| {
            // A family without a network is not restricted.
            let mut own = wanted.iter().filter(|network| network.addr().is_ipv4() == address.is_ipv4()).peekable();
            own.peek().is_none() || own.any(|network| network.contains(address))
        })
        .collect()
}

/// Where load balancers may ask for a Service's health (HC-7): the [`addresses`] of a family that is restricted to networks,
/// else the unspecified one.
pub(super) fn health_check_addresses(node: &Node, options: &Options) -> BTreeSet<IpAddr> {
    let (wanted, found) = (networks(node, options), addresses(node, options));
    let all = [IpAddr::V4(Ipv4Addr::UNSPECIFIED), IpAddr::V6(Ipv6Addr::UNSPECIFIED)];
    let restricted = |all: &IpAddr| wanted.iter().any(|network| network.addr().is_ipv4() == all.is_ipv4());
    let of_family = |all: IpAddr| -> Vec<IpAddr> {
        if options.node_ports && restricted(&all) {
            found.iter().filter(|address| address.is_ipv4() == all.is_ipv4()).copied().collect()
        } else {
            vec![all]
        }
    };
    all.into_iter().flat_map(of_family).collect()
}

/// The networks that they are restricted to.
fn networks(node: &Node, options: &Options) -> Vec<IpNet> {
    match &options.node_port_addresses {
        NodePortAddresses::Networks(networks) => networks.clone(),
        NodePortAddresses::Primary => primary(node, options).into_iter().map(IpNet::from).collect(),
    }
}

/// Whether they are served at 127.0.0.0/8 too. Of networks, one must have loopback addresses or all of IPv4's.
pub(super) fn at_loopback(options: &Options) -> bool {
    let named = match &options.node_port_addresses {
        NodePortAddresses::Networks(networks) => {
            let mut v4 = networks.iter().filter(|network| network.addr().is_ipv4()).peekable();
            let loopback = IpAddr::V4(Ipv4Addr::LOCALHOST);
            v4.peek().is_none() || v4.any(|network| network.addr().is_loopback() || network.contains(&loopback))
        }
        NodePortAddresses::Primary => false,
    };
    options.node_ports && options.localhost_node_ports && named
}

/// What is to be said in the log of the addresses that are stated (NP-10), and whether it is odd: that nothing is, or that there
/// are those of one family where the node has two. `found`: the node's own.
pub fn oddities(options: &Options, found: &[IpAddr]) -> Vec<(bool, String)> {
    let NodePortAddresses::Networks(networks) = &options.node_port_addresses else { return Vec::new() };
    if !options.node_ports {
        return Vec::new();
    }
    if networks.is_empty() {
        let message = "node ports are served at all addresses of this node: nodePortAddresses (--nodeport-addresses) says \
                       nothing; `primary` would restrict them to those that stand for the node";
        return vec![(false, message.to_owned())];
    }
    let serves =
        |v4| found.iter().map(IpAddr::to_canonical).any(|address| can_serve(&address) && address.is_ipv4() == v4);
    let names = |v4| networks.iter().any(|network| network.addr().is_ipv4() == v4);
    [(true, "IPv4", "IPv6"), (false, "IPv6", "IPv4")]
        .into_iter()
        .filter(|(v4, ..)| serves(*v4) && !names(*v4))
        .map(|(_, missing, stated)| {
            let message = format!(
                "node ports are served at all {missing} addresses of this node: nodePortAddresses (--nodeport-addresses) \
                 has networks of {stated} alone"
            );
            (true, message)
        })
        .collect()
}

/// The addresses that stand for the node, one of each family.
pub(super) fn primary(node: &Node, options: &Options) -> Vec<IpAddr> {
    let stated = options.node_address.iter().chain(&node.addresses).map(IpAddr::to_canonical);
    let found = options.addresses.iter().map(IpAddr::to_canonical).filter(can_serve);
    let mut primary: Vec<IpAddr> = Vec::new();
    for address in stated.chain(found) {
        if primary.iter().all(|other| other.is_ipv4() != address.is_ipv4()) {
            primary.push(address);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_odd_about_the_addresses_of_node_ports_is_said() {
        let parse = |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect::<Vec<IpAddr>>();
        let (both, v4) =
            (parse(&["192.0.2.10", "2001:db8::10", "127.0.0.1"]), parse(&["192.0.2.10", "::1", "fe80::1"]));
        let told = |stated: &[&str], found: &[IpAddr]| {
            let networks = stated.iter().map(|text| text.parse().unwrap()).collect();
            let options = Options { node_port_addresses: NodePortAddresses::Networks(networks), ..Options::default() };
            let told = oddities(&options, found);
            assert!(told.len() < 2, "{told:?}");
            let told = told.first().map(|(odd, line)| (*odd, line.split(':').next().unwrap().to_owned()));
            told.map(|(odd, line)| format!("{}{line}", if odd { "odd: " } else { "" })).unwrap_or_default()
        };
        assert_eq!(told(&[], &both), "node ports are served at all addresses of this node");
        assert_eq!(told(&["192.0.2.0/24"], &both), "odd: node ports are served at all IPv6 addresses of this node");
        assert_eq!(told(&["2001:db8::/32"], &both), "odd: node ports are served at all IPv4 addresses of this node");
        for (stated, found) in [(&["192.0.2.0/24", "2001:db8::/32"] as &[&str], &both), (&["192.0.2.0/24"], &v4)] {
            assert_eq!(told(stated, found), "");
        }
        for options in [
            Options { node_port_addresses: NodePortAddresses::Primary, ..Options::default() },
            Options { node_ports: false, ..Options::default() },
        ] {
            assert_eq!(oddities(&options, &both), []);
        }
    }
}
