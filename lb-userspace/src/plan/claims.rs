//! Who gets a frontend that several Services state.

use super::frontends::Claim;
use super::{Defaults, Holders, Plan, problem};
use crate::model::Service;
use crate::model::service::{SCHEDULER_ANNOTATION, SCHEDULER_FLAGS_ANNOTATION};

impl Plan {
    /// Adds those frontends of a Service that it has already, and leaves the others.
    pub(super) fn keep(&mut self, held: &Holders, claims: &mut Vec<Claim>, defaults: &Defaults) {
        let mut others = Vec::new();
        for claim in claims.drain(..) {
            let has_it = held.get(&claim.frontend()).is_some_and(|holder| holder == claim.origin());
            let free = !self.services.contains_key(&claim.frontend()) && self.has_room(&claim, defaults);
            if has_it && free {
                self.services.extend(claim.services);
            } else {
                others.push(claim);
            }
        }
        *claims = others;
    }

    /// Adds what is free of the frontends of a Service.
    pub(super) fn add(&mut self, service: &Service, claims: Vec<Claim>, defaults: &Defaults) {
        self.check_flags(service, defaults);
        let mut left_out = 0;
        for claim in claims {
            if let Some(winner) = self.services.get(&claim.frontend()) {
                let own = winner.origin.starts_with(&format!("{}/{}:", service.namespace, service.name));
                let (frontend, winner) = (claim.frontend(), &winner.origin);
                let message = if own {
                    format!("{frontend} is stated twice: {winner} has it")
                } else {
                    format!(
                        "{frontend} belongs to {winner}: the older Service has it until it is deleted, then this one"
                    )
                };
                self.problems.push(problem(service, claim.field, claim.value, message));
            } else if self.has_room(&claim, defaults) {
                self.services.extend(claim.services);
            } else {
                left_out += claim.services.len();
            }
        }
        if left_out > 0 {
            let message = format!(
                "{left_out} of its virtual services are left out: there is room for {} (max_services), older ones first",
                defaults.max_services
            );
            self.problems.push(problem(service, "spec.ports".to_owned(), String::new(), message));
        }
    }

    fn has_room(&self, claim: &Claim, defaults: &Defaults) -> bool {
        self.services.len() + claim.services.len() <= defaults.max_services
    }

    /// Flags of a Service that names no scheduler must be those of the default one. If it names one, the model has
    /// compared them.
    fn check_flags(&mut self, service: &Service, defaults: &Defaults) {
        let Some(scheduler) = service.flags.scheduler else { return };
        if service.scheduler.is_none() && scheduler != defaults.scheduler && !service.addresses.is_empty() {
            let (of, default) = (scheduler.name(), defaults.scheduler.name());
            let message = format!(
                "flags of {of}, but the Service names no scheduler and the default is {default}: they are ignored; state \
                 {SCHEDULER_ANNOTATION}: {of}, or leave them out"
            );
            let field = format!("metadata.annotations[{SCHEDULER_FLAGS_ANNOTATION}]");
            self.problems.push(problem(service, field, service.flags.to_string(), message));
        }
    }
}
