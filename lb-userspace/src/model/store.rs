//! The objects of one kind that one source has: their valid versions and what is wrong with them.
//!
//! Also which of them belong to a Service, what is wrong, and what has changed since somebody asked: each can be had without
//! looking at all objects.

use std::collections::{BTreeMap, BTreeSet};

use super::ServiceName;
use super::object::{Object, ObjectKey, Origin};
use super::problem::Problem;

/// Judges an object: its valid version given the one before, and what is wrong.
type Read<T> = fn(&Object, Option<&T>) -> (Option<T>, Vec<Problem>);

/// An object that may belong to a Service.
pub(super) trait Stored: PartialEq {
    /// Whether the Service cannot be told from the object's key, so that an index is kept.
    const INDEXED: bool;

    /// The Service that this version belongs to.
    fn service(&self) -> Option<ServiceName>;
}

#[derive(Debug)]
pub(super) struct Store<T> {
    entries: BTreeMap<ObjectKey, Entry<T>>,
    /// What was told of a list that is not whole yet.
    listed: BTreeMap<ObjectKey, Entry<T>>,
    /// Objects of a Service, in order, where [`Stored::INDEXED`].
    of_service: BTreeMap<ServiceName, Vec<ObjectKey>>,
    /// Objects of which something is wrong.
    wrong: BTreeSet<ObjectKey>,
    /// Objects that have another valid version than before, where [`Stored::INDEXED`].
    changed: BTreeSet<ObjectKey>,
    /// Services that such objects belong to, or did.
    services: BTreeSet<ServiceName>,
}

#[derive(Debug)]
struct Entry<T> {
    /// The version that holds; none for an object that never was valid or feeds nothing.
    valid: Option<T>,
    /// Where the newest version was written.
    origin: Origin,
    problems: Vec<Problem>,
}

impl<T> Default for Store<T> {
    fn default() -> Self {
        Self {
            entries: BTreeMap::new(),
            listed: BTreeMap::new(),
            of_service: BTreeMap::new(),
            wrong: BTreeSet::new(),
            changed: BTreeSet::new(),
            services: BTreeSet::new(),
        }
    }
}

impl<T: Stored> Store<T> {
    /// Takes an object. True if another version holds now.
    pub(super) fn apply(&mut self, object: &Object, read: Read<T>) -> bool {
        let previous = self.entries.remove(&object.key);
        let entry = Entry::read(object, previous.as_ref(), read);
        let differs = self.note(&object.key, previous.as_ref(), Some(&entry));
        self.entries.insert(object.key.clone(), entry);
        differs
    }

    /// Forgets an object. True if there was one that held.
    pub(super) fn delete(&mut self, key: &ObjectKey) -> bool {
        let previous = self.entries.remove(key);
        self.note(key, previous.as_ref(), None)
    }

    /// Forgets what was told of a list that never became whole.
    pub(super) fn begin_list(&mut self) {
        self.listed.clear();
    }

    /// Takes an object of a list: it holds when the list is whole. The first of two objects with one key holds.
    pub(super) fn list(&mut self, object: &Object, read: Read<T>) {
        if let Some(first) = self.listed.get_mut(&object.key) {
            let problem = stated_twice(&object.key, &object.origin, &first.origin);
            // Once per place: a file that lists an object three times is told of the second and the third.
            if !first.problems.contains(&problem) {
                first.problems.push(problem);
            }
            return;
        }
        let entry = Entry::read(object, self.entries.get(&object.key), read);
        self.listed.insert(object.key.clone(), entry);
    }

    /// The list is whole: it replaces everything, except that `kept` objects that are not in it stay as they are. Notes in
    /// `changed` of which another version holds now, or none.
    pub(super) fn end_list(&mut self, kept: &[ObjectKey], changed: &mut Vec<ObjectKey>) {
        let mut previous = std::mem::take(&mut self.entries);
        let mut listed = std::mem::take(&mut self.listed);
        for (key, entry) in &listed {
            changed.extend(self.note(key, previous.remove(key).as_ref(), Some(entry)).then(|| key.clone()));
        }
        for key in kept {
            if let Some(entry) = previous.remove(key) {
                listed.insert(key.clone(), entry);
            }
        }
        for (key, gone) in previous {
            changed.extend(self.note(&key, Some(&gone), None).then_some(key));
        }
        self.entries = listed;
    }

    /// Notes that an object has another version. True if another one holds.
    fn note(&mut self, key: &ObjectKey, before: Option<&Entry<T>>, after: Option<&Entry<T>>) -> bool {
        if after.is_some_and(|entry| !entry.problems.is_empty()) {
            self.wrong.insert(key.clone());
        } else {
            self.wrong.remove(key);
        }
        let (before, after) = (before.and_then(|e| e.valid.as_ref()), after.and_then(|e| e.valid.as_ref()));
        if before == after {
            return false;
        }
        let (before, after) = (before.and_then(T::service), after.and_then(T::service));
        if T::INDEXED {
            self.changed.insert(key.clone());
            if before != after {
                self.index(key, before.as_ref(), after.as_ref());
            }
        }
        self.services.extend(before.into_iter().chain(after));
        true
    }

    fn index(&mut self, key: &ObjectKey, before: Option<&ServiceName>, after: Option<&ServiceName>) {
        if let Some(service) = before
            && let Some(keys) = self.of_service.get_mut(service)
        {
            keys.retain(|other| other != key);
            if keys.is_empty() {
                self.of_service.remove(service);
            }
        }
        if let Some(service) = after {
            let keys = self.of_service.entry(service.clone()).or_default();
            if let Err(place) = keys.binary_search(key) {
                keys.insert(place, key.clone());
            }
        }
    }

    pub(super) fn get(&self, key: &ObjectKey) -> Option<&T> {
        self.entries.get(key).and_then(|entry| entry.valid.as_ref())
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&ObjectKey, &T)> {
        self.entries.iter().filter_map(|(key, entry)| Some((key, entry.valid.as_ref()?)))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The objects of a Service, where [`Stored::INDEXED`].
    pub(super) fn of_service(&self, service: &ServiceName) -> impl Iterator<Item = (&ObjectKey, &T)> {
        let keys = self.of_service.get(service).into_iter().flatten();
        keys.filter_map(|key| Some((key, self.get(key)?)))
    }

    /// The Services that have objects, where [`Stored::INDEXED`].
    pub(super) fn services_of(&self) -> impl Iterator<Item = &ServiceName> {
        self.of_service.keys()
    }

    /// What has changed since this was asked last: objects, where [`Stored::INDEXED`], and Services that they belong to.
    pub(super) fn take_changed(&mut self) -> (BTreeSet<ObjectKey>, BTreeSet<ServiceName>) {
        (std::mem::take(&mut self.changed), std::mem::take(&mut self.services))
    }

    fn wrong(&self) -> impl Iterator<Item = &Entry<T>> {
        self.wrong.iter().filter_map(|key| self.entries.get(key))
    }

    pub(super) fn problems(&self) -> impl Iterator<Item = &Problem> {
        self.wrong().flat_map(|entry| &entry.problems)
    }

    /// True if there is an object that is wrong and never was right.
    pub(super) fn unreadable(&self) -> bool {
        self.wrong().any(|entry| entry.valid.is_none())
    }
}

impl<T> Entry<T> {
    fn read(object: &Object, previous: Option<&Self>, read: Read<T>) -> Self {
        let (valid, problems) = read(object, previous.and_then(|entry| entry.valid.as_ref()));
        Self { valid, origin: object.origin.clone(), problems }
    }
}

/// The problem of an object that is stated in two places.
pub(super) fn stated_twice(key: &ObjectKey, second: &Origin, first: &Origin) -> Problem {
    Problem {
        object: key.to_string(),
        location: second.location(0),
        field: "metadata.name".to_owned(),
        value: super::problem::shown(&key.name),
        message: format!("stated twice: the one of {} holds", first.describe()),
    }
}
