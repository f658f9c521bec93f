//! Map `networks`: which clients are pods, which addresses of the node serve node ports, whom a service takes, and where
//! there is nothing but services.
//!
//! What is new is written before the services that it is for, what is old is deleted after them: a service that names
//! its clients never stands there without their networks.

use std::{collections::BTreeSet, fmt, net::IpAddr};

use ipnet::IpNet;
use lb_common::{
    address::Address,
    layout::{
        LOOKUP_CLUSTER_ADDRESSES, LOOKUP_SERVICE_NETWORKS, NETWORK_BASE, NETWORK_CLUSTER_ADDRESSES, NETWORK_NODE_PORTS,
        NETWORK_PODS, NETWORK_SERVICES, NetworkKey,
    },
};

use super::{Access, ApplyError, MapStore, Plan, Writer, frontend::bits_before, state::ServiceState, write::Write};

/// An entry of map `networks`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Network {
    /// [`NetworkKey::owner`].
    pub owner: u32,
    /// How many bits of owner and address must match, [`NETWORK_BASE`] among them.
    pub length: u32,
    words: [u32; 4],
}

impl Network {
    /// A network of an owner.
    pub fn new(owner: u32, network: IpNet) -> Self {
        let network = network.trunc();
        let before = NETWORK_BASE + u32::from(bits_before(network.addr().is_ipv4()));
        let length = before + u32::from(network.prefix_len());
        Self { owner, length, words: Address::from(network.addr()).words }
    }

    /// Before all networks of an owner.
    const fn first(owner: u32) -> Self {
        Self { owner, length: 0, words: [0; 4] }
    }

    /// From a key of the map.
    pub fn from_key(length: u32, key: &NetworkKey) -> Self {
        Self { owner: key.owner, length, words: key.network.words }
    }

    /// The map's key, beside [`Self::length`].
    pub fn key(&self) -> NetworkKey {
        NetworkKey { owner: self.owner, network: Address { words: self.words } }
    }

    /// The network without its owner; `None` for one that nobody can have written.
    pub fn network(&self) -> Option<IpNet> {
        let address: IpAddr = Address { words: self.words }.into();
        let before = NETWORK_BASE + u32::from(bits_before(address.is_ipv4()));
        IpNet::new(address, self.length.checked_sub(before)?.try_into().ok()?).ok()
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.network() {
            Some(network) => write!(f, "{network}")?,
            None => write!(f, "{:?}/{}", self.words, self.length)?,
        }
        match self.owner {
            NETWORK_PODS => f.write_str(" of the pods"),
            NETWORK_NODE_PORTS => f.write_str(" of node ports"),
            NETWORK_CLUSTER_ADDRESSES => f.write_str(" of a Service"),
            NETWORK_SERVICES => f.write_str(" of Services"),
            service => write!(f, " of the clients of service id {service}"),
        }
    }
}

/// What a plan says of networks, besides those of services.
fn of_node(plan: &Plan) -> BTreeSet<Network> {
    let addresses = plan.node_port_addresses.iter().map(|address| Network::new(NETWORK_NODE_PORTS, (*address).into()));
    let pods = plan.pod_networks.iter().map(|network| Network::new(NETWORK_PODS, *network));
    let loopback = IpNet::new_assert(IpAddr::from([127, 0, 0, 0]), 8);
    let loopback = plan.loopback_node_ports.then(|| Network::new(NETWORK_NODE_PORTS, loopback));
    let services = plan.service_networks.iter().map(|network| Network::new(NETWORK_SERVICES, *network));
    addresses.chain(loopback).chain(pods).chain(services).collect()
}

/// Owners of those.
pub(super) const NETWORKS_OF_NODE: [u32; 3] = [NETWORK_NODE_PORTS, NETWORK_PODS, NETWORK_SERVICES];

/// The kinds of lookup that a plan needs for its networks.
pub(super) fn lookups(plan: &Plan) -> u32 {
    let kinds = [
        (!plan.cluster_addresses.is_empty(), LOOKUP_CLUSTER_ADDRESSES),
        (!plan.service_networks.is_empty(), LOOKUP_SERVICE_NETWORKS),
    ];
    kinds.into_iter().filter(|(needed, _)| *needed).fold(0, |all, (_, kind)| all | kind)
}

/// The networks of a service's clients.
fn of_service(id: u32, access: &Access) -> impl Iterator<Item = Network> {
    access.sources.iter().map(move |network| Network::new(id, *network))
}

impl<S: MapStore> Writer<S> {
    /// Adds what is new of the node's networks.
    pub(super) fn add_networks(&mut self, plan: &Plan, errors: &mut Vec<ApplyError>) {
        for network in of_node(plan) {
            if !self.networks.contains(&network)
                && let Err(error) = self.perform(&Write::Network { network }, "networks of the node", &"all")
            {
                errors.push(error);
            }
        }
    }

    /// Every address that is a cluster address, in the plan or in the map.
    pub(super) fn all_cluster_addresses(&self, plan: &Plan) -> BTreeSet<IpAddr> {
        let owner = NETWORK_CLUSTER_ADDRESSES;
        let had = self.networks.range(Network::first(owner)..).take_while(|network| network.owner == owner);
        let had = had.map(|network| Address { words: network.words }.into());
        plan.cluster_addresses.iter().copied().chain(had).collect()
    }

    /// Brings these addresses to what the plan says of them. After their services are there and before they go, so that a
    /// port of a service is never taken for another one.
    pub(super) fn settle_cluster_addresses(
        &mut self,
        plan: &Plan,
        addresses: BTreeSet<IpAddr>,
        errors: &mut Vec<ApplyError>,
    ) {
        for address in addresses {
            let network = Network::new(NETWORK_CLUSTER_ADDRESSES, address.into());
            let write = match (plan.cluster_addresses.contains(&address), self.networks.contains(&network)) {
                (true, false) => Write::Network { network },
                (false, true) => Write::DeleteNetwork { network },
                _ => continue,
            };
            if let Err(error) = self.perform(&write, "cluster address", &address) {
                errors.push(error);
            }
        }
    }

    /// The writes that add a service's networks.
    pub(super) fn network_writes(&self, id: u32, access: &Access) -> Vec<Write> {
        let missing = of_service(id, access).filter(|network| !self.networks.contains(network));
        missing.map(|network| Write::Network { network }).collect()
    }

    /// Deletes what these owners do not have any more. A service that could not be brought to what is desired keeps all
    /// that it has.
    pub(super) fn settle_networks(&mut self, plan: &Plan, owners: BTreeSet<u32>, errors: &mut Vec<ApplyError>) {
        let of_node = of_node(plan);
        let mut old = Vec::new();
        for owner in owners.into_iter().filter(|owner| *owner != NETWORK_CLUSTER_ADDRESSES) {
            let wanted = match self.services.get(&owner).map(Box::as_ref) {
                None => BTreeSet::new(),
                Some(ServiceState { applied: Some(applied), .. }) => of_service(owner, &applied.access).collect(),
                Some(state) if state.published.is_some() => continue,
                Some(_) => BTreeSet::new(),
            };
            let had = self.networks.range(Network::first(owner)..).take_while(|network| network.owner == owner);
            old.extend(had.filter(|network| !wanted.contains(*network) && !of_node.contains(*network)).copied());
        }
        for network in old {
            if let Err(error) = self.perform(&Write::DeleteNetwork { network }, "networks", &"all") {
                errors.push(error);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_come_back_from_their_keys() {
        for (text, length) in [("10.0.0.0/8", 136), ("0.0.0.0/0", 128), ("192.0.2.1/32", 160), ("2001:db8::/32", 64)] {
            let network = Network::new(7, text.parse().unwrap());
            assert_eq!(network.length, length, "{text}");
            assert_eq!(Network::from_key(network.length, &network.key()), network);
            assert_eq!(network.to_string(), format!("{text} of the clients of service id 7"));
        }
        let host_bits = Network::new(7, "10.1.2.3/8".parse().unwrap());
        assert_eq!(host_bits, Network::new(7, "10.0.0.0/8".parse().unwrap()));
        assert_eq!(Network { length: 3, ..host_bits }.network(), None);
    }
}
