//! The trash: destinations that were removed while connections may still refer to them (IPVS's `dest_trash`).

use std::time::{Duration, Instant};

use lb_common::layout::Destination;

use super::{
    MapStore, StoreError, Writer,
    entry::holds_destinations,
    state::{Server, ServiceState},
    write::Write,
};

/// How long a removed destination must have been without connections before its id is free (IPVS:
/// `IP_VS_DEST_TRASH_PERIOD`, 120 s).
pub const TRASH_IDLE: Duration = Duration::from_secs(120);

/// What a collection did.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Collected {
    /// Destinations freed.
    pub freed: u32,
    /// Destinations that still drain.
    pub draining: u32,
}

impl<S: MapStore> Writer<S> {
    /// Frees the removed destinations that no connection and no persistence template has referred to for [`TRASH_IDLE`],
    /// and the ids of removed services with none left. To be called about once a minute; the idle time is counted from the
    /// first call that sees no reference, as IPVS does. What cannot be read or written now stays for the next call.
    pub fn collect(&mut self, now: Instant) -> Result<Collected, Vec<StoreError>> {
        let mut collected = Collected::default();
        let mut errors = Vec::new();
        let mut idle = Vec::new();
        for (&id, draining) in &mut self.draining {
            match self.store.load(id) {
                Ok(load) if load.total() != 0 => draining.idle_since = None,
                Ok(_) if draining.named_until.is_some_and(|until| now < until) => draining.idle_since = None,
                Ok(_) => {
                    let since = *draining.idle_since.get_or_insert(now);
                    if now.saturating_duration_since(since) >= TRASH_IDLE {
                        idle.push(id);
                    }
                }
                Err(error) => errors.push(error),
            }
        }
        if let Err(error) = self.keep_named(&mut idle, now) {
            errors.push(error);
            idle.clear();
        }
        for id in idle {
            if let Err(error) = self.keep_traffic(id) {
                errors.push(error);
                continue;
            }
            // The epoch stays, so that the next destination with this id gets another.
            let epoch = self.records.get(&id).map_or(0, |record| record.epoch);
            let value = Destination { epoch, ..Destination::default() };
            match (Write::Destination { id, value }).perform(&mut self.store) {
                Ok(()) => {
                    self.free_destination(id);
                    collected.freed += 1;
                }
                Err(error) => errors.push(error),
            }
        }
        collected.draining = self.draining.len() as u32;
        if errors.is_empty() { Ok(collected) } else { Err(errors) }
    }

    /// Leaves out the destinations that persistence templates name: a client may still come back to them if they do (IPVS:
    /// a template holds its destination). No new template names one that is removed, and none renews itself, so that the
    /// table need not be read again before the last of them ends.
    fn keep_named(&mut self, idle: &mut Vec<u32>, now: Instant) -> Result<(), StoreError> {
        if idle.is_empty() || !self.templates {
            return Ok(());
        }
        let named = self.store.templates()?;
        for (id, left) in &named {
            if let Some(draining) = self.draining.get_mut(id) {
                draining.named_until = Some(now + *left);
                draining.idle_since = draining.idle_since.filter(|_| !idle.contains(id));
            }
        }
        idle.retain(|id| !named.contains_key(id));
        let holds = |state: &ServiceState| state.published.as_ref().is_some_and(holds_destinations);
        self.templates = !named.is_empty() || self.services.values().map(Box::as_ref).any(holds);
        Ok(())
    }

    /// Adds a destination's traffic to what its service has from destinations that are gone: a service's totals outlive
    /// its destinations, as in IPVS. Before the record goes, so that a failure between them is repeated, not lost; and
    /// once, however often the record's write is tried.
    fn keep_traffic(&mut self, id: u32) -> Result<(), StoreError> {
        let Some(draining) = self.draining.get_mut(&id) else { return Ok(()) };
        let service = draining.service;
        // A service without an entry starts from 0 if it comes back.
        let published = self.services.get(&service).is_some_and(|state| state.published.is_some());
        if draining.counted || !published {
            return Ok(());
        }
        let value = self.store.retired(service)?.plus(&self.store.traffic(id)?);
        Write::Retired { service, value }.perform(&mut self.store)?;
        draining.counted = true;
        Ok(())
    }

    fn free_destination(&mut self, id: u32) {
        self.unretired.remove(&id);
        self.unevaluated.remove(&id);
        self.destination_ids.free(id);
        let server = self.records.remove(&id).map(|record| Server::from(&record));
        let Some(draining) = self.draining.remove(&id) else { return };
        let Some(state) = self.services.get_mut(&draining.service) else { return };
        state.draining -= 1;
        if let Some(server) = server
            && state.ids.get(&server) == Some(&id)
        {
            state.ids.remove(&server);
        }
        self.free_if_vacant(draining.service);
    }
}
