//! Which clients a virtual service takes, and under whose address they reach its real servers: the matrix of policies.

use std::collections::BTreeSet;

use ipnet::IpNet;

use super::{Detector, Node, Options, Problem};

/// Of one virtual service. The default takes all clients, and leaves them their addresses, as IPVS does.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Access {
    /// Whose requests come from the node's address.
    pub masquerade: Masquerade,
    /// External clients have a service of their own, of scope [`External`](super::Scope::External) or
    /// [`ExternalNodePort`](super::Scope::ExternalNodePort) (`externalTrafficPolicy: Local`, whose short-circuit lets the
    /// cluster's own clients reach every server).
    pub split: bool,
    /// Without destinations nothing is answered, where others are told that there is nobody (NE-4: an external load
    /// balancer is to try another node).
    pub silent: bool,
    /// Networks of clients; what comes from elsewhere is dropped (`loadBalancerSourceRanges`). None: all clients.
    pub sources: BTreeSet<IpNet>,
}

/// Whose requests come from the node's address, and so are answered through it (SNAT).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Masquerade {
    /// Nobody's, but those of a client that is its own server.
    #[default]
    Never,
    /// Those of external clients: from no [pod network](super::Plan::pod_networks), or not by an
    /// [interface of pods](super::PodInterfaces).
    External,
    /// Everybody's.
    Always,
}

/// The networks of pods, at most one of each family (MQ-7).
pub(super) fn pod_networks(node: &Node, options: &Options) -> BTreeSet<IpNet> {
    let stated = match &options.detector {
        Detector::ClusterNetworks(networks) => networks,
        Detector::NodeNetworks => &node.pod_networks,
        Detector::Interfaces(_) => return BTreeSet::new(),
    };
    let of_family = |v4| stated.iter().find(|network| network.addr().is_ipv4() == v4).map(IpNet::trunc);
    [of_family(true), of_family(false)].into_iter().flatten().collect()
}

/// That pods are to be known by the Node's networks, and it has none.
pub(super) fn lacks_networks(node: &Node, options: &Options) -> Option<Problem> {
    let lacks = options.detector == Detector::NodeNetworks && node.pod_networks.is_empty();
    lacks.then(|| Problem {
        object: format!("Node {}", node.name),
        location: None,
        field: "spec.podCIDRs".to_owned(),
        value: "missing".to_owned(),
        message: "no client is known to be a pod until it is stated: all come from the node's address".to_owned(),
    })
}

/// Whose requests to cluster addresses of a family come from the node's address: those of clients that are no pods; of
/// everybody, where that is asked for (MQ-3); of nobody, where nobody can be told to be a pod (MQ-2). A node whose networks
/// are not allocated yet is to have some: until then everybody's.
pub(super) fn cluster_masquerade(pod_networks: &BTreeSet<IpNet>, options: &Options, v4: bool) -> Masquerade {
    let detected = pod_networks.iter().any(|network| network.addr().is_ipv4() == v4);
    match &options.detector {
        _ if options.masquerade_all => Masquerade::Always,
        Detector::Interfaces(_) => Masquerade::External,
        _ if detected => Masquerade::External,
        Detector::NodeNetworks if pod_networks.is_empty() => Masquerade::Always,
        _ => Masquerade::Never,
    }
}
