//! Wherever the writer stops, each packet sees the old version of its service or the new one, whole.

use std::time::Instant;

use lb_common::{
    address::Protocol,
    layout::{DESTINATION_AVAILABLE, DestinationLoad, DestinationSlot, SERVICE_THRESHOLDS, Service},
    scheduler::Scheduler,
};
use proptest::prelude::*;

use super::{
    super::{
        DesiredService, Frontend, MapStore, Method, Persistence, Plan, Scope, Thresholds, Virtual,
        dump::outline,
        state::{Member, table},
        store::{
            faulty::{Faults, FaultyStore},
            memory::MemoryStore,
        },
        write::evaluated,
    },
    frontend, roomy, service, writer,
};

/// One version of a service as a packet sees it.
#[derive(Clone, PartialEq, Debug)]
struct View {
    scheduler: u8,
    flags: u8,
    persistence: (u32, u8),
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
    let persistence = (entry.persistence_timeout, entry.persistence_prefix);
    (View { scheduler: entry.scheduler, flags: entry.flags, persistence, steps, servers, cells }, available)
}

fn entry(store: &MemoryStore, number: u8) -> Option<Service> {
    store.entry(&Virtual::from(&any_frontend(number)).key())
}

fn view(store: &MemoryStore, number: u8) -> Option<View> {
    let key = Virtual::from(&any_frontend(number)).key();
    entry(store, number).map(|entry| {
        let (view, available) = follow(store, &entry);
        assert!(available, "the set of a published version is available");
        assert_eq!(key.lookups_with(&entry) & !store.lookups().unwrap(), 0, "it is looked for");
        view
    })
}

const FRONTENDS: std::ops::Range<u8> = 0..6;

/// One of each kind.
fn any_frontend(number: u8) -> Frontend {
    let address = frontend(number);
    match number {
        2 => Frontend { port: 0, ..address },
        3 => Frontend { scope: Scope::Mark(7), ..Frontend::new([0; 4].into(), 0, Protocol::Tcp) },
        4 => Frontend { scope: Scope::Prefix(16), ..Frontend::new([10, 96, 0, 0].into(), 80, Protocol::Tcp) },
        5 => Frontend { scope: Scope::Prefix(12), ..Frontend::new([10, 96, 0, 0].into(), 0, Protocol::Tcp) },
        _ => address,
    }
}

pub(super) fn any_plan() -> impl Strategy<Value = Plan> {
    let thresholds = prop_oneof![3 => Just((0, 0)), 2 => (1u32..4).prop_flat_map(|upper| (Just(upper), 0..=upper))];
    let weight = prop_oneof![Just(0), Just(1), 1i32..9];
    let method = prop_oneof![3 => Just(Method::Nat), 2 => prop::sample::select(&Method::ALL[..])];
    let destinations = prop::collection::btree_map(1u8..8, (weight, thresholds, method), 0..6);
    let persistence = prop::option::weighted(0.3, (1u32..4, 31u8..=32));
    let any_service = (prop::sample::select(&Scheduler::ALL[..]), destinations, any::<bool>(), persistence).prop_map(
        |(scheduler, set, hash_port, persistence)| {
            let weights: Vec<(u8, i32)> = set.iter().map(|(last, (weight, ..))| (*last, *weight)).collect();
            let mut service = DesiredService { hash_port, ..service(scheduler, &weights) };
            service.persistence = persistence.map(|(timeout, netmask)| Persistence { timeout, netmask });
            for (destination, (_, (upper, lower), method)) in service.destinations.iter_mut().zip(set.into_values()) {
                destination.thresholds = Thresholds { upper, lower };
                destination.method = method;
            }
            service
        },
    );
    prop::collection::btree_map(FRONTENDS, any_service, 0..4).prop_map(|services| {
        let services = services.into_iter().map(|(number, service)| (any_frontend(number), service));
        Plan { services: services.collect(), ..Plan::default() }
    })
}

/// Every flag of overload of a published destination follows from its thresholds.
pub(super) fn assert_evaluated(store: &impl MapStore) {
    for (_, entry) in store.entries().unwrap() {
        for slot in store.slots(entry.set_base, entry.set_length).unwrap() {
            let (record, load) = (store.destination(slot.destination).unwrap(), store.load(slot.destination).unwrap());
            assert_eq!(record.overload(load.total(), load.overloaded()), load.overloaded(), "{record:?} {load:?}");
            assert!(record.upper == 0 || entry.flags & SERVICE_THRESHOLDS != 0, "{record:?} {entry:?}");
        }
    }
}

proptest! {
    #[test]
    fn every_prefix_of_the_writes_is_safe(
        first in any_plan(),
        second in any_plan(),
        third in any_plan(),
        load in prop::collection::vec(0u8..5, 30),
    ) {
        let now = Instant::now();
        // The first two leave destinations that drain and ids that are reserved.
        let start = {
            let mut writer = writer(roomy(49_152));
            writer.apply(&first, now).unwrap();
            writer.apply(&second, now).unwrap();
            writer
        };
        let mut before = start.store().clone();
        for (id, active) in (1..).zip(load) {
            before.load_mut(id).unwrap().connections = u64::from(active) * DestinationLoad::ONE_ACTIVE;
            let record = before.destination(id).unwrap();
            if let Some(next) = evaluated(before.load(id).unwrap().connections, &record) {
                before.load_mut(id).unwrap().connections = next;
            }
        }
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
            prop_assert_eq!(restarted.store().lookups().unwrap(), after.lookups().unwrap());
            assert_evaluated(restarted.store());
            stopped.store_mut().set_faults(Faults::Never);
            stopped.apply(&third, now).unwrap();
            prop_assert_eq!(outline(stopped.store()).unwrap(), expected.clone());
            prop_assert_eq!(stopped.apply(&third, now).unwrap().writes, 0);
            assert_evaluated(stopped.store());
        }
    }
}
