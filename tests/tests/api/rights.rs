//! The rights of the role that every cluster has for its service proxy are enough, and nothing else is asked for.

use std::collections::BTreeSet;

use k8s_openapi::api::rbac::v1::PolicyRule;
use serde_json::json;

use super::objects::{ready, service, slice};
use super::{COLLECTIONS, DEADLINE, World, address};

/// The rules of the ClusterRole `system:node-proxier`, as clusters have it that know ServiceCIDRs.
fn node_proxier_of_now() -> Vec<PolicyRule> {
    let rules =
        json!([{"apiGroups": ["networking.k8s.io"], "resources": ["servicecidrs"], "verbs": ["list", "watch"]}]);
    let more: Vec<PolicyRule> = serde_json::from_value(rules).unwrap();
    [node_proxier(), more].concat()
}

/// The same, less what only newer clusters have in it (`servicecidrs`).
fn node_proxier() -> Vec<PolicyRule> {
    let rules = json!([
        {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "list", "watch"]},
        {"apiGroups": [""], "resources": ["services"], "verbs": ["list", "watch"]},
        {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["list", "watch"]},
        {"apiGroups": ["", "events.k8s.io"], "resources": ["events"], "verbs": ["create", "patch", "update"]},
    ]);
    serde_json::from_value(rules).unwrap()
}

#[test]
fn the_agent_works_with_the_rights_of_kube_proxy_and_asks_for_no_more() {
    let world = World::new(2);
    world.api().allow_only(node_proxier_of_now());
    world.api().apply(service("a", &["10.96.0.1"]));
    world.api().apply(slice("a-1", "a", &ready(&[1])));
    let agent = world.agent().start().unwrap();
    world.expect(address("10.96.0.1:80"), &[1]);
    world.wait_for_watches();
    world.api().apply(slice("a-1", "a", &ready(&[2])));
    world.expect(address("10.96.0.1:80"), &[2]);
    // After a break everything is asked for anew: a watch that ends in good order would go on where it was, so its place is
    // forgotten meanwhile.
    let listed = |of: &str| world.api().count("list", of);
    let before = COLLECTIONS.map(listed);
    world.stop_api();
    world.api().apply(slice("a-1", "a", &ready(&[1, 2])));
    world.api().compact();
    world.start_api();
    world.wait("a new list", |api| COLLECTIONS.iter().zip(before).all(|(of, before)| api.count("list", of) > before));
    agent.stop().unwrap();
    let refused: Vec<_> = world.api().requests().into_iter().filter(|request| request.status == 403).collect();
    assert!(refused.is_empty(), "beyond the role: {refused:?}");
    let asked: BTreeSet<(String, &str)> =
        world.api().requests().into_iter().map(|request| (request.collection, request.verb)).collect();
    for collection in COLLECTIONS.into_iter().chain(["servicecidrs"]) {
        for verb in ["list", "watch"] {
            assert!(asked.contains(&(collection.to_owned(), verb)), "{verb} {collection}: {asked:?}");
        }
    }
}

#[test]
fn a_right_that_is_missing_is_named() {
    let world = World::new(1);
    let slices = |rule: &PolicyRule| rule.resources.as_ref().is_some_and(|of| of[0] == "endpointslices");
    world.api().allow_only(node_proxier().into_iter().filter(|rule| !slices(rule)).collect());
    world.api().apply(service("a", &["10.96.0.1"]));
    let agent = world.agent().build().unwrap();
    let mark = agent.launch().unwrap();
    let told = |line: &str| line.contains("endpointslices") && line.contains("cannot list resource");
    agent.wait_for_log(mark, "the right that is missing", DEADLINE, told).unwrap();
    world.api().allow_only(node_proxier());
    agent.wait_for_log(mark, "ready", DEADLINE, |line| line.contains("ready:")).unwrap();
}
