//! How packets reach servers: an edit in place, as `ipvsadm -e` makes it.

use std::time::Instant;

use lb_common::{
    layout::{DESTINATION_LOCAL, DestinationLoad, LOOKUP_TUNNELS, SERVICE_TUNNELS},
    scheduler::Scheduler::RoundRobin,
};

use super::{
    super::{
        ApplyError, MapStore, Method, Plan,
        compare::Differences,
        dump::{dump, outline},
        store::{
            faulty::{Faults, FaultyStore},
            memory::MemoryStore,
        },
    },
    applied, assert_text, key, memory, one, writer,
};

/// A plan of one service with a server for each method.
fn by(methods: &[Method]) -> Plan {
    let weights: Vec<(u8, i32)> = (1..).zip(methods).map(|(last, _)| (last, 1)).collect();
    let mut plan = one(RoundRobin, &weights);
    for service in plan.services.values_mut() {
        for (server, method) in service.destinations.iter_mut().zip(methods) {
            server.method = *method;
        }
    }
    plan
}

#[test]
fn a_method_is_edited_in_place_and_found_again() {
    let mut writer = applied([&by(&[Method::Nat, Method::Nat])]);
    writer.store_mut().load_mut(1).unwrap().connections = 3 * DestinationLoad::ONE_ACTIVE;
    let version = writer.store().service(&key(1)).unwrap().version;
    let plan = by(&[Method::Tunnel, Method::Route]);
    assert_eq!(writer.apply(&plan, Instant::now()).unwrap().changed, 1);
    // Not of this process any more: the ids and their connections are.
    let mut restarted = super::writer(writer.store().clone());
    assert_eq!(restarted.findings(), []);
    assert_eq!(restarted.apply(&plan, Instant::now()).unwrap().writes, 0);
    assert_text(
        &outline(restarted.store()).unwrap(),
        "TCP 10.96.0.1:80 rr: 10.1.0.2:8080 w1 route, 10.1.0.1:8080 w1 tunnel",
    );
    let text = dump(restarted.store()).unwrap();
    assert!(text.contains("destination 1 10.1.0.1:8080 service=1 available weight=1 epoch=1 active=3"), "{text}");
    assert_eq!(restarted.store().service(&key(1)).unwrap().version, version + 1);
}

#[test]
fn who_unwraps_is_told_before_the_service_and_for_the_connections_that_outlive_it() {
    let (without, with) = (by(&[Method::Tunnel]), by(&[Method::OwnTunnel]));
    let tunnels = |store: &FaultyStore<MemoryStore>| {
        let published = store.inner().service(&key(1)).is_some_and(|service| service.flags & SERVICE_TUNNELS != 0);
        (store.lookups().unwrap() & LOOKUP_TUNNELS != 0, published)
    };
    let seen = |from: &Plan, to: &Plan| {
        let start = applied([from]).store().clone();
        let mut seen = Vec::new();
        for writes in 0.. {
            let mut stopped = writer(FaultyStore::new(start.clone(), Faults::After { writes }, 0));
            let whole = stopped.apply(to, Instant::now()).is_ok();
            seen.push(tunnels(stopped.store()));
            if whole {
                break;
            }
        }
        seen.dedup();
        seen
    };
    assert_eq!(seen(&without, &with), [(false, false), (true, false), (true, true)]);
    assert_eq!(seen(&with, &without), [(true, true), (true, false)]);
    assert_eq!(seen(&with, &Plan::default()), [(true, true), (true, false)]);
}

#[test]
fn a_method_that_somebody_else_changes_is_found_and_written_again() {
    let plan = by(&[Method::OwnTunnel]);
    let mut writer = applied([&plan]);
    let mut record = writer.store().destination(1).unwrap();
    record.flags &= !DESTINATION_LOCAL;
    writer.store_mut().set_destination(1, &record).unwrap();
    assert_eq!(writer.compare().unwrap().first, ["map `destinations`: id 1 was changed"]);
    writer.reread().unwrap();
    writer.apply(&plan, Instant::now()).unwrap();
    assert_eq!(writer.compare().unwrap(), Differences::default());
    assert_text(&outline(writer.store()).unwrap(), "TCP 10.96.0.1:80 rr (tunnels): 10.1.0.1:8080 w1 own-tunnel");
    // A missing bit of `lookups` is one more thing that a restart finds.
    writer.store_mut().set_lookups(0).unwrap();
    assert_eq!(super::writer(writer.store().clone()).findings().len(), 1);
}

#[test]
fn another_family_is_for_tunnels_to_elsewhere() {
    for method in Method::ALL {
        let mut plan = by(&[method]);
        plan.services.values_mut().for_each(|service| service.destinations[0].address = "fd00::1".parse().unwrap());
        let result = writer(memory()).apply(&plan, Instant::now());
        match result {
            Ok(_) => assert_eq!(method, Method::Tunnel),
            Err(errors) => {
                let [ApplyError::Refused { problem, .. }] = &errors[..] else { panic!("{errors:?}") };
                assert!(problem.starts_with("fd00::1: a server of another address family"), "{problem}");
                assert_ne!(method, Method::Tunnel);
            }
        }
    }
}
