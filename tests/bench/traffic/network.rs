//! The network of a row, and the Services in it.

use std::net::{Ipv4Addr, SocketAddr};

use anyhow::Result;
use bpvs_tests::kube_proxy::{Cluster, Port, Protocol, Service};
use bpvs_tests::namespace::Namespace;
use bpvs_tests::topology::Topology;

use super::rows::Row;
use super::servers::Servers;

/// What every kernel has and does not wait on purpose: BBR, some machines' default, sends at a pace, whatever the way costs.
const CONGESTION: (&str, &str) = ("ipv4/tcp_congestion_control", "reno");

/// Server pods behind the Service that is asked.
pub(crate) const SERVERS: u16 = 4;
/// Port of the servers, TCP and UDP.
pub(crate) const TARGET: u16 = 8080;
/// Cluster address and port of the Service that is asked.
const FRONTEND: (Ipv4Addr, u16) = (Ipv4Addr::new(10, 96, 0, 1), 80);
/// Its node port.
const NODE_PORT: u16 = 30_080;
/// Network of the pods.
pub(crate) const PODS: &str = "10.1.0.0/16";

/// From where, and what is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Direction {
    /// East-west: a pod asks the cluster address.
    Pod,
    /// East-west: a process of the node asks the cluster address.
    Node,
    /// North-south: a host outside asks the node port.
    Outside,
}

impl Direction {
    /// In the order of the tables.
    pub(crate) const ALL: [Self; 3] = [Self::Pod, Self::Node, Self::Outside];

    /// In a heading.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Pod => "pod to cluster address",
            Self::Node => "process of the node to cluster address",
            Self::Outside => "outside to node port",
        }
    }

    /// In JSON.
    pub(crate) fn key(self) -> &'static str {
        match self {
            Self::Pod => "pod",
            Self::Node => "node",
            Self::Outside => "outside",
        }
    }
}

/// The network of a row.
pub(crate) struct Network {
    /// Whose it is.
    pub(crate) row: Row,
    /// The namespaces.
    pub(crate) topology: Topology,
    // Before the namespaces it serves in.
    _servers: Servers,
}

impl Network {
    /// Builds it, with its servers and without anybody who translates.
    pub(crate) fn new(row: Row) -> Result<Self> {
        // Devices complete checksums and cut segments, as they do in a cluster.
        let topology = Topology::builder().servers(SERVERS).checksum_offload(true).build()?;
        for host in topology.ends().chain([&topology.node]) {
            host.namespace.sysctls(&[CONGESTION])?;
        }
        let servers = Servers::start(&topology)?;
        Ok(Self { row, topology, _servers: servers })
    }

    /// Where the clients of a direction are.
    pub(crate) fn client(&self, direction: Direction) -> &Namespace {
        match direction {
            Direction::Pod => &self.topology.clients[0].namespace,
            Direction::Node => &self.topology.node.namespace,
            Direction::Outside => &self.topology.external.namespace,
        }
    }

    /// What clients of a direction ask: the Service, or without a proxy the servers themselves, in turn.
    pub(crate) fn targets(&self, direction: Direction) -> Vec<SocketAddr> {
        let node = self.topology.node.v4;
        match (self.row, direction) {
            (Row::NoProxy, _) => {
                self.topology.servers.iter().map(|server| SocketAddr::from((server.v4, TARGET))).collect()
            }
            (_, Direction::Outside) => vec![SocketAddr::from((node, NODE_PORT))],
            (_, Direction::Pod | Direction::Node) => vec![SocketAddr::from(FRONTEND)],
        }
    }

    /// The address that servers have to see of a direction's clients. Through a node port it is the node's, as anybody may
    /// be the node that such a client asks.
    pub(crate) fn seen(&self, direction: Direction) -> Ipv4Addr {
        match (self.row, direction) {
            (_, Direction::Pod) => self.topology.clients[0].v4,
            (Row::NoProxy, Direction::Outside) => self.topology.external.v4,
            (_, Direction::Node | Direction::Outside) => self.topology.node.v4,
        }
    }
}

/// So many Services, with the one that is asked.
pub(crate) fn cluster(services: u32, endpoints: u32) -> Cluster {
    let port = |protocol| Port { protocol, port: FRONTEND.1, target: TARGET, node_port: Some(NODE_PORT) };
    let asked = Service {
        name: "asked".to_owned(),
        address: FRONTEND.0,
        ports: vec![port(Protocol::Tcp), port(Protocol::Udp)],
        endpoints: (1..=SERVERS as u8).map(|number| Ipv4Addr::new(10, 1, 1, number)).collect(),
    };
    Cluster::around(asked, services, endpoints, PODS)
}
