//! What a scrape says of traffic is what `bpvs list --stats` says, and what was sent.

use std::net::SocketAddr;

use bpvs_tests::agent::Listing;
use bpvs_tests::exposition::Families;
use bpvs_tests::topology::Topology;
use bpvs_tests::traffic::{DEADLINE, Dial, UdpClient};
use bpvs_tests::world::{CHANGE, TCP, UDP, World, frontends, wait_for, wait_listed};
use serde_json::Value;

use super::{agent, scrape, value};

/// Labels of a service of the Service `demo/web`.
fn labels(protocol: &str, frontend: SocketAddr) -> [(String, String); 2] {
    let origin = format!("demo/web:{}-{}", protocol.to_lowercase(), frontend.port());
    [("origin".to_owned(), origin), ("frontend".to_owned(), format!("{protocol} {frontend}"))]
}

/// Connections, packets in and out, bytes in and out, active, inactive.
fn measured(families: &Families, of: &str, labels: &[(&str, &str)]) -> [u64; 7] {
    let one = |name: &str, labels: &[(&str, &str)]| value(families, &format!("bpvs_{of}_{name}"), labels) as u64;
    let directed = |name, direction| one(name, &[labels, &[("direction", direction)]].concat());
    [
        one("connections_total", labels),
        directed("packets_total", "in"),
        directed("packets_total", "out"),
        directed("bytes_total", "in"),
        directed("bytes_total", "out"),
        one("active_connections", labels),
        one("inactive_connections", labels),
    ]
}

/// Compares a scrape with a listing; how many destinations there were.
fn compare(families: &Families, listing: &Listing) -> usize {
    let mut destinations = 0;
    for service in &listing.services {
        let of_service = labels(&service.protocol, service.address);
        let of_service: Vec<_> = of_service.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        let mut sum = [0; 7];
        for server in &service.servers {
            let mut expected = [0; 7];
            expected[..5].copy_from_slice(&server.traffic);
            [expected[5], expected[6]] = [server.active, server.inactive];
            let destination = server.address.to_string();
            let of_destination = [&of_service[..], &[("destination", destination.as_str())]].concat();
            assert_eq!(measured(families, "destination", &of_destination), expected, "{of_destination:?}");
            assert_eq!(value(families, "bpvs_destination_weight", &of_destination), server.weight as f64);
            sum.iter_mut().zip(expected).for_each(|(sum, value)| *sum += value);
            destinations += 1;
        }
        assert_eq!(measured(families, "service", &of_service), sum, "{of_service:?}");
    }
    assert_eq!(families["bpvs_service_connections_total"].values.len(), listing.services.len());
    assert_eq!(families["bpvs_destination_weight"].values.len(), destinations);
    destinations
}

#[test]
fn a_scrape_and_a_listing_say_the_same_of_traffic() {
    let world = World::new(Topology::builder().servers(3).build().unwrap()).unwrap();
    world.publish("web", &world.service("web", 1)).unwrap();
    let agent = agent(&world, &[]);
    let client = &world.topology.clients[0].namespace;
    let mut open = Vec::new();
    for to in frontends(1, TCP) {
        for _ in 0..6 {
            let mut held = Dial::new(client, to).open().unwrap();
            held.exchange(&[7; 3000]).unwrap();
            open.push(held);
        }
        Dial::new(client, to).open().unwrap().close().unwrap();
    }
    let datagrams: Vec<_> = frontends(1, UDP)
        .into_iter()
        .map(|to| {
            let udp = UdpClient::connected(client, None, to).unwrap();
            udp.request(100, DEADLINE).unwrap();
            udp
        })
        .collect();
    // Packets of the closed connections may be under way still.
    let same = || {
        let (before, families, after) = (Listing::read(&agent)?, scrape(&world), Listing::read(&agent)?);
        Ok((before == after).then_some((families, after)))
    };
    let (families, listing) = wait_for("moment of rest", CHANGE, same, || agent.log().text(0)).unwrap();
    assert_eq!(compare(&families, &listing), 4 * 3);
    let sent: u64 = listing.services.iter().flat_map(|service| &service.servers).map(|server| server.traffic[0]).sum();
    assert_eq!(sent, 2 * 7 + 2);
    drop((open, datagrams));

    // A server that goes takes its lines with it; the service keeps what it had.
    let gone = listing.services[0].servers.iter().map(|server| server.traffic[0]).sum::<u64>();
    let of_service = labels(&listing.services[0].protocol, listing.services[0].address);
    world.publish("web", &world.service("web", 1).without(1)).unwrap();
    wait_listed(&agent, "two servers", |list| list.services.iter().all(|service| service.servers.len() == 2)).unwrap();
    let families = scrape(&world);
    let of_service: Vec<_> = of_service.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    assert_eq!(value(&families, "bpvs_service_connections_total", &of_service) as u64, gone);
    assert_eq!(families["bpvs_destination_weight"].values.len(), 4 * 2);
}

#[test]
fn refusals_sweeps_and_maps_are_shown() {
    let world = World::new(Topology::builder().servers(1).build().unwrap()).unwrap();
    world.publish("web", &world.service("web", 1)).unwrap();
    world.publish("empty", &world.empty_service("empty", 2)).unwrap();
    let agent = agent(&world, &["--recount-interval=100ms"]);
    let client = &world.topology.clients[0].namespace;
    let before = scrape(&world);
    let dropped = |families: &Families, reason| value(families, "bpvs_dropped_packets_total", &[("reason", reason)]);
    assert_eq!(dropped(&before, "no-destination"), 0.0);
    for _ in 0..3 {
        assert!(Dial::new(client, frontends(2, TCP)[0]).open().unwrap_err().is_refused());
    }
    let held = Dial::new(client, frontends(1, TCP)[0]).open().unwrap();
    let grow = ["bpvs_recounts_total", "bpvs_sweep_duration_seconds"];
    // A sweep is counted when it has ended, what it counts while it runs.
    let swept = || {
        Ok(Some(scrape(&world)).filter(|now| {
            value(now, "bpvs_map_entries", &[("map", "connections")]) == 2.0
                && grow.iter().all(|name| value(now, name, &[]) > value(&before, name, &[]))
        }))
    };
    let after = wait_for("sweep that saw the connection", CHANGE, swept, || agent.log().text(0)).unwrap();
    assert_eq!(dropped(&after, "no-destination"), 3.0);
    assert_eq!(after["bpvs_dropped_packets_total"].values.len(), lb_common::drops::Drop::ALL.len());
    for stays in ["bpvs_recount_corrections_total", "bpvs_sweep_orphans_total", "bpvs_scrape_errors_total"] {
        assert_eq!(value(&after, stays, &[]), 0.0, "{stays}");
    }
    let interfaces = agent
        .log()
        .text(0)
        .lines()
        .filter_map(|line| line.split_once("ready: "))
        .next()
        .map(|(_, rest)| rest.split(", ").nth(1).unwrap().split(' ').next().unwrap().parse::<f64>().unwrap());
    assert_eq!(Some(value(&after, "bpvs_interfaces", &[])), interfaces);

    let maps: Value = serde_json::from_str(&agent.command(&["maps", "-o", "json"]).unwrap()).unwrap();
    let mut compared = 0;
    for (labels, entries) in &after["bpvs_map_entries"].values {
        let map = maps["maps"].as_array().unwrap().iter().find(|map| map["name"] == labels["map"]).unwrap();
        assert_eq!(map["used_entries"].as_f64(), Some(*entries), "{labels:?}");
        let size = after["bpvs_map_max_entries"].values[labels];
        assert_eq!(map["max_entries"].as_f64(), Some(size), "{labels:?}");
        compared += 1;
    }
    assert_eq!(compared, 7);
    held.close().unwrap();
}

#[test]
fn no_more_lines_are_shown_than_were_asked_for() {
    let world = World::new(Topology::builder().servers(2).build().unwrap()).unwrap();
    for number in 1..=3 {
        world.publish(&format!("web-{number}"), &world.service(&format!("web-{number}"), number)).unwrap();
    }
    // Each of the Services has four frontends, of two servers each.
    let _agent = agent(&world, &["--metrics-limit=10"]);
    let families = scrape(&world);
    assert_eq!(families["bpvs_service_connections_total"].values.len(), 3);
    assert_eq!(families["bpvs_destination_connections_total"].values.len(), 6);
    let left_out = |kind| value(&families, "bpvs_scrape_left_out", &[("kind", kind)]);
    assert_eq!((left_out("service"), left_out("destination")), (9.0, 18.0));
}
