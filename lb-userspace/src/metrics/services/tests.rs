//! Services programmed into maps in memory, as text.

use std::net::IpAddr;
use std::time::Instant;

use lb_common::address::Protocol;
use lb_common::layout::DestinationLoad;
use lb_common::scheduler::Scheduler;
use prometheus::TextEncoder;

use super::*;
use crate::datapath::store::memory::MemoryStore;
use crate::datapath::{Capacity, Limits, Writer};
use crate::plan::{DesiredDestination, DesiredService, Frontend, Plan};

const CAPACITY: Capacity =
    Capacity { services: 16, prefixes: 8, networks: 32, service_ids: 33, destinations: 257, slots: 8192 };

/// Services of 10.96.0.x and demo/<name>:80, each with destinations 10.1.0.y.
fn plan(services: &[(u8, &str, &[u8])]) -> Plan {
    let mut plan = Plan::default();
    for (address, name, destinations) in services {
        let destination = |last: &u8| DesiredDestination::new(IpAddr::from([10, 1, 0, *last]), 8080, 3);
        let service = DesiredService::new(
            format!("demo/{name}:80"),
            Scheduler::RoundRobin,
            destinations.iter().map(destination).collect(),
        );
        let frontend = Frontend::new(IpAddr::from([10, 96, 0, *address]), 80, Protocol::Tcp);
        plan.services.insert(frontend, service);
    }
    plan
}

/// What states what.
fn holders(plan: &Plan) -> Holders {
    plan.services.iter().map(|(frontend, service)| (*frontend, service.clone())).collect()
}

fn text(store: &MemoryStore, names: &Holders, limit: usize) -> String {
    let existing = Existing::read(store).unwrap();
    TextEncoder::new().encode_to_string(&families(store, &existing, names, limit).unwrap()).unwrap()
}

/// The values of the lines that begin so.
fn values<'a>(text: &'a str, name: &str) -> Vec<&'a str> {
    text.lines().filter_map(|line| line.strip_prefix(name)).filter(|rest| rest.starts_with(['{', ' '])).collect()
}

#[test]
fn a_service_counts_what_removed_servers_had_and_shows_those_that_it_has() {
    let mut writer = Writer::restore(MemoryStore::new(CAPACITY), Limits::of(CAPACITY)).unwrap();
    let both = plan(&[(1, "web", &[1, 2])]);
    writer.apply(&both, Instant::now()).unwrap();
    for id in [1, 2] {
        let counts = Traffic { connections: 5, in_packets: 10, out_packets: 20, in_bytes: 1000, out_bytes: 2000 };
        *writer.store_mut().traffic_mut(id).unwrap() = counts;
        writer.store_mut().load_mut(id).unwrap().connections =
            2 * DestinationLoad::ONE_ACTIVE + 3 * DestinationLoad::ONE_INACTIVE;
    }
    let one = plan(&[(1, "web", &[2])]);
    writer.apply(&one, Instant::now()).unwrap();
    let text = text(writer.store(), &holders(&one), 100);
    let service = r#"{origin="demo/web:80",frontend="TCP 10.96.0.1:80"}"#;
    let directed = |value: [u32; 2]| {
        ["in", "out"]
            .into_iter()
            .zip(value)
            .map(|(direction, value)| {
                format!(r#"{{origin="demo/web:80",frontend="TCP 10.96.0.1:80",direction="{direction}"}} {value}"#)
            })
            .collect::<Vec<_>>()
    };
    assert_eq!(values(&text, "bpvs_service_connections_total"), [format!("{service} 10")]);
    assert_eq!(values(&text, "bpvs_service_packets_total"), directed([20, 40]));
    assert_eq!(values(&text, "bpvs_service_bytes_total"), directed([2000, 4000]));
    assert_eq!(values(&text, "bpvs_service_active_connections"), [format!("{service} 4")]);
    assert_eq!(values(&text, "bpvs_service_inactive_connections"), [format!("{service} 6")]);
    let destination = r#"{origin="demo/web:80",frontend="TCP 10.96.0.1:80",destination="10.1.0.2:8080"}"#;
    assert_eq!(values(&text, "bpvs_destination_connections_total"), [format!("{destination} 5")]);
    assert_eq!(values(&text, "bpvs_destination_active_connections"), [format!("{destination} 2")]);
    assert_eq!(values(&text, "bpvs_destination_weight"), [format!("{destination} 3")]);
    assert_eq!(values(&text, "bpvs_destination_packets_total").len(), 2);
}

#[test]
fn over_the_limit_whole_services_are_left_out_always_the_same_and_counted() {
    let mut writer = Writer::restore(MemoryStore::new(CAPACITY), Limits::of(CAPACITY)).unwrap();
    let plan = plan(&[(4, "d", &[1]), (2, "b", &[1, 2, 3]), (1, "a", &[1, 2]), (3, "c", &[])]);
    writer.apply(&plan, Instant::now()).unwrap();
    for (limit, shown, left_out) in [
        (0, &[][..], [4, 6]),
        (2, &["c"], [3, 6]),
        (3, &["a"], [3, 4]),
        // b needs 4 places and has 3: c and d take theirs.
        (6, &["a", "c", "d"], [1, 3]),
        (9, &["a", "b", "c"], [1, 1]),
        (10, &["a", "b", "c", "d"], [0, 0]),
    ] {
        let text = text(writer.store(), &holders(&plan), limit);
        let names: Vec<_> = values(&text, "bpvs_service_connections_total")
            .iter()
            .map(|line| line.split_once(":80").unwrap().0.trim_start_matches("{origin=\"demo/"))
            .collect();
        assert_eq!(names, shown, "{limit}");
        let kinds = [("service", left_out[0]), ("destination", left_out[1])]
            .map(|(kind, count)| format!(r#"{{kind="{kind}"}} {count}"#));
        assert_eq!(values(&text, "bpvs_scrape_left_out"), kinds, "{limit}");
        let lines = names.len() + values(&text, "bpvs_destination_weight").len();
        assert!(lines <= limit, "{limit}: {lines} services and destinations");
    }
}

#[test]
fn names_that_end_a_line_or_a_label_do_neither() {
    let mut writer = Writer::restore(MemoryStore::new(CAPACITY), Limits::of(CAPACITY)).unwrap();
    let mut plan = plan(&[(1, "a", &[1])]);
    writer.apply(&plan, Instant::now()).unwrap();
    for service in plan.services.values_mut() {
        service.origin = "rules\"} 7\nevil\\:1".to_owned();
    }
    let text = text(writer.store(), &holders(&plan), 100);
    assert_eq!(
        values(&text, "bpvs_service_connections_total"),
        [r#"{origin="rules\"} 7\nevil\\:1",frontend="TCP 10.96.0.1:80"} 0"#]
    );
    // A service that no plan states any more is shown without a name.
    let text = self::text(writer.store(), &Holders::new(), 100);
    assert_eq!(values(&text, "bpvs_service_connections_total"), [r#"{origin="",frontend="TCP 10.96.0.1:80"} 0"#]);
}
