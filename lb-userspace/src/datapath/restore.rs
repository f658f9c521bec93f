//! Reading back what is programmed: after a restart the writer goes on where the last one stopped.
//!
//! Whatever stands in the maps, a restore ends with a writer: what is inconsistent is named as a [`Finding`], is left
//! to serve packets as it is, and is rewritten or deleted by the next apply.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use lb_common::{
    layout::{DESTINATION_AVAILABLE, DestinationSlot, MAX_DESTINATIONS_PER_SERVICE, Service},
    scheduler::{Scheduler, word::SchedulerWord},
};

use super::{
    Finding, Limits, MapStore, RestoreError, StoreError, Writer,
    allocate::{Arena, IdPool, Run},
    entry::holds_destinations,
    frontend::{Key, Virtual},
    live::Live,
    state::{Draining, Member, Server, ServiceState, has_cursor, table},
    store::names,
    word::newer,
    write::evaluated,
};

impl<S: MapStore> Writer<S> {
    /// Reads what is programmed in the maps. Writes nothing.
    ///
    /// # Errors
    /// Maps that cannot be read, or limits beyond what they hold.
    pub fn restore(store: S, limits: Limits) -> Result<Self, RestoreError> {
        let capacity = store.capacity();
        check(&limits, &Limits::of(capacity), capacity.services >= capacity.service_ids)?;
        let mut writer = Self {
            limits,
            services: BTreeMap::new(),
            by_virtual: BTreeMap::new(),
            draining: BTreeMap::new(),
            unretired: BTreeSet::new(),
            unevaluated: BTreeSet::new(),
            lookups: 0,
            networks: BTreeSet::new(),
            templates: false,
            strays: Vec::new(),
            service_ids: IdPool::new(0, &BTreeSet::new()),
            destination_ids: IdPool::new(0, &BTreeSet::new()),
            arena: Arena::new(capacity.slots),
            findings: Vec::new(),
            writes: 0,
            live: Live::default(),
            records: HashMap::new(),
            store,
        };
        writer.reread()?;
        Ok(writer)
    }

    /// Forgets what was programmed, and reads what is. Writes nothing. After an error it must be done again before anything is
    /// written.
    ///
    /// # Errors
    /// Maps that cannot be read.
    pub fn reread(&mut self) -> Result<(), StoreError> {
        let capacity = self.store.capacity();
        self.services.clear();
        self.by_virtual.clear();
        self.records.clear();
        self.draining.clear();
        self.unretired.clear();
        self.unevaluated.clear();
        self.strays.clear();
        self.findings.clear();
        self.arena = Arena::new(capacity.slots);
        self.live = Live::default();
        self.lookups = self.store.lookups()?;
        self.networks = self.store.networks()?.into_iter().collect();
        for id in 1..capacity.destinations {
            let record = self.store.destination(id)?;
            if record.service != 0 {
                self.records.insert(id, record);
            }
        }
        let mut programmed: Vec<(Option<Virtual>, Key, Service)> =
            self.store.entries()?.into_iter().map(|(key, value)| (Virtual::from_key(&key), key, value)).collect();
        programmed.sort_by_key(|(service, key, _)| (*service, key.order()));
        for (service, key, value) in programmed {
            self.take_over(service, key, value)?;
        }
        self.take_over_draining();
        self.take_over_thresholds()?;
        // What drains may be of a service that was persistent.
        let holds = |state: &ServiceState| state.published.as_ref().is_some_and(holds_destinations);
        self.templates = !self.draining.is_empty() || self.services.values().map(Box::as_ref).any(holds);
        let missing = self.lookups_needed() & !self.lookups;
        if missing != 0 {
            self.findings.push(Finding::Lookups { missing });
        }
        let used = self.services.keys().copied().collect();
        self.service_ids = IdPool::new(capacity.service_ids.saturating_sub(1), &used);
        let used = self.records.keys().copied().collect();
        self.destination_ids = IdPool::new(self.limits.destinations, &used);
        self.compact();
        Ok(())
    }

    /// Takes one entry of `services` over, or makes it a stray.
    fn take_over(&mut self, service: Option<Virtual>, key: Key, value: Service) -> Result<(), StoreError> {
        let set = Run { base: value.set_base, length: value.set_length };
        let table = Run { base: value.table_base, length: value.table_length };
        let Some(service) = service else {
            self.findings.push(Finding::Key { key });
            self.stray(key, [set, table]);
            return Ok(());
        };
        let problem = match value.id {
            0 => Some("0"),
            id if id >= self.store.capacity().service_ids => Some("beyond map `scheduler_state`"),
            id if self.services.contains_key(&id) => Some("that of another service"),
            _ => None,
        };
        if let Some(problem) = problem {
            self.findings.push(Finding::ServiceId { service, id: value.id, problem });
            self.stray(key, [set, table]);
            return Ok(());
        }
        let found = self.findings.len();
        let scheduler = Scheduler::from_number(value.scheduler);
        if scheduler.is_none() {
            self.findings.push(Finding::Scheduler { service, number: value.scheduler });
        }
        let (set, slots) = self.claim(service, set)?;
        let (table_runs, cells) = self.claim(service, table)?;
        let list = self.members(service, value.id, &slots);
        let mut rewrite = false;
        if found == self.findings.len() && cells != self::table(scheduler, &list).unwrap_or_default() {
            // mh's table follows from the records too, and a writer that was stopped leaves records of a version that it
            // did not publish. The next apply publishes it.
            rewrite = list.iter().any(|member| self.records.get(&member.id).is_some_and(|r| r.weight != member.weight));
            if !rewrite {
                self.findings.push(Finding::Table { service });
            }
        }
        let word = SchedulerWord::unpack(self.store.word(value.id)?).version;
        if scheduler.is_some_and(has_cursor) && newer(word, value.version) {
            self.findings.push(Finding::Word { service, word, version: value.version });
        }
        let state = ServiceState {
            virtual_service: Some(service),
            published: Some(value),
            last_version: value.version,
            rewrite: rewrite || self.findings.len() > found,
            table: table_runs,
            list,
            set,
            ..ServiceState::default()
        };
        self.services.insert(value.id, state.into());
        self.by_virtual.insert(service, value.id);
        self.live.add(&key, &value);
        Ok(())
    }

    fn stray(&mut self, key: Key, runs: [Run; 2]) {
        let claimed = runs.into_iter().filter(|run| run.length > 0).flat_map(|run| self.arena.claim(run)).collect();
        self.strays.push((key, claimed));
    }

    /// Takes a published run and reads it; nothing of it if it leaves the map, only what is free if it is shared.
    fn claim(&mut self, service: Virtual, run: Run) -> Result<(Vec<Run>, Vec<DestinationSlot>), StoreError> {
        if run.length == 0 {
            return Ok((Vec::new(), Vec::new()));
        }
        let end = u64::from(run.base) + u64::from(run.length);
        if end > u64::from(self.store.capacity().slots) {
            let problem = "beyond map `destination_slots`";
            self.findings.push(Finding::Slots { service, base: run.base, end, problem });
            return Ok((Vec::new(), Vec::new()));
        }
        let claimed = self.arena.claim(run);
        if claimed != [run] {
            self.findings.push(Finding::Slots { service, base: run.base, end, problem: "shared with another service" });
        }
        Ok((claimed, self.store.slots(run.base, run.length)?))
    }

    /// The list that a set holds, without the slots that name no destination of the service.
    fn members(&mut self, service: Virtual, id: u32, slots: &[DestinationSlot]) -> Vec<Member> {
        let mut list = Vec::with_capacity(slots.len());
        let mut servers = BTreeSet::new();
        for (position, slot) in slots.iter().enumerate() {
            let problem = match self.records.get(&slot.destination) {
                None => "does not exist",
                Some(record) if record.service != id => "belongs to another service",
                Some(record) => {
                    let server = Server::from(record);
                    if servers.insert(server) {
                        list.push(Member::restored(slot, record));
                        continue;
                    }
                    // The first stays.
                    "stands there twice"
                }
            };
            let position = position as u32;
            self.findings.push(Finding::Slot { service, position, id: slot.destination, problem });
        }
        list
    }

    /// Destinations in no set drain, those of removed services too: the id of such a service stays reserved.
    fn take_over_draining(&mut self) {
        let in_sets: BTreeSet<u32> =
            self.services.values().flat_map(|state| state.list.iter().map(|member| member.id)).collect();
        let mut rest: Vec<u32> = self.records.keys().copied().filter(|id| !in_sets.contains(id)).collect();
        rest.sort_unstable();
        for id in rest {
            let Some(&record) = self.records.get(&id) else { continue };
            let service = record.service;
            self.draining.insert(id, Draining::of(service));
            if record.flags & DESTINATION_AVAILABLE != 0 {
                self.unretired.insert(id);
            }
            if service >= self.store.capacity().service_ids {
                self.findings.push(Finding::Destination { id, service });
                continue;
            }
            let state = self.services.entry(service).or_default();
            state.draining += 1;
            let server = Server::from(&record);
            let listed = state.list.iter().find(|member| member.server == server).map(|member| member.id);
            let kept = listed.unwrap_or_else(|| *state.ids.entry(server).or_insert(id));
            if kept != id {
                self.findings.push(Finding::Twin { id, other: kept });
            }
        }
    }
}

impl<S: MapStore> Writer<S> {
    /// Flags of overload that do not follow from the thresholds: a writer was stopped between the two, perhaps before the
    /// destination was in a set.
    fn take_over_thresholds(&mut self) -> Result<(), StoreError> {
        for (&id, record) in &self.records {
            if evaluated(self.store.load(id)?.connections, record).is_some() {
                self.unevaluated.insert(id);
            }
        }
        Ok(())
    }
}

/// Compares limits with what the maps hold.
fn check(limits: &Limits, held: &Limits, ids_decide: bool) -> Result<(), RestoreError> {
    let services = if ids_decide { names::WORDS } else { names::SERVICES };
    for (setting, wanted, map, held) in [
        ("max-services", limits.services, services, held.services),
        ("max-destinations", limits.destinations, names::DESTINATIONS, held.destinations),
        ("max-destinations-per-service", limits.destinations_per_service, names::SLOTS, MAX_DESTINATIONS_PER_SERVICE),
    ] {
        if wanted > held {
            return Err(RestoreError::Limit { setting, wanted, map, held });
        }
    }
    Ok(())
}
