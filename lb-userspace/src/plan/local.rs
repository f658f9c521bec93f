//! Ports of Services that this node has no endpoint for, where the policy allows no other.

use std::collections::BTreeSet;

use super::{Plan, Scope};

/// How many service ports have endpoints, but none that the policy allows, as it allows those of this node alone (ME-1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NoLocal {
    /// Of `internalTrafficPolicy: Local`: for IPv4, for IPv6.
    pub internal: [usize; 2],
    /// Of `externalTrafficPolicy: Local`, likewise.
    pub external: [usize; 2],
}

impl Plan {
    /// The service ports without an endpoint on this node. However many frontends a port has, it is counted once.
    pub fn no_local(&self) -> NoLocal {
        let mut found = BTreeSet::new();
        for (frontend, service) in self.services.iter().filter(|(_, service)| service.access.silent) {
            let external = matches!(frontend.scope, Scope::External | Scope::ExternalNodePort);
            found.insert((external, frontend.address.is_ipv6(), service.origin.as_str()));
        }
        let count = |external| {
            [false, true].map(|v6| found.iter().filter(|(of, family, _)| (*of, *family) == (external, v6)).count())
        };
        NoLocal { internal: count(false), external: count(true) }
    }
}
