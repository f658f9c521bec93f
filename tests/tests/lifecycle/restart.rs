//! The agent ends in every way and comes back, under load; and what it finds again.

use std::collections::BTreeMap;
use std::process::Command;
use std::time::Duration;

use bpvs_tests::agent::{Agent, Listing};
use bpvs_tests::namespace::run;
use bpvs_tests::topology::Topology;
use bpvs_tests::traffic::Dial;
use bpvs_tests::world::{TCP, World, frontends};

use crate::load::Load;

type End = fn(&Agent<'_>) -> anyhow::Result<()>;
const ENDS: [(End, &str); 2] = [(|agent| agent.kill(), "SIGKILL"), (|agent| agent.stop(), "SIGTERM")];

#[test]
fn no_end_of_the_agent_disturbs_traffic() {
    let world = World::new(Topology::builder().build().unwrap()).unwrap();
    world.publish("web", &world.service("web", 1)).unwrap();
    let agent = world.agent().unwrap();
    let load = Load::start(&world, 1);
    load.alive("at the start");
    for (end, how) in ENDS {
        end(&agent).unwrap();
        load.alive(&format!("after {how}"));
        agent.start().unwrap();
        load.alive(&format!("after the restart from {how}"));
    }
    // Killed at any moment between its first step and its last. How far it came is measured in connections of others:
    // time that is shared with the machine's other work would always stop it in the same step.
    for round in 0..20 {
        agent.kill().unwrap();
        agent.launch().unwrap();
        load.hammers[0].1.advance(round, Duration::from_secs(10)).unwrap();
    }
    load.alive("after 20 restarts");
    agent.kill().unwrap();
    agent.start().unwrap();
    load.alive("at the end");
    load.finish();
    agent.cleanup().unwrap();
}

/// Service ids by their keys, as bpftool prints them.
fn ids(agent: &Agent<'_>) -> BTreeMap<String, u64> {
    let path = agent.pin_path().join("services");
    let output = run(Command::new("bpftool").args(["-j", "map", "dump", "pinned"]).arg(path)).unwrap();
    let entries: Vec<serde_json::Value> = serde_json::from_slice(&output.stdout).unwrap();
    let id = |entry: &serde_json::Value| {
        let formatted = &entry["formatted"];
        (formatted["key"].to_string(), formatted["value"]["id"].as_u64().expect("services have an id"))
    };
    entries.iter().map(id).collect()
}

#[test]
fn ids_cursors_and_counts_survive() {
    let world = World::new(Topology::builder().build().unwrap()).unwrap();
    for (number, scheduler) in [(1, "rr"), (2, "wrr"), (3, "lc")] {
        world.publish(scheduler, &world.service(scheduler, number).scheduler(scheduler)).unwrap();
    }
    let agent = world.agent().unwrap();
    let mut held: BTreeMap<u16, Vec<_>> = BTreeMap::new();
    let mut open = |number: u16| {
        for (index, to) in (0..).zip([frontends(number, TCP)[0]; 4]) {
            let (who, client) = world.clients()[index % 3];
            let connection = Dial::new(&client.namespace, to).open();
            held.entry(number).or_default().push(connection.unwrap_or_else(|error| panic!("{who} to {to}: {error}")));
        }
    };
    (1..=3).for_each(&mut open);
    for (end, _) in ENDS {
        let (list, ids_before) = (Listing::read(&agent).unwrap(), ids(&agent));
        assert_eq!(ids_before.len(), 12);
        end(&agent).unwrap();
        assert_eq!(Listing::read(&agent).unwrap(), list, "without an agent");
        agent.start().unwrap();
        assert_eq!(Listing::read(&agent).unwrap(), list, "after the restart");
        assert_eq!(ids(&agent), ids_before);
        (1..=3).for_each(&mut open);
    }
    let servers = |number| held[&number].iter().map(|held| held.server).collect::<Vec<_>>();
    assert_eq!(servers(1), [5, 4, 3, 2, 1, 5, 4, 3, 2, 1, 5, 4], "rr goes on where it was");
    assert_eq!(servers(2), wrr(), "wrr goes on where it was");
    assert_eq!(servers(3), [5, 4, 3, 2, 1, 5, 4, 3, 2, 1, 5, 4], "lc still knows what is open");
}

/// What wrr answers without any restart.
fn wrr() -> Vec<u16> {
    let mut director = bpvs_tests::model::Director::new("wrr", Default::default()).unwrap();
    for id in 1..=5 {
        director.add(id, std::net::IpAddr::from([10, 1, 1, id as u8]), 8080, id as i32).unwrap();
    }
    let address = std::net::IpAddr::from([10, 1, 2, 1]);
    let packet = bpvs_tests::model::Packet { client: address, client_port: 1, destination: address };
    (0..12).map(|_| director.pick(packet, 0).unwrap() as u16).collect()
}
