//! What one apply leads to, and what the next one adds.

use std::{
    net::{IpAddr, Ipv4Addr},
    time::{Duration, Instant},
};

use lb_common::{
    layout::{DestinationLoad, Traffic},
    scheduler::Scheduler,
};

use super::{
    super::{
        ApplyError, Capacity, Frontend, MapStore, Plan, Summary, Writer,
        allocate::GRACE,
        collect::TRASH_IDLE,
        dump::{dump, outline},
        store::{
            faulty::{Faults, FaultyStore},
            memory::MemoryStore,
            names,
        },
    },
    applied, assert_text, frontend, memory, one, plan, service, writer,
};
use Scheduler::{DestinationHash, LeastConnection, RoundRobin, SourceHash, WeightedRoundRobin};

#[test]
fn a_first_plan_is_written_with_the_newest_destination_first() {
    let writer = applied([&plan([
        (1, service(RoundRobin, &[(1, 1), (2, 2)])),
        (2, service(LeastConnection, &[])),
        (3, service(SourceHash, &[(1, 1)])),
    ])]);
    assert_text(
        &dump(writer.store()).unwrap(),
        "service TCP 10.96.0.1:80 id=1 version=1 scheduler=rr flags=- set=0+2 table=- mw=2 di=1
        service TCP 10.96.0.2:80 id=2 version=1 scheduler=lc flags=- set=0+0 table=- mw=0 di=1
        service TCP 10.96.0.3:80 id=3 version=1 scheduler=sh flags=- set=2+1 table=3+256 mw=1 di=1
        set TCP 10.96.0.1:80 0 destination=2 weight=2
        set TCP 10.96.0.1:80 1 destination=1 weight=1
        set TCP 10.96.0.3:80 0 destination=3 weight=1
        table TCP 10.96.0.3:80 0-255 destination=3 weight=1
        word 1 version=1 cursor=0 cw=0
        word 2 version=0 cursor=0 cw=0
        word 3 version=0 cursor=0 cw=0
        destination 1 10.1.0.1:8080 service=1 available weight=1 epoch=1 active=0 inactive=0 remote=0
        destination 2 10.1.0.2:8080 service=1 available weight=2 epoch=1 active=0 inactive=0 remote=0
        destination 3 10.1.0.1:8080 service=3 available weight=1 epoch=1 active=0 inactive=0 remote=0",
    );
}

#[test]
fn the_same_plan_again_writes_nothing() {
    let plan = one(SourceHash, &[(1, 1), (2, 3)]);
    let mut writer = applied([&plan]);
    let summary = writer.apply(&plan, Instant::now()).unwrap();
    assert_eq!(summary, Summary { unchanged: 1, ..Summary::default() });
}

#[test]
fn a_change_keeps_the_order_of_who_stays_and_puts_new_ones_at_the_head() {
    let writer = applied([
        &one(RoundRobin, &[(1, 1), (2, 1), (3, 1)]),
        &one(RoundRobin, &[(1, 1), (3, 5)]),
        &one(RoundRobin, &[(1, 1), (2, 1), (3, 5), (4, 1)]),
    ]);
    assert_text(
        &outline(writer.store()).unwrap(),
        "TCP 10.96.0.1:80 rr: 10.1.0.4:8080 w1, 10.1.0.2:8080 w1, 10.1.0.3:8080 w5, 10.1.0.1:8080 w1",
    );
}

#[test]
fn a_change_of_one_service_costs_a_handful_of_writes() {
    let services = |weight| {
        plan((1..=9).map(|last| (last, service(RoundRobin, &[(1, 1), (2, if last == 5 { weight } else { 1 })]))))
    };
    let mut writer = applied([&services(1)]);
    let summary = writer.apply(&services(7), Instant::now()).unwrap();
    // The destination's record, the new set, the entry, the word.
    assert_eq!(summary, Summary { changed: 1, unchanged: 8, writes: 4, ..Summary::default() });
}

#[test]
fn another_scheduler_keeps_the_set_where_it_is() {
    let mut writer = applied([&one(RoundRobin, &[(1, 1)])]);
    let summary = writer.apply(&one(LeastConnection, &[(1, 1)]), Instant::now()).unwrap();
    assert_eq!(summary.writes, 1);
    let summary = writer.apply(&one(DestinationHash, &[(1, 1)]), Instant::now()).unwrap();
    assert_eq!(summary.writes, 2, "the table and the entry");
}

#[test]
fn a_removed_destination_comes_back_with_its_id_and_counters() {
    let now = Instant::now();
    let (full, less) = (one(RoundRobin, &[(1, 1), (2, 1)]), one(RoundRobin, &[(2, 1)]));
    let mut writer = applied([&full, &less]);
    writer.store_mut().load_mut(1).unwrap().connections = DestinationLoad::ONE_ACTIVE;
    for minutes in 0..10 {
        let collected = writer.collect(now + Duration::from_secs(60 * minutes)).unwrap();
        assert_eq!((collected.freed, collected.draining), (0, 1), "a connection refers to it");
    }
    assert!(
        dump(writer.store())
            .unwrap()
            .contains("destination 1 10.1.0.1:8080 service=1 removed weight=1 epoch=1 active=1")
    );
    writer.apply(&full, now).unwrap();
    assert!(
        dump(writer.store())
            .unwrap()
            .contains("destination 1 10.1.0.1:8080 service=1 available weight=1 epoch=1 active=1")
    );
    assert_text(&outline(writer.store()).unwrap(), "TCP 10.96.0.1:80 rr: 10.1.0.1:8080 w1, 10.1.0.2:8080 w1");
}

#[test]
fn an_idle_destination_is_freed_after_two_minutes_and_its_id_gets_a_new_epoch() {
    let start = Instant::now();
    let mut writer = applied([&one(RoundRobin, &[(1, 1), (2, 1)]), &one(RoundRobin, &[(2, 1)])]);
    assert_eq!(writer.collect(start).unwrap().freed, 0);
    assert_eq!(writer.collect(start + TRASH_IDLE - Duration::from_secs(1)).unwrap().freed, 0);
    assert_eq!(writer.collect(start + TRASH_IDLE).unwrap().freed, 1);
    writer.store_mut().load_mut(1).unwrap().remote_active = 7;
    writer.store_mut().traffic_mut(1).unwrap().in_packets = 7;
    writer.apply(&one(RoundRobin, &[(2, 1), (3, 1)]), start).unwrap();
    assert!(
        dump(writer.store())
            .unwrap()
            .contains("destination 1 10.1.0.3:8080 service=1 available weight=1 epoch=2 active=0 inactive=0 remote=0")
    );
    assert_eq!(writer.store_mut().traffic_mut(1).unwrap().in_packets, 0);
}

#[test]
fn a_service_keeps_what_its_removed_destinations_counted_until_it_is_removed_itself() {
    let start = Instant::now();
    let mut writer = applied([&one(RoundRobin, &[(1, 1), (2, 1)])]);
    let traffic = Traffic { connections: 1, in_packets: 2, out_packets: 3, in_bytes: 4, out_bytes: 5 };
    let count = |writer: &mut Writer<MemoryStore>, id| *writer.store_mut().traffic_mut(id).unwrap() = traffic;
    count(&mut writer, 1);
    count(&mut writer, 2);
    writer.apply(&one(RoundRobin, &[(2, 1)]), start).unwrap();
    writer.collect(start).unwrap();
    assert_eq!(writer.store().retired(1).unwrap(), Traffic::default(), "while it drains, it is counted where it is");
    writer.collect(start + TRASH_IDLE).unwrap();
    assert_eq!(writer.store().retired(1).unwrap(), traffic);
    // The next one gets the first id again, from 0, and adds to it.
    let now = start + 2 * TRASH_IDLE;
    writer.apply(&one(RoundRobin, &[(2, 1), (3, 1)]), now).unwrap();
    count(&mut writer, 1);
    writer.apply(&one(RoundRobin, &[(2, 1)]), now).unwrap();
    writer.collect(now).unwrap();
    writer.collect(now + TRASH_IDLE).unwrap();
    assert_eq!(writer.store().retired(1).unwrap(), traffic.plus(&traffic));
    assert!(dump(writer.store()).unwrap().contains("retired 1 connections=2 in=4/8 out=6/10\n"));
    writer.apply(&Plan::default(), now).unwrap();
    writer.apply(&one(RoundRobin, &[(3, 1)]), now).unwrap();
    assert_eq!(writer.store().retired(1).unwrap(), Traffic::default(), "created anew, it counts from 0");
    assert_eq!(writer.store().traffic(2).unwrap(), Traffic::default(), "and so does what drains of it");
}

#[test]
fn a_removed_destination_is_counted_once_however_often_its_end_is_tried() {
    let start = Instant::now();
    let mut writer = super::writer(FaultyStore::new(memory(), Faults::Never, 1));
    writer.apply(&one(RoundRobin, &[(1, 1), (2, 1)]), start).unwrap();
    writer.store_mut().inner_mut().traffic_mut(1).unwrap().in_bytes = 9;
    writer.apply(&one(RoundRobin, &[(2, 1)]), start).unwrap();
    writer.collect(start).unwrap();
    for map in [names::RETIRED, names::DESTINATIONS, names::DESTINATIONS] {
        writer.store_mut().set_faults(Faults::Map(map));
        writer.collect(start + TRASH_IDLE).unwrap_err();
    }
    writer.store_mut().set_faults(Faults::Never);
    assert_eq!(writer.collect(start + TRASH_IDLE).unwrap().freed, 1);
    assert_eq!(writer.store().retired(1).unwrap().in_bytes, 9);
}

#[test]
fn a_removed_service_comes_back_with_its_ids_and_connections_but_without_its_statistics() {
    let full = one(WeightedRoundRobin, &[(1, 1), (2, 2)]);
    let mut writer = applied([&full]);
    writer.store_mut().load_mut(2).unwrap().connections = 4 * DestinationLoad::ONE_INACTIVE;
    writer.store_mut().traffic_mut(2).unwrap().in_packets = 9;
    writer.apply(&Plan::default(), Instant::now()).unwrap();
    assert_eq!((outline(writer.store()).unwrap(), writer.draining()), (String::new(), 2));
    writer.apply(&full, Instant::now()).unwrap();
    assert_eq!(writer.store_mut().traffic_mut(2).unwrap().in_packets, 0);
    let text = dump(writer.store()).unwrap();
    assert!(text.contains("service TCP 10.96.0.1:80 id=1 version=2"), "{text}");
    assert!(text.contains("word 1 version=2 cursor=0 cw=1"), "{text}");
    assert!(
        text.contains("destination 2 10.1.0.2:8080 service=1 available weight=2 epoch=1 active=0 inactive=4"),
        "{text}"
    );
}

#[test]
fn a_removed_service_frees_its_id_with_its_last_destination() {
    let start = Instant::now();
    let mut writer = applied([&one(RoundRobin, &[(1, 1)]), &Plan::default()]);
    writer.collect(start).unwrap();
    writer.collect(start + TRASH_IDLE).unwrap();
    assert_eq!((writer.draining(), writer.services.len(), writer.by_virtual.len()), (0, 0, 0));
    assert_eq!(dump(writer.store()).unwrap(), "");
}

#[test]
fn slots_rest_before_they_are_written_again() {
    let start = Instant::now();
    let plans =
        [one(RoundRobin, &[(1, 1), (2, 1)]), one(RoundRobin, &[(1, 1), (2, 2)]), one(RoundRobin, &[(1, 1), (2, 3)])];
    let mut writer = writer(memory());
    let bases: Vec<u32> = [0, 1, 2, 3]
        .map(|step: usize| {
            let later = if step == 3 { GRACE * 2 } else { Duration::ZERO };
            writer.apply(&plans[step % 3], start + later).unwrap();
            writer.store().service(&super::key(1)).unwrap().set_base
        })
        .into();
    assert_eq!(bases, [0, 2, 4, 0]);
}

#[test]
fn a_full_arena_refuses_one_service_and_serves_the_others() {
    let mut writer = writer(MemoryStore::new(Capacity { slots: 4, ..super::CAPACITY }));
    let now = Instant::now();
    writer.apply(&plan([(1, service(RoundRobin, &[(1, 1)]))]), now).unwrap();
    let wish = plan([
        (1, service(RoundRobin, &[(1, 1), (2, 1), (3, 1), (4, 1)])),
        (2, service(RoundRobin, &[(1, 1), (2, 1)])),
    ]);
    let errors = writer.apply(&wish, now).unwrap_err();
    assert_text(
        &errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"),
        "Service default/web (TCP 10.96.0.1:80): needs 4 destination slots in a row; 3 of 4 are free, 3 in a row, and 0 \
         more within a second: raise setting max-slots",
    );
    assert_text(
        &outline(writer.store()).unwrap(),
        "TCP 10.96.0.1:80 rr: 10.1.0.1:8080 w1
        TCP 10.96.0.2:80 rr: 10.1.0.2:8080 w1, 10.1.0.1:8080 w1",
    );
    // What was refused holds no ids.
    assert_eq!((writer.draining(), writer.destination_ids.available()), (0, 256 - 3));
}

#[test]
fn every_limit_has_an_error_that_names_it() {
    let small = Capacity { services: 2, prefixes: 1, networks: 1, service_ids: 3, destinations: 3, slots: 1024 };
    let mut writer = writer(MemoryStore::new(small));
    let errors = writer
        .apply(
            &plan([
                (1, service(RoundRobin, &[(1, 1), (2, 1), (3, 1)])),
                (2, service(RoundRobin, &[(1, 1)])),
                (3, service(RoundRobin, &[(1, 1)])),
                (4, service(RoundRobin, &[])),
            ]),
            Instant::now(),
        )
        .unwrap_err();
    assert!(matches!(errors[0], ApplyError::NoDestinations { needed: 3, free: 2, total: 2, .. }), "{errors:?}");
    assert!(matches!(errors[1], ApplyError::NoServices { total: 2, .. }), "{errors:?}");
    assert_eq!(errors.len(), 2);
    writer.limits.destinations_per_service = 1;
    let errors = writer.apply(&one(RoundRobin, &[(1, 1), (2, 1)]), Instant::now()).unwrap_err();
    assert!(matches!(errors[..], [ApplyError::TooManyDestinations { count: 2, limit: 1, .. }]), "{errors:?}");
}

#[test]
fn services_that_go_make_room_for_those_that_come() {
    let mut writer = writer(memory());
    for first in [0, 100, 200] {
        let full = plan((0..16).map(|last| (first + last, service(RoundRobin, &[]))));
        writer.apply(&full, Instant::now()).unwrap();
    }
}

#[test]
fn an_ipv4_frontend_and_its_mapped_form_are_one() {
    let mut both = one(RoundRobin, &[(1, 1)]);
    let mapped = IpAddr::V6(Ipv4Addr::new(10, 96, 0, 1).to_ipv6_mapped());
    both.services.insert(Frontend { address: mapped, ..frontend(1) }, service(LeastConnection, &[]));
    let mut writer = writer(memory());
    let errors = writer.apply(&both, Instant::now()).unwrap_err();
    assert!(matches!(errors[..], [ApplyError::SameFrontend { .. }]), "{errors:?}");
    assert_text(&outline(writer.store()).unwrap(), "TCP 10.96.0.1:80 rr: 10.1.0.1:8080 w1");
}

#[test]
fn a_failure_of_any_map_keeps_what_is_programmed_and_is_made_good_by_the_next_apply() {
    let before = plan([(1, service(RoundRobin, &[(1, 1), (2, 1)])), (3, service(RoundRobin, &[(9, 1)]))]);
    let after = plan([(1, service(SourceHash, &[(2, 2), (3, 1)])), (2, service(WeightedRoundRobin, &[(4, 4)]))]);
    let expected = outline(applied([&before, &after]).store()).unwrap();
    for map in [names::SERVICES, names::SLOTS, names::DESTINATIONS, names::LOAD, names::TRAFFIC, names::WORDS] {
        let mut writer = writer(FaultyStore::new(memory(), Faults::Never, 0));
        writer.apply(&before, Instant::now()).unwrap();
        writer.store_mut().set_faults(Faults::Map(map));
        let errors = writer.apply(&after, Instant::now()).unwrap_err();
        assert!(errors.iter().all(|error| error.to_string().contains("the next apply tries again")), "{errors:?}");
        writer.store_mut().set_faults(Faults::Never);
        writer.apply(&after, Instant::now()).unwrap();
        assert_eq!(outline(writer.store()).unwrap(), expected, "{map}");
        let summary = writer.apply(&after, Instant::now()).unwrap();
        assert_eq!(summary.writes, 0, "{map}");
    }
}
