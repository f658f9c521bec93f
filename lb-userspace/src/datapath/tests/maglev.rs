//! mh: its table is published with the set, and what it follows from survives edits and restarts.

use std::time::Instant;

use lb_common::{
    layout::{DestinationSlot, Service},
    scheduler::{
        Scheduler::{Maglev, RoundRobin},
        maglev::TABLE_LENGTH,
    },
};

use super::{
    super::{
        DesiredService, MapStore, Plan, Writer,
        dump::outline,
        store::{
            faulty::{Faults, FaultyStore},
            memory::MemoryStore,
        },
    },
    assert_text, key, one, plan, roomy, service, writer,
};

/// A writer over maps with room for many tables that has applied these plans.
fn applied<'a>(plans: impl IntoIterator<Item = &'a Plan>) -> Writer<MemoryStore> {
    let mut writer = writer(roomy(1 << 16));
    for plan in plans {
        writer.apply(plan, Instant::now()).expect("room for all");
    }
    writer
}

fn entry(store: &MemoryStore) -> Service {
    store.service(&key(1)).expect("the service is published")
}

/// Ids in the cells, and the weights that stand beside them.
fn cells(store: &MemoryStore) -> (Vec<u32>, Vec<i32>) {
    let entry = entry(store);
    store.slots(entry.table_base, entry.table_length).unwrap().iter().map(|s| (s.destination, s.weight)).unzip()
}

#[test]
fn a_server_that_drains_keeps_its_cells_also_over_a_restart() {
    let mut first = applied([&one(Maglev, &[(1, 2), (2, 3)])]);
    let (full, weights) = cells(first.store());
    assert_eq!(full.len(), TABLE_LENGTH);
    assert!(full.iter().zip(&weights).all(|(&id, &weight)| weight == id as i32 + 1));
    let drained = one(Maglev, &[(1, 2), (2, 0)]);
    first.apply(&drained, Instant::now()).unwrap();
    let (kept, weights) = cells(first.store());
    assert_eq!(kept, full);
    assert!(kept.iter().zip(&weights).all(|(&id, &weight)| weight == if id == 2 { 0 } else { 2 }));

    let mut restarted = writer(first.store().clone());
    assert_eq!(restarted.findings(), []);
    assert_eq!(restarted.apply(&drained, Instant::now()).unwrap().writes, 0);
    restarted.apply(&one(Maglev, &[(1, 2), (2, 0), (3, 0)]), Instant::now()).unwrap();
    assert_eq!(cells(restarted.store()).0, full, "a server that is added with weight 0 has no cells");
}

#[test]
fn a_server_that_returns_with_weight_0_has_no_cells() {
    let both = one(Maglev, &[(1, 1), (2, 1)]);
    let writer = applied([&both, &one(Maglev, &[(1, 1)]), &one(Maglev, &[(1, 1), (2, 0)])]);
    assert!(cells(writer.store()).0.iter().all(|&id| id == 1));
    let nobody = applied([&one(Maglev, &[(1, 0), (2, 0)])]);
    assert_eq!(entry(nobody.store()).table_length, 0);
    assert_eq!(super::writer(nobody.store().clone()).findings(), []);
}

#[test]
fn a_switch_to_mh_knows_the_weights_of_before() {
    let writer = applied([
        &one(RoundRobin, &[(1, 1), (2, 1)]),
        &one(RoundRobin, &[(1, 1), (2, 0)]),
        &one(Maglev, &[(1, 1), (2, 0)]),
    ]);
    let shares = [1, 2].map(|id| cells(writer.store()).0.iter().filter(|&&cell| cell == id).count());
    assert_eq!(shares, [2046, 2047]);
}

#[test]
fn a_stopped_writer_leaves_nothing_that_is_told_of_as_broken() {
    let now = Instant::now();
    let before = applied([&one(Maglev, &[(1, 1), (2, 4)]), &one(Maglev, &[(1, 1), (2, 0)])]).store().clone();
    let after = one(Maglev, &[(1, 1), (2, 9)]);
    // The new record is written, the new version is not published.
    let mut stopped = writer(FaultyStore::new(before, Faults::After { writes: 1 }, 0));
    stopped.apply(&after, now).unwrap_err();
    let mut restarted = writer(stopped.store().inner().clone());
    assert_eq!(restarted.findings(), []);
    restarted.apply(&after, now).unwrap();
    let fresh = applied([&after]);
    let of_two = |store: &MemoryStore| cells(store).0.iter().filter(|&&id| id == 2).count();
    assert_eq!(of_two(restarted.store()), of_two(fresh.store()));
    assert_eq!(restarted.apply(&after, now).unwrap().writes, 0);
}

#[test]
fn more_servers_than_cells_are_refused_by_name_and_the_old_table_stays() {
    let many = |count: u32| -> Plan {
        let mut wish: DesiredService = service(Maglev, &[]);
        wish.destinations = (0..count)
            .map(|number| {
                super::super::DesiredDestination::new(std::net::Ipv4Addr::from(0x0a01_0000 + number).into(), 8080, 1)
            })
            .collect();
        plan([(1, wish)])
    };
    let capacity = super::super::Capacity { destinations: 5000, ..roomy(1 << 15).capacity() };
    let mut writer = writer(MemoryStore::new(capacity));
    let most = TABLE_LENGTH as u32;
    writer.apply(&many(most), Instant::now()).unwrap();
    let slots: Vec<DestinationSlot> = {
        let entry = entry(writer.store());
        writer.store().slots(entry.table_base, entry.table_length).unwrap()
    };
    let mut ids: Vec<u32> = slots.iter().map(|slot| slot.destination).collect();
    ids.sort_unstable();
    assert_eq!(ids, (1..=most).collect::<Vec<_>>(), "each of the most servers has one cell");
    let before = outline(writer.store()).unwrap();
    let errors = writer.apply(&many(most + 1), Instant::now()).unwrap_err();
    assert_text(
        &errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"),
        "Service default/web (TCP 10.96.0.1:80): 4094 destinations, but mh serves at most 4093, the cells of its table: \
         name fewer, or another scheduler (sh has no such limit)",
    );
    assert_eq!(outline(writer.store()).unwrap(), before);
}
