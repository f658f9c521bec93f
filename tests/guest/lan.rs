//! A node whose uplink is one link, a bond of two, or a VLAN on either; a client and servers beyond a switch.
//!
//! ```text
//!                       m0 --- p0 \         / pc --- eth0  client .2
//!  node .1  up0 / bond0              switch                           10.9.0.0/24  fd00:9::/64
//!                       m1 --- p1 /        |\ ps --- eth0  server .3  10.8.0.0/24  fd00:8::/64: VLAN 100
//!                                           \ pt --- eth0  server .4, in the VLAN alone
//! ```
//!
//! The servers are no pods of the node: what is for them leaves the node by where it came in.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};
use std::process::Command;

use anyhow::{Context, Result};
use bpvs_tests::counters;
use bpvs_tests::namespace::{self, End, Namespace, mac_text, veth_command};
use bpvs_tests::topology::offload_off;
use bpvs_tests::traffic::Servers;
use bpvs_tests::world::{CHANGE, TCP_TARGET, UDP_TARGET, wait_for};

/// Number of the VLAN.
const VLAN: u16 = 100;
const MTU: u32 = 1500;

/// What the node has towards the switch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Link {
    /// One interface, `up0`.
    One,
    /// `bond0` of two members, in this mode of the bonding driver; the switch has a bond, too, where the mode needs one.
    Bond(&'static str),
}

/// A network, by its number in the third byte of addresses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Net {
    /// Without tags.
    Plain,
    /// In the VLAN.
    Tagged,
}

impl Net {
    /// Number of the server that is in it alone.
    pub(crate) fn server(self) -> u16 {
        match self {
            Self::Plain => 3,
            Self::Tagged => 4,
        }
    }

    /// Addresses of a host in it.
    pub(crate) fn addresses(self, host: u16) -> [IpAddr; 2] {
        let number = match self {
            Self::Plain => 9,
            Self::Tagged => 8,
        };
        [
            Ipv4Addr::new(10, number as u8, 0, host as u8).into(),
            Ipv6Addr::new(0xfd00, number, 0, 0, 0, 0, 0, host).into(),
        ]
    }

    /// Its interface, of a host whose untagged one is this.
    pub(crate) fn interface(self, untagged: &str) -> String {
        match self {
            Self::Plain => untagged.to_owned(),
            Self::Tagged => format!("{untagged}.{VLAN}"),
        }
    }
}

/// All of it. Dropping it removes it.
pub(crate) struct Lan {
    _servers: Servers,
    link: Link,
    pub(crate) node: Namespace,
    pub(crate) client: Namespace,
    servers: [(Net, Namespace); 2],
    switch: Namespace,
}

impl Lan {
    /// Builds it; the default route is in `default`. The VLAN is there if `tagged`.
    pub(crate) fn new(link: Link, tagged: bool, default: Net) -> Result<Self> {
        let lan = Self {
            _servers: Servers::new()?,
            link,
            node: Namespace::new("node")?,
            client: Namespace::new("client")?,
            servers: [(Net::Plain, Namespace::new("server")?), (Net::Tagged, Namespace::new("tagged-server")?)],
            switch: Namespace::new("switch")?,
        };
        lan.settings()?;
        lan.cables()?;
        lan.switch_ports()?;
        let nets: &[Net] = if tagged { &[Net::Plain, Net::Tagged] } else { &[Net::Plain] };
        for net in nets {
            lan.addresses(*net)?;
        }
        let gateway = default.addresses(2);
        let out = default.interface(lan.uplink());
        lan.node.ip(&gateway.map(|gateway| format!("route add default via {gateway} dev {out}")))?;
        for (net, namespace) in &lan.servers {
            lan._servers.tcp(namespace, net.server(), TCP_TARGET)?;
            lan._servers.udp(namespace, net.server(), UDP_TARGET)?;
        }
        lan.wait_for_carrier()?;
        Ok(lan)
    }

    /// The node's interface without tags.
    pub(crate) fn uplink(&self) -> &'static str {
        match self.link {
            Link::One => "up0",
            Link::Bond(_) => "bond0",
        }
    }

    /// The node's interfaces at the cables.
    pub(crate) fn members(&self) -> &'static [&'static str] {
        match self.link {
            Link::One => &["up0"],
            Link::Bond(_) => &["m0", "m1"],
        }
    }

    /// Packets that the node's stack has forwarded, of both families.
    pub(crate) fn forwarded(&self) -> Result<u64> {
        counters::forwarded(&self.node)
    }

    fn settings(&self) -> Result<()> {
        let quiet = [
            ("ipv6/conf/all/accept_dad", "0"),
            ("ipv6/conf/default/accept_dad", "0"),
            ("ipv6/conf/default/accept_ra", "0"),
            ("ipv6/conf/default/router_solicitations", "0"),
            ("ipv4/conf/all/rp_filter", "0"),
            ("ipv4/conf/default/rp_filter", "0"),
        ];
        let servers = self.servers.iter().map(|(_, namespace)| namespace);
        [&self.node, &self.client].into_iter().chain(servers).try_for_each(|host| host.sysctls(&quiet))?;
        self.node.sysctls(&[
            ("ipv4/ip_forward", "1"),
            ("ipv6/conf/all/forwarding", "1"),
            ("ipv4/conf/all/send_redirects", "0"),
            ("ipv4/conf/default/send_redirects", "0"),
        ])
    }

    fn cables(&self) -> Result<()> {
        let mut lines = Vec::new();
        for (number, name) in self.members().iter().enumerate() {
            let port = format!("p{number}");
            let near = End { namespace: &self.node, interface: name, mac: mac(1, number as u8) };
            lines.push(veth_command(
                near,
                End { namespace: &self.switch, interface: &port, mac: mac(8, number as u8) },
                MTU,
            ));
        }
        let [(_, plain), (_, tagged)] = &self.servers;
        for (host, namespace, port) in [(2u16, &self.client, "pc"), (3, plain, "ps"), (4, tagged, "pt")] {
            let near = End { namespace, interface: "eth0", mac: mac(host as u8, 0) };
            lines.push(veth_command(
                near,
                End { namespace: &self.switch, interface: port, mac: mac(8, 16 + host as u8) },
                MTU,
            ));
        }
        namespace::ip(&lines)?;
        // Whole packets on the wire: what XDP sends on has no checksum that a device would still complete.
        for namespace in [&self.client, plain, tagged] {
            offload_off(namespace, "eth0")?;
        }
        for (number, name) in self.members().iter().enumerate() {
            offload_off(&self.node, name)?;
            // A veth takes frames of XDP if its other end has GRO.
            self.switch.run(Command::new("ethtool").args(["-K", &format!("p{number}"), "gro", "on"]))?;
        }
        let Link::Bond(mode) = self.link else { return self.node.ip(&["link set up0 up".to_owned()]) };
        let mut lines = vec![bond("bond0", mode), format!("link set bond0 address {}", mac_text(mac(1, 0)))];
        lines.extend(self.members().iter().map(|name| format!("link set {name} master bond0")));
        lines.push("link set bond0 up".to_owned());
        self.node.ip(&lines)
    }

    /// A bridge that learns; where several links are to be one for the other side, a bond of its own.
    fn switch_ports(&self) -> Result<()> {
        let mut lines = vec!["link add br0 type bridge".to_owned(), "link set br0 up".to_owned()];
        let mut ports = ["pc", "ps", "pt"].map(str::to_owned).to_vec();
        let cables = (0..self.members().len()).map(|number| format!("p{number}"));
        match self.link {
            Link::Bond(mode) if mode != "active-backup" => {
                lines.push(bond("bond1", mode));
                for cable in cables {
                    lines.push(format!("link set {cable} master bond1"));
                }
                ports.push("bond1".to_owned());
            }
            _ => ports.extend(cables),
        }
        for port in ports {
            lines.extend([format!("link set {port} master br0"), format!("link set {port} up")]);
        }
        self.switch.ip(&lines)
    }

    fn addresses(&self, net: Net) -> Result<()> {
        let server = self.servers.iter().find(|(at, _)| *at == net).map(|(_, namespace)| namespace);
        let server = server.context("a network has a server")?;
        let hosts = [(1, &self.node, self.uplink()), (2, &self.client, "eth0"), (net.server(), server, "eth0")];
        for (host, namespace, untagged) in hosts {
            let dev = net.interface(untagged);
            let mut lines = vec![format!("link set {untagged} up")];
            if net == Net::Tagged {
                lines.push(format!("link add link {untagged} name {dev} type vlan id {VLAN}"));
                lines.push(format!("link set {dev} up"));
            }
            let [v4, v6] = net.addresses(host);
            lines.extend([format!("addr add {v4}/24 dev {dev}"), format!("addr add {v6}/64 dev {dev} nodad")]);
            // Neighbours are known, so that nothing has to wait for the stack.
            for (other, mac) in [1, 2, net.server()].map(|host| (host, mac(host as u8, 0))) {
                if other != host {
                    lines.extend(net.addresses(other).map(|address| {
                        format!("neigh replace {address} lladdr {} dev {dev} nud permanent", mac_text(mac))
                    }));
                }
            }
            if host == net.server() {
                // To the node's other addresses, too.
                lines.extend(net.addresses(1).map(|node| format!("route add default via {node} dev {dev}")));
            }
            namespace.ip(&lines)?;
        }
        Ok(())
    }

    /// A bond with LACP takes frames only when both sides have agreed.
    fn wait_for_carrier(&self) -> Result<()> {
        let ready = || {
            let up = |namespace: &Namespace, bond: &str| {
                namespace
                    .enter(|| fs::read_to_string(format!("/proc/thread-self/net/bonding/{bond}")))
                    .unwrap_or_default()
            };
            let agreed = |text: &str| {
                let ids: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("Aggregator ID: ")).collect();
                let partner = text.lines().any(|line| line.trim() == "Partner Mac Address: 00:00:00:00:00:00");
                ids.len() == 2 && ids[0] == ids[1] && !partner
            };
            let lacp = self.link == Link::Bond("802.3ad");
            Ok((!lacp || agreed(&up(&self.node, "bond0")) && agreed(&up(&self.switch, "bond1"))).then_some(()))
        };
        wait_for("agreement on the bond", 3 * CHANGE, ready, || "no agreement".to_owned())
    }

    /// Has the node send something, so that the switch knows where it is: behind a bond's member that is in use.
    pub(crate) fn announce(&self) -> Result<()> {
        let [to, _] = Net::Plain.addresses(2);
        // Nobody is at this port.
        let send = || UdpSocket::bind("0.0.0.0:0")?.send_to(b"here", (to, 9));
        self.node.enter(send).context("sending from the node").map(drop)
    }

    /// Runs `ip` commands in the node.
    pub(crate) fn change(&self, lines: &[&str]) -> Result<()> {
        let lines: Vec<String> = lines.iter().map(|line| (*line).to_owned()).collect();
        self.node.ip(&lines).with_context(|| lines.join("; "))
    }
}

fn mac(host: u8, number: u8) -> [u8; 6] {
    [2, 9, 0, 0, host, number]
}

fn bond(name: &str, mode: &str) -> String {
    let more = if mode == "802.3ad" { " lacp_rate fast" } else { "" };
    format!("link add {name} type bond mode {mode} miimon 100{more}")
}
