//! What is known of a store's objects without looking at all of them: which of them belong to a Service, which are wrong,
//! and what has changed since somebody asked.

use std::collections::BTreeSet;
use std::ops::Bound;
use std::sync::Arc;

use super::stored::Stored;
use super::{ObjectKey, ServiceName};

#[derive(Debug, Default)]
pub(super) struct Index {
    /// Services with the names of their objects, where [`Stored::INDEXED`].
    objects: BTreeSet<(ServiceName, Option<Arc<str>>)>,
    /// Objects of which something is wrong.
    pub(super) wrong: BTreeSet<ObjectKey>,
    /// Objects that have another valid version than before, where [`Stored::INDEXED`].
    changed: BTreeSet<ObjectKey>,
    /// Services that such objects belong to, or did.
    services: BTreeSet<ServiceName>,
}

impl Index {
    /// Notes the valid versions that an object had and has. True if another one holds.
    pub(super) fn note<T: Stored>(&mut self, key: &ObjectKey, before: Option<&T>, after: Option<&T>) -> bool {
        if before == after {
            return false;
        }
        let (before, after) = (before.and_then(T::service), after.and_then(T::service));
        if T::INDEXED {
            self.changed.insert(key.clone());
            if before != after {
                if let Some(service) = before.clone() {
                    self.objects.remove(&(service, Some(key.name.clone())));
                }
                if let Some(service) = after.clone() {
                    self.objects.insert((service, Some(key.name.clone())));
                }
            }
        }
        self.services.extend(before.into_iter().chain(after));
        true
    }

    /// The names of a Service's objects, in order.
    pub(super) fn of_service(&self, service: &ServiceName) -> impl Iterator<Item = &Arc<str>> {
        let all = self.objects.range((Bound::Excluded((service.clone(), None)), Bound::Unbounded));
        let service = service.clone();
        all.take_while(move |(of, _)| *of == service).filter_map(|(_, name)| name.as_ref())
    }

    /// The Services that have objects, each at least once.
    pub(super) fn services(&self) -> impl Iterator<Item = &ServiceName> {
        self.objects.iter().map(|(service, _)| service)
    }

    /// What has changed since this was asked last: objects, and Services that they belong to.
    pub(super) fn take_changed(&mut self) -> (BTreeSet<ObjectKey>, BTreeSet<ServiceName>) {
        (std::mem::take(&mut self.changed), std::mem::take(&mut self.services))
    }

    /// After very many changes: without the gaps that they left.
    pub(super) fn compact(&mut self) {
        self.objects = std::mem::take(&mut self.objects).into_iter().collect();
    }
}
