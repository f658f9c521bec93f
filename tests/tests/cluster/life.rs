//! The API server's life and the agent's: first starts, restarts, outages, other tokens and certificates.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use bpvs_tests::control_plane::KUBERNETES;
use bpvs_tests::http;
use serde_json::{Value, json};

use super::objects::service;
use super::{Cluster, expect, hammer, until};

/// Longest time until an agent is back at an API server: its delays go up to 30 s, and it looks at its token every minute.
const BACK: Duration = Duration::from_secs(150);

fn events(cluster: &Cluster, reason: &str) -> Vec<Value> {
    let all = cluster.control.get(&["--all-namespaces", "events.events.k8s.io"]).unwrap();
    let items = all["items"].as_array().unwrap();
    items.iter().filter(|event| event["reason"] == reason && event["reportingController"] == "bpvs").cloned().collect()
}

#[test]
#[ignore = "needs the programs of Kubernetes: BPVS_KUBERNETES_BIN"]
fn a_node_starts_by_the_servers_own_address_and_starts_again_by_the_service_kubernetes() {
    let cluster = Cluster::new();
    let _pods = [cluster.pod(0, 1, "web"), cluster.pod(1, 2, "web")];
    let client = cluster.pod(0, 9, "client");
    cluster.control.apply(&[service("web", "web", &json!({}))]).unwrap();
    let frontends = cluster.at("web", 80);
    let agent = cluster.agent(0);
    agent.start().unwrap();
    for to in &frontends {
        expect(&client.namespace, *to, &[1, 2]);
    }
    let log = agent.log().text(0);
    let worth_a_word = |line: &&str| line.contains("WARN") && !line.contains("oomScoreAdj -999: cannot write");
    assert_eq!(log.lines().find(worth_a_word), None);
    until("the start is told", || !events(&cluster, "Starting").is_empty());
    let told = events(&cluster, "Starting").remove(0);
    assert_eq!((&told["metadata"]["namespace"], &told["regarding"]["name"]), (&json!("default"), &json!("node-a")));
    // What `kubectl describe node` shows.
    let described = cluster.control.kubectl(&["describe", "node", "node-a"]).unwrap();
    assert!(described.lines().any(|line| line.contains("Starting") && line.contains("bpvs")), "{described}");

    // After a restart of the agent the Service's address is all it is told, and nobody else serves that here.
    agent.kill().unwrap();
    cluster.kubeconfig(0, KUBERNETES);
    let third = cluster.pod(1, 3, "web");
    agent.start().unwrap();
    for to in &frontends {
        expect(&client.namespace, *to, &[1, 2, 3]);
    }
    cluster.readiness(&third, "web", false);
    for to in &frontends {
        expect(&client.namespace, *to, &[1, 2]);
    }
    until("another start is told", || events(&cluster, "Starting").len() == 2);
    let log = agent.log().text(0);
    assert_eq!(log.lines().find(worth_a_word), None);
    cluster.within_its_role();
}

#[test]
#[ignore = "needs the programs of Kubernetes: BPVS_KUBERNETES_BIN"]
fn what_nobody_can_listen_on_is_told_of_by_events_that_the_api_server_takes() {
    let cluster = Cluster::new();
    let namespace = &cluster.network.nodes[0].host.namespace;
    let object = service("web", "web", &json!({"type": "LoadBalancer", "externalTrafficPolicy": "Local"}));
    cluster.control.apply(&[object]).unwrap();
    let check = cluster.service("web")["spec"]["healthCheckNodePort"].as_u64().unwrap() as u16;
    let taken = [check, 10_256, 10_249];
    let _taken = taken.map(|port| namespace.enter(|| std::net::TcpListener::bind(("0.0.0.0", port)).unwrap()));
    let agent = cluster.agent(0);
    agent.start().unwrap();
    for (reason, kind) in [
        ("FailedToStartServiceHealthcheck", "Service"),
        ("FailedToStartProxierHealthcheck", "Node"),
        ("FailedToStartMetricServer", "Node"),
    ] {
        until(reason, || !events(&cluster, reason).is_empty());
        let told = events(&cluster, reason).remove(0);
        assert_eq!((&told["type"], &told["regarding"]["kind"]), (&json!("Warning"), &json!(kind)), "{told}");
    }
    assert!(!agent.log().text(0).contains("the API server takes no Event"), "{}", agent.log().text(0));
    cluster.within_its_role();
}

#[test]
#[ignore = "needs the programs of Kubernetes: BPVS_KUBERNETES_BIN"]
fn an_api_server_that_dies_and_comes_back_with_another_authority_is_followed_with_another_token() {
    let cluster = Cluster::new();
    let _pods = [cluster.pod(0, 1, "web"), cluster.pod(1, 2, "web")];
    let client = cluster.pod(0, 9, "client");
    cluster.control.apply(&[service("web", "web", &json!({}))]).unwrap();
    // A token that ends with a Secret, as that of a pod ends with the pod.
    let secret = |name: &str| {
        json!({"apiVersion": "v1", "kind": "Secret",
                                     "metadata": {"name": name, "namespace": "kube-system"}})
    };
    cluster.control.apply(&[secret("first"), secret("second")]).unwrap();
    cluster.token(&["--bound-object-kind=Secret", "--bound-object-name=first"]);
    cluster.control.apply(&[service("gone", "web", &json!({}))]).unwrap();
    let [frontends, gone] = ["web", "gone"].map(|name| cluster.at(name, 80));
    let agents = cluster.agents();
    for to in &gone {
        expect(&client.namespace, *to, &[1, 2]);
    }
    let follow = |servers: &[u16]| {
        for to in &frontends {
            expect(&client.namespace, *to, servers);
        }
    };
    follow(&[1, 2]);
    let hammer = hammer(&client.namespace, frontends[0]);
    let readyz = |node: usize| {
        let at = "127.0.0.1:10256".parse().unwrap();
        http::get(&cluster.network.nodes[node].host.namespace, at, "/readyz").unwrap().status
    };

    // Away for a while: what was told holds, and the node is as well as it was.
    cluster.control.kill_api_server();
    std::thread::sleep(Duration::from_secs(3));
    follow(&[1, 2]);
    assert_eq!([readyz(0), readyz(1)], [200, 200]);
    cluster.control.start_api_server().unwrap();
    // Before the agents are back: no event tells them of it, and a list lacks it.
    cluster.control.kubectl(&["-n", "demo", "delete", "service", "gone"]).unwrap();
    for to in &gone {
        until(&format!("{to} is not served"), || !matches!(super::dial(&client.namespace, *to), Ok(Some(_))));
    }
    let changed = |app: &str, servers: &[u16]| {
        cluster
            .control
            .kubectl(&["-n", "demo", "label", "pod", "pod-2", "--overwrite", &format!("app={app}")])
            .unwrap();
        let begin = Instant::now();
        let all = || {
            frontends.iter().all(|to| {
                let held: Vec<_> = (0..6).map(|_| super::open(&client.namespace, *to)).collect();
                let seen: BTreeSet<u16> =
                    held.iter().filter_map(|answer| super::server(answer.as_ref().ok()?)).collect();
                seen.iter().eq(servers)
            })
        };
        while !all() {
            let logs = agents.each_ref().map(|agent| agent.log().text(0)).join("\n");
            assert!(begin.elapsed() < BACK, "{servers:?} are not served; logs:\n{logs}");
            std::thread::sleep(Duration::from_millis(50));
        }
        eprintln!("followed {:?} after the change", begin.elapsed());
    };
    changed("none", &[1]);

    // Another authority, and a token beside the old one, which is not good any more.
    cluster.token(&["--bound-object-kind=Secret", "--bound-object-name=second"]);
    cluster.control.kubectl(&["-n", "kube-system", "delete", "secret", "first"]).unwrap();
    cluster.control.replace_authority().unwrap();
    changed("web", &[1, 2]);
    let report = hammer.stop().unwrap();
    assert_eq!(report.failed, 0, "of {}: {:?}", report.attempts, report.failures);
}
