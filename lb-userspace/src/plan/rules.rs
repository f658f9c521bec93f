//! Rules: what they state is what is done, unless a Service has the frontend already.

use super::{Defaults, DesiredDestination, DesiredService, Plan, Problem};
use crate::model::RuleService;

impl Plan {
    /// Adds the services that rules state, after all that have come from Kubernetes objects.
    pub(super) fn add_rules<'a>(&mut self, rules: impl Iterator<Item = &'a RuleService>, defaults: &Defaults) {
        let mut left_out = Vec::new();
        for rule in rules {
            if let Some(winner) = self.services.get(&rule.frontend) {
                let message = format!("belongs to {}, which has it until it is deleted, then this rule", winner.origin);
                self.problems.push(problem(rule, message));
            } else if self.services.len() >= defaults.max_services {
                left_out.push(rule);
            } else {
                let desired = self.desired(rule, defaults);
                self.services.insert(rule.frontend, desired);
            }
        }
        if let Some(first) = left_out.first() {
            let message = format!(
                "this rule and all after it, {} virtual services, are left out: there is room for {} (max_services)",
                left_out.len(),
                defaults.max_services
            );
            self.problems.push(problem(first, message));
        }
    }

    fn desired(&mut self, rule: &RuleService, defaults: &Defaults) -> DesiredService {
        let limit = defaults.max_destinations_per_service;
        if rule.servers.len() > limit {
            let message = format!(
                "the first {limit} of its {} real servers are used, a service can have no more \
                 (max_destinations_per_service)",
                rule.servers.len()
            );
            self.problems.push(problem(rule, message));
        }
        let servers = rule.servers.iter().take(limit);
        DesiredService {
            origin: rule.origin.to_string(),
            scheduler: rule.options.scheduler,
            hash_port: rule.options.hash_port,
            hash_fallback: rule.options.hash_fallback,
            persistence: rule.options.persistence,
            one_packet: rule.options.one_packet,
            destinations: servers
                .map(|server| DesiredDestination {
                    address: server.address,
                    port: server.port,
                    weight: server.weight,
                    thresholds: server.thresholds,
                })
                .collect(),
        }
    }
}

fn problem(rule: &RuleService, message: String) -> Problem {
    Problem {
        object: format!("rule {}", rule.frontend),
        location: Some(rule.origin.to_string()),
        field: String::new(),
        value: String::new(),
        message,
    }
}
