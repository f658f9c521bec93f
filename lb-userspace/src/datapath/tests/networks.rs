//! Networks of clients and of node ports: before what needs them, and no longer than that.

use std::net::IpAddr;
use std::time::Instant;

use lb_common::layout::{
    ACCESS_SOURCES, LOOKUP_CLUSTER_ADDRESSES, LOOKUP_SERVICE_NETWORKS, NETWORK_CLUSTER_ADDRESSES, NETWORK_NODE_PORTS,
    NETWORK_PODS, ServiceKey,
};
use lb_common::scheduler::Scheduler;

use super::*;
use crate::datapath::{
    Access, Masquerade, Network, Scope,
    store::{
        faulty::{Faults, FaultyStore},
        names,
    },
};

fn restricted(sources: &[&str]) -> DesiredService {
    let sources = sources.iter().map(|text| text.parse().unwrap()).collect();
    DesiredService { access: Access { sources, ..Access::default() }, ..service(Scheduler::RoundRobin, &[(1, 1)]) }
}

fn networks(store: &impl MapStore) -> Vec<String> {
    let mut all = store.networks().unwrap();
    all.sort_unstable();
    all.iter().map(ToString::to_string).collect()
}

fn of_node(mut plan: Plan) -> Plan {
    plan.pod_networks.insert("10.244.0.0/16".parse().unwrap());
    plan.node_port_addresses.insert(IpAddr::from([192, 0, 2, 10]));
    plan
}

#[test]
fn networks_come_and_go_with_what_they_are_for() {
    let plans = [
        of_node(plan([(1, restricted(&["198.51.100.0/24", "2001:db8::/32"])), (2, restricted(&["203.0.113.7/32"]))])),
        of_node(plan([(1, restricted(&["198.51.100.0/25"])), (2, service(Scheduler::RoundRobin, &[]))])),
        plan([(2, restricted(&["0.0.0.0/1"]))]),
        Plan::default(),
    ];
    let mut writer = writer(memory());
    let mut found = Vec::new();
    for plan in &plans {
        writer.apply(plan, Instant::now()).unwrap();
        found.push(networks(writer.store()));
    }
    let node = ["10.244.0.0/16 of the pods", "192.0.2.10/32 of node ports"];
    assert_eq!(
        found,
        [
            vec![
                node[0],
                "2001:db8::/32 of the clients of service id 1",
                "198.51.100.0/24 of the clients of service id 1",
                "203.0.113.7/32 of the clients of service id 2",
                node[1]
            ],
            vec![node[0], "198.51.100.0/25 of the clients of service id 1", node[1]],
            vec!["0.0.0.0/1 of the clients of service id 2"],
            vec![],
        ]
    );
    assert_eq!(writer.store().networks().unwrap(), []);
}

/// However many writes succeed, a service that names its clients stands there with all their networks.
#[test]
fn a_stopped_writer_leaves_no_service_without_its_networks() {
    let plans = [
        one(Scheduler::RoundRobin, &[(1, 1)]),
        of_node(plan([(1, restricted(&["198.51.100.0/24", "203.0.113.0/24"]))])),
        of_node(plan([(1, restricted(&["192.0.2.0/24", "203.0.113.0/24"]))])),
        one(Scheduler::RoundRobin, &[(1, 1)]),
    ];
    for writes in 0..40 {
        let mut writer = writer(FaultyStore::new(memory(), Faults::After { writes }, 1));
        let mut wanted: Vec<&DesiredService> = Vec::new();
        for plan in &plans {
            wanted.push(&plan.services[&frontend(1)]);
            let stopped = writer.apply(plan, Instant::now()).is_err();
            let store = writer.store().inner();
            let Some(value) = store.service(&key(1)) else { continue };
            let own: Vec<_> =
                store.networks().unwrap().into_iter().filter(|network| network.owner == value.id).collect();
            let has_all = |desired: &&&DesiredService| {
                let mut networks = desired.access.sources.iter().map(|network| Network::new(value.id, *network));
                networks.all(|network| own.contains(&network))
            };
            if value.access & ACCESS_SOURCES != 0 {
                let fits = wanted
                    .iter()
                    .rev()
                    .take(2)
                    .filter(|desired| !desired.access.sources.is_empty())
                    .any(|d| has_all(&d));
                assert!(fits, "after {writes} writes: {own:?}");
            }
            if stopped {
                break;
            }
        }
    }
}

#[test]
fn a_restarted_writer_goes_on_and_deletes_what_nobody_wants() {
    let before = of_node(plan([(1, restricted(&["198.51.100.0/24"]))]));
    let mut store = applied([&before]).store().clone();
    for owner in [9, NETWORK_PODS, NETWORK_NODE_PORTS] {
        store.set_network(&Network::new(owner, "172.16.0.0/12".parse().unwrap())).unwrap();
    }
    let mut writer = writer(store);
    let summary = writer.apply(&before, Instant::now()).unwrap();
    assert_eq!((summary.changed, summary.created), (0, 0));
    assert_eq!(networks(writer.store()).len(), 3);
}

#[test]
fn a_network_that_cannot_be_written_keeps_its_service_as_it_was() {
    let mut writer = writer(FaultyStore::new(memory(), Faults::Never, 1));
    writer.apply(&plan([(1, restricted(&["198.51.100.0/24"]))]), Instant::now()).unwrap();
    let before = writer.store().inner().service(&key(1));
    writer.store_mut().set_faults(Faults::Map(names::NETWORKS));
    let wider = plan([(1, restricted(&["203.0.113.0/24"])), (2, service(Scheduler::RoundRobin, &[(1, 1)]))]);
    let errors = writer.apply(&wider, Instant::now()).unwrap_err();
    assert!(errors[0].to_string().contains("Service default/web"), "{}", errors[0]);
    assert_eq!(writer.store().inner().service(&key(1)), before);
    assert!(writer.store().inner().service(&key(2)).is_some(), "the other service is not stopped by it");
    assert_eq!(networks(writer.store()), ["198.51.100.0/24 of the clients of service id 1"]);
    writer.store_mut().set_faults(Faults::Never);
    writer.apply(&wider, Instant::now()).unwrap();
    assert_eq!(networks(writer.store()), ["203.0.113.0/24 of the clients of service id 1"]);
}

/// The entry for external clients is there before the one that sends them to it, and goes after it.
#[test]
fn external_clients_always_find_their_entry() {
    let external = Frontend { scope: Scope::External, ..frontend(1) };
    let mut split = plan([(1, service(Scheduler::RoundRobin, &[(1, 1), (2, 1)]))]);
    split.services.get_mut(&frontend(1)).unwrap().access = Access { split: true, ..Access::default() };
    split.services.insert(external, service(Scheduler::RoundRobin, &[(1, 1)]));
    let mut joined = one(Scheduler::RoundRobin, &[(1, 1), (2, 1)]);
    joined.services.get_mut(&frontend(1)).unwrap().access =
        Access { masquerade: Masquerade::Always, ..Access::default() };
    for plans in [[&joined, &split], [&split, &joined]] {
        for writes in 0..40 {
            let mut writer = writer(FaultyStore::new(memory(), Faults::After { writes }, 1));
            for plan in plans {
                let _ = writer.apply(plan, Instant::now());
            }
            let store = writer.store().inner();
            let splits =
                store.service(&key(1)).is_some_and(|value| value.access & lb_common::layout::ACCESS_SPLIT != 0);
            let Key::Service(key) = Virtual::from(&external).key() else { panic!() };
            let key: ServiceKey = key;
            assert!(!splits || store.service(&key).is_some(), "after {writes} writes");
        }
    }
}

/// A port of a service is never taken for another one, wherever a writer stops: the address is refused only while all of its
/// services stand there.
#[test]
fn a_cluster_address_is_refused_after_its_services_came_and_before_they_go() {
    let with_address = |mut plan: Plan| {
        plan.cluster_addresses = plan.services.keys().map(|frontend| frontend.address).collect();
        plan.service_networks.insert("10.96.0.0/16".parse().unwrap());
        plan
    };
    let both = with_address(plan([(1, service(Scheduler::RoundRobin, &[])), (2, service(Scheduler::RoundRobin, &[]))]));
    let first = with_address(plan([(1, service(Scheduler::RoundRobin, &[]))]));
    for writes in 0..40 {
        let mut writer = writer(FaultyStore::new(memory(), Faults::After { writes }, 1));
        for plan in [&both, &first, &both, &Plan::default()] {
            let _stopped = writer.apply(plan, Instant::now());
            let store = writer.store().inner();
            for number in [1, 2] {
                let network = Network::new(NETWORK_CLUSTER_ADDRESSES, frontend(number).address.into());
                let refused = store.networks().unwrap().contains(&network);
                assert!(!refused || store.service(&key(number)).is_some(), "{writes} writes: {network}");
            }
        }
    }
    let mut writer = writer(memory());
    writer.apply(&both, Instant::now()).unwrap();
    assert_eq!(networks(writer.store()).len(), 3);
    let kinds = LOOKUP_CLUSTER_ADDRESSES | LOOKUP_SERVICE_NETWORKS;
    assert_eq!(writer.store().lookups().unwrap() & kinds, kinds);
    // The same by what has changed alone.
    let touched = [frontend(2)].into();
    writer.apply_changes(&first, &touched, Instant::now()).unwrap();
    assert_eq!(networks(writer.store()).len(), 2);
    let touched = [frontend(1)].into();
    writer.apply_changes(&Plan::default(), &touched, Instant::now()).unwrap();
    assert_eq!((networks(writer.store()).len(), writer.store().lookups().unwrap() & kinds), (0, 0));
}
