//! Persistence templates hold what they name.

use std::time::{Duration, Instant};

use lb_common::{layout::AffinityTimeout, scheduler::Scheduler};

use super::{
    super::{
        AffinityGroup, MapStore, Persistence, Plan, Writer,
        collect::TRASH_IDLE,
        store::{
            faulty::{Faults, FaultyStore},
            memory::MemoryStore,
        },
    },
    applied, key, one,
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

/// Of an affinity group, whose templates name servers by address and port.
fn of_group(servers: &[(u8, i32)], timeout: u32, port: &str) -> Plan {
    let mut plan = persistent(servers);
    plan.services.values_mut().for_each(|service| {
        service.persistence = Some(Persistence { timeout, netmask: 32 });
        service.affinity = Some(AffinityGroup::of_port("default", "web", port));
    });
    plan
}

#[test]
fn templates_of_a_group_hold_no_ids_and_nobody_reads_the_connections() {
    let start = Instant::now();
    let mut writer = applied([&of_group(&[(1, 1), (2, 1)], 1000, "http"), &of_group(&[(2, 1)], 1000, "http")]);
    assert!(!writer.templates);
    writer.store_mut().set_template(1, Some(SECOND));
    assert_eq!(minutes_until_free(&mut writer, 1, start), 2);
}

#[test]
fn the_sweep_is_told_how_long_clients_of_a_group_are_bound_and_by_whom() {
    let [high, low] = AffinityGroup::of_port("default", "web", "http").words();
    let told = |timeout| AffinityTimeout { group: low, timeout };
    let (long, short) = (of_group(&[(1, 1)], 1000, "http"), of_group(&[(1, 1)], 60, "http"));
    let mut writer = applied([&long]);
    let entry = |writer: &Writer<MemoryStore>| writer.store().service(&key(1)).unwrap();
    assert_eq!(entry(&writer).affinity_group, [high, low]);
    assert_eq!(writer.store().affinity(1).unwrap(), told(1_000_000));
    for (plan, expected) in [
        (&short, told(60_000)),
        // Neither IPVS's way nor no persistence is the sweep's business.
        (&persistent(&[(1, 1)]), AffinityTimeout::default()),
        (&long, told(1_000_000)),
        (&one(Scheduler::RoundRobin, &[(1, 1)]), AffinityTimeout::default()),
        (&long, told(1_000_000)),
        // Another service with the id of a removed one says what holds for itself.
        (&Plan::default(), told(1_000_000)),
        (&persistent(&[(1, 1)]), AffinityTimeout::default()),
    ] {
        let writes = writer.apply(plan, Instant::now()).unwrap().writes;
        assert_eq!(writer.store().affinity(1).unwrap(), expected);
        assert_ne!(writes, 0);
        // A restart has nothing to write.
        let mut next = super::writer(writer.store().clone());
        assert_eq!(next.apply(plan, Instant::now()).unwrap().writes, 0);
    }
}

/// Wherever a writer stops between two timeouts, the next one brings both to what is desired, and packets go by the entry.
#[test]
fn a_writer_that_stops_between_the_two_timeouts_leaves_them_to_the_next() {
    let (before, after) = (of_group(&[(1, 1)], 60, "http"), of_group(&[(1, 1)], 1000, "http"));
    let timeout = |store: &MemoryStore| store.service(&key(1)).unwrap().persistence_timeout;
    let mut seen = Vec::new();
    for writes in 0.. {
        let store = applied([&before]).store().clone();
        let mut faulty = super::writer(FaultyStore::new(store, Faults::After { writes }, 0));
        let result = faulty.apply(&after, Instant::now());
        let store = faulty.store().inner().clone();
        seen.push((store.affinity(1).unwrap().timeout, timeout(&store)));
        for plan in [&before, &after] {
            let mut next = super::writer(store.clone());
            next.apply(plan, Instant::now()).unwrap();
            let wanted = plan.services.values().next().unwrap().persistence.unwrap().timeout * 1000;
            assert_eq!((next.store().affinity(1).unwrap().timeout, timeout(next.store())), (wanted, wanted));
        }
        if result.is_ok() {
            break;
        }
    }
    assert_eq!(seen[..3], [(60_000, 60_000), (1_000_000, 60_000), (1_000_000, 1_000_000)]);
}
