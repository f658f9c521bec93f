//! What those are told who do not get what they state: somebody else has it, or there is no room.

use std::collections::{BTreeMap, BTreeSet};

use super::contest::{Claimant, Who};
use super::frontends::{self, Field, origin};
use super::planner::Planner;
use super::{Defaults, Frontend, Problem, problem, rules};
use crate::model::service::{SCHEDULER_ANNOTATION, SCHEDULER_FLAGS_ANNOTATION};
use crate::model::{Model, Service};

impl Planner {
    /// Tells those that do not get a frontend who has it.
    pub(super) fn tell_losers(&mut self, model: &Model, frontend: Frontend) {
        let contest = self.contests.get(&frontend).filter(|contest| contest.admitted);
        let winner = contest.and_then(|contest| Some((contest, contest.winner()?)));
        let told = winner.map(|(contest, winner)| {
            let losers = contest.losers().iter();
            losers.filter_map(|loser| lost(model, frontend, loser, winner)).collect::<Vec<_>>()
        });
        match told.filter(|told| !told.is_empty()) {
            Some(told) => drop(self.problems.contests.insert(frontend, told)),
            None => drop(self.problems.contests.remove(&frontend)),
        }
    }

    /// Decides who gets room, older ones first, and who has some before others of its age. Looks at all that is stated.
    pub(super) fn admit(&mut self, model: &Model) {
        let mut winners: Vec<(Frontend, Claimant)> = self
            .contests
            .iter()
            .filter_map(|(frontend, contest)| Some((*frontend, contest.winner()?.clone())))
            .collect();
        let programmed = winners.iter().filter(|(frontend, _)| self.plan.services.contains_key(frontend));
        let known: BTreeSet<Who> = programmed.map(|(_, winner)| winner.who.clone()).collect();
        winners.iter_mut().for_each(|(_, winner)| winner.holds = known.contains(&winner.who));
        winners.sort_by_cached_key(|(_, winner)| winner.rank());
        let (mut used, limit) = (0, self.defaults.max_services);
        let mut left_out: BTreeMap<Who, usize> = BTreeMap::new();
        for (frontend, winner) in winners {
            let size = usize::from(winner.size);
            let fits = used + size <= limit;
            if fits {
                used += size;
            } else {
                *left_out.entry(winner.who).or_default() += size;
            }
            if let Some(contest) = self.contests.get_mut(&frontend) {
                contest.admitted = fits;
            }
        }
        self.full = !left_out.is_empty();
        let rules: usize = left_out.iter().filter(|(who, _)| matches!(who, Who::Rule(_))).map(|(_, count)| count).sum();
        let of_services = left_out.iter().filter_map(|(who, count)| {
            let Who::Service(name) = who else { return None };
            let message = format!(
                "{count} of its virtual services are left out: there is room for {limit} (max_services), older ones first"
            );
            Some(problem(model.service(name)?, "spec.ports".to_owned(), String::new(), message))
        });
        let first = left_out.keys().find_map(|who| match who {
            Who::Rule(index) => model.rules().nth(*index),
            Who::Service(_) => None,
        });
        let of_rules = first.map(|rule| rules::no_room(rule, rules, limit));
        self.problems.room = of_services.chain(of_rules).collect();
    }
}

fn lost(model: &Model, frontend: Frontend, loser: &Claimant, winner: &Claimant) -> Option<Problem> {
    let has_it = origin_of(model, winner);
    let name = match &loser.who {
        Who::Service(name) => name,
        Who::Rule(index) => return Some(rules::lost(model.rules().nth(*index)?, &has_it)),
    };
    let message = if loser.who == winner.who {
        format!("{frontend} is stated twice: {has_it} has it")
    } else {
        format!("{frontend} belongs to {has_it}: the older Service has it until it is deleted, then this one")
    };
    let (field, value) = loser.field.of(&frontend);
    Some(problem(model.service(name)?, field, value, message))
}

/// [`DesiredService::origin`](super::DesiredService::origin) of what a claimant states.
pub(super) fn origin_of(model: &Model, claimant: &Claimant) -> String {
    let found = match (&claimant.who, claimant.field) {
        (Who::Service(name), Field::Port(index) | Field::Address(index, _) | Field::NodePort(index)) => {
            model.service(name).and_then(|service| Some(origin(service, service.ports.get(index as usize)?)))
        }
        (Who::Service(name), Field::HealthCheck) => model.service(name).map(frontends::health_check_origin),
        (Who::Rule(index), _) => model.rules().nth(*index).map(|rule| rule.origin.to_string()),
        (Who::Service(_), Field::Rule) => None,
    };
    found.unwrap_or_default()
}

/// Flags of a Service that names no scheduler must be those of the default one. If it names one, the model has compared
/// them.
pub(super) fn check_flags(service: &Service, defaults: &Defaults) -> Option<Problem> {
    let scheduler = service.flags.scheduler?;
    if service.scheduler.is_some() || scheduler == defaults.scheduler || service.addresses.is_empty() {
        return None;
    }
    let (of, default) = (scheduler.name(), defaults.scheduler.name());
    let message = format!(
        "flags of {of}, but the Service names no scheduler and the default is {default}: they are ignored; state \
         {SCHEDULER_ANNOTATION}: {of}, or leave them out"
    );
    let field = format!("metadata.annotations[{SCHEDULER_FLAGS_ANNOTATION}]");
    Some(problem(service, field, service.flags.to_string(), message))
}
