//! From the real kube-proxy to bpvs and back, as docs/migration.md has it, while connections are opened all the time.

use std::time::Duration;

use bpvs_tests::traffic::Hammer;
use serde_json::json;

use super::objects::service;
use super::{Cluster, expect, hammer};

/// Networks of the pods.
const PODS: &str = "10.1.0.0/16,fd00:1::/48";

#[test]
#[ignore = "needs the programs of Kubernetes, kube-proxy among them: BPVS_KUBERNETES_BIN"]
fn a_node_goes_from_kube_proxy_to_bpvs_and_back_and_no_new_connection_fails() {
    let cluster = Cluster::new();
    let pods = [cluster.pod(0, 1, "web"), cluster.pod(1, 2, "web")];
    let client = cluster.pod(0, 9, "client");
    cluster.control.apply(&[service("web", "web", &json!({}))]).unwrap();
    let frontends = cluster.at("web", 80);
    let (node, name) = (&cluster.network.nodes[0].host.namespace, cluster.network.nodes[0].name);
    let rules = || node.nft("list tables").unwrap().contains("kube-proxy");
    let kubeconfig = cluster.file(0, "kubeconfig");
    let start = || cluster.control.start_kube_proxy(node, name, &kubeconfig, PODS).unwrap();
    let everywhere = |servers: &[u16]| {
        for (from, to) in
            [&client.namespace, node].into_iter().flat_map(|from| frontends.iter().map(move |to| (from, to)))
        {
            expect(from, *to, servers);
        }
    };

    let kube_proxy = start();
    everywhere(&[1, 2]);
    assert!(rules());
    let hammers = [&client.namespace, node]
        .into_iter()
        .flat_map(|from| frontends.iter().map(move |to| (from, *to)))
        .map(|(from, to)| hammer(from, to));
    let hammers: Vec<Hammer> = hammers.collect();
    let go_on = || hammers.iter().for_each(|hammer| hammer.advance(20, Duration::from_secs(60)).unwrap());
    go_on();

    // Its pod ends, and its rules stay; bpvs begins, and they go.
    drop(kube_proxy);
    go_on();
    let agent = cluster.agent(0);
    agent.start().unwrap();
    everywhere(&[1, 2]);
    cluster.control.clean_up_kube_proxy(node).unwrap();
    assert!(!rules());
    go_on();
    cluster.readiness(&pods[0], "web", false);
    everywhere(&[2]);
    cluster.readiness(&pods[0], "web", true);
    everywhere(&[1, 2]);

    // The way back: the agent ends, and what it has programmed stays until kube-proxy is there.
    agent.stop().unwrap();
    go_on();
    let kube_proxy = start();
    super::until("its rules are there", rules);
    go_on();
    agent.cleanup().unwrap();
    everywhere(&[1, 2]);
    go_on();
    for hammer in hammers {
        let report = hammer.stop().unwrap();
        assert_eq!(
            report.failed,
            0,
            "of {}: {:?}; kube-proxy: {}",
            report.attempts,
            report.failures,
            kube_proxy.said()
        );
    }
}
