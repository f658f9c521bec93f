//! The plan, and how it follows what is stated: a change costs what it touches, never the total.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use super::cluster::Cluster;
use super::contest::{Claimant, Contest, Who, external};
use super::frontends::{self, Claim, Site};
use super::local::Counter;
use super::{
    Defaults, DesiredService, Frontend, NoLocal, Node, Plan, Problem, access, claims, health, node_ports, rules,
};
use crate::model::{Changes, EndpointSlice, Model, Service, ServiceName};
use lb_common::address::Protocol;

/// Holds a plan, and what it follows from.
#[derive(Debug)]
pub struct Planner {
    pub(super) defaults: Defaults,
    pub(super) node: Node,
    pub(super) plan: Plan,
    /// Nothing was planned yet.
    new: bool,
    /// The frontends that each Service states.
    stated: BTreeMap<Arc<ServiceName>, Vec<Frontend>>,
    /// Those that rules state.
    stated_by_rules: Vec<Frontend>,
    pub(super) contests: BTreeMap<Frontend, Contest>,
    /// How many virtual services there would be if there were room for all.
    wanted: usize,
    /// Some of them had no room.
    pub(super) full: bool,
    pub(super) problems: Problems,
    no_local: Counter,
    cluster: Cluster,
    /// The addresses that stand for the node, one of each family.
    own: Vec<IpAddr>,
    /// The node's own addresses are others than at the last update.
    readdressed: Vec<IpAddr>,
}

/// What stands in the way of what was stated, by what it follows from.
#[derive(Debug, Default)]
pub(super) struct Problems {
    pub(super) services: BTreeMap<Arc<ServiceName>, Vec<Problem>>,
    pub(super) contests: BTreeMap<Frontend, Vec<Problem>>,
    pub(super) rules: Vec<Problem>,
    pub(super) room: Vec<Problem>,
}

/// What one update has come to so far.
#[derive(Default)]
pub(super) struct Round {
    /// Frontends whose claimants may be others now.
    affected: BTreeSet<Frontend>,
    /// What was found to be stated.
    claims: BTreeMap<(Frontend, Who), Claim>,
    /// Virtual services that are others now, or gone.
    touched: BTreeSet<Frontend>,
}

impl Planner {
    /// A planner that was told nothing.
    pub fn new(defaults: Defaults) -> Self {
        Self {
            defaults,
            node: Node::default(),
            plan: Plan::default(),
            new: true,
            stated: BTreeMap::new(),
            stated_by_rules: Vec::new(),
            contests: BTreeMap::new(),
            wanted: 0,
            full: false,
            problems: Problems::default(),
            no_local: Counter::default(),
            cluster: Cluster::default(),
            own: Vec::new(),
            readdressed: Vec::new(),
        }
    }

    /// What this node should do, as of the last update.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The plan's [`Plan::no_local`].
    pub fn no_local(&self) -> NoLocal {
        self.no_local.counts()
    }

    /// The same, for good.
    pub(super) fn into_plan(self) -> Plan {
        self.plan
    }

    /// Takes the addresses of the node's interfaces. True if they are others than before.
    pub fn set_addresses(&mut self, addresses: Vec<IpAddr>) -> bool {
        let differ = self.defaults.options.addresses != addresses;
        if differ {
            self.readdressed.extend(addresses.iter().copied());
            self.readdressed.append(&mut std::mem::replace(&mut self.defaults.options.addresses, addresses));
        }
        differ
    }

    /// Brings the plan to what the model says, of which `changes` is all that it does not say as at the last update. The
    /// first update, and one where the node's zone, its address or its pods' networks are others, look at everything. What comes back are
    /// the virtual services that are others now, or gone.
    pub fn update(&mut self, model: &Model, node: &Node, changes: &Changes) -> BTreeSet<Frontend> {
        let whole = self.take_node(node);
        let mut round = Round::default();
        if whole {
            let stated = self.stated.keys().map(|name| ServiceName::clone(name));
            for name in model.service_names().into_iter().chain(stated).collect::<BTreeSet<_>>() {
                self.restate(model, name, &mut round);
            }
        } else {
            for name in &changes.services {
                self.restate(model, name.clone(), &mut round);
            }
        }
        let readdressed = || !self.readdressed.is_empty() && rules::depends_on_addresses(model.rules());
        if whole || changes.rules || readdressed() {
            self.restate_rules(model, &mut round);
        }
        self.decide(model, &mut round);
        if whole {
            self.compact();
        }
        self.leave_own_addresses(&mut round);
        self.plan.service_networks = model.service_networks();
        self.plan.problems = self.all_problems();
        round.touched
    }

    /// What was planned in order has left each node of the trees half empty.
    fn compact(&mut self) {
        self.plan.services.compact();
        self.plan.cluster_addresses = std::mem::take(&mut self.plan.cluster_addresses).into_iter().collect();
        self.stated = std::mem::take(&mut self.stated).into_iter().collect();
        self.contests = std::mem::take(&mut self.contests).into_iter().collect();
        self.cluster.compact();
    }

    /// True if everything must be looked at.
    fn take_node(&mut self, node: &Node) -> bool {
        let options = &self.defaults.options;
        let pod_networks = access::pod_networks(node, options);
        let own = node_ports::primary(node, options);
        let same = (&self.node.name, &self.node.zone, &self.plan.pod_networks, &self.own)
            == (&node.name, &node.zone, &pod_networks, &own);
        self.plan.node_port_addresses = node_ports::addresses(node, options);
        self.plan.health_check_addresses = node_ports::health_check_addresses(node, options);
        self.plan.loopback_node_ports = node_ports::at_loopback(options);
        self.plan.pod_networks = pod_networks;
        self.own = own;
        self.node = node.clone();
        std::mem::take(&mut self.new) || !same
    }

    /// Takes what a Service states now, in place of what it stated before.
    fn restate(&mut self, model: &Model, name: ServiceName, round: &mut Round) {
        let slices = model.slices_of(&name);
        let service = model.service(&name);
        // One name for all that it states.
        let name = self.stated.get_key_value(&name).map_or_else(|| Arc::new(name.clone()), |(known, _)| known.clone());
        let who = Who::Service(name.clone());
        let mut problems = Vec::new();
        let mut claims = Vec::new();
        if let Some(service) = service {
            claims = self.claims(service, &slices, &mut problems);
            problems.extend(claims::check_flags(service, &self.defaults));
        } else {
            problems.extend(super::orphans(&slices));
        }
        self.plan.set_health_check(&name, service.and_then(|service| health::check(service, &slices, &self.node)));
        let created = service.and_then(|service| service.created);
        let stated: Vec<Frontend> = claims.iter().map(|claim| claim.frontend).collect();
        let before = match stated.is_empty() {
            true => self.stated.remove(&name),
            false => self.stated.insert(name.clone(), stated),
        };
        self.enter(&who, created, before.unwrap_or_default(), claims, round);
        match problems.is_empty() {
            true => drop(self.problems.services.remove(&name)),
            false => drop(self.problems.services.insert(name, problems)),
        }
    }

    fn restate_rules(&mut self, model: &Model, round: &mut Round) {
        self.problems.rules.clear();
        let mut stated = Vec::new();
        let before = std::mem::take(&mut self.stated_by_rules);
        let now: Vec<Claim> =
            model.rules().map(|rule| rules::claim(rule, &self.defaults, &mut self.problems.rules)).collect();
        for (frontend, index) in before.into_iter().zip(0..) {
            self.enter(&Who::Rule(index), None, vec![frontend], Vec::new(), round);
        }
        for (claim, index) in now.into_iter().zip(0..) {
            stated.push(claim.frontend);
            self.enter(&Who::Rule(index), None, Vec::new(), vec![claim], round);
        }
        self.stated_by_rules = stated;
    }

    /// Enters claims into the contests for their frontends, in place of those that stood in `before`.
    fn enter(&mut self, who: &Who, created: Option<i64>, before: Vec<Frontend>, claims: Vec<Claim>, round: &mut Round) {
        let mut claimants: BTreeMap<Frontend, Vec<Claimant>> =
            before.into_iter().map(|frontend| (frontend, Vec::new())).collect();
        for (order, claim) in (0..).zip(claims) {
            let claimant = Claimant::new(who.clone(), created, order, &claim);
            claimants.entry(claim.frontend).or_default().push(claimant);
            round.claims.entry((claim.frontend, who.clone())).or_insert(claim);
        }
        for (frontend, claimants) in claimants {
            let contest = self.contests.entry(frontend).or_default();
            if round.affected.insert(frontend) {
                self.wanted -= contest.size();
                self.cluster.replace(&frontend, contest.winner(), None);
            }
            contest.restate(who, claimants);
        }
    }

    fn claims(&self, service: &Service, slices: &[&EndpointSlice], problems: &mut Vec<Problem>) -> Vec<Claim> {
        let pod_networks = &self.plan.pod_networks;
        let site = Site { node: &self.node, defaults: &self.defaults, pod_networks, own: &self.own };
        frontends::claims(service, slices, &site, problems)
    }

    /// Decides the contests that are affected, and brings the plan to it.
    fn decide(&mut self, model: &Model, round: &mut Round) {
        for frontend in &round.affected {
            if let Some(contest) = self.contests.get_mut(frontend) {
                contest.decide();
                contest.admitted = true;
                self.wanted += contest.size();
                self.cluster.replace(frontend, None, contest.winner());
            }
            self.settle_cluster_address(*frontend, &mut round.touched);
        }
        let mut affected = std::mem::take(&mut round.affected);
        if self.full || self.wanted > self.defaults.max_services {
            self.admit(model);
            affected.extend(self.contests.keys());
        }
        for frontend in affected {
            self.place(model, frontend, round);
            self.tell_losers(model, frontend);
        }
    }

    /// Whether other ports of a frontend's address are refused now.
    fn settle_cluster_address(&mut self, frontend: Frontend, touched: &mut BTreeSet<Frontend>) {
        let own = &self.defaults.options.addresses;
        if self.cluster.settle(frontend.address, own, &mut self.plan.cluster_addresses) {
            touched.insert(frontend);
        }
    }

    /// The same at addresses that the node has got, or has not any more.
    fn leave_own_addresses(&mut self, round: &mut Round) {
        for address in std::mem::take(&mut self.readdressed) {
            let at = Frontend::new(address, 0, Protocol::Tcp);
            self.settle_cluster_address(at, &mut round.touched);
        }
    }

    /// Brings the plan to who has won a frontend.
    fn place(&mut self, model: &Model, frontend: Frontend, round: &mut Round) {
        let Some(contest) = self.contests.get(&frontend) else { return };
        let Some(winner) = contest.winner().filter(|_| contest.admitted) else {
            if contest.winner().is_none() {
                self.contests.remove(&frontend);
            }
            self.set(frontend, None, round);
            self.set(external(frontend), None, round);
            return;
        };
        let who = winner.who.clone();
        let claim = round.claims.remove(&(frontend, who.clone())).or_else(|| {
            // It was stated before this round: if it has the frontend, nothing is new.
            let known = self.plan.services.get(&frontend);
            let origin = claims::origin_of(model, winner);
            if known.is_some_and(|known| known.origin == origin) { None } else { self.again(model, &who, frontend) }
        });
        if let Some(claim) = claim {
            self.set(frontend, Some(claim.service), round);
            if external(frontend) != frontend {
                self.set(external(frontend), claim.external, round);
            }
        }
    }

    /// Finds out again what was stated before.
    fn again(&self, model: &Model, who: &Who, frontend: Frontend) -> Option<Claim> {
        // What is wrong with it was told when it was stated.
        let mut told = Vec::new();
        match who {
            Who::Service(name) => {
                let claims = self.claims(model.service(name)?, &model.slices_of(name), &mut told);
                claims.into_iter().find(|claim| claim.frontend == frontend)
            }
            Who::Rule(index) => Some(rules::claim(model.rules().nth(*index)?, &self.defaults, &mut told)),
        }
    }

    fn set(&mut self, frontend: Frontend, service: Option<DesiredService>, round: &mut Round) {
        if self.plan.services.get(&frontend).map(Arc::as_ref) == service.as_ref() {
            return;
        }
        round.touched.insert(frontend);
        self.no_local.replace(&frontend, self.plan.services.get(&frontend).map(Arc::as_ref), service.as_ref());
        match service {
            Some(service) => drop(self.plan.services.insert(frontend, service)),
            None => drop(self.plan.services.remove(&frontend)),
        }
    }

    fn all_problems(&self) -> Vec<Problem> {
        let Problems { services, contests, rules, room } = &self.problems;
        let of_objects = services.values().chain(contests.values()).flatten();
        let of_node = access::lacks_networks(&self.node, &self.defaults.options);
        of_objects.cloned().chain(of_node).chain(rules.iter().chain(room).cloned()).collect()
    }
}
