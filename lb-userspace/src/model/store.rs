//! The objects of one kind that one source has: their valid versions and what is wrong with them.

use std::collections::{BTreeMap, BTreeSet};

use super::ServiceName;
use super::index::Index;
use super::names::Names;
use super::object::{Object, ObjectKey, Origin};
use super::problem::Problem;
use super::stored::Stored;

/// Judges an object: its valid version given the one before, and what is wrong.
type Read<T> = fn(&Object, Option<&T>) -> (Option<T>, Vec<Problem>);

/// In boxes, as a tree has places for more than it holds.
type Entries<T> = BTreeMap<ObjectKey, Box<Entry<T>>>;

#[derive(Debug)]
pub(super) struct Store<T> {
    entries: Entries<T>,
    /// What was told of a list that is not whole yet.
    listed: Entries<T>,
    index: Index,
}

#[derive(Debug)]
struct Entry<T> {
    /// The version that holds; none for an object that never was valid or feeds nothing.
    valid: Option<T>,
    /// None for an object of the API server with which all is well.
    rest: Option<Box<Rest>>,
}

#[derive(Debug, Default)]
struct Rest {
    /// Where the newest version was written.
    origin: Origin,
    problems: Vec<Problem>,
}

impl<T> Default for Store<T> {
    fn default() -> Self {
        Self { entries: BTreeMap::new(), listed: BTreeMap::new(), index: Index::default() }
    }
}

impl<T: Stored> Store<T> {
    /// Takes an object. True if another version holds now.
    pub(super) fn apply(&mut self, object: &Object, read: Read<T>, names: &mut Names) -> bool {
        let entry = Entry::read(object, self.get(&object.key), read, names);
        let previous = self.entries.insert(object.key.clone(), entry);
        let now = self.entries.get(&object.key).map(Box::as_ref);
        note(&mut self.index, &object.key, previous.as_deref(), now)
    }

    /// Forgets an object. True if there was one that held.
    pub(super) fn delete(&mut self, key: &ObjectKey) -> bool {
        let previous = self.entries.remove(key);
        note(&mut self.index, key, previous.as_deref(), None)
    }

    /// Forgets what was told of a list that never became whole.
    pub(super) fn begin_list(&mut self) {
        self.listed.clear();
    }

    /// Takes an object of a list: it holds when the list is whole. The first of two objects with one key holds.
    pub(super) fn list(&mut self, object: &Object, read: Read<T>, names: &mut Names) {
        if let Some(first) = self.listed.get_mut(&object.key) {
            let first = first.rest.get_or_insert_default();
            let problem = stated_twice(&object.key, &object.origin, &first.origin);
            // Once per place: a file that lists an object three times is told of the second and the third.
            if !first.problems.contains(&problem) {
                first.problems.push(problem);
            }
            return;
        }
        let entry = Entry::read(object, self.get(&object.key), read, names);
        self.listed.insert(object.key.clone(), entry);
    }

    /// The list is whole: it replaces everything, except that `kept` objects that are not in it stay as they are. Notes in
    /// `changed` of which another version holds now, or none.
    pub(super) fn end_list(&mut self, kept: &[ObjectKey], changed: &mut Vec<ObjectKey>) {
        let mut previous = std::mem::take(&mut self.entries);
        let mut listed = std::mem::take(&mut self.listed);
        for (key, entry) in &listed {
            let before = previous.remove(key);
            changed.extend(note(&mut self.index, key, before.as_deref(), Some(entry)).then(|| key.clone()));
        }
        for key in kept {
            if let Some(entry) = previous.remove(key) {
                listed.insert(key.clone(), entry);
            }
        }
        for (key, gone) in previous {
            changed.extend(note(&mut self.index, &key, Some(&gone), None).then_some(key));
        }
        // Built anew it has no gaps: what was told in order has left each node half empty.
        self.entries = listed.into_iter().collect();
        self.index.compact();
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

    /// The objects of a Service, in order, where [`Stored::INDEXED`].
    pub(super) fn of_service(&self, service: &ServiceName) -> impl Iterator<Item = (&ObjectKey, &T)> {
        self.index.of_service(service).filter_map(|name| {
            let key = ObjectKey { kind: T::KIND, namespace: service.namespace.clone(), name: name.clone() };
            let (key, entry) = self.entries.get_key_value(&key)?;
            Some((key, entry.valid.as_ref()?))
        })
    }

    /// The Services that have objects, each at least once, where [`Stored::INDEXED`].
    pub(super) fn services_of(&self) -> impl Iterator<Item = &ServiceName> {
        self.index.services()
    }

    /// What has changed since this was asked last: objects, where [`Stored::INDEXED`], and Services that they belong to.
    pub(super) fn take_changed(&mut self) -> (BTreeSet<ObjectKey>, BTreeSet<ServiceName>) {
        self.index.take_changed()
    }

    fn wrong(&self) -> impl Iterator<Item = &Entry<T>> {
        self.index.wrong.iter().filter_map(|key| self.entries.get(key).map(Box::as_ref))
    }

    pub(super) fn problems(&self) -> impl Iterator<Item = &Problem> {
        self.wrong().flat_map(Entry::problems)
    }

    /// True if there is an object that is wrong and never was right.
    pub(super) fn unreadable(&self) -> bool {
        self.wrong().any(|entry| entry.valid.is_none())
    }
}

/// Notes that an object has another version. True if another one holds.
fn note<T: Stored>(index: &mut Index, key: &ObjectKey, before: Option<&Entry<T>>, after: Option<&Entry<T>>) -> bool {
    if after.is_some_and(|entry| !entry.problems().is_empty()) {
        index.wrong.insert(key.clone());
    } else {
        index.wrong.remove(key);
    }
    index.note(key, before.and_then(|entry| entry.valid.as_ref()), after.and_then(|entry| entry.valid.as_ref()))
}

impl<T> Entry<T> {
    fn problems(&self) -> &[Problem] {
        self.rest.as_ref().map_or(&[], |rest| &rest.problems)
    }
}

impl<T: Stored> Entry<T> {
    fn read(object: &Object, previous: Option<&T>, read: Read<T>, names: &mut Names) -> Box<Self> {
        let (mut valid, problems) = read(object, previous);
        valid.iter_mut().for_each(|valid| valid.share(names));
        let plain = problems.is_empty() && object.origin == Origin::default();
        let rest = (!plain).then(|| Box::new(Rest { origin: object.origin.clone(), problems }));
        Box::new(Self { valid, rest })
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
