//! The objects and the versions they went through.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::selector::Selector;

/// Collection (`services`), namespace, name.
pub(super) type Key = (String, String, String);

/// Everything that the server stores.
#[derive(Debug, Default)]
pub(super) struct History {
    /// Version of the newest change; all collections share the count.
    pub(super) version: u64,
    /// Changes up to this version are forgotten.
    compacted: u64,
    objects: BTreeMap<Key, Value>,
    changes: Vec<Change>,
}

#[derive(Clone, Debug)]
struct Change {
    version: u64,
    key: Key,
    before: Option<Value>,
    after: Option<Value>,
}

/// The asked version is not there any more, or not yet.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum VersionError {
    Gone,
    Future,
}

/// A part of a list.
pub(super) struct Page {
    pub(super) version: u64,
    pub(super) items: Vec<Value>,
    /// Name of the last object of this page, if more follow.
    pub(super) last: Option<(String, String)>,
    pub(super) remaining: usize,
}

impl History {
    pub(super) fn get(&self, key: &Key) -> Option<&Value> {
        self.objects.get(key)
    }

    /// All objects of a collection.
    pub(super) fn objects(&self, collection: &str) -> Vec<Value> {
        let of_it = self.objects.iter().filter(|((other, ..), _)| other == collection);
        of_it.map(|(_, object)| object.clone()).collect()
    }

    /// Creates or changes an object; returns it as it is stored. No difference is no change.
    pub(super) fn put(&mut self, key: Key, mut object: Value) -> Value {
        let before = self.objects.get(&key).cloned();
        let known = before.as_ref().map(|before| &before["metadata"]);
        let created = || {
            let second = i64::try_from(self.version).unwrap_or(0);
            k8s_openapi::jiff::Timestamp::from_second(1_767_225_600 + second)
                .map(|time| time.to_string())
                .unwrap_or_default()
        };
        for (field, first) in [("uid", format!("uid-{}", self.version + 1)), ("creationTimestamp", created())] {
            if object["metadata"][field].is_null() {
                object["metadata"][field] = known.map_or(json!(first), |known| known[field].clone());
            }
        }
        object["metadata"]["name"] = json!(key.2);
        if !key.1.is_empty() {
            object["metadata"]["namespace"] = json!(key.1);
        }
        if let Some(before) = &before {
            object["metadata"]["resourceVersion"] = before["metadata"]["resourceVersion"].clone();
            if object == *before {
                return object;
            }
        }
        self.version += 1;
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        self.objects.insert(key.clone(), object.clone());
        self.changes.push(Change { version: self.version, key, before, after: Some(object.clone()) });
        object
    }

    /// Deletes an object; returns it as it was, with the version of its deletion.
    pub(super) fn delete(&mut self, key: &Key) -> Option<Value> {
        let before = self.objects.remove(key)?;
        self.version += 1;
        self.changes.push(Change {
            version: self.version,
            key: key.clone(),
            before: Some(before.clone()),
            after: None,
        });
        Some(at_version(before, self.version))
    }

    /// Refuses to begin at an older version from now on. Watches that are open still get what they have not seen.
    pub(super) fn compact(&mut self) {
        self.compacted = self.version;
    }

    /// Sets the count back, as after restoring a backup of etcd.
    pub(super) fn rewind_version(&mut self, version: u64) {
        self.version = version;
        self.compacted = version;
        self.changes.clear();
        for object in self.objects.values_mut() {
            object["metadata"]["resourceVersion"] = json!(version.to_string());
        }
    }

    /// Can a watch begin here, or a list go on?
    pub(super) fn check(&self, version: u64) -> Result<(), VersionError> {
        if version > self.version {
            Err(VersionError::Future)
        } else if version < self.compacted {
            Err(VersionError::Gone)
        } else {
            Ok(())
        }
    }

    /// A page of the list as it was at a version.
    pub(super) fn list(
        &self,
        collection: &str,
        namespace: Option<&str>,
        selector: &Selector,
        version: u64,
        after: Option<&(String, String)>,
        limit: usize,
    ) -> Page {
        let mut objects: BTreeMap<&Key, &Value> = self.objects.iter().collect();
        for change in self.changes.iter().rev().take_while(|change| change.version > version) {
            match &change.before {
                Some(before) => objects.insert(&change.key, before),
                None => objects.remove(&change.key),
            };
        }
        let matching: Vec<_> = objects
            .into_iter()
            .filter(|((of, in_namespace, name), object)| {
                of == collection
                    && namespace.is_none_or(|namespace| namespace == in_namespace)
                    && after.is_none_or(|(after_namespace, after_name)| {
                        (in_namespace, name) > (after_namespace, after_name)
                    })
                    && selector.matches(object)
            })
            .collect();
        let shown = if limit == 0 { matching.len() } else { limit.min(matching.len()) };
        let remaining = matching.len() - shown;
        let last = (remaining > 0)
            .then(|| matching[shown - 1].0)
            .map(|(_, namespace, name)| (namespace.clone(), name.clone()));
        let items = matching[..shown].iter().map(|(_, object)| (*object).clone()).collect();
        Page { version, items, last, remaining }
    }

    /// The events that a watch sees after a version: an object that a selector stops matching is deleted for it, one
    /// that it begins to match is added.
    pub(super) fn events(
        &self,
        collection: &str,
        namespace: Option<&str>,
        selector: &Selector,
        after: u64,
    ) -> Vec<Value> {
        let first = self.changes.partition_point(|change| change.version <= after);
        let seen = |object: &Option<Value>| object.as_ref().filter(|object| selector.matches(object)).cloned();
        let mut events = Vec::new();
        for change in &self.changes[first..] {
            if change.key.0 != collection || namespace.is_some_and(|namespace| namespace != change.key.1) {
                continue;
            }
            let event = |kind: &str, object: Value| json!({"type": kind, "object": at_version(object, change.version)});
            match (seen(&change.before), seen(&change.after)) {
                (None, Some(after)) => events.push(event("ADDED", after)),
                (Some(_), Some(after)) => events.push(event("MODIFIED", after)),
                (Some(before), None) => events.push(event("DELETED", change.after.clone().unwrap_or(before))),
                (None, None) => {}
            }
        }
        events
    }
}

fn at_version(mut object: Value, version: u64) -> Value {
    object["metadata"]["resourceVersion"] = json!(version.to_string());
    object
}
