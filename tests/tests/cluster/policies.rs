//! Traffic policies, distribution, affinity and health checks, with what the API server allocates and the controllers hint.

use std::net::SocketAddr;
use std::time::Duration;

use bpvs_tests::http;
use bpvs_tests::traffic::Dial;
use serde_json::json;

use super::objects::service;
use super::{Cluster, dial, expect, until};

#[test]
#[ignore = "needs the programs of Kubernetes: BPVS_KUBERNETES_BIN"]
fn local_policies_and_their_health_checks_follow_the_pods_of_each_node() {
    let cluster = Cluster::new();
    let pods = [cluster.pod(0, 1, "web"), cluster.pod(1, 2, "web"), cluster.pod(1, 3, "web")];
    let object = service("web", "web", &json!({"type": "LoadBalancer", "externalTrafficPolicy": "Local"}));
    cluster.control.apply(&[object]).unwrap();
    let _agents = cluster.agents();
    let spec = cluster.service("web")["spec"].clone();
    let check = spec["healthCheckNodePort"].as_u64().unwrap() as u16;
    let node_port = spec["ports"][0]["nodePort"].as_u64().unwrap() as u16;
    let outside = &cluster.network.outside;
    let healthy = |node: usize| {
        let at = SocketAddr::new(cluster.network.nodes[node].host.addresses[0], check);
        http::get(&outside.namespace, at, "/")
            .ok()
            .map(|answer| (answer.status, answer.json()["localEndpoints"].as_u64()))
    };
    for (node, servers) in [(0, &[1][..]), (1, &[2, 3])] {
        for address in cluster.network.nodes[node].host.addresses {
            let to = SocketAddr::new(address, node_port);
            expect(&outside.namespace, to, servers);
            let held = Dial::new(&outside.namespace, to).open().unwrap();
            assert!(outside.addresses.contains(&held.seen_peer.ip()), "{to}: the server saw {}", held.seen_peer);
        }
        until("the health check counts", || healthy(node) == Some((200, Some(servers.len() as u64))));
    }
    cluster.readiness(&pods[0], "web", false);
    until("none is here", || healthy(0) == Some((503, Some(0))));
    let to = SocketAddr::new(cluster.network.nodes[0].host.addresses[0], node_port);
    let error =
        Dial::new(&outside.namespace, to).deadline(Duration::from_millis(300)).open().expect_err("none is here");
    assert!(!error.is_refused(), "{error}");
    cluster.readiness(&pods[0], "web", true);
    expect(&outside.namespace, to, &[1]);

    cluster.patch("web", &json!({"spec": {"externalTrafficPolicy": "Cluster", "internalTrafficPolicy": "Local"}}));
    expect(&outside.namespace, to, &[1, 2, 3]);
    until("there is no health check", || healthy(0).is_none());
    for to in cluster.at("web", 80) {
        expect(&pods[0].namespace, to, &[1]);
        expect(&cluster.network.nodes[1].host.namespace, to, &[2, 3]);
    }
    cluster.within_its_role();
}

#[test]
#[ignore = "needs the programs of Kubernetes: BPVS_KUBERNETES_BIN"]
fn traffic_stays_in_the_zone_or_on_the_node_that_the_controller_hints() {
    let cluster = Cluster::new();
    let pods = [cluster.pod(0, 1, "web"), cluster.pod(1, 2, "web"), cluster.pod(1, 3, "web")];
    cluster.control.apply(&[service("web", "web", &json!({}))]).unwrap();
    let _agents = cluster.agents();
    let frontends = cluster.at("web", 80);
    let expect_all = |on_a: &[u16], on_b: &[u16]| {
        for to in &frontends {
            expect(&pods[0].namespace, *to, on_a);
            expect(&cluster.network.nodes[1].host.namespace, *to, on_b);
        }
    };
    expect_all(&[1, 2, 3], &[1, 2, 3]);
    for distribution in ["PreferSameZone", "PreferSameNode", "PreferClose"] {
        cluster.patch("web", &json!({"spec": {"trafficDistribution": distribution}}));
        expect_all(&[1], &[2, 3]);
        // The one here is gone: whoever there is.
        cluster.readiness(&pods[0], "web", false);
        expect_all(&[2, 3], &[2, 3]);
        cluster.readiness(&pods[0], "web", true);
        expect_all(&[1], &[2, 3]);
        cluster.patch("web", &json!({"spec": {"trafficDistribution": null}}));
        expect_all(&[1, 2, 3], &[1, 2, 3]);
    }
    // The node gets another zone while the agent runs; the controller hints anew.
    cluster.patch("web", &json!({"spec": {"trafficDistribution": "PreferSameZone"}}));
    expect_all(&[1], &[2, 3]);
    let label = "topology.kubernetes.io/zone=zone-1";
    cluster.control.kubectl(&["label", "node", "node-b", label, "--overwrite"]).unwrap();
    // Hints are made when slices are; the zone of an endpoint is that of its node then.
    for pod in &pods[1..] {
        cluster.readiness(pod, "web", false);
        cluster.readiness(pod, "web", true);
    }
    expect_all(&[1, 2, 3], &[1, 2, 3]);
    cluster.within_its_role();
}

#[test]
#[ignore = "needs the programs of Kubernetes: BPVS_KUBERNETES_BIN"]
fn a_client_with_affinity_keeps_its_server_and_source_ranges_close_a_load_balancer() {
    let cluster = Cluster::new();
    let _pods = [cluster.pod(0, 1, "web"), cluster.pod(1, 2, "web"), cluster.pod(1, 3, "web")];
    let client = cluster.pod(0, 9, "client");
    let fields = json!({"type": "LoadBalancer", "sessionAffinity": "ClientIP",
                        "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 2}},
                        "loadBalancerSourceRanges": ["10.1.0.0/16"]});
    cluster.control.apply(&[service("web", "web", &fields)]).unwrap();
    let mut object = cluster.service("web");
    object["status"]["loadBalancer"] = json!({"ingress": [{"ip": "198.51.100.1"}]});
    cluster.control.state(&[object]).unwrap();
    let _agents = cluster.agents();
    let [from, outside] = [&client.namespace, &cluster.network.outside.namespace];
    for to in cluster.at("web", 80) {
        let server = dial(from, to).unwrap().unwrap();
        for _ in 0..20 {
            assert_eq!(dial(from, to), Ok(Some(server)));
        }
    }
    let balancer: SocketAddr = "198.51.100.1:80".parse().unwrap();
    assert!(dial(from, balancer).unwrap().is_some());
    let closed = |deadline| Dial::new(outside, balancer).deadline(deadline).open().is_err();
    assert!(closed(Duration::from_millis(300)));
    cluster.patch("web", &json!({"spec": {"loadBalancerSourceRanges": ["10.1.0.0/16", "10.9.0.0/24"]}}));
    until("the host outside is let in", || !closed(Duration::from_millis(300)));
    cluster.patch("web", &json!({"spec": {"sessionAffinity": "None", "sessionAffinityConfig": null}}));
    for to in cluster.at("web", 80) {
        expect(from, to, &[1, 2, 3]);
    }
    cluster.within_its_role();
}
