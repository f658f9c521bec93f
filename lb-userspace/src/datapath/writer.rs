//! The writer: brings the maps from what is programmed to what is desired.
//!
//! For each service that differs, in this order: destinations, a **new** run of slots for the set and one for the
//! table, the networks of its clients, the entry that publishes them, flags of overload, the scheduler word; and after all services, what was removed.
//! A packet therefore sees one complete version of a service whenever the writer stops.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    net::IpAddr,
    sync::Arc,
    time::Instant,
};

use lb_common::layout::{DESTINATION_AVAILABLE, Destination, LOOKUP_TUNNELS, MAX_DESTINATIONS_PER_SERVICE};

use super::{
    ApplyError, Capacity, DesiredService, Finding, Frontend, MapStore, Network, Plan,
    allocate::{Arena, IdPool, Run},
    entry::holds_destinations,
    frontend::{Key, Virtual},
    live::Live,
    networks::{self, NETWORKS_OF_NODE},
    state::{Draining, ServiceState},
    write::Write,
};

/// How much may be programmed; at most what the maps hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Virtual services.
    pub services: u32,
    /// Destinations of all services, draining ones included.
    pub destinations: u32,
    /// Destinations of one service, at most [`MAX_DESTINATIONS_PER_SERVICE`].
    pub destinations_per_service: u32,
}

impl Limits {
    /// All that maps of this size can hold.
    pub fn of(capacity: Capacity) -> Self {
        Self {
            services: capacity.services.min(capacity.service_ids.saturating_sub(1)),
            destinations: capacity.destinations.saturating_sub(1),
            destinations_per_service: MAX_DESTINATIONS_PER_SERVICE,
        }
    }
}

/// What an apply did.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Summary {
    /// Services created.
    pub created: u32,
    /// Services that got a new version.
    pub changed: u32,
    /// Services removed.
    pub removed: u32,
    /// Services left as they were.
    pub unchanged: u32,
    /// Map writes.
    pub writes: u64,
}

/// Owns the maps' contents: remembers what is programmed, writes the difference to what is desired.
#[derive(Debug)]
pub struct Writer<S> {
    pub(super) store: S,
    pub(super) limits: Limits,
    pub(super) services: BTreeMap<u32, Box<ServiceState>>,
    pub(super) by_virtual: BTreeMap<Virtual, u32>,
    /// What `destinations` holds, for every id in use.
    pub(super) records: HashMap<u32, Destination>,
    pub(super) draining: BTreeMap<u32, Draining>,
    /// Draining destinations whose record still says available.
    pub(super) unretired: BTreeSet<u32>,
    /// Destinations whose flag of overload may not follow from their thresholds.
    pub(super) unevaluated: BTreeSet<u32>,
    /// Entries of `services` and `service_prefixes` that are not among [`Self::services`], with the slots they name.
    pub(super) strays: Vec<(Key, Vec<Run>)>,
    /// What `lookups` holds.
    pub(super) lookups: u32,
    /// What `networks` holds.
    pub(super) networks: BTreeSet<Network>,
    /// Persistence templates may exist that name destinations by their ids.
    pub(super) templates: bool,
    pub(super) service_ids: IdPool,
    pub(super) destination_ids: IdPool,
    pub(super) arena: Arena,
    pub(super) findings: Vec<Finding>,
    pub(super) writes: u64,
    pub(super) live: Live,
}

impl<S: MapStore> Writer<S> {
    /// What [`Writer::restore`] found inconsistent in the maps; healed by the next apply.
    pub fn findings(&self) -> &[Finding] {
        &self.findings
    }

    /// The maps.
    pub fn store(&self) -> &S {
        &self.store
    }

    /// The maps, for what is not the writer's: it must not be used to change what the writer writes.
    pub fn store_mut(&mut self) -> &mut S {
        &mut self.store
    }

    /// Removed destinations whose id is kept because connections may still refer to it.
    pub fn draining(&self) -> usize {
        self.draining.len()
    }

    /// Brings the maps to `plan`. Only what differs is written, and a failure of one service stops no other: it keeps
    /// the version that is programmed, and the next apply tries it again.
    ///
    /// `now` decides which freed slots may be written again; it must not go backwards.
    pub fn apply(&mut self, plan: &Plan, now: Instant) -> Result<Summary, Vec<ApplyError>> {
        let mut errors = Vec::new();
        let known = self.services.len();
        let all = plan.services.iter().map(|(frontend, desired)| (Virtual::from(frontend), desired));
        let wanted = distinct(all.collect(), &mut errors);
        let removed: Vec<Virtual> = self
            .by_virtual
            .iter()
            .filter(|(service, id)| {
                self.is_published(**id) && wanted.binary_search_by_key(*service, |(wanted, _)| *wanted).is_err()
            })
            .map(|(service, _)| *service)
            .collect();
        let owners = self.networks.iter().map(|network| network.owner).collect();
        let addresses = self.all_cluster_addresses(plan);
        let result = self.bring_all(plan, wanted, &removed, (owners, addresses), now, errors);
        if self.services.len() > 2 * known {
            self.compact();
        }
        result
    }

    /// The same where no other services than these of `plan` are others, or gone, than at the last apply, and all of that
    /// was written: what this costs follows `touched`, not the plan.
    pub fn apply_changes(
        &mut self,
        plan: &Plan,
        touched: &BTreeSet<Frontend>,
        now: Instant,
    ) -> Result<Summary, Vec<ApplyError>> {
        let mut errors = Vec::new();
        let mut removed: BTreeSet<Virtual> = touched.iter().map(Virtual::from).collect();
        // What is another frontend, and one to packets, may have been there all the time.
        let forms: BTreeSet<Frontend> =
            removed.iter().flat_map(Virtual::frontends).chain(touched.iter().copied()).collect();
        let stated = forms.iter().filter_map(|frontend| Some((Virtual::from(frontend), plan.services.get(frontend)?)));
        let wanted = distinct(stated.collect(), &mut errors);
        removed.retain(|service| {
            wanted.binary_search_by_key(service, |(wanted, _)| *wanted).is_err() && self.is_live(service)
        });
        let removed: Vec<Virtual> = removed.into_iter().collect();
        let ids = wanted.iter().map(|(service, _)| service).chain(&removed).filter_map(|s| self.by_virtual.get(s));
        let owners = ids.copied().chain(NETWORKS_OF_NODE).collect();
        let addresses = touched.iter().map(|frontend| frontend.address).collect();
        self.bring_all(plan, wanted, &removed, (owners, addresses), now, errors)
    }

    /// Brings these services to what is wanted, and removes those. What may be others then: networks of these owners, and
    /// whether these addresses are cluster addresses.
    fn bring_all(
        &mut self,
        plan: &Plan,
        wanted: Vec<(Virtual, &Arc<DesiredService>)>,
        removed: &[Virtual],
        (owners, addresses): (BTreeSet<u32>, BTreeSet<IpAddr>),
        now: Instant,
        mut errors: Vec<ApplyError>,
    ) -> Result<Summary, Vec<ApplyError>> {
        self.arena.settle(now);
        let mut summary = Summary::default();
        let writes = self.writes;
        self.add_networks(plan, &mut errors);
        // What is removed makes room only where there is none: normally it goes last.
        let created = wanted.iter().map(|(service, _)| service).filter(|service| !self.is_live(service));
        let (created, prefixes) =
            created.fold((0, 0), |(all, prefixes), service| (all + 1, prefixes + u32::from(service.is_prefix())));
        let removed_first = self.live.count() + created > self.limits.services
            || (prefixes > 0 && self.live.prefixes() + prefixes >= self.store.capacity().prefixes);
        if removed_first {
            self.remove_all(removed, now, &mut summary, &mut errors);
        }
        for (service, desired) in wanted {
            let known = self.by_virtual.get(&service).and_then(|id| self.services.get(id));
            if known.is_some_and(|state| state.applied.as_ref() == Some(desired)) {
                summary.unchanged += 1;
            } else if let Err(error) = self.update(service, desired, now, &mut summary) {
                errors.push(error);
            }
        }
        self.settle_cluster_addresses(plan, addresses, &mut errors);
        if !removed_first {
            self.remove_all(removed, now, &mut summary, &mut errors);
        }
        self.remove_strays(now, &mut errors);
        self.settle_lookups(plan, &mut errors);
        self.settle_networks(plan, owners, &mut errors);
        self.retire_all(&mut errors);
        summary.writes = self.writes - writes;
        if errors.is_empty() { Ok(summary) } else { Err(errors) }
    }

    /// What came in order has left each node of the trees half empty.
    pub(super) fn compact(&mut self) {
        self.services = std::mem::take(&mut self.services).into_iter().collect();
        self.by_virtual = std::mem::take(&mut self.by_virtual).into_iter().collect();
        self.networks = std::mem::take(&mut self.networks).into_iter().collect();
    }

    fn is_published(&self, id: u32) -> bool {
        self.services.get(&id).is_some_and(|state| state.published.is_some())
    }

    fn is_live(&self, service: &Virtual) -> bool {
        self.by_virtual.get(service).is_some_and(|id| self.is_published(*id))
    }

    fn remove_all(&mut self, removed: &[Virtual], now: Instant, summary: &mut Summary, errors: &mut Vec<ApplyError>) {
        for &service in removed {
            match self.remove(service, now) {
                Ok(()) => summary.removed += 1,
                Err(error) => errors.push(error),
            }
        }
    }

    /// Removes a published service; its destinations drain.
    fn remove(&mut self, service: Virtual, now: Instant) -> Result<(), ApplyError> {
        let Some(&id) = self.by_virtual.get(&service) else { return Ok(()) };
        self.perform(&Write::DeleteService { key: service.key() }, "removal", &service)?;
        let Some(state) = self.services.get_mut(&id) else { return Ok(()) };
        if let Some(published) = state.published.take() {
            self.live.remove(&service.key(), &published);
        }
        state.applied = None;
        state.rewrite = false;
        state.word_log.clear();
        for run in state.set.drain(..).chain(state.table.drain(..)) {
            self.arena.retire(run, now);
        }
        for member in state.list.drain(..) {
            state.draining += 1;
            state.ids.insert(member.server, member.id);
            self.draining.insert(member.id, Draining::of(id));
            self.unretired.insert(member.id);
        }
        self.free_if_vacant(id);
        Ok(())
    }

    /// Entries that a restore could not take over: replaced by an update meanwhile, or deleted now.
    fn remove_strays(&mut self, now: Instant, errors: &mut Vec<ApplyError>) {
        for (key, runs) in std::mem::take(&mut self.strays) {
            let service = Virtual::from_key(&key);
            let replaced = service
                .and_then(|service| self.by_virtual.get(&service))
                .and_then(|id| self.services.get(id))
                .is_some_and(|state| state.published.is_some());
            let name = service.map_or_else(|| format!("{key:?}"), |service| service.to_string());
            let write = Write::DeleteService { key };
            match if replaced { Ok(()) } else { self.perform(&write, "inconsistent entry", &name) } {
                Ok(()) => runs.into_iter().for_each(|run| self.arena.retire(run, now)),
                Err(error) => {
                    errors.push(error);
                    self.strays.push((key, runs));
                }
            }
        }
    }

    /// Kinds of services that nobody looks for any more are not looked for: after the last of them is gone. Packets inside of
    /// others are looked into from the first such service on, as their connections outlive it.
    fn settle_lookups(&mut self, plan: &Plan, errors: &mut Vec<ApplyError>) {
        let value = self.lookups_needed() | networks::lookups(plan) | self.lookups & LOOKUP_TUNNELS;
        if value != self.lookups
            && let Err(error) = self.perform(&Write::Lookups { value }, "kinds of services", &"all")
        {
            errors.push(error);
        }
    }

    /// The kinds of lookup that find all entries.
    pub(super) fn lookups_needed(&self) -> u32 {
        self.strays.iter().fold(self.live.lookups(), |all, (key, _)| all | key.lookups())
    }

    /// Marks what is in no set any more as unavailable.
    fn retire_all(&mut self, errors: &mut Vec<ApplyError>) {
        for id in std::mem::take(&mut self.unretired) {
            let Some(&record) = self.records.get(&id) else { continue };
            if record.flags & DESTINATION_AVAILABLE == 0 {
                continue;
            }
            let value = Destination { flags: record.flags & !DESTINATION_AVAILABLE, ..record };
            let service = self.draining.get(&id).and_then(|draining| self.services.get(&draining.service));
            let name = service
                .and_then(|state| state.virtual_service)
                .map_or_else(|| format!("service id {}", record.service), |service| service.to_string());
            if let Err(error) = self.perform(&Write::Destination { id, value }, "removed destination", &name) {
                errors.push(error);
                self.unretired.insert(id);
            }
        }
    }

    /// Frees a service id that nothing refers to.
    pub(super) fn free_if_vacant(&mut self, id: u32) {
        let Some(state) = self.services.get(&id) else { return };
        if state.published.is_some() || state.draining > 0 {
            return;
        }
        if let Some(service) = state.virtual_service {
            self.by_virtual.remove(&service);
        }
        self.services.remove(&id);
        self.service_ids.free(id);
    }

    /// Carries one write out and remembers what it changed.
    pub(super) fn perform(&mut self, write: &Write, origin: &str, service: &impl ToString) -> Result<(), ApplyError> {
        write.perform(&mut self.store).map_err(|source| ApplyError::Store {
            origin: origin.to_owned(),
            service: service.to_string(),
            write: write.to_string(),
            source: Box::new(source),
        })?;
        self.writes += 1;
        match write {
            Write::Destination { id, value } => {
                let before = self.records.insert(*id, *value).unwrap_or_default();
                let changed = (before.upper, before.lower) != (value.upper, value.lower);
                let added = value.flags & !before.flags & DESTINATION_AVAILABLE != 0;
                if changed || (added && value.upper != 0) {
                    self.unevaluated.insert(*id);
                }
            }
            Write::Overload { id, .. } => {
                self.unevaluated.remove(id);
            }
            Write::Lookups { value } => self.lookups = *value,
            Write::Network { network } => drop(self.networks.insert(*network)),
            Write::DeleteNetwork { network } => drop(self.networks.remove(network)),
            Write::Service { value, .. } => self.templates |= holds_destinations(value),
            _ => {}
        }
        Ok(())
    }
}

/// Services in the order of frontends as packets see them; of two that are one to packets, the first.
fn distinct<'a>(
    mut wanted: Vec<(Virtual, &'a Arc<DesiredService>)>,
    errors: &mut Vec<ApplyError>,
) -> Vec<(Virtual, &'a Arc<DesiredService>)> {
    // Stable, and already sorted but for v4-mapped addresses: linear.
    wanted.sort_by_key(|(service, _)| *service);
    wanted.dedup_by(|(service, desired), (kept, other)| {
        let same = service == kept;
        if same {
            errors.push(ApplyError::SameFrontend {
                origin: desired.origin.clone(),
                service: *service,
                other: other.origin.clone(),
            });
        }
        same
    });
    wanted
}
