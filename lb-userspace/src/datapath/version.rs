//! The next version of one service: its entry, its runs of slots, and the writes that must come before it.

use std::collections::BTreeSet;

use lb_common::{
    layout::{DestinationSlot, Service, Traffic},
    scheduler::{Scheduler, cursor::WeightSteps, word::SchedulerWord},
};

use super::{
    ApplyError, DesiredService, MapStore, Writer,
    allocate::Run,
    diff::Diff,
    entry::describe,
    frontend::Virtual,
    state::{has_cursor, slots, table},
    word::{WordChange, WordEdit, created, newer},
    write::Write,
};

/// A version of a service, ready to be published.
pub(super) struct Version {
    /// Its entry in `services`.
    pub(super) value: Service,
    /// The runs to own once it is published; `None` keeps those of the published version.
    pub(super) set: Option<Vec<Run>>,
    /// Likewise, of the table.
    pub(super) table: Option<Vec<Run>>,
    /// Writes that must come before.
    pub(super) before: Vec<Write>,
}

impl<S: MapStore> Writer<S> {
    /// The version to publish, with its runs taken and the writes that fill it.
    pub(super) fn version(
        &mut self,
        id: u32,
        service: Virtual,
        desired: &DesiredService,
        diff: &Diff,
    ) -> Result<Version, ApplyError> {
        let word = self.store.word(id).map_err(|source| ApplyError::Store {
            origin: desired.origin.clone(),
            service: service.to_string(),
            write: format!("read the scheduler word of service id {id}"),
            source: Box::new(source),
        })?;
        let word = SchedulerWord::unpack(word);
        let mut before = self.record_writes(id, &service, diff);
        let state = self.services.entry(id).or_default();
        let old = state.published.unwrap_or_default();
        let scheduler = Scheduler::from_number(old.scheduler);
        // A word from the future is one of an earlier service with this id, or inconsistent: go on from there.
        let follows_word = state.published.is_none()
            || scheduler.is_some_and(|scheduler| has_cursor(scheduler) && newer(word.version, old.version));
        let new_set = slots(&diff.list);
        let same_list = state.published.is_some() && !state.rewrite && new_set == slots(&state.list);
        let steps = WeightSteps::of(new_set.iter().map(|slot| slot.weight));
        let previous = if state.published.is_none() && newer(state.last_version, word.version) {
            // Without a cursor the word stays behind; no version may come twice.
            state.last_version
        } else if follows_word {
            word.version
        } else {
            old.version
        };
        let version = previous.wrapping_add(1);
        let goes_on = state.published.is_some() && scheduler == Some(desired.scheduler);
        let value = Service {
            id,
            version,
            started: if goes_on { old.started } else { version },
            scheduler: desired.scheduler as u8,
            max_weight: steps.max_weight,
            weight_step: steps.step,
            ..old
        };
        let mut value = describe(value, &service, desired, &diff.list);
        let mut set = None;
        if !same_list {
            let run = self.take(&new_set, service, desired)?;
            (value.set_base, value.set_length) = (run.map_or(0, |run| run.base), new_set.len() as u32);
            before.extend(run.map(|run| Write::Slots { base: run.base, slots: new_set.clone() }));
            set = Some(run.into_iter().collect());
        }
        let mut new_table = None;
        if !same_list || scheduler != Some(desired.scheduler) {
            let cells = table(Some(desired.scheduler), &diff.list).unwrap_or_default();
            let run = self.take(&cells, service, desired).inspect_err(|_| {
                set.iter().flatten().for_each(|&run| self.arena.give_back(run));
            })?;
            (value.table_base, value.table_length) = (run.map_or(0, |run| run.base), cells.len() as u32);
            before.extend(run.map(|run| Write::Slots { base: run.base, slots: cells }));
            new_table = Some(run.into_iter().collect());
        }
        Ok(Version { value, set, table: new_table, before })
    }

    /// Takes a run for these slots; `None` for none.
    fn take(
        &mut self,
        slots: &[DestinationSlot],
        service: Virtual,
        desired: &DesiredService,
    ) -> Result<Option<Run>, ApplyError> {
        let needed = slots.len() as u32;
        if needed == 0 {
            return Ok(None);
        }
        self.arena.allocate(needed).map(Some).ok_or_else(|| ApplyError::NoSlots {
            origin: desired.origin.clone(),
            service,
            needed,
            free: self.arena.free(),
            longest: self.arena.longest(),
            resting: self.arena.resting(),
            total: self.store.capacity().slots,
        })
    }

    /// The records that differ from what the set needs.
    fn record_writes(&self, id: u32, service: &Virtual, diff: &Diff) -> Vec<Write> {
        let reborn = self.services.get(&id).is_some_and(|state| state.published.is_none());
        let mut writes = Vec::new();
        if reborn {
            writes.extend(self.forget_traffic(id, diff));
        }
        for member in &diff.list {
            let record = self.records.get(&member.id).copied().unwrap_or_default();
            // A record of this service is this destination: ids are given by address and port.
            let new = record.service != id;
            if new {
                writes.push(Write::ResetLoad { destination: member.id });
            }
            if new || reborn {
                writes.push(Write::ResetTraffic { destination: member.id });
            }
            let epoch = if new { record.epoch.wrapping_add(1) } else { record.epoch };
            let value = member.server.record(id, epoch, member, service.is_wide());
            if record != value {
                writes.push(Write::Destination { id: member.id, value });
            }
        }
        writes
    }
}

impl<S: MapStore> Writer<S> {
    /// A service that is created counts from 0, whatever the service with this id before it, or itself before it was
    /// removed, has counted. Destinations of the set are not among these: [`Self::record_writes`] looks at them anyway.
    fn forget_traffic(&self, id: u32, diff: &Diff) -> Vec<Write> {
        let mut writes = vec![Write::Retired { service: id, value: Traffic::default() }];
        let listed: BTreeSet<u32> = diff.list.iter().map(|member| member.id).collect();
        let ids = self.services.get(&id).into_iter().flat_map(|state| state.ids.values());
        let rest = ids.filter(|id| !listed.contains(id));
        writes.extend(rest.map(|&destination| Write::ResetTraffic { destination }));
        writes
    }
}

/// What the scheduler word needs before `version` is published in place of `published`: a new service's word is set,
/// and one that the new scheduler cannot start from is made fit. wrr with `cw` 0 would take destinations of weight 0.
pub(super) fn prepare(
    id: u32,
    published: Option<&Service>,
    after: Scheduler,
    edits: &[WordEdit],
    version: u16,
) -> Option<Write> {
    if !has_cursor(after) {
        return None;
    }
    let start = created(version, edits);
    let change = match published {
        None => WordChange::Create(start),
        Some(published) => {
            let before = Scheduler::from_number(published.scheduler);
            let running = before.is_some_and(has_cursor);
            // rr starts from any place; a wrr that has weights has a `cw` of 1 or more.
            if running && (after == Scheduler::RoundRobin || (before == Some(after) && published.max_weight > 0)) {
                return None;
            }
            WordChange::Prepare {
                current_weight: start.current_weight,
                only_unset: before == Some(after),
                restart_at: (!running).then_some(published.version),
            }
        }
    };
    Some(Write::Word { service: id, change })
}
