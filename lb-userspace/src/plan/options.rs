//! What the command line says of all services.

use std::net::IpAddr;

use ipnet::IpNet;
use lb_common::layout::MAX_DESTINATIONS_PER_SERVICE;
use lb_common::scheduler::Scheduler;

/// What holds where nothing else is stated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Defaults {
    /// Scheduler of services that state none. `rr`, as kube-proxy's ipvs mode has it.
    pub scheduler: Scheduler,
    /// Whether it hashes the source port too, where a Service says nothing of flags (kube-proxy's mh does).
    pub hash_port: bool,
    /// Most virtual services.
    pub max_services: usize,
    /// Most destinations of one virtual service.
    pub max_destinations_per_service: usize,
    /// How Services of Kubernetes are served.
    pub options: Options,
}

impl Default for Defaults {
    fn default() -> Self {
        Self {
            scheduler: Scheduler::RoundRobin,
            hash_port: false,
            max_services: 65_536,
            max_destinations_per_service: MAX_DESTINATIONS_PER_SERVICE as usize,
            options: Options::default(),
        }
    }
}

/// How Services of Kubernetes are served on this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Which clients are pods of the cluster.
    pub detector: Detector,
    /// All clients of cluster addresses come from the node's address (`masqueradeAll`, MQ-3).
    pub masquerade_all: bool,
    /// Whether node ports are served.
    pub node_ports: bool,
    /// On which of [`Self::addresses`] (`nodePortAddresses`, NP-1).
    pub node_port_addresses: NodePortAddresses,
    /// Node ports are also served at 127.0.0.0/8, for processes of the node (`localhostNodePorts`, NP-3), if
    /// [`Self::node_port_addresses`] does not exclude it.
    pub localhost_node_ports: bool,
    /// The addresses of the node's interfaces, in any order, except that of each family the first is what stands for the
    /// node where its [object](super::Node::addresses) does not say.
    pub addresses: Vec<IpAddr>,
    /// What stands for the node of its family, whatever its object says (`bindAddress`, ND-2).
    pub node_address: Option<IpAddr>,
    /// Whether `externalIPs` are served (the feature gate `AllowServiceExternalIPs`, SV-5).
    pub external_addresses: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            detector: Detector::default(),
            masquerade_all: false,
            node_ports: true,
            node_port_addresses: NodePortAddresses::default(),
            localhost_node_ports: false,
            addresses: Vec::new(),
            node_address: None,
            external_addresses: true,
        }
    }
}

/// How a client is known to be a pod of the cluster (`detectLocalMode`, MQ-7).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Detector {
    /// By these networks, the first of each family (`ClusterCIDR`). Of a family that has none nobody is known to be a pod,
    /// and clients of cluster addresses keep theirs, whoever they are (MQ-2): the replies come back through this node, as they
    /// do to a load balancer in front of its servers.
    ClusterNetworks(Vec<IpNet>),
    /// By the networks that the node's object states, likewise (`NodeCIDR`).
    NodeNetworks,
    /// By the interface that its packets come in by, of both families.
    Interfaces(PodInterfaces),
}

/// The interfaces that pods are behind, by the names that they have when a packet comes in: they come, go and are renamed.
/// What comes in by a port of a bridge comes in by the bridge, as netfilter sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PodInterfaces {
    /// The one of this name (`BridgeInterface`).
    Named(String),
    /// Those whose names begin so (`InterfaceNamePrefix`).
    Prefixed(String),
}

impl PodInterfaces {
    /// True for the name of one.
    pub fn contains(&self, name: &str) -> bool {
        match self {
            Self::Named(one) => name == one,
            Self::Prefixed(prefix) => name.starts_with(prefix.as_str()),
        }
    }
}

impl Default for Detector {
    fn default() -> Self {
        Self::ClusterNetworks(Vec::new())
    }
}

/// On which addresses of the node its node ports are served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodePortAddresses {
    /// Those in these networks; for a family that has none here, all.
    Networks(Vec<IpNet>),
    /// Those that stand for the node in the cluster, one of each family (`primary`).
    Primary,
}

impl Default for NodePortAddresses {
    fn default() -> Self {
        Self::Networks(Vec::new())
    }
}
