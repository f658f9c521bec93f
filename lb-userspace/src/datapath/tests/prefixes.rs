//! Wherever the writer stops, each packet sees the old version of its service or the new one, whole.

use std::time::Instant;

use lb_common::{
    layout::{DESTINATION_AVAILABLE, DestinationSlot, Service},
    scheduler::Scheduler,
};
use proptest::prelude::*;

use super::{
    super::{
        MapStore, Plan,
        dump::outline,
        state::{Member, Virtual, table},
        store::{
            faulty::{Faults, FaultyStore},
            memory::MemoryStore,
        },
    },
    frontend, plan, roomy, service, writer,
};

/// One version of a service as a packet sees it.
#[derive(Clone, PartialEq, Debug)]
struct View {
    scheduler: u8,
    flags: u8,
    steps: (i32, i32),
    servers: Vec<String>,
    /// Destinations in the cells of the table.
    cells: Vec<u32>,
}

/// What a packet that has read this entry of `services` finds behind it. Panics on anything that dangles.
fn follow(store: &MemoryStore, entry: &Service) -> (View, bool) {
    let set = store.slots(entry.set_base, entry.set_length).unwrap();
    let mut available = true;
    let servers = set
        .iter()
        .map(|slot| {
            let record = store.destination(slot.destination).unwrap();
            assert!(slot.destination != 0 && record.service == entry.id, "{slot:?} dangles: {record:?}");
            available &= record.flags & DESTINATION_AVAILABLE != 0;
            format!("{:?} {} {}", record.address, record.port.number(), slot.weight)
        })
        .collect();
    let cells = store.slots(entry.table_base, entry.table_length).unwrap();
    // mh's table follows from the last weights too, which another version's records hold: the views compare its cells.
    let scheduler = Scheduler::from_number(entry.scheduler);
    if scheduler != Some(Scheduler::Maglev) {
        let member = |slot: &DestinationSlot| Member::restored(slot, &store.destination(slot.destination).unwrap());
        let list: Vec<Member> = set.iter().map(member).collect();
        assert_eq!(cells, table(scheduler, &list).unwrap_or_default(), "the table is the set's");
    }
    let weight_of = |id| set.iter().find(|slot| slot.destination == id).map(|slot| slot.weight);
    assert!(cells.iter().all(|cell| weight_of(cell.destination) == Some(cell.weight)), "the cells are of the set");
    let cells = cells.iter().map(|cell| cell.destination).collect();
    let steps = (entry.max_weight, entry.weight_step);
    (View { scheduler: entry.scheduler, flags: entry.flags, steps, servers, cells }, available)
}

fn entry(store: &MemoryStore, last: u8) -> Option<Service> {
    store.service(&Virtual::from(&frontend(last)).key())
}

fn view(store: &MemoryStore, last: u8) -> Option<View> {
    entry(store, last).map(|entry| {
        let (view, available) = follow(store, &entry);
        assert!(available, "the set of a published version is available");
        view
    })
}

const FRONTENDS: std::ops::Range<u8> = 0..4;

pub(super) fn any_plan() -> impl Strategy<Value = Plan> {
    let destinations = prop::collection::btree_map(1u8..8, prop_oneof![Just(0), Just(1), 1i32..9], 0..6);
    let any_service = (prop::sample::select(&Scheduler::ALL[..]), destinations, any::<bool>()).prop_map(
        |(scheduler, set, hash_port)| {
            let set: Vec<(u8, i32)> = set.into_iter().collect();
            super::super::DesiredService { hash_port, ..service(scheduler, &set) }
        },
    );
    prop::collection::btree_map(FRONTENDS, any_service, 0..4).prop_map(plan)
}

proptest! {
    #[test]
    fn every_prefix_of_the_writes_is_safe(first in any_plan(), second in any_plan(), third in any_plan()) {
        let now = Instant::now();
        // The first two leave destinations that drain and ids that are reserved.
        let start = {
            let mut writer = writer(roomy(49_152));
            writer.apply(&first, now).unwrap();
            writer.apply(&second, now).unwrap();
            writer
        };
        let before = start.store().clone();
        let mut complete = writer(before.clone());
        complete.apply(&third, now).unwrap();
        let after = complete.store().clone();
        let expected = outline(&after).unwrap();
        for writes in 0.. {
            let mut stopped = writer(FaultyStore::new(before.clone(), Faults::After { writes }, 0));
            let result = stopped.apply(&third, now);
            let store = stopped.store().inner().clone();
            for last in FRONTENDS {
                let seen = view(&store, last);
                prop_assert!(
                    seen == view(&before, last) || seen == view(&after, last),
                    "after {} writes a packet to {} sees {:?}", writes, last, seen
                );
                // A packet that looked the service up before the first write still finds its whole version.
                if let Some(old) = entry(&before, last) {
                    prop_assert_eq!(follow(&store, &old).0, follow(&before, &old).0);
                }
            }
            if result.is_ok() {
                break;
            }
            // Both the writer that met the failures and one that is started anew bring it to the end.
            let mut restarted = writer(store);
            prop_assert_eq!(restarted.findings(), &[]);
            restarted.apply(&third, now).unwrap();
            prop_assert_eq!(outline(restarted.store()).unwrap(), expected.clone());
            stopped.store_mut().set_faults(Faults::Never);
            stopped.apply(&third, now).unwrap();
            prop_assert_eq!(outline(stopped.store()).unwrap(), expected.clone());
            prop_assert_eq!(stopped.apply(&third, now).unwrap().writes, 0);
        }
    }
}
