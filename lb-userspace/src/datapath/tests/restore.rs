//! A writer that starts on maps that another one left, whole or not.

use std::time::Instant;

use Scheduler::{LeastConnection, RoundRobin, SourceHash};
use lb_common::{
    address::Port,
    layout::{Destination, DestinationLoad, DestinationSlot, Service, ServiceKey},
    scheduler::{Scheduler, word::SchedulerWord},
};
use proptest::prelude::*;

use super::{
    super::{
        Capacity, Finding, Key, Limits, MapStore, Plan, RestoreError, Writer,
        dump::{dump, outline},
        store::memory::MemoryStore,
    },
    CAPACITY, applied, assert_text, key, memory, one, plan, service, writer,
};

fn two() -> Plan {
    plan([(1, service(SourceHash, &[(1, 1), (2, 2)])), (2, service(RoundRobin, &[(1, 1), (3, 1)]))])
}

#[test]
fn a_service_removed_before_a_restart_comes_back_with_its_ids_if_connections_tell_its_name() {
    let mut before = applied([&two()]);
    before.store_mut().load_mut(3).unwrap().connections = DestinationLoad::ONE_ACTIVE;
    before.apply(&plan([(1, service(SourceHash, &[(1, 1), (2, 2)]))]), Instant::now()).unwrap();
    let store = before.store().clone();
    let back = |names: &[(u32, ServiceKey)]| {
        let mut after = writer(store.clone());
        assert!(after.has_unnamed());
        let named = after.name_removed(names.iter().copied());
        after.apply(&two(), Instant::now()).unwrap();
        assert_eq!(after.has_unnamed(), named == 0);
        (named, after.store().service(&key(2)).unwrap().id, dump(after.store()).unwrap())
    };
    let (named, id, text) = back(&[(1, key(1)), (2, key(2)), (2, key(2)), (9, key(9))]);
    assert_eq!((named, id), (1, 2));
    assert!(text.contains("destination 3 10.1.0.1:8080 service=2 available weight=1 epoch=1 active=1"), "{text}");
    // Nothing, a name that another service bears, two names, no name at all.
    let odd = ServiceKey { protocol: 99, ..key(2) };
    for names in [&[] as &[(u32, ServiceKey)], &[(2, key(1))], &[(2, key(2)), (2, key(3)), (2, key(2))], &[(2, odd)]] {
        let (named, id, text) = back(names);
        assert_eq!((named, id), (0, 3), "{names:?}");
        assert!(text.contains("destination 3 10.1.0.1:8080 service=2 removed"), "{text}");
    }
}

#[test]
fn a_restart_writes_nothing_for_the_same_plan() {
    let store = applied([&two()]).store().clone();
    let before = dump(&store).unwrap();
    let mut restarted = writer(store);
    assert_eq!(restarted.findings(), []);
    assert_eq!(restarted.apply(&two(), Instant::now()).unwrap().writes, 0);
    assert_eq!(dump(restarted.store()).unwrap(), before);
}

#[test]
fn a_restart_goes_on_with_ids_places_and_what_drains() {
    let full = one(RoundRobin, &[(1, 1), (2, 1), (3, 1)]);
    let mut store = applied([&full, &one(RoundRobin, &[(1, 1), (3, 1)])]).store().clone();
    let word = SchedulerWord { version: 2, cursor: 1, current_weight: 0 };
    let current = store.word(1).unwrap();
    store.exchange_word(1, current, word.pack()).unwrap().unwrap();
    let mut restarted = writer(store);
    assert_eq!(restarted.draining(), 1);
    restarted.apply(&full, Instant::now()).unwrap();
    assert_text(
        &dump(restarted.store()).unwrap(),
        "service TCP 10.96.0.1:80 id=1 version=3 scheduler=rr flags=- set=0+3 table=- mw=1 di=1
        set TCP 10.96.0.1:80 0 destination=2 weight=1
        set TCP 10.96.0.1:80 1 destination=3 weight=1
        set TCP 10.96.0.1:80 2 destination=1 weight=1
        word 1 version=3 cursor=2 cw=0
        destination 1 10.1.0.1:8080 service=1 available weight=1 epoch=1 active=0 inactive=0 remote=0
        destination 2 10.1.0.2:8080 service=1 available weight=1 epoch=1 active=0 inactive=0 remote=0
        destination 3 10.1.0.3:8080 service=1 available weight=1 epoch=1 active=0 inactive=0 remote=0",
    );
}

#[test]
fn the_id_of_a_service_removed_before_the_restart_stays_reserved() {
    let store = applied([&one(RoundRobin, &[(1, 1)]), &Plan::default()]).store().clone();
    let mut restarted = writer(store);
    restarted.apply(&one(RoundRobin, &[(1, 1)]), Instant::now()).unwrap();
    // Which frontend id 1 had is not in the maps: it gets another id, and the old one goes on draining.
    let text = dump(restarted.store()).unwrap();
    assert!(text.contains("service TCP 10.96.0.1:80 id=2"), "{text}");
    assert!(text.contains("destination 1 10.1.0.1:8080 service=1 removed"), "{text}");
}

/// Breaks the maps of [`two`], and expects these findings, then health.
#[track_caller]
fn heals(break_it: impl FnOnce(&mut MemoryStore), expected: &str) {
    let mut store = applied([&two()]).store().clone();
    break_it(&mut store);
    let mut restarted = writer(store);
    let findings: Vec<String> = restarted.findings().iter().map(ToString::to_string).collect();
    assert_text(&findings.join("\n"), expected);
    restarted.apply(&two(), Instant::now()).unwrap();
    assert_eq!(restarted.apply(&two(), Instant::now()).unwrap().writes, 0);
    let again = writer(restarted.store().clone());
    assert!(
        again.findings().iter().all(|finding| matches!(finding, Finding::Destination { .. })),
        "{:?}",
        again.findings()
    );
    let healed = outline(restarted.store()).unwrap();
    for line in outline(applied([&two()]).store()).unwrap().lines() {
        let (head, list) = line.split_once(": ").unwrap();
        let found = healed.lines().find(|line| line.starts_with(head)).unwrap();
        list.split(", ").for_each(|server| assert!(found.contains(server), "{found}"));
    }
    assert_eq!(healed.lines().count(), 2, "{healed}");
}

fn change(store: &mut MemoryStore, last: u8, change: impl FnOnce(&mut Service)) {
    let mut value = store.service(&key(last)).unwrap();
    change(&mut value);
    store.set_service(&key(last), &value).unwrap();
}

#[test]
fn slots_that_dangle_are_named_and_rewritten() {
    let slot = |destination| DestinationSlot { destination, weight: 1 };
    heals(
        |store| store.set_slots(store.service(&key(2)).unwrap().set_base, &[slot(200), slot(1)]).unwrap(),
        "service TCP 10.96.0.2:80: position 0 names destination 200, which does not exist: it will be rewritten
        service TCP 10.96.0.2:80: position 1 names destination 1, which belongs to another service: it will be rewritten",
    );
    heals(
        |store| store.set_slots(store.service(&key(2)).unwrap().set_base, &[slot(3), slot(3)]).unwrap(),
        "service TCP 10.96.0.2:80: position 1 names destination 3, which stands there twice: it will be rewritten",
    );
}

#[test]
fn runs_that_overlap_or_leave_the_map_are_named_and_rewritten() {
    heals(
        |store| change(store, 1, |value| value.set_base = u32::MAX),
        "service TCP 10.96.0.1:80: slots 4294967295 to 4294967297 are beyond map `destination_slots`: it will be rewritten",
    );
    heals(
        |store| change(store, 2, |value| (value.table_base, value.table_length) = (2, 256)),
        "service TCP 10.96.0.2:80: slots 2 to 258 are shared with another service: it will be rewritten",
    );
    heals(
        |store| change(store, 1, |value| value.table_length = 0),
        "service TCP 10.96.0.1:80: its hash table does not follow from its destinations: it will be rewritten",
    );
}

#[test]
fn ids_that_cannot_be_are_named_and_replaced() {
    heals(
        |store| change(store, 2, |value| value.id = 0),
        "service TCP 10.96.0.2:80: its id 0 is 0: it will get another",
    );
    heals(
        |store| change(store, 2, |value| value.id = 1),
        "service TCP 10.96.0.2:80: its id 1 is that of another service: it will get another",
    );
    heals(
        |store| change(store, 2, |value| value.id = 33),
        "service TCP 10.96.0.2:80: its id 33 is beyond map `scheduler_state`: it will get another",
    );
    heals(
        |store| store.set_destination(9, &Destination { service: 99, ..Destination::default() }).unwrap(),
        "destination 9 belongs to service id 99, which cannot exist: it will be freed when idle",
    );
}

#[test]
fn entries_that_no_writer_makes_are_deleted_or_rewritten() {
    heals(
        |store| change(store, 2, |value| value.scheduler = 77),
        "service TCP 10.96.0.2:80: scheduler number 77 is unknown: it will be rewritten",
    );
    let foreign = ServiceKey { protocol: 1, port: Port::new(7), ..ServiceKey::default() };
    let mut store = applied([&two()]).store().clone();
    store.set_service(&foreign, &Service::default()).unwrap();
    let mut restarted = writer(store);
    assert_eq!(restarted.findings(), [Finding::Key { key: Key::Service(foreign) }]);
    restarted.apply(&two(), Instant::now()).unwrap();
    assert_eq!(restarted.store().service(&foreign), None);
    heals(
        |store| {
            let word = SchedulerWord { version: 9, cursor: 9, current_weight: 9 };
            let current = store.word(2).unwrap();
            store.exchange_word(2, current, word.pack()).unwrap().unwrap();
        },
        "service TCP 10.96.0.2:80: scheduler word of version 9, but the service is at 1: it will be reset",
    );
}

#[test]
fn a_twin_of_a_destination_drains_beside_it() {
    let mut store = applied([&one(LeastConnection, &[(1, 1)])]).store().clone();
    let record = store.destination(1).unwrap();
    store.set_destination(2, &record).unwrap();
    let mut restarted = writer(store);
    assert_eq!(restarted.findings(), [Finding::Twin { id: 2, other: 1 }]);
    restarted.apply(&one(LeastConnection, &[(1, 1)]), Instant::now()).unwrap();
    let now = Instant::now();
    restarted.collect(now).unwrap();
    assert_eq!(restarted.collect(now + super::super::collect::TRASH_IDLE).unwrap().freed, 1);
    assert_eq!(outline(restarted.store()).unwrap(), "TCP 10.96.0.1:80 lc: 10.1.0.1:8080 w1\n");
}

#[test]
fn limits_beyond_the_maps_are_refused() {
    let limits = Limits { services: 17, ..Limits::of(CAPACITY) };
    let error = Writer::restore(memory(), limits).unwrap_err();
    assert!(matches!(error, RestoreError::Limit { setting: "max-services", wanted: 17, map: "services", held: 16 }));
    let small = Capacity { service_ids: 3, ..CAPACITY };
    let error = Writer::restore(MemoryStore::new(small), Limits { services: 3, ..Limits::of(small) }).unwrap_err();
    assert!(error.to_string().contains("map `scheduler_state` holds 2"), "{error}");
}

proptest! {
    #[test]
    fn any_bytes_in_the_maps_end_in_a_writer_that_heals_them(
        entries in prop::collection::vec((0u8..4, [0u32..6, 0u32..40, 0u32..40, 0u32..300, 0u32..300], any::<u8>()), 0..5),
        records in prop::collection::vec((1u32..20, 0u32..6, 1u8..5, any::<u16>()), 0..20),
        slots in prop::collection::vec((0u32..20, any::<i32>()), 0..60),
        words in prop::collection::vec(any::<u64>(), 6),
    ) {
        let mut store = memory();
        for (last, [id, set_base, set_length, table_base, table_length], scheduler) in entries {
            let value = Service { id, set_base, set_length, table_base, table_length, scheduler, ..Service::default() };
            store.set_service(&key(last), &value).unwrap();
        }
        for (id, service, last, flags) in records {
            let address = std::net::Ipv4Addr::new(10, 1, 0, last).into();
            let value = Destination { address, port: Port::new(8080), service, flags, ..Destination::default() };
            store.set_destination(id, &value).unwrap();
        }
        for (position, (destination, weight)) in slots.into_iter().enumerate() {
            store.set_slots(position as u32, &[DestinationSlot { destination, weight }]).unwrap();
        }
        for (id, word) in words.into_iter().enumerate() {
            let _ = store.exchange_word(id as u32, 0, word).unwrap();
        }
        let now = Instant::now();
        let mut restarted = writer(store);
        restarted.apply(&two(), now).unwrap();
        prop_assert_eq!(restarted.apply(&two(), now).unwrap().writes, 0);
        let text = outline(restarted.store()).unwrap();
        prop_assert_eq!(text.lines().count(), 2);
        prop_assert!(!text.contains("dangling"), "{}", text);
        let again = writer(restarted.store().clone());
        prop_assert!(again.findings().iter().all(|finding| matches!(finding, Finding::Twin { .. })), "{:?}", again.findings());
    }
}
