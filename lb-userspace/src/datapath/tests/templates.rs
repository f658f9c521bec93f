//! Persistence templates hold what they name.

use std::time::{Duration, Instant};

use lb_common::scheduler::Scheduler;

use super::{
    super::{Persistence, Plan, Writer, collect::TRASH_IDLE, store::memory::MemoryStore},
    applied, one,
};

const SECOND: Duration = Duration::from_secs(1);

fn persistent(servers: &[(u8, i32)]) -> Plan {
    let mut plan = one(Scheduler::RoundRobin, servers);
    plan.services.values_mut().for_each(|service| {
        service.persistence = Some(Persistence { timeout: 1000, netmask: 32 });
    });
    plan
}

/// Collects once a minute until this destination is free; how many minutes that took.
fn minutes_until_free(writer: &mut Writer<MemoryStore>, id: u32, start: Instant) -> u32 {
    let gone = |writer: &Writer<MemoryStore>| !writer.records.contains_key(&id);
    (0..60)
        .find(|minute| {
            writer.collect(start + 60 * SECOND * *minute).unwrap();
            gone(writer)
        })
        .expect("freed within an hour")
}

#[test]
fn a_server_that_templates_name_keeps_its_id_until_the_last_of_them_ends_and_the_trash_time_after_it() {
    let start = Instant::now();
    for restart in [false, true] {
        let mut writer = applied([&persistent(&[(1, 1), (2, 1)]), &persistent(&[(2, 1)])]);
        writer.store_mut().set_template(1, Some(500 * SECOND));
        if restart {
            writer = super::writer(writer.store().clone());
        }
        writer.collect(start).unwrap();
        // Idle for two minutes, but named: for 500 s more from then on.
        writer.collect(start + TRASH_IDLE).unwrap();
        assert_eq!(writer.draining(), 1);
        // The template ends with the time that it had left.
        writer.store_mut().set_template(1, None);
        let named_until = start + TRASH_IDLE + 500 * SECOND;
        writer.collect(named_until - SECOND).unwrap();
        writer.collect(named_until).unwrap();
        assert_eq!(writer.collect(named_until + TRASH_IDLE - SECOND).unwrap().freed, 0);
        assert_eq!(writer.collect(named_until + TRASH_IDLE).unwrap().freed, 1);
    }
}

#[test]
fn a_server_that_no_template_names_is_freed_beside_one_that_is_named() {
    let start = Instant::now();
    let mut writer = applied([&persistent(&[(1, 1), (2, 1), (3, 1)]), &persistent(&[(3, 1)])]);
    writer.store_mut().set_template(1, Some(3000 * SECOND));
    assert_eq!(minutes_until_free(&mut writer, 2, start), 2);
    assert_eq!(writer.draining(), 1);
    // One that comes back is what its clients' templates say, and drains anew.
    writer.apply(&persistent(&[(1, 1), (3, 1)]), start).unwrap();
    assert_eq!((writer.draining(), writer.records[&1].service), (0, 1));
    writer.store_mut().set_template(1, None);
    writer.apply(&persistent(&[(3, 1)]), start).unwrap();
    assert_eq!(minutes_until_free(&mut writer, 1, start), 2);
}

#[test]
fn a_removed_service_keeps_its_id_as_long_as_a_template_names_one_of_its_servers() {
    let start = Instant::now();
    let mut writer = applied([&persistent(&[(1, 1)]), &Plan::default()]);
    writer.store_mut().set_template(1, Some(600 * SECOND));
    assert!(minutes_until_free_of_service(&mut writer, start) > 10);
}

fn minutes_until_free_of_service(writer: &mut Writer<MemoryStore>, start: Instant) -> u32 {
    for minute in 0..60 {
        let now = start + 60 * SECOND * minute;
        if now >= start + 600 * SECOND {
            writer.store_mut().set_template(1, None);
        }
        writer.collect(now).unwrap();
        if writer.services.is_empty() {
            return minute;
        }
    }
    panic!("never freed");
}

#[test]
fn without_a_persistent_service_nobody_reads_the_connections() {
    let start = Instant::now();
    let mut writer = applied([&one(Scheduler::RoundRobin, &[(1, 1), (2, 1)]), &one(Scheduler::RoundRobin, &[(2, 1)])]);
    // A template that cannot be: it would be seen if anybody looked.
    writer.store_mut().set_template(1, Some(SECOND));
    assert_eq!(minutes_until_free(&mut writer, 1, start), 2);
    // After a restart with something that drains nobody knows what there was.
    let mut writer = applied([&one(Scheduler::RoundRobin, &[(1, 1)]), &Plan::default()]);
    assert!(!writer.templates);
    writer = super::writer(writer.store().clone());
    assert!(writer.templates);
    assert_eq!(minutes_until_free(&mut writer, 1, start), 2);
    assert!(!writer.templates, "looked, and found none");
}
