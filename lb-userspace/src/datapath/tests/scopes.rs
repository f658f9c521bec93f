//! Services by mark, of networks and of every port, and what they have beside their destinations.

use std::{
    net::{IpAddr, Ipv6Addr},
    time::Instant,
};

use Scheduler::{LocalityLeastConnection, RoundRobin, WeightedRoundRobin};
use lb_common::{
    address::Protocol,
    layout::{LOOKUP_ALL_PORTS, LOOKUP_MARKS, LOOKUP_PREFIXES, Service, ServiceKey},
    scheduler::{Scheduler, word::SchedulerWord},
};

use super::{
    super::{
        ApplyError, Capacity, DesiredService, Finding, Frontend, Key, MapStore, Persistence, Plan, Scope, Thresholds,
        dump::{dump, outline},
        store::{
            faulty::{Faults, FaultyStore},
            memory::MemoryStore,
            names,
        },
    },
    CAPACITY, applied, assert_text, frontend, key, memory, one, plan, service, writer,
};

const WEB: Scope = Scope::Address;

/// A TCP frontend of this scope.
fn scoped(address: &str, port: u16, scope: Scope) -> Frontend {
    Frontend { scope, ..Frontend::new(address.parse().unwrap(), port, Protocol::Tcp) }
}

/// Servers are of their service's family.
fn services(services: impl IntoIterator<Item = (Frontend, DesiredService)>) -> Plan {
    let mut plan = Plan { services: services.into_iter().collect(), ..Plan::default() };
    for (frontend, service) in plan.services.iter_mut() {
        for server in &mut service.destinations {
            if let (IpAddr::V6(_), IpAddr::V4(v4)) = (frontend.address, server.address) {
                server.address = Ipv6Addr::from_bits(0xfd01 << 112 | u128::from(v4.to_bits())).into();
            }
        }
    }
    plan
}

fn all() -> [(Frontend, u32); 6] {
    [
        (scoped("10.96.0.1", 80, WEB), 0),
        (scoped("10.96.0.1", 0, WEB), LOOKUP_ALL_PORTS),
        (scoped("0.0.0.0", 0, Scope::Mark(7)), LOOKUP_MARKS),
        (scoped("::", 0, Scope::Mark(7)), LOOKUP_MARKS),
        (scoped("10.96.0.0", 80, Scope::Prefix(16)), LOOKUP_PREFIXES),
        (scoped("2000::", 0, Scope::Prefix(3)), LOOKUP_PREFIXES),
    ]
}

#[test]
fn each_scope_has_its_entry_and_a_restart_finds_it() {
    let one = service(RoundRobin, &[(1, 1)]);
    let mut kept = one.clone();
    kept.persistence = Some(Persistence { timeout: 300, netmask: 24 });
    let mut six = service(RoundRobin, &[]);
    six.persistence = Some(Persistence { timeout: 1, netmask: 64 });
    six.one_packet = true;
    let plan = services(all().map(|(frontend, _)| frontend).into_iter().zip([
        one.clone(),
        kept.clone(),
        kept,
        six.clone(),
        one,
        DesiredService { one_packet: false, ..six },
    ]));
    let writer = applied([&plan]);
    assert_text(
        &outline(writer.store()).unwrap(),
        "FWM 7 rr (persistent,marked) persistence=300000/120: 10.1.0.1:8080 w1
        TCP 10.96.0.0/16:80 rr: 10.1.0.1:8080 w1
        TCP 10.96.0.1:0 rr (persistent,all-ports) persistence=300000/120: 10.1.0.1:8080 w1
        TCP 10.96.0.1:80 rr: 10.1.0.1:8080 w1
        FWM 7 IPv6 rr (ops,persistent,marked) persistence=1000/64:
        TCP [2000::/3]:0 rr (persistent,all-ports) persistence=1000/64:",
    );
    assert!(dump(writer.store()).unwrap().ends_with("lookups marks,all-ports,prefixes\n"));
    let mut restarted = super::writer(writer.store().clone());
    assert_eq!(restarted.findings(), []);
    assert_eq!(restarted.apply(&plan, Instant::now()).unwrap().writes, 0);
    assert_eq!(dump(restarted.store()).unwrap(), dump(writer.store()).unwrap());
}

#[test]
fn a_kind_is_looked_for_before_its_first_service_is_there_and_until_its_last_is_gone() {
    let only = |wanted: &[usize]| services(wanted.iter().map(|&n| (all()[n].0, service(RoundRobin, &[(1, 1)]))));
    for (before, after) in [
        (&[][..], &[0, 1, 2, 3, 4, 5][..]),
        (&[0, 1, 2, 3, 4, 5], &[]),
        (&[2, 4], &[3, 5]),
        (&[1, 5], &[1]),
        (&[1, 5], &[5]),
        (&[3], &[2]),
    ] {
        let start = applied([&only(before)]).store().clone();
        for writes in 0.. {
            let mut stopped = writer(FaultyStore::new(start.clone(), Faults::After { writes }, 0));
            let complete = stopped.apply(&only(after), Instant::now()).is_ok();
            let lookups = stopped.store().lookups().unwrap();
            for (key, _) in stopped.store().entries().unwrap() {
                assert_eq!(key.lookups() & !lookups, 0, "{key:?} after {writes} writes");
            }
            let mut restarted = writer(stopped.store().inner().clone());
            assert_eq!(restarted.findings(), []);
            restarted.apply(&only(after), Instant::now()).unwrap();
            let expected = after.iter().fold(0, |all_bits, &n| all_bits | all()[n].1);
            assert_eq!(restarted.store().lookups().unwrap(), expected, "exactly what there is");
            if complete {
                assert_eq!(lookups, expected);
                break;
            }
        }
    }
}

#[test]
fn kinds_that_are_not_looked_for_are_named_and_healed_and_others_are_forgotten() {
    let plan = services([(all()[2].0, service(RoundRobin, &[(1, 1)]))]);
    for (wrong, finding) in [(0, Some(Finding::Lookups { missing: LOOKUP_MARKS })), (7, None)] {
        let mut store = applied([&plan]).store().clone();
        store.set_lookups(wrong).unwrap();
        let mut restarted = writer(store);
        assert_eq!(restarted.findings().first(), finding.as_ref());
        assert_eq!(restarted.apply(&plan, Instant::now()).unwrap().writes, 1);
        assert_eq!(restarted.store().lookups().unwrap(), LOOKUP_MARKS);
    }
}

#[test]
fn a_failure_to_look_for_a_kind_leaves_its_services_out_and_the_others_in() {
    let wish = services(all().map(|(frontend, _)| (frontend, service(RoundRobin, &[(1, 1)]))));
    let mut faulty = writer(FaultyStore::new(memory(), Faults::Map(names::LOOKUPS), 0));
    let errors = faulty.apply(&wish, Instant::now()).unwrap_err();
    assert_eq!(errors.len(), 5, "{errors:?}");
    assert_eq!(outline(faulty.store()).unwrap(), "TCP 10.96.0.1:80 rr: 10.1.0.1:8080 w1\n");
    faulty.store_mut().set_faults(Faults::Never);
    faulty.apply(&wish, Instant::now()).unwrap();
    assert_eq!(outline(faulty.store()).unwrap(), outline(applied([&wish]).store()).unwrap());
}

#[test]
fn keys_that_no_service_has_are_deleted() {
    let odd = Key::Service(ServiceKey { port: lb_common::address::Port::new(1), ..ServiceKey::of_mark(7, true) });
    let Key::Prefix(prefix) = super::super::Virtual::from(&all()[4].0).key() else { panic!() };
    let short = Key::Prefix(super::super::PrefixKey { length: 40, ..prefix });
    let mut store = memory();
    for key in [odd, short] {
        store.set_entry(&key, &Service { id: 3, ..Service::default() }).unwrap();
    }
    let mut restarted = writer(store);
    let findings: Vec<&Finding> = restarted.findings().iter().collect();
    assert!(
        matches!(findings[..], [Finding::Key { key: first }, Finding::Key { key: second }, Finding::Lookups { .. }]
        if [*first, *second] == [odd, short]),
        "{findings:?}"
    );
    restarted.apply(&Plan::default(), Instant::now()).unwrap();
    assert_eq!((restarted.store().entries().unwrap(), restarted.store().lookups().unwrap()), (vec![], 0));
}

#[test]
fn networks_that_go_make_room_for_those_that_come() {
    let mut writer = writer(MemoryStore::new(Capacity { prefixes: 2, ..CAPACITY }));
    let network = |n: u8| {
        let frontend = Frontend { scope: Scope::Prefix(24), ..Frontend::new([10, n, 0, 0].into(), 80, Protocol::Tcp) };
        (frontend, service(RoundRobin, &[]))
    };
    for first in [0, 10, 20] {
        writer.apply(&services([network(first), network(first + 1)]), Instant::now()).unwrap();
    }
    let errors = writer.apply(&services([network(1), network(2), network(3)]), Instant::now()).unwrap_err();
    let [ApplyError::Store { source, .. }] = &errors[..] else { panic!("{errors:?}") };
    assert_eq!(source.to_string(), "map `service_prefixes` is full with 2 entries");
}

#[test]
fn marks_are_one_service_whatever_else_their_frontend_says() {
    let mut both = services([(all()[2].0, service(RoundRobin, &[(1, 1)]))]);
    both.services.insert(scoped("10.0.0.1", 80, Scope::Mark(7)), service(RoundRobin, &[]));
    let errors = writer(memory()).apply(&both, Instant::now()).unwrap_err();
    assert!(matches!(errors[..], [ApplyError::SameFrontend { .. }]), "{errors:?}");
}

#[test]
fn what_cannot_be_served_as_meant_is_refused_and_named() {
    let good = service(RoundRobin, &[(1, 1)]);
    let persistent = |timeout, netmask| DesiredService {
        persistence: Some(Persistence { timeout, netmask }),
        ..service(RoundRobin, &[])
    };
    let limits = |upper, lower| {
        let mut service = service(RoundRobin, &[(1, 1)]);
        service.destinations[0].thresholds = Thresholds { upper, lower };
        service
    };
    let v6 = scoped("fd00::1", 80, WEB);
    for (frontend, wish, expected) in [
        (scoped("10.96.0.1", 80, Scope::Prefix(16)), good.clone(), "(TCP 10.96.0.1/16:80): 10.96.0.1/16 has bits set"),
        (scoped("0.0.0.0", 0, Scope::Mark(0)), good.clone(), "(FWM 0): firewall mark 0"),
        (v6, persistent(300, 0), "a persistence netmask of 0 bits: allowed are 1 to 128"),
        (frontend(1), persistent(300, 33), "a persistence netmask of 33 bits: allowed are 0 to 32"),
        (frontend(1), persistent(0, 32), "a persistence timeout of 0 s: allowed are 1 to 4294967"),
        (frontend(1), persistent(4_294_968, 32), "a persistence timeout of 4294968 s"),
        (frontend(1), limits(3, 4), "10.1.0.1:8080: its lower threshold 4 is above its upper one 3"),
        (frontend(1), limits(1 << 31, 4), "10.1.0.1:8080: its upper threshold 2147483648 is above 2147483647"),
        (frontend(1), DesiredService { one_packet: true, ..good.clone() }, "(ipvsadm -o) is for UDP"),
    ] {
        let mut plan = plan([(9, good.clone())]);
        plan.services.insert(frontend, wish);
        let mut writer = writer(memory());
        let errors = writer.apply(&plan, Instant::now()).unwrap_err();
        let [error @ ApplyError::Refused { .. }] = &errors[..] else { panic!("{errors:?}") };
        assert!(error.to_string().contains(expected), "{error}");
        assert_eq!(writer.services.len(), 1, "the other one is served");
    }
    // The edges are allowed.
    let widest = persistent(4_294_967, 0);
    let writer = applied([&services([(v6, persistent(1, 1)), (frontend(1), widest)])]);
    let entry = writer.store().service(&key(1)).unwrap();
    assert_eq!((entry.persistence_timeout, entry.persistence_prefix), (4_294_967_000, 96));
}

#[test]
fn an_edit_of_the_service_keeps_its_scheduler_where_it_is() {
    for scheduler in [RoundRobin, WeightedRoundRobin, LocalityLeastConnection] {
        let mut plan = one(scheduler, &[(1, 1), (2, 1)]);
        let mut writer = applied([&plan]);
        let word = SchedulerWord { version: 1, cursor: 1, current_weight: 1 };
        let current = writer.store().word(1).unwrap();
        writer.store_mut().exchange_word(1, current, word.pack()).unwrap().unwrap();
        let before = writer.store().service(&key(1)).unwrap();
        for timeout in [5, 6] {
            for service in plan.services.values_mut() {
                service.persistence = Some(Persistence { timeout, netmask: 32 });
            }
            writer.apply(&plan, Instant::now()).unwrap();
        }
        let after = writer.store().service(&key(1)).unwrap();
        assert_eq!((after.version, after.started), (3, 1));
        assert_eq!((after.set_base, after.table_base), (before.set_base, before.table_base));
        assert_eq!((after.persistence_timeout, after.persistence_prefix), (6000, 128));
        let word = SchedulerWord::unpack(writer.store().word(1).unwrap());
        assert_eq!((word.cursor, word.current_weight), (1, 1), "{scheduler:?}");
        // Without persistence nothing of it is left.
        writer.apply(&one(scheduler, &[(1, 1), (2, 1)]), Instant::now()).unwrap();
        let entry = writer.store().service(&key(1)).unwrap();
        assert_eq!(Service { version: before.version, ..entry }, before);
    }
}

#[test]
fn what_a_client_asked_for_is_not_the_name_of_a_service_that_takes_more() {
    for (frontend, _) in all() {
        let wish = services([(frontend, service(RoundRobin, &[(1, 1)]))]);
        let mut before = applied([&wish]);
        before.store_mut().load_mut(1).unwrap().connections = 1;
        before.apply(&Plan::default(), Instant::now()).unwrap();
        let mut after = writer(before.store().clone());
        assert!(after.has_unnamed());
        let named = after.name_removed([(1, key(1))]);
        assert_eq!(named, u32::from(frontend == super::frontend(1)), "{frontend:?}");
        after.apply(&one(RoundRobin, &[(1, 1)]), Instant::now()).unwrap();
        let id = after.store().service(&key(1)).unwrap().id;
        assert_eq!(id, if named == 1 { 1 } else { 2 });
    }
}

#[test]
fn a_server_may_have_the_port_that_the_client_asked_for() {
    let mut plan = services([(all()[2].0, service(RoundRobin, &[(1, 1)]))]);
    plan.services.values_mut().for_each(|service| service.destinations[0].port = 0);
    let writer = applied([&plan]);
    assert_eq!(outline(writer.store()).unwrap(), "FWM 7 rr (marked): 10.1.0.1:0 w1\n");
    let address: IpAddr = writer.store().destination(1).unwrap().address.into();
    assert_eq!(address, IpAddr::from([10, 1, 0, 1]));
}
