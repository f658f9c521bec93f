//! The real agent from start to cleanup, seen from the kernel's side. Needs the bpvs binary: `BPVS_BIN`, or built
//! beside this test.

use bpvs_tests::agent::{Agent, Footprint, Manifests, ServiceManifest, assert_clean, attached, check_clean};
use bpvs_tests::topology::Topology;

fn world() -> (Topology, Manifests) {
    let topology = Topology::builder().servers(2).build().unwrap();
    let mut service = ServiceManifest::new("web", &["10.96.0.1".parse().unwrap(), "fd00:96::1".parse().unwrap()])
        .port("TCP", 80, 8080)
        .port("UDP", 53, 5353)
        .port("SCTP", 9, 9)
        .scheduler("wlc");
    for server in &topology.servers {
        service = service.server(server.id, &[server.v4.into(), server.v6.into()], server.id.into());
    }
    let manifests = Manifests::new().unwrap();
    manifests.write("web.yaml", &service.yaml()).unwrap();
    (topology, manifests)
}

/// What must outlive the agent: maps hold the connections, links keep the programs in place.
fn lasting(footprint: Footprint) -> Footprint {
    Footprint { programs: Default::default(), ..footprint }
}

#[test]
fn hooks_and_maps_outlive_every_end_of_the_agent_and_cleanup_removes_all() {
    let (topology, manifests) = world();
    let node = &topology.node.namespace;
    let agent = Agent::builder(node).manifests(&manifests).start().unwrap();
    let hooks = attached(node).unwrap();
    for interface in topology.node_interfaces() {
        for direction in ["ingress", "egress"] {
            let ours = hooks.iter().filter(|hook| {
                let words: Vec<_> = hook.split(' ').collect();
                (words[0], words[2]) == (interface.as_str(), direction)
            });
            assert_eq!(ours.count(), 1, "{direction} of {interface} in {hooks:?}");
        }
    }
    let footprint = agent.footprint().unwrap();
    for end in [Agent::kill, Agent::stop] {
        end(&agent).unwrap();
        assert_eq!(attached(node).unwrap(), hooks);
        assert_eq!(lasting(agent.footprint().unwrap()), lasting(footprint.clone()));
        agent.start().unwrap();
        assert_eq!(attached(node).unwrap(), hooks);
        assert_eq!(lasting(agent.footprint().unwrap()), lasting(footprint.clone()));
    }
    check_clean(agent.pin_path(), node, &footprint).unwrap_err();
    agent.cleanup().unwrap();
    assert_eq!(attached(node).unwrap(), [""; 0]);
    assert!(!agent.pin_path().exists(), "the pin folder itself is ours too");
    // CU-2: nothing is left to remove, which is no error.
    agent.cleanup().unwrap();
}

#[test]
fn an_agent_that_is_dropped_while_it_runs_leaves_nothing() {
    let (topology, manifests) = world();
    let agent = Agent::builder(&topology.node.namespace).manifests(&manifests).start().unwrap();
    let (pins, footprint) = (agent.pin_path().to_owned(), agent.footprint().unwrap());
    assert!(!footprint.is_empty());
    drop(agent);
    assert_clean(&pins, &topology.node.namespace, &footprint);
}
