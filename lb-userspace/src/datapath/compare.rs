//! Whether the maps still hold what was written: somebody else may have changed them (SY-6).

use std::{
    collections::{BTreeSet, HashMap},
    fmt::Display,
};

use lb_common::{
    layout::{DestinationSlot, Service},
    scheduler::Scheduler,
};

use super::{
    Key, MapStore, Network, StoreError, Writer,
    allocate::Run,
    state::{ServiceState, slots, table},
    store::names,
};

/// What was found to be other than it was written.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Differences {
    /// How many entries.
    pub count: usize,
    /// The first ones, in words.
    pub first: Vec<String>,
}

/// So many are named.
const NAMED: usize = 3;

impl Differences {
    fn note(&mut self, map: &str, entry: impl Display, what: &str) {
        self.count += 1;
        if self.first.len() < NAMED {
            self.first.push(format!("map `{map}`: {entry} {what}"));
        }
    }
}

impl<S: MapStore> Writer<S> {
    /// Compares what is in the maps with what was written there. What packets and the sweep change is not compared: counts,
    /// connections, places in lists. Costs the size of the maps.
    ///
    /// # Errors
    /// Maps that cannot be read.
    pub fn compare(&self) -> Result<Differences, StoreError> {
        let mut found = Differences::default();
        self.compare_entries(&mut found)?;
        self.compare_destinations(&mut found)?;
        for (id, state) in &self.services {
            if let Some(published) = &state.published {
                self.compare_slots(*id, state, published, &mut found)?;
            }
        }
        let networks: BTreeSet<Network> = self.store.networks()?.into_iter().collect();
        self.networks.difference(&networks).for_each(|gone| found.note(names::NETWORKS, gone, "is gone"));
        networks.difference(&self.networks).for_each(|new| found.note(names::NETWORKS, new, "was added"));
        if self.store.lookups()? != self.lookups {
            found.note(names::LOOKUPS, "its entry", "was changed");
        }
        Ok(found)
    }

    fn compare_entries(&self, found: &mut Differences) -> Result<(), StoreError> {
        let mut entries: HashMap<Key, Service> = self.store.entries()?.into_iter().collect();
        for state in self.services.values() {
            let (Some(published), Some(service)) = (&state.published, &state.virtual_service) else { continue };
            match entries.remove(&service.key()) {
                Some(value) if value == *published => {}
                Some(_) => found.note(names::SERVICES, service, "was changed"),
                None => found.note(names::SERVICES, service, "is gone"),
            }
        }
        for (key, _) in &self.strays {
            entries.remove(key);
        }
        for key in entries.keys() {
            found.note(names::SERVICES, format!("{key:?}"), "was added");
        }
        Ok(())
    }

    fn compare_destinations(&self, found: &mut Differences) -> Result<(), StoreError> {
        for id in 1..self.store.capacity().destinations {
            let record = self.store.destination(id)?;
            match self.records.get(&id) {
                Some(written) if *written == record => {}
                Some(_) => found.note(names::DESTINATIONS, format!("id {id}"), "was changed"),
                None if record.service == 0 => {}
                None => found.note(names::DESTINATIONS, format!("id {id}"), "was added"),
            }
        }
        Ok(())
    }

    fn compare_slots(
        &self,
        id: u32,
        state: &ServiceState,
        published: &Service,
        found: &mut Differences,
    ) -> Result<(), StoreError> {
        let list = slots(&state.list);
        let same = self.read(&state.set)? == list;
        let cells = self.read(&state.table)?;
        // mh's table is long to make: its cells must be of the list.
        let scheduler = Scheduler::from_number(published.scheduler);
        let same = same
            && match scheduler {
                Some(Scheduler::Maglev) => cells.iter().all(|cell| list.contains(cell)),
                _ => cells == table(scheduler, &state.list).unwrap_or_default(),
            };
        if !same && !state.rewrite {
            found.note(names::SLOTS, format!("those of service id {id}"), "were changed");
        }
        Ok(())
    }

    fn read(&self, runs: &[Run]) -> Result<Vec<DestinationSlot>, StoreError> {
        let mut all = Vec::new();
        for run in runs {
            all.extend(self.store.slots(run.base, run.length)?);
        }
        Ok(all)
    }
}
