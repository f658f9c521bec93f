//! Services, and the rules that kube-proxy makes of them: chains, maps and their order as its iptables and nftables modes
//! have them (`pkg/proxy/iptables/proxier.go`, `pkg/proxy/nftables/proxier.go`), IPv4, for Services whose endpoints are all
//! ready and whose traffic policies are `Cluster`.
//!
//! What a packet passes is the same as with kube-proxy; names are made differently, and what is empty in such a cluster is
//! there as empty as kube-proxy leaves it.

pub mod iptables;
pub mod nftables;

use std::net::{IpAddr, Ipv4Addr, SocketAddrV4};

use crate::agent::ServiceManifest;

/// A transport protocol with ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
}

impl Protocol {
    /// As iptables and nft have it: `tcp`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
        }
    }

    /// As a Service has it: `TCP`.
    fn manifest(self) -> &'static str {
        match self {
            Self::Tcp => "TCP",
            Self::Udp => "UDP",
        }
    }
}

/// A port of a Service.
#[derive(Clone, Copy, Debug)]
pub struct Port {
    /// Protocol.
    pub protocol: Protocol,
    /// Port of the cluster address.
    pub port: u16,
    /// Port of the endpoints.
    pub target: u16,
    /// Node port, if it has one.
    pub node_port: Option<u16>,
}

/// A Service with its endpoints.
#[derive(Clone, Debug)]
pub struct Service {
    /// Name, in namespace `demo`.
    pub name: String,
    /// Cluster address.
    pub address: Ipv4Addr,
    /// Ports.
    pub ports: Vec<Port>,
    /// Addresses of its endpoints, all ready.
    pub endpoints: Vec<Ipv4Addr>,
}

/// All Services of a cluster, in the order in which their rules stand.
#[derive(Clone, Debug)]
pub struct Cluster {
    /// Network of the pods, `10.1.0.0/16`: other clients of cluster addresses are masqueraded.
    pub pods: String,
    /// Services.
    pub services: Vec<Service>,
}

/// First address of Services besides the one that is asked for.
const OTHERS: Ipv4Addr = Ipv4Addr::new(10, 100, 0, 0);
/// First address of their endpoints, which nobody asks.
const OTHER_ENDPOINTS: Ipv4Addr = Ipv4Addr::new(10, 128, 0, 0);
/// Every so many of them has a node port.
const NODE_PORT_EACH: u32 = 10;
/// The first of their node ports.
const OTHER_NODE_PORTS: u32 = 31_000;

impl Cluster {
    /// A cluster of `count` Services, `asked` among them: in the middle, so that rules that are tried one after the other
    /// cost what they cost on average. The others have one TCP port and `endpoints` endpoints each, every tenth a node port.
    pub fn around(asked: Service, count: u32, endpoints: u32, pods: &str) -> Self {
        let others = count.saturating_sub(1);
        let mut services: Vec<Service> = (0..others).map(|number| other(number, endpoints)).collect();
        services.insert(others as usize / 2, asked);
        Self { pods: pods.to_owned(), services }
    }

    /// Every port of every Service with a name of its own, in order.
    fn ports(&self) -> impl Iterator<Item = (&Service, &Port, String)> {
        self.services.iter().flat_map(|service| {
            service.ports.iter().map(move |port| {
                // As manifests name them.
                let name = format!("demo/{}:{}-{}", service.name, port.protocol.name(), port.port);
                (service, port, name)
            })
        })
    }

    /// The same Services and their EndpointSlices, for bpvs.
    pub fn manifests(&self) -> String {
        let yaml = |service: &Service| {
            let mut manifest = ServiceManifest::new(&service.name, &[service.address.into()]);
            for port in &service.ports {
                let protocol = port.protocol.manifest();
                manifest = manifest.node_port(protocol, port.port, port.target, port.node_port.unwrap_or(0));
            }
            for (number, &endpoint) in (1..).zip(&service.endpoints) {
                manifest = manifest.server(number, &[IpAddr::from(endpoint)], 1);
            }
            manifest.yaml()
        };
        self.services.iter().map(yaml).collect::<Vec<_>>().join("---\n")
    }
}

fn other(number: u32, endpoints: u32) -> Service {
    let after = |first: Ipv4Addr, by: u32| Ipv4Addr::from(u32::from(first) + by);
    let node_port = u16::try_from(OTHER_NODE_PORTS + number / NODE_PORT_EACH).ok();
    Service {
        name: format!("other-{number}"),
        address: after(OTHERS, number),
        ports: vec![Port {
            protocol: Protocol::Tcp,
            port: 80,
            target: 8080,
            node_port: node_port.filter(|_| number.is_multiple_of(NODE_PORT_EACH)),
        }],
        endpoints: (0..endpoints).map(|place| after(OTHER_ENDPOINTS, number * endpoints + place)).collect(),
    }
}

/// What distinguishes the chains of a name, as kube-proxy's hashes do: `length` digits of base 32.
fn digits(name: &str, length: usize) -> String {
    const ALPHABET: &[u8; 32] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567";
    let mut text = String::with_capacity(length);
    let mut hash = fnv(0xcbf2_9ce4_8422_2325, name);
    while text.len() < length {
        if text.len().is_multiple_of(12) {
            hash = fnv(hash, name);
        }
        text.push(char::from(ALPHABET[(hash >> (text.len() % 12 * 5) & 31) as usize]));
    }
    text
}

/// FNV-1a of 64 bits.
fn fnv(begin: u64, text: &str) -> u64 {
    text.bytes().fold(begin, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

/// The endpoints of a port.
fn endpoints(service: &Service, port: &Port) -> impl Iterator<Item = SocketAddrV4> {
    let target = port.target;
    service.endpoints.iter().map(move |&address| SocketAddrV4::new(address, target))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A Service with two ports and three endpoints among `count`.
    pub(crate) fn cluster(count: u32) -> Cluster {
        let port = |protocol, port, target, node_port| Port { protocol, port, target, node_port };
        let asked = Service {
            name: "asked".into(),
            address: Ipv4Addr::new(10, 96, 0, 1),
            ports: vec![port(Protocol::Tcp, 80, 8080, Some(30_080)), port(Protocol::Udp, 53, 5353, None)],
            endpoints: (1..=3).map(|low| Ipv4Addr::new(10, 1, 1, low)).collect(),
        };
        Cluster::around(asked, count, 2, "10.1.0.0/16")
    }

    #[test]
    fn the_service_that_is_asked_stands_in_the_middle_of_as_many_as_wanted() {
        for (count, place) in [(1, 0), (2, 0), (3, 1), (1_001, 500)] {
            let cluster = cluster(count);
            assert_eq!(cluster.services.len(), count as usize);
            assert_eq!(cluster.services[place].name, "asked", "{count}");
        }
    }

    #[test]
    fn addresses_names_and_node_ports_are_each_used_once() {
        let cluster = cluster(10_000);
        let unique = |mut all: Vec<String>| {
            let count = all.len();
            all.sort();
            all.dedup();
            assert_eq!(all.len(), count);
        };
        unique(cluster.services.iter().map(|service| service.address.to_string()).collect());
        unique(cluster.services.iter().flat_map(|service| &service.endpoints).map(ToString::to_string).collect());
        unique(cluster.ports().map(|(_, _, name)| digits(&name, 16)).collect());
        let node_ports: Vec<String> =
            cluster.ports().filter_map(|(_, port, _)| port.node_port).map(|port| port.to_string()).collect();
        assert_eq!(node_ports.len(), 1 + 1_000);
        unique(node_ports);
    }

    #[test]
    fn bpvs_is_given_the_same_services() {
        let yaml = cluster(2).manifests();
        for line in ["  clusterIP: \"10.96.0.1\"", "    nodePort: 30080", "    targetPort: 5353", "  - \"10.128.0.1\""]
        {
            assert_eq!(yaml.lines().filter(|found| *found == line).count(), 1, "{line} in\n{yaml}");
        }
        assert_eq!(yaml.matches("kind: EndpointSlice").count(), 2);
    }
}
