//! A node with server pods, client pods and a host outside, as Linux has them on a Kubernetes node:
//!
//! ```text
//!  server-i  eth0 -- s<i>  \                     10.1.1.i  fd00:1:1::i
//!                           node -- up0 -- eth0  external
//!  client-j  eth0 -- c<j>  /  10.9.0.1           10.9.0.2  fd00:9::2
//!  10.1.2.j  fd00:1:2::j      fd00:9::1
//! ```
//!
//! Pods have a host route each and reach everything, virtual addresses included, by a default route through the node.
//! Hardware addresses are fixed and neighbours permanent, so no ARP or neighbour discovery is in the way.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::namespace::{self, End, Namespace, mac_text, veth_command};

/// Gateway that every pod sees, on the node's end of its veth.
pub const POD_GATEWAY_V4: Ipv4Addr = Ipv4Addr::new(169, 254, 1, 1);
/// The same for IPv6.
pub const POD_GATEWAY_V6: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1);
/// The node's interface towards the external client.
pub const UPLINK: &str = "up0";

/// A namespace with its addresses.
#[derive(Debug)]
pub struct Host {
    /// Its namespace.
    pub namespace: Namespace,
    /// 1-based number among its kind; 0 for the node and the external client.
    pub id: u16,
    /// IPv4 address.
    pub v4: Ipv4Addr,
    /// IPv6 address.
    pub v6: Ipv6Addr,
    /// Hardware address of its `eth0` (node: of its uplink).
    pub mac: [u8; 6],
    /// Hardware address of the node's end of its link.
    pub gateway_mac: [u8; 6],
    /// Name of the node's end of its link.
    pub node_interface: String,
}

impl Host {
    /// The address of the same family as `other`.
    pub fn address_like(&self, other: IpAddr) -> IpAddr {
        match other {
            IpAddr::V4(_) => self.v4.into(),
            IpAddr::V6(_) => self.v6.into(),
        }
    }

    /// Its addresses of both families, with a port.
    pub fn at(&self, port: u16) -> [SocketAddr; 2] {
        [self.v4.into(), self.v6.into()].map(|address: IpAddr| SocketAddr::new(address, port))
    }
}

/// What to build.
#[derive(Debug, Clone, Copy)]
pub struct Builder {
    servers: u16,
    clients: u16,
    checksum_offload: bool,
    mtu: u32,
}

impl Builder {
    /// Number of server pods, 0 to 200. Default 5.
    pub fn servers(mut self, servers: u16) -> Self {
        self.servers = servers;
        self
    }

    /// Number of client pods, 0 to 200. Default 1.
    pub fn clients(mut self, clients: u16) -> Self {
        self.clients = clients;
        self
    }

    /// Whether the ends leave checksums and segmentation to the device, as veth does by default: packets then carry
    /// partial checksums. Off (the default) puts complete packets on the wire.
    pub fn checksum_offload(mut self, on: bool) -> Self {
        self.checksum_offload = on;
        self
    }

    /// MTU of every link, 1280 to 65535. Default 1500.
    pub fn mtu(mut self, mtu: u32) -> Self {
        self.mtu = mtu;
        self
    }

    /// Builds it. Leftovers of killed runs are removed first.
    pub fn build(self) -> Result<Topology> {
        ensure!(self.servers <= 200 && self.clients <= 200, "at most 200 servers and 200 clients");
        ensure!((1280..=65535).contains(&self.mtu), "MTU {} is not in 1280..=65535", self.mtu);
        for name in namespace::reap_leftovers()? {
            eprintln!("removed {name}, left behind by a killed run");
        }
        let mut topology = Topology {
            node: host("node", 0, Ipv4Addr::new(10, 9, 0, 1), v6(9, 0, 1), Kind::Uplink)?,
            servers: Vec::new(),
            clients: Vec::new(),
            external: host("external", 0, Ipv4Addr::new(10, 9, 0, 2), v6(9, 0, 2), Kind::Uplink)?,
        };
        for id in 1..=self.servers {
            let (v4, v6) = (Ipv4Addr::new(10, 1, 1, id as u8), v6(1, 1, id));
            topology.servers.push(host(&format!("server-{id}"), id, v4, v6, Kind::Server)?);
        }
        for id in 1..=self.clients {
            let (v4, v6) = (Ipv4Addr::new(10, 1, 2, id as u8), v6(1, 2, id));
            topology.clients.push(host(&format!("client-{id}"), id, v4, v6, Kind::Client)?);
        }
        topology.settings()?;
        topology.links(self.mtu)?;
        if !self.checksum_offload {
            topology.complete_checksums()?;
        }
        topology.node_addresses()?;
        for pod in topology.servers.iter().chain(&topology.clients) {
            pod_addresses(pod)?;
        }
        external_addresses(&topology.external)?;
        topology.wait_for_links()?;
        Ok(topology)
    }
}

/// A built network. Dropping it removes all of it.
#[derive(Debug)]
pub struct Topology {
    /// Forwards between all others; bpvs runs here.
    pub node: Host,
    /// Server pods, number 1 first.
    pub servers: Vec<Host>,
    /// Client pods, number 1 first.
    pub clients: Vec<Host>,
    /// A host beyond the node's uplink.
    pub external: Host,
}

impl Topology {
    /// Five servers, one client pod, complete checksums, MTU 1500.
    pub fn builder() -> Builder {
        Builder { servers: 5, clients: 1, checksum_offload: false, mtu: 1500 }
    }

    /// All hosts but the node.
    pub fn ends(&self) -> impl Iterator<Item = &Host> {
        self.servers.iter().chain(&self.clients).chain([&self.external])
    }

    /// Adds a client pod of this number while others may use the topology. It lives until it is dropped.
    pub fn new_client(&self, id: u16) -> Result<Host> {
        ensure!((1..=200).contains(&id), "client number {id} is not in 1..=200");
        let (v4, v6) = (Ipv4Addr::new(10, 1, 2, id as u8), v6(1, 2, id));
        let pod = host(&format!("client-{id}"), id, v4, v6, Kind::Client)?;
        let node = End { namespace: &self.node.namespace, interface: &pod.node_interface, mac: pod.gateway_mac };
        namespace::ip(&[veth_command(node, End { namespace: &pod.namespace, interface: "eth0", mac: pod.mac }, 1500)])?;
        self.node.namespace.ip(&self.node_side(&pod))?;
        pod_addresses(&pod)?;
        wait_for_links(&pod.namespace)?;
        Ok(pod)
    }

    /// Lets all ends take frames that XDP sends them: of a veth only those do that have GRO, or XDP of their own.
    pub fn take_frames(&self) -> Result<()> {
        self.ends().try_for_each(|host| {
            let mut ethtool = Command::new("ethtool");
            host.namespace.run(ethtool.args(["-K", "eth0", "gro", "on"])).map(drop)
        })
    }

    /// Names of the node's interfaces other than loopback.
    pub fn node_interfaces(&self) -> Vec<String> {
        self.ends().map(|host| host.node_interface.clone()).collect()
    }

    fn settings(&self) -> Result<()> {
        // Before the links exist: `default` is copied to each new interface.
        let quiet = [
            ("ipv6/conf/all/accept_dad", "0"),
            ("ipv6/conf/default/accept_dad", "0"),
            ("ipv6/conf/default/dad_transmits", "0"),
            ("ipv6/conf/default/accept_ra", "0"),
            ("ipv6/conf/default/router_solicitations", "0"),
            ("ipv4/conf/all/rp_filter", "0"),
            ("ipv4/conf/default/rp_filter", "0"),
            // A test that asks for many errors must get each.
            ("ipv4/icmp_ratelimit", "0"),
            ("ipv6/icmp/ratelimit", "0"),
        ];
        for host in self.ends().chain([&self.node]) {
            host.namespace.sysctls(&quiet)?;
        }
        self.node.namespace.sysctls(&[
            ("ipv4/ip_forward", "1"),
            ("ipv6/conf/all/forwarding", "1"),
            ("ipv6/conf/default/forwarding", "1"),
            ("ipv4/conf/all/send_redirects", "0"),
            ("ipv4/conf/default/send_redirects", "0"),
        ])
    }

    fn links(&self, mtu: u32) -> Result<()> {
        let lines: Vec<_> = self
            .ends()
            .map(|host| {
                let node =
                    End { namespace: &self.node.namespace, interface: &host.node_interface, mac: host.gateway_mac };
                veth_command(node, End { namespace: &host.namespace, interface: "eth0", mac: host.mac }, mtu)
            })
            .collect();
        namespace::ip(&lines).context("making the links of the topology")
    }

    /// The kernel notices a new carrier a moment after both ends are up, and drops packets until then.
    fn wait_for_links(&self) -> Result<()> {
        [&self.node].into_iter().chain(self.ends()).try_for_each(|host| wait_for_links(&host.namespace))
    }

    fn complete_checksums(&self) -> Result<()> {
        for host in self.ends() {
            offload_off(&host.namespace, "eth0")?;
            offload_off(&self.node.namespace, &host.node_interface)?;
        }
        Ok(())
    }

    /// What the node has for a pod.
    fn node_side(&self, pod: &Host) -> [String; 7] {
        let (dev, mac) = (&pod.node_interface, mac_text(pod.mac));
        [
            format!("link set {dev} up"),
            format!("addr add {POD_GATEWAY_V4}/32 dev {dev} scope link"),
            format!("addr add {POD_GATEWAY_V6}/64 dev {dev} nodad"),
            format!("route add {}/32 dev {dev} src {}", pod.v4, self.node.v4),
            format!("route add {}/128 dev {dev} src {}", pod.v6, self.node.v6),
            format!("neigh replace {} lladdr {mac} dev {dev} nud permanent", pod.v4),
            format!("neigh replace {} lladdr {mac} dev {dev} nud permanent", pod.v6),
        ]
    }

    fn node_addresses(&self) -> Result<()> {
        let mut lines = Vec::new();
        for pod in self.servers.iter().chain(&self.clients) {
            lines.extend(self.node_side(pod));
        }
        let (outside, mac) = (&self.external, mac_text(self.external.mac));
        let mut uplink = vec![
            format!("link set {UPLINK} up"),
            format!("addr add {}/24 dev {UPLINK}", self.node.v4),
            format!("addr add {}/64 dev {UPLINK} nodad", self.node.v6),
            format!("neigh replace {} lladdr {mac} dev {UPLINK} nud permanent", outside.v4),
            format!("neigh replace {} lladdr {mac} dev {UPLINK} nud permanent", outside.v6),
            // As on most nodes, what nobody knows leaves by the uplink; the external host does not forward it.
            format!("route add default via {}", outside.v4),
            format!("route add ::/0 via {} dev {UPLINK}", outside.v6),
        ];
        // The uplink's addresses first: the pods' routes name them as their source.
        uplink.append(&mut lines);
        self.node.namespace.ip(&uplink)
    }
}

fn wait_for_links(namespace: &Namespace) -> Result<()> {
    let end = Instant::now() + Duration::from_secs(5);
    while !links_are_up(namespace)? {
        ensure!(Instant::now() < end, "the links of {} did not come up in 5 s", namespace.name());
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// True once no interface of the namespace waits for its carrier.
fn links_are_up(namespace: &Namespace) -> Result<bool> {
    let output = namespace.run(Command::new("ip").args(["-j", "link", "show", "type", "veth"]))?;
    let links: Vec<serde_json::Value> = serde_json::from_slice(&output.stdout).context("reading `ip -j link`")?;
    Ok(links.iter().all(|link| link["operstate"] == "UP"))
}

enum Kind {
    Server,
    Client,
    Uplink,
}

fn v6(net: u16, kind: u16, id: u16) -> Ipv6Addr {
    Ipv6Addr::new(0xfd00, net, kind, 0, 0, 0, 0, id)
}

fn host(role: &str, id: u16, v4: Ipv4Addr, v6: Ipv6Addr, kind: Kind) -> Result<Host> {
    let (kind, node_interface) = match kind {
        Kind::Server => (1, format!("s{id}")),
        Kind::Client => (2, format!("c{id}")),
        Kind::Uplink => (9, UPLINK.to_owned()),
    };
    let (low, node) = (v4.octets()[3], role == "node");
    // Locally administered: 02:kind:0:0:side:number, side 1 on the node.
    let (mac, gateway_mac) = ([2, kind, 0, 0, 0, low], [2, kind, 0, 0, 1, if kind == 9 { 1 } else { low }]);
    let mac = if node { gateway_mac } else { mac };
    Ok(Host { namespace: Namespace::new(role)?, id, v4, v6, mac, gateway_mac, node_interface })
}

fn pod_addresses(pod: &Host) -> Result<()> {
    let mac = mac_text(pod.gateway_mac);
    pod.namespace.ip(&[
        "link set eth0 up".into(),
        format!("addr add {}/32 dev eth0", pod.v4),
        format!("addr add {}/128 dev eth0 nodad", pod.v6),
        format!("neigh replace {POD_GATEWAY_V4} lladdr {mac} dev eth0 nud permanent"),
        format!("neigh replace {POD_GATEWAY_V6} lladdr {mac} dev eth0 nud permanent"),
        format!("route add default via {POD_GATEWAY_V4} dev eth0 onlink"),
        format!("route add ::/0 via {POD_GATEWAY_V6} dev eth0"),
    ])
}

fn external_addresses(external: &Host) -> Result<()> {
    let (node_v4, node_v6, mac) = (Ipv4Addr::new(10, 9, 0, 1), v6(9, 0, 1), mac_text(external.gateway_mac));
    external.namespace.ip(&[
        "link set eth0 up".into(),
        format!("addr add {}/24 dev eth0", external.v4),
        format!("addr add {}/64 dev eth0 nodad", external.v6),
        format!("neigh replace {node_v4} lladdr {mac} dev eth0 nud permanent"),
        format!("neigh replace {node_v6} lladdr {mac} dev eth0 nud permanent"),
        format!("route add default via {node_v4}"),
        format!("route add ::/0 via {node_v6} dev eth0"),
    ])
}

/// Makes an interface complete checksums in software and send packets no larger than its MTU.
pub fn offload_off(namespace: &Namespace, interface: &str) -> Result<()> {
    let features = ["tx", "off", "tso", "off", "gso", "off", "gro", "off"];
    let mut ethtool = Command::new("ethtool");
    namespace
        .run(ethtool.arg("-K").arg(interface).args(features))
        .with_context(|| format!("switching offloads off on {interface}"))
        .map(drop)
}
