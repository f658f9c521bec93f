//! What an agent of a cluster tells: whether it is ready and well, and Events.

use std::net::{SocketAddr, TcpListener};

use bpvs_tests::agent::Agent;
use bpvs_tests::exposition;
use bpvs_tests::http::{self, Answer};
use serde_json::{Value, json};

use super::objects::{endpoint, ready, service, slice};
use super::{DEADLINE, World, address, until};

const HEALTHZ: &str = "127.0.0.1:10256";
const METRICS: &str = "127.0.0.1:10249";
const CHECK: u16 = 32_000;

fn get(world: &World, at: &str, path: &str) -> Option<Answer> {
    http::get(world.node(), at.parse().unwrap(), path).ok()
}

fn status(world: &World, path: &str) -> u16 {
    get(world, HEALTHZ, path).map_or(0, |answer| answer.status)
}

fn node(spec: Value) -> Value {
    json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n0"}, "spec": spec})
}

/// The Events of this reason.
fn events(world: &World, reason: &str) -> Vec<Value> {
    let all = world.api().objects("events");
    all.into_iter().filter(|event| event["reason"] == reason).collect()
}

#[track_caller]
fn event(world: &World, reason: &str) -> Value {
    world.wait(reason, |api| api.objects("events").iter().any(|event| event["reason"] == reason));
    let mut found = events(world, reason);
    assert_eq!(found.len(), 1, "{found:?}");
    found.remove(0)
}

/// The Event is about this object, of this type and action, and says who says so.
#[track_caller]
fn expect(event: &Value, about: (&str, &str, &str), kind: &str, action: &str) {
    let (object, name, uid) = about;
    let regarding = &event["regarding"];
    assert_eq!(
        (&regarding["kind"], &regarding["name"], &regarding["uid"]),
        (&object.into(), &name.into(), &uid.into())
    );
    assert_eq!((&event["type"], &event["action"]), (&kind.into(), &action.into()), "{event}");
    assert_eq!((&event["reportingController"], &event["reportingInstance"]), (&"bpvs".into(), &"bpvs-n0".into()));
    assert_eq!(event["apiVersion"], "events.k8s.io/v1");
    let namespace = if object == "Node" { "default" } else { "demo" };
    assert_eq!(event["metadata"]["namespace"], namespace, "{event}");
    assert!(event["eventTime"].as_str().is_some_and(|time| time.starts_with("20")), "{event}");
}

/// A Service that asks for a health check.
fn checked() -> Value {
    let mut service = service("web", &["10.96.0.1"]);
    service["spec"]["type"] = json!("LoadBalancer");
    service["spec"]["externalTrafficPolicy"] = json!("Local");
    service["spec"]["healthCheckNodePort"] = json!(CHECK);
    service["spec"]["ports"][0]["nodePort"] = json!(30_080);
    service
}

fn taken(world: &World, at: SocketAddr) -> TcpListener {
    world.node().enter(|| TcpListener::bind(at).unwrap())
}

fn told(agent: &Agent<'_>, text: &str) -> usize {
    agent.log().text(0).lines().filter(|line| line.contains(text)).count()
}

#[test]
fn a_start_is_told_to_the_node() {
    let world = World::new(1);
    let agent = world.agent().start().unwrap();
    expect(&event(&world, "Starting"), ("Node", "n0", "n0"), "Normal", "StartKubeProxy");
    agent.stop().unwrap();
    agent.start().unwrap();
    world.wait("another start is told", |api| api.objects("events").len() == 2);
}

#[test]
fn a_health_check_that_nobody_can_ask_is_told_to_its_service() {
    let world = World::new(1);
    let port = taken(&world, SocketAddr::from(([0, 0, 0, 0], CHECK)));
    world.api().apply(checked());
    let agent = world.agent().start().unwrap();
    let found = event(&world, "FailedToStartServiceHealthcheck");
    expect(&found, ("Service", "web", "demo/web"), "Warning", "Listen");
    let note = found["note"].as_str().unwrap();
    assert!(note.contains("spec.healthCheckNodePort 32000: cannot listen on 0.0.0.0:32000: Address already"), "{note}");
    // Tried again with each change; told once.
    for server in [1, 2] {
        world.api().apply(slice("web-1", "web", &[endpoint(&format!("10.1.1.{server}"), json!({"ready": true}))]));
        until("the change is programmed", || agent.command(&["list"]).unwrap().contains(&format!("10.1.1.{server}:")));
    }
    drop(port);
    world.api().apply(slice("web-1", "web", &ready(&[1])));
    until("it is answered", || get(&world, &format!("127.0.0.1:{CHECK}"), "/").is_some());
    assert_eq!(events(&world, "FailedToStartServiceHealthcheck").len(), 1);
    assert_eq!(told(&agent, "spec.healthCheckNodePort 32000"), 1);
}

#[test]
fn an_address_that_is_taken_is_told_to_the_node_also_by_an_agent_that_ends_for_it() {
    for (at, reason) in [(HEALTHZ, "FailedToStartProxierHealthcheck"), (METRICS, "FailedToStartMetricServer")] {
        for hard in [false, true] {
            let world = World::new(1);
            let _port = taken(&world, at.parse().unwrap());
            let arguments = if hard { &["--bind-address-hard-fail"][..] } else { &[] };
            let builder = arguments.iter().fold(world.agent(), |builder, argument| builder.argument(*argument));
            let agent = builder.build().unwrap();
            agent.launch().unwrap();
            let found = event(&world, reason);
            expect(&found, ("Node", "n0", "n0"), "Warning", "StartKubeProxy");
            assert!(found["note"].as_str().unwrap().contains("Address already in use"), "{found}");
            if hard {
                let mut ended = None;
                until("the agent ends", || {
                    ended = agent.exit_status().unwrap();
                    ended.is_some()
                });
                assert_eq!(ended.unwrap().code(), Some(1));
            } else {
                agent.wait_for_log(0, "it to be ready", DEADLINE, |line| line.contains("ready:")).unwrap();
            }
        }
    }
}

#[test]
fn events_that_nobody_takes_are_counted_and_stop_nothing() {
    let world = World::new(1);
    world.api().refuse("events", Some(403));
    let _port = taken(&world, SocketAddr::from(([0, 0, 0, 0], CHECK)));
    world.api().apply(checked());
    world.api().apply(slice("web-1", "web", &ready(&[1])));
    let agent = world.agent().start().unwrap();
    let lost = || {
        let text = get(&world, METRICS, "/metrics").unwrap().body;
        exposition::parse(&text).unwrap()["bpvs_lost_events_total"].value(&[])
    };
    until("both are lost", || lost() == Some(2.0));
    assert_eq!(told(&agent, "the API server takes no Event"), 1, "{}", agent.log().text(0));
    assert_eq!(world.dial(address("10.96.0.1:80")), Some(1));
    assert!(world.api().objects("events").is_empty());
}

#[test]
fn it_is_ready_when_every_list_is_programmed_and_says_what_it_waits_for() {
    for (missing, name) in [
        ("services", "services of the API server"),
        ("endpointslices", "endpointslices of the API server"),
        ("nodes", "the own node of the API server"),
    ] {
        let world = World::new(1);
        world.api().refuse(missing, Some(500));
        world.api().apply(node(json!({})));
        let agent = world.agent().build().unwrap();
        agent.launch().unwrap();
        until("the others are there", || {
            let answer = get(&world, HEALTHZ, "/readyz");
            answer.is_some_and(|answer| {
                answer.status == 503 && answer.body == format!("waiting for the first list of: {name}\n")
            })
        });
        // Nothing is late yet: it is not to be restarted.
        assert_eq!(status(&world, "/livez"), 200);
        world.api().refuse(missing, None);
        until("it is ready", || status(&world, "/readyz") == 200);
        until("it is well", || status(&world, "/healthz") == 200);
    }
}

#[test]
fn a_node_that_is_to_go_or_is_gone_gets_no_new_load_and_is_not_restarted() {
    let world = World::new(1);
    let _agent = world.agent().start().unwrap();
    assert_eq!((status(&world, "/healthz"), status(&world, "/livez")), (503, 200), "the node is unknown");
    world.wait_for_watches();
    let tainted = json!({"taints": [{"key": "ToBeDeletedByClusterAutoscaler", "value": "1", "effect": "NoSchedule"}]});
    let mut deleted = node(json!({}));
    deleted["metadata"]["deletionTimestamp"] = json!("2026-01-31T09:30:00Z");
    for (what, change, expected) in [
        ("known", Some(node(json!({}))), 200),
        ("tainted", Some(node(tainted)), 503),
        ("free again", Some(node(json!({"taints": []}))), 200),
        ("being deleted", Some(deleted), 503),
        // HZ-6: gone, where kube-proxy would go on with what it knew last.
        ("gone", None, 503),
        ("back", Some(node(json!({}))), 200),
    ] {
        match change {
            Some(object) => world.api().apply(object),
            None => {
                world.api().apply(node(json!({})));
                until("it is known", || status(&world, "/healthz") == 200);
                world.api().delete("Node", "", "n0");
            }
        }
        until(what, || status(&world, "/healthz") == expected);
        let body = get(&world, HEALTHZ, "/healthz").unwrap().json();
        assert_eq!(body["nodeEligible"], expected == 200, "{what}");
        assert_eq!(status(&world, "/livez"), 200, "{what}");
    }
}
