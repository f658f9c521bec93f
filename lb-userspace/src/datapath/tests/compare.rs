//! What somebody else changes in the maps is found, and written again.

use std::time::Instant;

use lb_common::address::Address;
use lb_common::layout::{Destination, DestinationSlot, Service};
use lb_common::scheduler::Scheduler;

use super::*;
use crate::datapath::{Access, compare::Differences};

/// Services of every kind of table and list, with networks.
fn written() -> Plan {
    let sources = ["198.51.100.0/24".parse().unwrap()].into();
    let restricted = DesiredService {
        access: Access { sources, ..Access::default() },
        ..service(Scheduler::Maglev, &[(1, 1), (2, 3)])
    };
    let mut plan = plan([
        (1, service(Scheduler::RoundRobin, &[(1, 1), (2, 1), (3, 1)])),
        (2, service(Scheduler::SourceHash, &[(1, 1), (2, 1)])),
        (3, restricted),
        (4, service(Scheduler::RoundRobin, &[])),
    ]);
    plan.pod_networks.insert("10.244.0.0/16".parse().unwrap());
    plan.cluster_addresses.insert(frontend(1).address);
    plan
}

#[test]
fn what_somebody_else_changes_is_found_and_written_again() {
    let plan = written();
    type Change = fn(&mut MemoryStore);
    let changes: [(&str, Change); 9] = [
        ("services", |store| store.delete_service(&key(1)).unwrap()),
        ("services", |store| {
            let value = store.service(&key(2)).unwrap();
            store.set_service(&key(2), &Service { set_length: 1, ..value }).unwrap();
        }),
        ("services", |store| {
            let value = store.service(&key(1)).unwrap();
            store.set_service(&key(9), &value).unwrap();
        }),
        ("destinations", |store| {
            let id = slot(store, 1).destination;
            let record = store.destination(id).unwrap();
            let elsewhere = Address::from(IpAddr::from([192, 0, 2, 66]));
            store.set_destination(id, &Destination { address: elsewhere, ..record }).unwrap();
        }),
        ("destinations", |store| {
            let record = store.destination(slot(store, 1).destination).unwrap();
            store.set_destination(200, &record).unwrap();
        }),
        ("destination_slots", |store| {
            let (base, mut first) = (store.service(&key(1)).unwrap().set_base, slot(store, 1));
            first.weight = 7;
            store.set_slots(base, &[first]).unwrap();
        }),
        // A cell of mh's table, which names a destination of another service.
        ("destination_slots", |store| {
            let (base, other) = (store.service(&key(3)).unwrap().table_base, slot(store, 1));
            store.set_slots(base + 17, &[other]).unwrap();
        }),
        ("networks", |store| {
            for network in store.networks().unwrap() {
                store.delete_network(&network).unwrap();
            }
        }),
        ("lookups", |store| store.set_lookups(0).unwrap()),
    ];
    for (number, (map, change)) in changes.into_iter().enumerate() {
        let mut writer = writer(roomy(32_768));
        writer.apply(&plan, Instant::now()).unwrap();
        assert_eq!(writer.compare().unwrap(), Differences::default(), "change {number}");
        let before = histories::unordered(writer.store());
        let networks = writer.store().networks().unwrap();
        change(writer.store_mut());
        let found = writer.compare().unwrap();
        assert!(found.count > 0 && found.first[0].contains(map), "change {number}: {found:?}");
        writer.reread().unwrap();
        writer.apply(&plan, Instant::now()).unwrap();
        assert_eq!(histories::unordered(writer.store()), before, "change {number}");
        assert_eq!(writer.store().networks().unwrap().len(), networks.len(), "change {number}");
        assert_eq!(writer.compare().unwrap(), Differences::default(), "change {number}");
    }
}

/// The first slot of a service's set.
fn slot(store: &MemoryStore, number: u8) -> DestinationSlot {
    store.slots(store.service(&key(number)).unwrap().set_base, 1).unwrap()[0]
}
