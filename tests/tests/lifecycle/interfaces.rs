//! Pods that come and go while the agent runs.

use std::time::{Duration, Instant};

use bpvs_tests::agent::attached;
use bpvs_tests::topology::Topology;
use bpvs_tests::traffic::Dial;
use bpvs_tests::world::{CHANGE, TCP, World, frontends, wait_for};

#[test]
fn a_new_pod_is_served_within_a_second_and_a_gone_one_leaves_no_pin() {
    let world = World::new(Topology::builder().servers(2).build().unwrap()).unwrap();
    world.publish("web", &world.service("web", 1)).unwrap();
    let agent = world.agent().unwrap();
    let node = &world.topology.node.namespace;
    let links = agent.pin_path().join("links");
    // By the same name again: another interface with another index.
    for round in 0..3 {
        let pod = world.topology.new_client(9).unwrap();
        let begin = Instant::now();
        for to in frontends(1, TCP) {
            // Not to wait for the second SYN of an attempt that came too early.
            let dial = || Ok(Dial::new(&pod.namespace, to).deadline(Duration::from_millis(50)).open().ok());
            let held = wait_for("answer", CHANGE, dial, || agent.log().text(0)).unwrap();
            held.close().unwrap();
        }
        let took = begin.elapsed();
        assert!(took < Duration::from_secs(1), "round {round}: served after {took:?}");
        drop(pod);
        let pins = || -> Vec<String> {
            let names = std::fs::read_dir(&links).unwrap().map(|entry| entry.unwrap().file_name());
            names.map(|name| name.to_string_lossy().into_owned()).filter(|name| name.contains("-c9-")).collect()
        };
        let gone = || Ok(pins().is_empty().then_some(()));
        wait_for("end of the pod's pins", CHANGE, gone, || format!("{}\n{}", pins().join("\n"), agent.log().text(0)))
            .unwrap();
        assert!(attached(node).unwrap().iter().all(|hook| !hook.starts_with("c9 ")));
    }
    agent.cleanup().unwrap();
}
