//! Which clients a virtual service takes, and under whose address they reach its real servers.

use std::collections::BTreeSet;

use ipnet::IpNet;

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
    /// Those of external clients: from no [pod network](super::Plan::pod_networks).
    External,
    /// Everybody's.
    Always,
}
