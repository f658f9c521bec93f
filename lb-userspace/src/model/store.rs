//! The objects of one kind that one source has: their valid versions and what is wrong with them.

use std::collections::{BTreeMap, BTreeSet};

use super::object::{Object, ObjectKey, Origin};
use super::problem::Problem;

/// Judges an object: its valid version given the one before, and what is wrong.
type Read<T> = fn(&Object, Option<&T>) -> (Option<T>, Vec<Problem>);

#[derive(Debug)]
pub(super) struct Store<T> {
    entries: BTreeMap<ObjectKey, Entry<T>>,
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
        Self { entries: BTreeMap::new() }
    }
}

impl<T: PartialEq> Store<T> {
    /// Takes an object. True if another version holds now.
    pub(super) fn apply(&mut self, object: &Object, read: Read<T>) -> bool {
        let previous = self.entries.remove(&object.key);
        let entry = Entry::read(object, previous.as_ref(), read);
        let differs = entry.valid.as_ref() != valid(previous.as_ref());
        self.entries.insert(object.key.clone(), entry);
        differs
    }

    /// Forgets an object. True if there was one.
    pub(super) fn delete(&mut self, key: &ObjectKey) -> bool {
        valid(self.entries.remove(key).as_ref()).is_some()
    }

    /// Replaces everything, except that `kept` objects that are not in the list stay as they are. The first of two
    /// objects with one key holds. Notes in `changed` of which another version holds now, or none.
    pub(super) fn replace(
        &mut self,
        objects: Vec<Object>,
        kept: &[ObjectKey],
        read: Read<T>,
        changed: &mut Vec<ObjectKey>,
    ) {
        let mut previous = std::mem::take(&mut self.entries);
        let mut twice = BTreeSet::new();
        for object in &objects {
            if let Some(first) = self.entries.get_mut(&object.key) {
                // Once per place: a file that lists an object three times is told of the second and the third.
                if twice.insert((&object.key, object.origin.describe())) {
                    first.problems.push(stated_twice(&object.key, &object.origin, &first.origin));
                }
                continue;
            }
            let entry = Entry::read(object, previous.get(&object.key), read);
            if entry.valid.as_ref() != valid(previous.get(&object.key)) {
                changed.push(object.key.clone());
            }
            self.entries.insert(object.key.clone(), entry);
        }
        for key in kept {
            if let (false, Some(entry)) = (self.entries.contains_key(key), previous.remove(key)) {
                self.entries.insert(key.clone(), entry);
            }
        }
        let gone = previous.into_iter().filter(|(key, entry)| entry.valid.is_some() && !self.entries.contains_key(key));
        changed.extend(gone.map(|(key, _)| key));
    }
}

/// The version that holds, if any.
fn valid<T>(entry: Option<&Entry<T>>) -> Option<&T> {
    entry.and_then(|entry| entry.valid.as_ref())
}

impl<T> Store<T> {
    pub(super) fn get(&self, key: &ObjectKey) -> Option<&T> {
        valid(self.entries.get(key))
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&ObjectKey, &T)> {
        self.entries.iter().filter_map(|(key, entry)| Some((key, entry.valid.as_ref()?)))
    }

    pub(super) fn problems(&self) -> impl Iterator<Item = &Problem> {
        self.entries.values().flat_map(|entry| &entry.problems)
    }

    /// True if there is an object that is wrong and never was right.
    pub(super) fn unreadable(&self) -> bool {
        self.entries.values().any(|entry| entry.valid.is_none() && !entry.problems.is_empty())
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
