//! Thresholds hold from the edit on, whatever connections there are (`ip_vs_dest_update_overload`).

use std::time::Instant;

use Scheduler::{LeastConnection, Maglev, RoundRobin, SourceHash, WeightedRoundRobin};
use lb_common::{
    layout::{DestinationLoad, SERVICE_THRESHOLDS},
    scheduler::{Scheduler, word::SchedulerWord},
};

use super::{
    super::{
        MapStore, Plan, Thresholds, Writer,
        dump::{dump, outline},
        store::{
            faulty::{Faults, FaultyStore},
            memory::MemoryStore,
            names,
        },
    },
    applied, key, memory, one, writer,
};

/// A plan of one service whose servers have weight 1 and these thresholds.
fn limited(scheduler: Scheduler, servers: &[(u8, u32, u32)]) -> Plan {
    let weights: Vec<(u8, i32)> = servers.iter().map(|&(last, ..)| (last, 1)).collect();
    let mut plan = one(scheduler, &weights);
    for service in plan.services.values_mut() {
        for server in &mut service.destinations {
            let wanted = servers.iter().find(|(last, ..)| server.address == std::net::IpAddr::from([10, 1, 0, *last]));
            server.thresholds =
                wanted.map_or_else(Thresholds::default, |&(_, upper, lower)| Thresholds { upper, lower });
        }
    }
    plan
}

fn connect(writer: &mut Writer<MemoryStore>, id: u32, active: u64, inactive: u64) {
    let load = writer.store_mut().load_mut(id).unwrap();
    let counts = active * DestinationLoad::ONE_ACTIVE + inactive * DestinationLoad::ONE_INACTIVE;
    load.connections = (load.connections & DestinationLoad::OVERLOADED) | counts;
}

fn overloaded(store: &impl MapStore, id: u32) -> bool {
    store.load(id).unwrap().overloaded()
}

#[test]
fn an_edit_is_compared_with_the_connections_at_once_and_the_flag_has_a_memory() {
    let mut writer = applied([&one(LeastConnection, &[(1, 1), (2, 1)])]);
    connect(&mut writer, 1, 3, 2);
    // (upper, lower, whether five connections are too many then): the order matters between the two marks.
    for (upper, lower, expected) in [
        (6, 0, false),
        (5, 0, true),
        (6, 0, true),
        (7, 0, false),
        (9, 2, false),
        (4, 2, true),
        (9, 2, true),
        (9, 6, false),
        (1, 1, true),
        (0, 0, false),
    ] {
        writer.apply(&limited(LeastConnection, &[(1, upper, lower), (2, 0, 0)]), Instant::now()).unwrap();
        assert_eq!(overloaded(writer.store(), 1), expected, "{upper} {lower}");
        let load = writer.store().load(1).unwrap();
        assert_eq!((load.active(), load.inactive(), load.total()), (3, 2, 5), "the counts stay");
        let record = writer.store().destination(1).unwrap();
        assert_eq!((record.upper, record.lower), (upper, lower));
        let flags = writer.store().service(&key(1)).unwrap().flags;
        assert_eq!(flags & SERVICE_THRESHOLDS != 0, upper != 0);
    }
    assert!(!overloaded(writer.store(), 2));
}

#[test]
fn a_server_that_comes_back_with_its_connections_is_compared_too() {
    let (full, less) = (limited(LeastConnection, &[(1, 9, 0), (2, 9, 0)]), limited(LeastConnection, &[(2, 9, 0)]));
    let mut writer = applied([&full, &less]);
    connect(&mut writer, 1, 3, 0);
    writer.apply(&limited(LeastConnection, &[(1, 3, 0), (2, 9, 0)]), Instant::now()).unwrap();
    assert!(overloaded(writer.store(), 1));
    // Without its thresholds the flag goes, also where it left with it.
    writer.apply(&less, Instant::now()).unwrap();
    assert!(overloaded(writer.store(), 1), "while it drains, it is as it was");
    writer.apply(&one(LeastConnection, &[(1, 1), (2, 1)]), Instant::now()).unwrap();
    assert!(!overloaded(writer.store(), 1));
}

#[test]
fn an_id_that_is_given_to_another_server_has_no_flag() {
    let now = Instant::now();
    let mut writer = applied([&limited(LeastConnection, &[(1, 1, 0)]), &Plan::default()]);
    writer.store_mut().load_mut(1).unwrap().connections = DestinationLoad::OVERLOADED;
    writer.collect(now).unwrap();
    assert_eq!(writer.collect(now + super::super::collect::TRASH_IDLE).unwrap().freed, 1, "a flag is no connection");
    writer.apply(&one(LeastConnection, &[(2, 1)]), now).unwrap();
    assert_eq!(writer.store().load(1).unwrap().connections, 0);
}

#[test]
fn new_thresholds_are_an_edit_that_moves_no_slot() {
    let mut writer = applied([&limited(LeastConnection, &[(1, 5, 0)])]);
    let before = writer.store().service(&key(1)).unwrap();
    let summary = writer.apply(&limited(LeastConnection, &[(1, 6, 0)]), Instant::now()).unwrap();
    let after = writer.store().service(&key(1)).unwrap();
    assert_eq!((summary.changed, summary.writes), (1, 3), "the record, the entry, the comparison");
    assert_eq!(after, lb_common::layout::Service { version: before.version + 1, ..before });
    assert_eq!(writer.apply(&limited(LeastConnection, &[(1, 6, 0)]), Instant::now()).unwrap().writes, 0);
}

#[test]
fn an_edit_of_thresholds_takes_wrr_back_before_the_head_and_rr_nowhere() {
    for (scheduler, cursor) in [(WeightedRoundRobin, 0), (RoundRobin, 2)] {
        let servers = |upper| limited(scheduler, &[(1, upper, 0), (2, 0, 0), (3, 0, 0)]);
        let mut writer = applied([&servers(0)]);
        let word = SchedulerWord { version: 1, cursor: 2, current_weight: 1 };
        let current = writer.store().word(1).unwrap();
        writer.store_mut().exchange_word(1, current, word.pack()).unwrap().unwrap();
        writer.apply(&servers(4), Instant::now()).unwrap();
        let word = SchedulerWord::unpack(writer.store().word(1).unwrap());
        assert_eq!((word.version, word.cursor, word.current_weight), (2, cursor, 1), "{scheduler:?}");
    }
}

#[test]
fn tables_stay_as_they_are() {
    for scheduler in [SourceHash, Maglev] {
        let mut writer = applied([&limited(scheduler, &[(1, 0, 0), (2, 0, 0)])]);
        let before = writer.store().service(&key(1)).unwrap();
        let cells = writer.store().slots(before.table_base, before.table_length).unwrap();
        writer.apply(&limited(scheduler, &[(1, 0, 0), (2, 7, 0)]), Instant::now()).unwrap();
        let after = writer.store().service(&key(1)).unwrap();
        assert_eq!(writer.store().slots(after.table_base, after.table_length).unwrap(), cells);
        let again = super::writer(writer.store().clone());
        assert_eq!(again.findings(), []);
    }
}

#[test]
fn wherever_the_writer_stops_the_next_one_compares() {
    let plans =
        [limited(WeightedRoundRobin, &[(1, 9, 0), (2, 0, 0)]), limited(WeightedRoundRobin, &[(1, 2, 0), (2, 3, 1)])];
    let (first, second) = (&plans[0], &plans[1]);
    let mut start = applied([first]);
    connect(&mut start, 1, 2, 0);
    connect(&mut start, 2, 0, 4);
    let start = start.store().clone();
    for restart in [false, true] {
        for writes in 0.. {
            let mut stopped = writer(FaultyStore::new(start.clone(), Faults::After { writes }, 0));
            let complete = stopped.apply(second, Instant::now()).is_ok();
            stopped.store_mut().set_faults(Faults::Never);
            if restart {
                stopped = writer(stopped.store().clone());
                assert_eq!(stopped.findings(), []);
            }
            stopped.apply(second, Instant::now()).unwrap();
            assert!(overloaded(stopped.store(), 1) && overloaded(stopped.store(), 2), "after {writes} writes");
            assert_eq!(stopped.apply(second, Instant::now()).unwrap().writes, 0);
            // Back again: the flags go too.
            stopped.apply(first, Instant::now()).unwrap();
            assert!(!overloaded(stopped.store(), 1) && !overloaded(stopped.store(), 2), "after {writes} writes");
            if complete {
                break;
            }
        }
    }
}

#[test]
fn a_comparison_that_fails_is_made_good() {
    let mut faulty = writer(FaultyStore::new(memory(), Faults::Never, 0));
    faulty.apply(&limited(RoundRobin, &[(1, 0, 0)]), Instant::now()).unwrap();
    faulty.store_mut().inner_mut().load_mut(1).unwrap().connections = 3 * DestinationLoad::ONE_ACTIVE;
    faulty.store_mut().set_faults(Faults::Map(names::LOAD));
    let wish = limited(RoundRobin, &[(1, 3, 0)]);
    let errors = faulty.apply(&wish, Instant::now()).unwrap_err();
    assert!(errors[0].to_string().contains("failed to compare destination 1 with its thresholds"), "{errors:?}");
    faulty.store_mut().set_faults(Faults::Never);
    assert_eq!(faulty.apply(&wish, Instant::now()).unwrap().writes, 1);
    assert!(overloaded(faulty.store(), 1));
}

#[test]
fn the_text_of_the_maps_shows_thresholds_and_who_is_over_them() {
    let mut writer = applied([&limited(LeastConnection, &[(1, 8, 6), (2, 0, 0)])]);
    assert_eq!(
        outline(writer.store()).unwrap(),
        "TCP 10.96.0.1:80 lc (thresholds): 10.1.0.2:8080 w1, 10.1.0.1:8080 w1 x8 y6\n"
    );
    connect(&mut writer, 1, 4, 0);
    writer.apply(&limited(LeastConnection, &[(1, 4, 0), (2, 0, 0)]), Instant::now()).unwrap();
    let text = dump(writer.store()).unwrap();
    assert!(text.contains(" active=4 inactive=0 remote=0 upper=4 lower=0 overloaded\n"), "{text}");
}
