//! What has come and is not programmed yet: whose changes, since when, and what the cluster says of when they happened.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use jiff::Timestamp;

use crate::model::{Kind, Model, ObjectKey, SourceId, Trigger};

/// Changes on their way to the maps. What fails to be programmed stays.
#[derive(Debug)]
pub struct Pending {
    /// What happened before is not measured: nobody knows which agent programmed it.
    started: Timestamp,
    since: Option<Instant>,
    services: BTreeSet<ObjectKey>,
    slices: BTreeSet<ObjectKey>,
    /// Times of changes, by the slice that told of them.
    triggers: BTreeMap<ObjectKey, Vec<Trigger>>,
    /// The last time that each slice told: a list tells it again.
    told: BTreeMap<ObjectKey, Timestamp>,
}

/// How many objects changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    /// Services.
    pub services: usize,
    /// EndpointSlices.
    pub slices: usize,
}

/// What a complete sync has programmed.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Done {
    /// When the first of the changes came.
    pub since: Option<Instant>,
    /// When changes of endpoints happened.
    pub triggers: Vec<Trigger>,
}

impl Pending {
    /// Nothing yet. Changes that happened before `started` are not measured.
    pub fn new(started: Timestamp) -> Self {
        Self {
            started,
            since: None,
            services: BTreeSet::new(),
            slices: BTreeSet::new(),
            triggers: BTreeMap::new(),
            told: BTreeMap::new(),
        }
    }

    /// Something waits to be programmed, at the latest since now.
    pub fn wait(&mut self, now: Instant) {
        self.since.get_or_insert(now);
    }

    /// Takes the objects that a source changed in the model, and counts them.
    pub fn take(&mut self, model: &Model, source: SourceId, changed: Vec<ObjectKey>) -> Counts {
        let mut counts = Counts::default();
        for key in changed {
            match key.kind {
                Kind::Service => {
                    counts.services += 1;
                    self.services.insert(key);
                }
                Kind::EndpointSlice => {
                    counts.slices += 1;
                    self.take_trigger(model, source, &key);
                    self.slices.insert(key);
                }
                Kind::Node | Kind::ServiceCidr => {}
            }
        }
        counts
    }

    fn take_trigger(&mut self, model: &Model, source: SourceId, key: &ObjectKey) {
        match model.slice(source, key) {
            // What happened to one that is gone is no longer of interest (EP-13).
            None => {
                self.triggers.remove(key);
                self.told.remove(key);
            }
            Some(slice) => {
                let Some(trigger) = slice.trigger.filter(|trigger| trigger.at > self.started) else { return };
                if self.told.insert(key.clone(), trigger.at) != Some(trigger.at) {
                    self.triggers.entry(key.clone()).or_default().push(trigger);
                }
            }
        }
    }

    /// Objects whose changes wait.
    pub fn counts(&self) -> Counts {
        Counts { services: self.services.len(), slices: self.slices.len() }
    }

    /// Everything that has come is programmed.
    pub fn done(&mut self) -> Done {
        self.services.clear();
        self.slices.clear();
        let triggers = std::mem::take(&mut self.triggers).into_values().flatten().collect();
        Done { since: self.since.take(), triggers }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::model::{Change, List, Object, Origin};

    const SOURCE: SourceId = SourceId::API_SLICES;

    fn slice(name: &str, trigger: &str) -> Object {
        let json = serde_json::json!({
            "metadata": {"name": name, "namespace": "demo", "labels": {"kubernetes.io/service-name": "web"},
                         "annotations": {"endpoints.kubernetes.io/last-change-trigger-time": trigger}},
            "addressType": "IPv6", "ports": [], "endpoints": [],
        });
        Object::identify(Kind::EndpointSlice, json.into(), Origin::default()).unwrap()
    }

    struct World {
        model: Model,
        pending: Pending,
    }

    impl World {
        fn new() -> Self {
            let pending = Pending::new("2026-01-01T00:00:10Z".parse().unwrap());
            Self { model: Model::new(), pending }
        }

        fn take(&mut self, change: Change) -> Counts {
            let changed = self.model.change(SOURCE, change);
            self.pending.take(&self.model, SOURCE, changed)
        }

        fn done(&mut self) -> Vec<String> {
            let Done { triggers, .. } = self.pending.done();
            assert!(triggers.iter().all(|trigger| !trigger.v4));
            triggers.iter().map(|trigger| trigger.at.to_string()).collect()
        }
    }

    #[test]
    fn each_time_of_a_change_is_told_once_when_it_is_programmed_however_often_that_fails() {
        let mut world = World::new();
        let list = |objects| Change::Replace(List { objects, ..List::default() });
        let [a, b] = ["2026-01-01T00:00:20Z", "2026-01-01T00:00:30.5Z"];
        let all = || vec![slice("old", "2026-01-01T00:00:09Z"), slice("new", a), slice("bad", "yesterday")];
        assert_eq!(world.take(list(all())).slices, 3);
        // Between two changes of one slice a sync failed: both are measured.
        assert_eq!(world.take(Change::Upsert(slice("new", b))), Counts { services: 0, slices: 1 });
        assert_eq!(world.pending.counts().slices, 3);
        assert_eq!(world.done(), [a, b]);
        assert_eq!(world.pending.counts(), Counts::default());
        // A list tells the same again.
        let all = || vec![slice("old", "2026-01-01T00:00:09Z"), slice("new", b), slice("bad", "yesterday")];
        assert_eq!(world.take(list(all())), Counts::default());
        assert_eq!(world.done(), [""; 0]);
        // One that is gone is forgotten, whether it was deleted or is missing from a list.
        for gone in [Change::Delete(slice("new", b).key), list(vec![slice("old", a)])] {
            world.take(Change::Upsert(slice("new", "2026-01-01T00:00:40Z")));
            world.take(gone);
            assert_eq!(world.done().iter().filter(|at| at.contains(":40")).count(), 0);
        }
        assert!(world.pending.told.len() <= 1, "{:?}", world.pending.told);
    }

    #[test]
    fn the_clock_starts_with_the_first_change_that_waits() {
        let (mut pending, begin) = (World::new().pending, Instant::now());
        pending.wait(begin);
        pending.wait(begin + Duration::from_secs(5));
        assert_eq!(pending.done().since, Some(begin));
        assert_eq!(pending.done().since, None);
    }
}
