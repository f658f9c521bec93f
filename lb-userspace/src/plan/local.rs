//! Ports of Services that this node has no endpoint for, where the policy allows no other.

use std::collections::BTreeMap;

use super::{DesiredService, Frontend, Plan, Scope};

/// How many service ports have endpoints, but none that the policy allows, as it allows those of this node alone (ME-1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NoLocal {
    /// Of `internalTrafficPolicy: Local`: for IPv4, for IPv6.
    pub internal: [usize; 2],
    /// Of `externalTrafficPolicy: Local`, likewise.
    pub external: [usize; 2],
}

/// Counts them as virtual services come and go. However many frontends a port has, it is counted once.
#[derive(Debug, Default)]
pub(super) struct Counter {
    /// How many of its virtual services: external, IPv6, and what states them.
    of: BTreeMap<(bool, bool, String), usize>,
    counts: NoLocal,
}

impl Counter {
    pub(super) fn counts(&self) -> NoLocal {
        self.counts
    }

    /// One virtual service takes the place of another.
    pub(super) fn replace(
        &mut self,
        frontend: &Frontend,
        before: Option<&DesiredService>,
        after: Option<&DesiredService>,
    ) {
        let external = matches!(frontend.scope, Scope::External | Scope::ExternalNodePort);
        let v6 = frontend.address.is_ipv6();
        let key = |service: Option<&DesiredService>| {
            service.filter(|service| service.access.silent).map(|service| (external, v6, service.origin.clone()))
        };
        let (before, after) = (key(before), key(after));
        if before == after {
            return;
        }
        let of_policy = if external { &mut self.counts.external } else { &mut self.counts.internal };
        if let Some(key) = after {
            let count = self.of.entry(key).or_default();
            *count += 1;
            of_policy[usize::from(v6)] += usize::from(*count == 1);
        }
        if let Some(key) = before
            && let Some(count) = self.of.get_mut(&key)
        {
            *count -= 1;
            if *count == 0 {
                self.of.remove(&key);
                of_policy[usize::from(v6)] -= 1;
            }
        }
    }
}

impl Plan {
    /// The service ports without an endpoint on this node.
    pub fn no_local(&self) -> NoLocal {
        let mut counter = Counter::default();
        self.services.iter().for_each(|(frontend, service)| counter.replace(frontend, None, Some(service)));
        counter.counts()
    }
}
