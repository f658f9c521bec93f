//! The interfaces, addresses and default routes of this network namespace, over rtnetlink. `/sys/class/net` would show
//! those of whichever namespace mounted it.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use anyhow::{Context, Result};
use futures::TryStreamExt;
use ipnet::IpNet;
use rtnetlink::RouteMessageBuilder;
use rtnetlink::packet_route::address::{AddressAttribute, AddressHeaderFlags, AddressMessage, AddressScope};
use rtnetlink::packet_route::link::{
    InfoKind, InfoPortKind, LinkAttribute, LinkFlags, LinkInfo, LinkLayerType, LinkMessage, LinkXdp, XdpAttached,
};
use rtnetlink::packet_route::route::{RouteAddress, RouteAttribute, RouteMessage, RouteType};

use super::bpf::XdpMode;

/// A network interface.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Interface {
    /// Index in this network namespace.
    pub index: u32,
    /// Name.
    pub name: String,
    /// The loopback device.
    pub loopback: bool,
    /// A bridge (not a bridge's port).
    pub bridge: bool,
    /// Its packets begin with an Ethernet header, as the programs read them. Tunnels (tun, WireGuard, ipip) have none.
    pub ethernet: bool,
    /// One end of a veth pair, whose other end must take what this one sends.
    pub veth: bool,
    /// Its other end is in another network namespace.
    pub leads_elsewhere: bool,
    /// Index of the bridge or bond that it is part of.
    pub controller: Option<u32>,
    /// Part of a bond or a team, which sees whatever its members receive.
    pub bonded: bool,
    /// A VLAN device: index of the interface that its tagged packets are seen on.
    pub vlan_of: Option<u32>,
    /// The XDP program on it.
    pub xdp: Option<AttachedXdp>,
}

/// An XDP program on an interface, whoever put it there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AttachedXdp {
    /// Program id; 0 if there are several, or the kernel does not say.
    pub program: u32,
    /// Where it runs; `None` in the network card, or in several places.
    pub mode: Option<XdpMode>,
}

/// An address that others can reach.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HostAddress {
    /// Index of its interface.
    pub interface: u32,
    /// The address.
    pub address: IpAddr,
    /// Its network: that of the other end, where the interface is point-to-point.
    pub network: IpNet,
    /// Another address of its network came before it (IPv4), or it is temporary (IPv6).
    pub secondary: bool,
}

/// A default route.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DefaultRoute {
    /// Index of the interface that it leaves by.
    pub interface: u32,
    /// Source address that it prefers.
    pub source: Option<IpAddr>,
    /// Metric; the lowest is used.
    pub metric: u32,
    /// Whether it is IPv6's.
    pub v6: bool,
}

/// All interfaces.
pub async fn interfaces(netlink: &rtnetlink::Handle) -> Result<Vec<Interface>> {
    let messages: Vec<LinkMessage> =
        netlink.link().get().execute().try_collect().await.context("cannot list the network interfaces")?;
    Ok(messages.iter().filter_map(interface).collect())
}

fn interface(message: &LinkMessage) -> Option<Interface> {
    let (mut name, mut link, mut vlan) = (None, None, false);
    let mut interface = Interface {
        index: message.header.index,
        loopback: message.header.flags.contains(LinkFlags::Loopback),
        ethernet: matches!(message.header.link_layer_type, LinkLayerType::Ether | LinkLayerType::Loopback),
        ..Interface::default()
    };
    for attribute in &message.attributes {
        match attribute {
            LinkAttribute::IfName(value) => name = Some(value.clone()),
            LinkAttribute::Link(index) => link = Some(*index),
            LinkAttribute::LinkNetNsId(_) => interface.leads_elsewhere = true,
            LinkAttribute::Controller(index) => interface.controller = Some(*index),
            LinkAttribute::Xdp(xdp) => interface.xdp = attached_xdp(xdp),
            LinkAttribute::LinkInfo(infos) => {
                let is = |kind: &InfoKind| infos.iter().any(|info| matches!(info, LinkInfo::Kind(one) if one == kind));
                interface.bridge = is(&InfoKind::Bridge);
                interface.veth = is(&InfoKind::Veth);
                vlan = is(&InfoKind::Vlan);
                let of_bond =
                    |info: &LinkInfo| matches!(info, LinkInfo::PortKind(InfoPortKind::Bond | InfoPortKind::Team));
                interface.bonded = infos.iter().any(of_bond);
            }
            _ => {}
        }
    }
    let vlan_of = link.filter(|_| vlan && !interface.leads_elsewhere);
    Some(Interface { name: name?, vlan_of, ..interface })
}

fn attached_xdp(attributes: &[LinkXdp]) -> Option<AttachedXdp> {
    let (mut found, mut program) = (None, 0);
    for attribute in attributes {
        match attribute {
            LinkXdp::Attached(XdpAttached::None) => return None,
            LinkXdp::Attached(XdpAttached::Driver) => found = Some(Some(XdpMode::Native)),
            LinkXdp::Attached(XdpAttached::SocketBuffer) => found = Some(Some(XdpMode::Generic)),
            LinkXdp::Attached(_) => found = Some(None),
            LinkXdp::ProgId(id) => program = *id,
            _ => {}
        }
    }
    found.map(|mode| AttachedXdp { program, mode })
}

/// All addresses of global scope that are in use.
pub async fn addresses(netlink: &rtnetlink::Handle) -> Result<Vec<HostAddress>> {
    let messages: Vec<AddressMessage> =
        netlink.address().get().execute().try_collect().await.context("cannot list the addresses of the node")?;
    Ok(messages.iter().filter_map(host_address).collect())
}

fn host_address(message: &AddressMessage) -> Option<HostAddress> {
    let unusable = AddressHeaderFlags::Deprecated | AddressHeaderFlags::Dadfailed | AddressHeaderFlags::Tentative;
    if message.header.scope != AddressScope::Universe || message.header.flags.intersects(unusable) {
        return None;
    }
    // IFA_LOCAL is the own end of a point-to-point interface, where IFA_ADDRESS is the other.
    let local = message.attributes.iter().find_map(|attribute| match attribute {
        AddressAttribute::Local(address) => Some(*address),
        _ => None,
    });
    let address = message.attributes.iter().find_map(|attribute| match attribute {
        AddressAttribute::Address(address) => Some(*address),
        _ => None,
    });
    let network = IpNet::new(address.or(local)?, message.header.prefix_len).ok()?.trunc();
    Some(HostAddress {
        interface: message.header.index,
        address: local.or(address)?,
        network,
        secondary: message.header.flags.contains(AddressHeaderFlags::Secondary),
    })
}

/// All unicast default routes of the main table.
pub async fn default_routes(netlink: &rtnetlink::Handle) -> Result<Vec<DefaultRoute>> {
    let mut routes = Vec::new();
    for request in [RouteMessageBuilder::<Ipv4Addr>::new().build(), RouteMessageBuilder::<Ipv6Addr>::new().build()] {
        let v6 = request.header.address_family == rtnetlink::packet_route::AddressFamily::Inet6;
        let messages: Vec<RouteMessage> =
            netlink.route().get(request).execute().try_collect().await.context("cannot list the routes of the node")?;
        routes.extend(messages.iter().filter_map(|message| default_route(message, v6)));
    }
    Ok(routes)
}

fn default_route(message: &RouteMessage, v6: bool) -> Option<DefaultRoute> {
    const MAIN: u32 = 254;
    let mut route = DefaultRoute { interface: 0, source: None, metric: 0, v6 };
    let mut table = u32::from(message.header.table);
    for attribute in &message.attributes {
        match attribute {
            RouteAttribute::Oif(index) => route.interface = *index,
            RouteAttribute::Priority(metric) => route.metric = *metric,
            RouteAttribute::PrefSource(RouteAddress::Inet(address)) => route.source = Some((*address).into()),
            RouteAttribute::PrefSource(RouteAddress::Inet6(address)) => route.source = Some((*address).into()),
            RouteAttribute::Table(number) => table = *number,
            RouteAttribute::MultiPath(hops) => {
                if let Some(hop) = hops.first() {
                    route.interface = hop.interface_index;
                }
            }
            _ => {}
        }
    }
    let is_default = message.header.destination_prefix_length == 0 && message.header.kind == RouteType::Unicast;
    (is_default && table == MAIN && route.interface != 0).then_some(route)
}

/// This node's address of a family: what the default route prefers, else the first of its interface, else the first.
pub fn node_address(addresses: &[HostAddress], routes: &[DefaultRoute], v6: bool) -> Option<IpAddr> {
    let of_family = || addresses.iter().filter(move |host| host.address.is_ipv6() == v6);
    let route = routes.iter().filter(|route| route.v6 == v6).min_by_key(|route| route.metric);
    route
        .and_then(|route| {
            route.source.or_else(|| of_family().find(|host| host.interface == route.interface).map(|host| host.address))
        })
        .or_else(|| of_family().next().map(|host| host.address))
}

/// Which interfaces bpvs attaches to.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Selection {
    /// Patterns of names to take; none takes every interface but loopback devices, bridges, and members of bonds and teams.
    /// Interfaces without Ethernet headers are never taken.
    pub include: Vec<String>,
    /// Patterns of names to leave out.
    pub exclude: Vec<String>,
}

impl Selection {
    /// The interfaces that are wanted. A bridge sees what its ports have seen, so its ports are enough. A bond sees what its
    /// members have seen, but for what it drops: copies that reach the one that is not in use.
    pub fn select(&self, interfaces: &[Interface]) -> Vec<Interface> {
        let matches = |patterns: &[String], name: &str| patterns.iter().any(|pattern| glob(pattern, name));
        interfaces
            .iter()
            .filter(|interface| {
                let included = if self.include.is_empty() {
                    !interface.loopback && !interface.bridge && !interface.bonded
                } else {
                    matches(&self.include, &interface.name)
                };
                included && interface.ethernet && !matches(&self.exclude, &interface.name)
            })
            .cloned()
            .collect()
    }
}

/// Matches a name against a pattern in which `*` is any run of characters and `?` any one.
pub fn glob(pattern: &str, name: &str) -> bool {
    let (pattern, name): (Vec<char>, Vec<char>) = (pattern.chars().collect(), name.chars().collect());
    let (mut p, mut n) = (0, 0);
    // Where the last star was, and how much of the name it has taken.
    let mut star: Option<(usize, usize)> = None;
    while n < name.len() {
        if pattern.get(p) == Some(&'*') {
            star = Some((p, n));
            p += 1;
        } else if pattern.get(p).is_some_and(|c| *c == '?' || *c == name[n]) {
            p += 1;
            n += 1;
        } else if let Some((at, taken)) = star {
            star = Some((at, taken + 1));
            p = at + 1;
            n = taken + 1;
        } else {
            return false;
        }
    }
    pattern[p..].iter().all(|c| *c == '*')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interface(index: u32, name: &str) -> Interface {
        Interface {
            bonded: name.starts_with("member"),
            index,
            name: name.into(),
            loopback: name == "lo",
            bridge: name.starts_with("br"),
            ethernet: !name.starts_with("tun"),
            ..Interface::default()
        }
    }

    fn selected(selection: &Selection) -> Vec<String> {
        let all: Vec<Interface> = ["lo", "eth0", "br0", "veth1", "docker0", "tun0", "member0"]
            .iter()
            .enumerate()
            .map(|(i, name)| interface(i as u32 + 1, name))
            .collect();
        selection.select(&all).into_iter().map(|interface| interface.name).collect()
    }

    #[test]
    fn an_interface_without_ethernet_headers_is_never_taken() {
        assert!(selected(&Selection { include: vec!["tun*".into()], exclude: Vec::new() }).is_empty());
    }

    #[test]
    fn by_default_every_interface_but_loopback_bridges_and_members_is_taken() {
        assert_eq!(selected(&Selection::default()), ["eth0", "veth1", "docker0"]);
    }

    #[test]
    fn named_interfaces_are_taken_whatever_they_are_and_excluded_ones_never() {
        let selection = Selection { include: vec!["br*".into(), "eth?".into()], exclude: vec!["eth0".into()] };
        assert_eq!(selected(&selection), ["br0"]);
        let selection = Selection { include: vec!["member*".into()], exclude: Vec::new() };
        assert_eq!(selected(&selection), ["member0"]);
    }

    #[test]
    fn globs_match_as_in_a_shell() {
        for (pattern, name, expected) in [
            ("*", "", true),
            ("eth0", "eth0", true),
            ("eth?", "eth", false),
            ("*a*b", "xaxbxb", true),
            ("*a*b", "xaxbx", false),
            ("veth*", "veth", true),
            ("", "x", false),
            ("**", "anything", true),
        ] {
            assert_eq!(glob(pattern, name), expected, "{pattern} {name}");
        }
    }

    #[test]
    fn the_node_address_is_the_default_routes_choice_first() {
        let host = |interface, text: &str| {
            let address: IpAddr = text.parse().unwrap();
            HostAddress { interface, address, network: address.into(), secondary: false }
        };
        let addresses = [host(1, "10.0.0.1"), host(2, "10.0.1.1"), host(2, "fd00::1")];
        let route = |interface, source: Option<&str>, metric| DefaultRoute {
            interface,
            source: source.map(|text| text.parse().unwrap()),
            metric,
            v6: false,
        };
        let of = |routes: &[DefaultRoute], v6| node_address(&addresses, routes, v6).map(|address| address.to_string());
        assert_eq!(of(&[], false).unwrap(), "10.0.0.1");
        assert_eq!(of(&[route(2, None, 5)], false).unwrap(), "10.0.1.1");
        assert_eq!(of(&[route(2, None, 5), route(1, Some("10.0.0.9"), 3)], false).unwrap(), "10.0.0.9");
        assert_eq!(of(&[route(9, None, 5)], false).unwrap(), "10.0.0.1");
        assert_eq!(of(&[route(1, None, 5)], true).unwrap(), "fd00::1");
        assert_eq!(node_address(&[], &[], false), None);
    }
}
