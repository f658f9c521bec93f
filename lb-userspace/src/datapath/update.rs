//! Bringing one service to what is desired.

use std::{sync::Arc, time::Instant};

use lb_common::{
    layout::{AffinityTimeout, Service},
    scheduler::Scheduler,
};

use super::{
    ApplyError, DesiredService, MapStore, Summary, Writer,
    diff::{Diff, diff, word_edits},
    entry::check,
    frontend::Virtual,
    state::{Draining, Member, ServiceState, has_cursor},
    version::{Version, prepare},
    word::{WordChange, WordLog},
    write::Write,
};

impl<S: MapStore> Writer<S> {
    pub(super) fn update(
        &mut self,
        service: Virtual,
        desired: &Arc<DesiredService>,
        now: Instant,
        summary: &mut Summary,
    ) -> Result<(), ApplyError> {
        check(service, desired, self.limits.destinations_per_service)?;
        let id = self.service_id(service, desired)?;
        let state = self.services.entry(id).or_default();
        state.applied = None;
        let created = state.published.is_none();
        let mut diff = diff(&state.list, desired);
        let result = self.bring(id, service, desired, &mut diff, now);
        match &result {
            Ok(published) => match (created, published) {
                (true, _) => summary.created += 1,
                (false, true) => summary.changed += 1,
                (false, false) => summary.unchanged += 1,
            },
            Err(_) => self.abandon(id, &diff.list[..diff.added]),
        }
        result.map(|_| ())
    }

    /// The service's id: its own, that of a removed one that still drains, or a new one.
    fn service_id(&mut self, service: Virtual, desired: &DesiredService) -> Result<u32, ApplyError> {
        let known = self.by_virtual.get(&service).copied();
        let live = known.and_then(|id| self.services.get(&id)).is_some_and(|state| state.published.is_some());
        let refuse =
            |removed, total| ApplyError::NoServices { origin: desired.origin.clone(), service, removed, total };
        if !live && self.live.count() >= self.limits.services {
            return Err(refuse(0, self.limits.services));
        }
        if let Some(id) = known {
            return Ok(id);
        }
        let removed = (self.services.len() as u32).saturating_sub(self.live.count());
        let total = self.service_ids.limit();
        let id = self.service_ids.allocate().ok_or_else(|| refuse(removed, total))?;
        let state = ServiceState { virtual_service: Some(service), ..ServiceState::default() };
        self.services.insert(id, state.into());
        self.by_virtual.insert(service, id);
        Ok(id)
    }

    /// Writes everything that differs. True if a new version was published.
    fn bring(
        &mut self,
        id: u32,
        service: Virtual,
        desired: &Arc<DesiredService>,
        diff: &mut Diff,
        now: Instant,
    ) -> Result<bool, ApplyError> {
        let origin = desired.origin.as_str();
        self.assign_ids(id, service, desired, diff)?;
        let old = self.services.entry(id).or_default();
        let before = old.published.and_then(|published| Scheduler::from_number(published.scheduler));
        let edits = word_edits(before, desired.scheduler, &old.list, &diff.edits);
        let mut version = self.version(id, service, desired, diff)?;
        let published = self.services.get(&id).and_then(|state| state.published);
        let rewrite = self.services.get(&id).is_some_and(|state| state.rewrite);
        // New thresholds and methods change no slot, but are an edit to the scheduler.
        let networks = self.network_writes(id, &desired.access);
        let differs = rewrite
            || !networks.is_empty()
            || !diff.edits.is_empty()
            || published != Some(Service { version: published.map_or(0, |p| p.version), ..version.value });
        let mut writes = std::mem::take(&mut version.before);
        writes.extend(self.affinity_write(id, &version.value, origin, &service)?);
        if differs {
            writes.extend(prepare(id, published.as_ref(), desired.scheduler, &edits, version.value.version));
            writes.extend(networks);
            let key = service.key();
            let lookups = self.lookups | key.lookups_with(&version.value);
            writes.extend((lookups != self.lookups).then_some(Write::Lookups { value: lookups }));
            writes.push(Write::Service { key, value: version.value });
        }
        for write in &writes {
            if let Err(error) = self.perform(write, origin, &service) {
                // No published service names these runs.
                for run in version.set.into_iter().chain(version.table).flatten() {
                    self.arena.give_back(run);
                }
                return Err(error);
            }
        }
        if differs {
            self.published(id, service, &version, diff, now);
        }
        self.evaluate(&diff.list, origin, &service)?;
        let state = self.services.entry(id).or_default();
        if !has_cursor(desired.scheduler) {
            state.word_log.clear();
        } else if differs && published.is_some() {
            state.word_log.push(version.value.version, edits);
        }
        if !state.word_log.is_empty() {
            let change = WordChange::Publish(state.word_log.clone());
            self.perform(&Write::Word { service: id, change }, origin, &service)?;
        }
        let state = self.services.entry(id).or_default();
        state.word_log = WordLog::default();
        state.applied = Some(desired.clone());
        Ok(differs)
    }

    /// What the sweep goes by, before the entry that packets go by: if it is not published, templates may end early, and
    /// their clients choose anew.
    fn affinity_write(
        &self,
        id: u32,
        value: &Service,
        origin: &str,
        service: &Virtual,
    ) -> Result<Option<Write>, ApplyError> {
        let value = AffinityTimeout::of(value);
        let known = self.store.affinity(id).map_err(|source| ApplyError::Store {
            origin: origin.to_owned(),
            service: service.to_string(),
            write: format!("read the affinity timeout of service id {id}"),
            source: Box::new(source),
        })?;
        Ok((known != value).then_some(Write::Affinity { service: id, value }))
    }

    /// Thresholds that are new hold at once: who has as many connections takes no more. After the entry, whose flag lets
    /// programs look at what is found here.
    fn evaluate(&mut self, list: &[Member], origin: &str, service: &Virtual) -> Result<(), ApplyError> {
        if self.unevaluated.is_empty() {
            return Ok(());
        }
        let ids = list.iter().map(|member| member.id).filter(|id| self.unevaluated.contains(id));
        let found: Vec<_> = ids.filter_map(|id| Some((id, *self.records.get(&id)?))).collect();
        found.into_iter().try_for_each(|(id, record)| self.perform(&Write::Overload { id, record }, origin, service))
    }

    /// Gives the added members their ids: their own if they drain, else new ones, which drain until published.
    fn assign_ids(
        &mut self,
        id: u32,
        service: Virtual,
        desired: &DesiredService,
        diff: &mut Diff,
    ) -> Result<(), ApplyError> {
        let state = self.services.entry(id).or_default();
        let added = &mut diff.list[..diff.added];
        let needed = added.iter().filter(|member| !state.ids.contains_key(&member.server)).count() as u32;
        let free = self.destination_ids.available();
        if needed > free {
            return Err(ApplyError::NoDestinations {
                origin: desired.origin.clone(),
                service,
                needed,
                free,
                draining: self.draining.len() as u32,
                total: self.destination_ids.limit(),
            });
        }
        // In the order of adds: ids of a first set then follow it.
        for member in added.iter_mut().rev() {
            if let Some(&known) = state.ids.get(&member.server) {
                member.id = known;
                continue;
            }
            let Some(new) = self.destination_ids.allocate() else { continue };
            member.id = new;
            let record = self.store.destination(new).map_err(|source| ApplyError::Store {
                origin: desired.origin.clone(),
                service: service.to_string(),
                write: format!("read destination {new}"),
                source: Box::new(source),
            });
            state.ids.insert(member.server, new);
            state.draining += 1;
            self.draining.insert(new, Draining::of(id));
            self.records.insert(new, record?);
        }
        Ok(())
    }

    /// Remembers a published version; what it replaced rests.
    fn published(&mut self, id: u32, service: Virtual, version: &Version, diff: &Diff, now: Instant) {
        let value = version.value;
        let state = self.services.entry(id).or_default();
        let key = service.key();
        if let Some(before) = state.published.replace(value) {
            self.live.remove(&key, &before);
        }
        self.live.add(&key, &value);
        state.last_version = value.version;
        state.rewrite = false;
        state.list = diff.list.clone();
        for (owned, new) in [(&mut state.set, &version.set), (&mut state.table, &version.table)] {
            if let Some(new) = new {
                std::mem::replace(owned, new.clone()).into_iter().for_each(|run| self.arena.retire(run, now));
            }
        }
        for member in &diff.list[..diff.added] {
            self.draining.remove(&member.id);
            self.unretired.remove(&member.id);
            state.ids.remove(&member.server);
            state.draining -= 1;
        }
        for member in &diff.removed {
            self.draining.insert(member.id, Draining::of(id));
            self.unretired.insert(member.id);
            state.ids.insert(member.server, member.id);
            state.draining += 1;
        }
    }

    /// After a failure: members that are in no set drain; ids that were never written are free.
    fn abandon(&mut self, id: u32, added: &[Member]) {
        let Some(state) = self.services.get_mut(&id) else { return };
        for member in added {
            if !self.draining.contains_key(&member.id) {
                continue;
            }
            if self.records.get(&member.id).is_some_and(|record| record.service == id) {
                self.unretired.insert(member.id);
                continue;
            }
            state.ids.remove(&member.server);
            state.draining -= 1;
            self.draining.remove(&member.id);
            self.records.remove(&member.id);
            self.destination_ids.free(member.id);
        }
        self.free_if_vacant(id);
    }
}
