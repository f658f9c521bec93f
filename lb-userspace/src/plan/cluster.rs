//! Cluster addresses, where there is nothing but services: what is for none of their ports is refused (NE-7).
//!
//! Only those that the API server states: it has taken them from networks that are nobody else's. An address in a file may be a
//! host's, whose other ports are its own. And never the node's own addresses.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use super::contest::Claimant;
use super::{Frontend, Scope};

/// The addresses, with the number of frontends that each one has.
#[derive(Debug, Default)]
pub(super) struct Cluster {
    frontends: BTreeMap<IpAddr, u32>,
}

impl Cluster {
    /// Who has a frontend is somebody else, or nobody.
    pub(super) fn replace(&mut self, frontend: &Frontend, before: Option<&Claimant>, after: Option<&Claimant>) {
        let counts = |claimant: Option<&Claimant>| {
            frontend.scope == Scope::Address && claimant.is_some_and(|claimant| claimant.at_cluster_address)
        };
        match (counts(before), counts(after)) {
            (false, true) => *self.frontends.entry(frontend.address).or_default() += 1,
            (true, false) => {
                if let Some(count) = self.frontends.get_mut(&frontend.address) {
                    *count -= 1;
                    if *count == 0 {
                        self.frontends.remove(&frontend.address);
                    }
                }
            }
            _ => {}
        }
    }

    /// After very many changes: without the gaps that they left.
    pub(super) fn compact(&mut self) {
        self.frontends = std::mem::take(&mut self.frontends).into_iter().collect();
    }

    /// Brings `addresses` to what holds at one of them. True if that is something else than before.
    pub(super) fn settle(&self, address: IpAddr, own: &[IpAddr], addresses: &mut BTreeSet<IpAddr>) -> bool {
        match self.frontends.contains_key(&address) && !own.contains(&address) {
            true => addresses.insert(address),
            false => addresses.remove(&address),
        }
    }
}
