//! Who gets a frontend that several state.

use std::sync::Arc;

use super::Frontend;
use super::frontends::{Claim, Field};
use crate::model::ServiceName;

/// Who states a frontend.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Who {
    /// A Service.
    Service(Arc<ServiceName>),
    /// The rule of this index.
    Rule(usize),
}

/// A statement of a frontend.
#[derive(Clone, Debug)]
pub(super) struct Claimant {
    pub(super) who: Who,
    /// When its object was made, seconds since 1970; the end of time if that is not stated.
    pub(super) created: i64,
    /// Which of the object's claims this is.
    pub(super) order: u32,
    pub(super) field: Field,
    /// How many virtual services it asks for.
    pub(super) size: u8,
    /// The frontend is at a cluster address that the API server has given the Service.
    pub(super) at_cluster_address: bool,
    /// It has the frontend.
    pub(super) holds: bool,
}

impl Claimant {
    pub(super) fn new(who: Who, created: Option<i64>, order: u32, claim: &Claim) -> Self {
        let size = 1 + u8::from(claim.external.is_some());
        let Claim { field, at_cluster_address, .. } = *claim;
        Self { who, created: created.unwrap_or(i64::MAX), order, field, size, at_cluster_address, holds: false }
    }

    /// Whoever was there first has the older right to an address, objects without a time come last, and rules after all
    /// Services, in their order. Of Services of one age, the one that has it keeps it: a Service in a file has no age;
    /// without this, one that is added by mistake could take a frontend that works.
    pub(super) fn rank(&self) -> impl Ord + Clone + use<> {
        let rule = matches!(self.who, Who::Rule(_));
        (rule, self.created, !rule && !self.holds, self.who.clone(), self.order)
    }
}

/// All that state one frontend.
#[derive(Debug, Default)]
pub(super) struct Contest {
    claimants: Vec<Claimant>,
    /// Whether the best of them is to be programmed: there may be no room.
    pub(super) admitted: bool,
}

impl Contest {
    /// Takes the statements of one, in place of those that it made before. Who holds the frontend, holds it still.
    pub(super) fn restate(&mut self, who: &Who, mut claimants: Vec<Claimant>) {
        let held = self.claimants.iter().any(|claimant| claimant.who == *who && claimant.holds);
        self.claimants.retain(|claimant| claimant.who != *who);
        if let (true, Some(first)) = (held, claimants.first_mut()) {
            first.holds = true;
        }
        self.claimants.append(&mut claimants);
        self.claimants.shrink_to_fit();
    }

    /// Decides: the winner comes first.
    pub(super) fn decide(&mut self) {
        self.claimants.sort_by_cached_key(Claimant::rank);
        for (place, claimant) in self.claimants.iter_mut().enumerate() {
            claimant.holds = place == 0;
        }
    }

    pub(super) fn winner(&self) -> Option<&Claimant> {
        self.claimants.first()
    }

    /// Those that do not get it.
    pub(super) fn losers(&self) -> &[Claimant] {
        self.claimants.get(1..).unwrap_or_default()
    }

    /// How many virtual services the winner asks for.
    pub(super) fn size(&self) -> usize {
        self.winner().map_or(0, |winner| winner.size.into())
    }
}

/// The frontend for external clients beside one for all.
pub(super) fn external(frontend: Frontend) -> Frontend {
    use super::Scope::{Address, External, ExternalNodePort, NodePort};
    let scope = match frontend.scope {
        Address => External,
        NodePort => ExternalNodePort,
        other => other,
    };
    Frontend { scope, ..frontend }
}
