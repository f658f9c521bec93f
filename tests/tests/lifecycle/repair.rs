//! Maps that somebody else changes while the agent runs (SY-6).

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use bpvs_tests::agent::Agent;
use bpvs_tests::topology::Topology;
use bpvs_tests::traffic::Dial;
use bpvs_tests::world::{CHANGE, TCP, World, frontends, wait_for};
use serde_json::Value;

fn bpftool(arguments: &[&str]) -> Result<String> {
    let output = Command::new("bpftool").args(arguments).output();
    let output = output.context("running bpftool: install it with `cargo xtask setup`, or as package `bpftool`")?;
    ensure!(output.status.success(), "bpftool {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8(output.stdout)?)
}

/// Deletes all that is in a map. How many entries that was.
fn empty(map: &Path) -> Result<usize> {
    let map = map.to_str().context("a path in UTF-8")?;
    let entries: Vec<Value> = serde_json::from_str(&bpftool(&["-j", "map", "dump", "pinned", map])?)?;
    for entry in &entries {
        let bytes = entry["key"].as_array().context("a key in bytes")?;
        let bytes: Vec<&str> = bytes.iter().filter_map(Value::as_str).collect();
        let delete = ["map", "delete", "pinned", map, "key", "hex"].into_iter();
        let bytes = bytes.iter().map(|byte| byte.trim_start_matches("0x"));
        bpftool(&delete.chain(bytes).collect::<Vec<_>>())?;
    }
    Ok(entries.len())
}

#[test]
fn what_somebody_deletes_from_the_maps_is_told_of_and_written_again() {
    let world = World::new(Topology::builder().servers(2).build().unwrap()).unwrap();
    world.publish("web", &world.service("web", 1)).unwrap();
    let builder = Agent::builder(&world.topology.node.namespace).manifests(&world.manifests);
    // A look rests as long as it takes, many times: small maps.
    let arguments = ["--check-interval=100ms", "--max-destinations=100", "--max-services=100"];
    let agent = arguments.iter().fold(builder, |builder, argument| builder.argument(*argument)).start().unwrap();
    let dial = || frontends(1, TCP).map(|to| Dial::new(&world.topology.clients[0].namespace, to).open());
    let held: Vec<_> = dial().into_iter().map(Result::unwrap).collect();
    let told = || agent.log().text(0).lines().filter(|line| line.contains("somebody else has changed them")).count();
    for round in 1..=2 {
        assert!(empty(&agent.pin_path().join("services")).unwrap() >= 4, "TCP and UDP of both families");
        let repaired = || Ok((told() == round && dial().iter().all(Result::is_ok)).then_some(()));
        wait_for("repair", CHANGE, repaired, || agent.log().text(0)).unwrap();
    }
    assert!(agent.log().text(0).contains("map `services`: TCP 10.96.0.1:80 is gone"), "{}", agent.log().text(0));
    // Open connections went on, and what is as it was written is not told of.
    for connection in held {
        connection.close().unwrap();
    }
    std::thread::sleep(std::time::Duration::from_millis(500));
    assert_eq!(told(), 2);
}
