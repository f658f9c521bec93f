//! Long histories with failures end where a fresh start with the last plan ends.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use lb_common::{layout::DestinationLoad, scheduler::Scheduler};
use proptest::prelude::*;

use super::{
    super::{
        MapStore, Plan,
        collect::TRASH_IDLE,
        dump::outline,
        store::{
            faulty::{Faults, FaultyStore},
            memory::MemoryStore,
        },
        write::evaluated,
    },
    memory,
    prefixes::{any_plan, assert_evaluated},
    roomy, writer,
};

/// The outline with each list in one order: histories differ in it, as IPVS's do.
pub(crate) fn unordered(store: &impl MapStore) -> Vec<(String, Vec<String>)> {
    outline(store)
        .unwrap()
        .lines()
        .map(|line| {
            let (service, list) = line.rsplit_once(": ").unwrap_or((line, ""));
            let mut list: Vec<String> = list.split(", ").map(str::to_owned).collect();
            list.sort();
            (service.trim_end_matches(':').to_owned(), list)
        })
        .collect()
}

/// No two published runs share a slot, and no slot of them dangles.
pub(crate) fn assert_consistent(store: &MemoryStore) {
    let mut owner: BTreeMap<u32, u32> = BTreeMap::new();
    for (key, entry) in store.entries().unwrap() {
        assert_eq!(key.lookups_with(&entry) & !store.lookups().unwrap(), 0, "{key:?} is looked for");
        for slot in (entry.set_base..entry.set_base + entry.set_length)
            .chain(entry.table_base..entry.table_base + entry.table_length)
        {
            assert_eq!(owner.insert(slot, entry.id), None, "slot {slot} has two owners");
        }
        for slot in store.slots(entry.set_base, entry.set_length).unwrap() {
            assert_eq!(store.destination(slot.destination).unwrap().service, entry.id);
        }
    }
}

/// Slots: many versions of many tables of mh may rest at a time.
const ROOM: u32 = 1 << 18;

#[derive(Clone, Debug)]
enum Step {
    Apply(Plan),
    Collect,
    Restart,
    Connect(u32),
    Remember(u32, u64),
    Wait(u64),
}

fn any_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => any_plan().prop_map(Step::Apply),
        1 => Just(Step::Collect),
        1 => Just(Step::Restart),
        2 => (1u32..20).prop_map(Step::Connect),
        1 => (1u32..20, 0u64..300).prop_map(|(id, seconds)| Step::Remember(id, seconds)),
        1 => (0u64..200).prop_map(Step::Wait),
    ]
}

proptest! {
    #[test]
    fn random_histories_with_failures_end_where_a_fresh_start_ends(
        steps in prop::collection::vec(any_step(), 1..12),
        last in any_plan(),
        seed in any::<u64>(),
    ) {
        let mut now = Instant::now();
        let mut faulty = writer(FaultyStore::new(roomy(ROOM), Faults::Random { percent: 20 }, seed));
        for step in steps {
            match step {
                Step::Apply(plan) => drop(faulty.apply(&plan, now)),
                Step::Collect => drop(faulty.collect(now)),
                Step::Restart => {
                    let store = faulty.store().clone();
                    faulty = writer(store);
                    prop_assert_eq!(faulty.findings(), &[]);
                }
                Step::Connect(id) => {
                    // As the programs do: first the count, then the comparison.
                    let record = faulty.store().destination(id).unwrap();
                    let load = faulty.store_mut().inner_mut().load_mut(id).unwrap();
                    load.connections ^= DestinationLoad::ONE_ACTIVE;
                    load.connections = evaluated(load.connections, &record).unwrap_or(load.connections);
                }
                Step::Remember(id, seconds) => {
                    faulty.store_mut().inner_mut().set_template(id, (seconds > 0).then_some(Duration::from_secs(seconds)));
                }
                Step::Wait(seconds) => now += Duration::from_secs(seconds),
            }
            assert_consistent(faulty.store().inner());
        }
        faulty.store_mut().set_faults(Faults::Never);
        faulty.apply(&last, now).unwrap();
        assert_consistent(faulty.store().inner());
        prop_assert_eq!(faulty.apply(&last, now).unwrap().writes, 0);

        assert_evaluated(faulty.store());
        let mut fresh = writer(roomy(ROOM));
        fresh.apply(&last, now).unwrap();
        prop_assert_eq!(unordered(faulty.store()), unordered(fresh.store()));

        let mut restarted = writer(faulty.store().inner().clone());
        prop_assert_eq!(restarted.findings(), &[]);
        prop_assert_eq!(restarted.apply(&last, now).unwrap().writes, 0);

        // All connections and templates end: nothing but what the plan names is left.
        let wanted: usize = last.services.values().map(|service| service.destinations.len()).sum();
        for id in 1..257 {
            faulty.store_mut().inner_mut().load_mut(id).unwrap().connections = 0;
            faulty.store_mut().inner_mut().set_template(id, None);
        }
        // What was said to be named for up to five minutes is looked at after them.
        let now = now + Duration::from_secs(300);
        faulty.collect(now).unwrap();
        faulty.collect(now + TRASH_IDLE).unwrap();
        prop_assert_eq!((faulty.draining(), faulty.records.len()), (0, wanted));
        prop_assert_eq!(faulty.destination_ids.available() as usize, 256 - wanted);
        prop_assert_eq!(faulty.service_ids.available() as usize, 32 - last.services.len());
        faulty.arena.settle(now + TRASH_IDLE);
        let slots: u32 = faulty.services.values().flat_map(|s| s.set.iter().chain(&s.table)).map(|run| run.length).sum();
        prop_assert_eq!(faulty.arena.free() + slots, ROOM);
    }
}

#[test]
fn every_scheduler_can_follow_every_other() {
    let mut writer = writer(memory());
    let mut now = Instant::now();
    for before in Scheduler::ALL {
        for after in Scheduler::ALL {
            for scheduler in [before, after] {
                now += Duration::from_secs(2);
                writer.apply(&super::one(scheduler, &[(1, 1), (2, 0)]), now).unwrap();
                let text = outline(writer.store()).unwrap();
                assert!(text.starts_with(&format!("TCP 10.96.0.1:80 {}:", scheduler.name())), "{text}");
            }
        }
    }
}
