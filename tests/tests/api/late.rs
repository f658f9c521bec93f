//! An agent whose changes wait too long, and what it says of itself then. Takes more than a minute.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use bpvs_tests::http;
use serde_json::json;

use super::objects::{endpoint, service, slice};
use super::{World, address, until};

const CHECK: u16 = 32_000;
/// kube-proxy's `2 * syncPeriod`.
const LATE: Duration = Duration::from_secs(60);

/// HC-2, HZ-3: endpoints for which there is no room.
#[test]
fn an_agent_that_cannot_program_for_a_minute_says_so_until_it_can() {
    let world = World::new(1);
    let mut checked = service("web", &["10.96.0.1"]);
    checked["spec"]["type"] = json!("LoadBalancer");
    checked["spec"]["externalTrafficPolicy"] = json!("Local");
    checked["spec"]["healthCheckNodePort"] = json!(CHECK);
    let endpoints = |count: u8| {
        let local = (1..=count).map(|number| {
            let mut endpoint = endpoint(&format!("10.1.1.{number}"), json!({"ready": true}));
            endpoint["nodeName"] = json!("n0");
            endpoint
        });
        slice("web-1", "web", &local.collect::<Vec<_>>())
    };
    world.api().apply(json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n0"}}));
    world.api().apply(checked);
    world.api().apply(endpoints(1));
    let agent = world.agent().argument("--max-destinations=4").start().unwrap();
    let ask = |port: u16, path: &str| http::get(world.node(), SocketAddr::from(([127, 0, 0, 1], port)), path).ok();
    let check = || ask(CHECK, "/").map(|answer| (answer.status, answer.json()["serviceProxyHealthy"].clone()));
    let healthz = |path: &str| ask(10_256, path).map(|answer| answer.status);
    until("it is well", || check() == Some((200, json!(true))) && healthz("/healthz") == Some(200));
    let begin = Instant::now();
    world.api().apply(endpoints(20));
    agent.wait_for_log(0, "the failure", LATE, |line| line.contains("WARN") && line.contains("10.96.0.1")).unwrap();
    // What is programmed serves, and it is not late yet.
    assert_eq!(world.dial(address("10.96.0.1:80")), Some(1));
    assert_eq!((healthz("/livez"), check().map(|(status, _)| status)), (Some(200), Some(200)));
    let mut late = None;
    while late.is_none() {
        assert!(begin.elapsed() < 2 * LATE, "never late");
        std::thread::sleep(Duration::from_millis(500));
        late = check().filter(|(status, _)| *status == 503);
    }
    assert!(begin.elapsed() >= LATE, "{:?}", begin.elapsed());
    assert_eq!(late, Some((503, json!(false))));
    assert_eq!((healthz("/healthz"), healthz("/livez")), (Some(503), Some(503)));
    // HZ-3: of the other family nothing waits.
    let status = ask(10_256, "/healthz").unwrap().json()["status"].clone();
    assert_eq!((&status["IPv4"]["healthy"], &status["IPv6"]["healthy"]), (&json!(false), &json!(true)), "{status}");
    assert_eq!(world.dial(address("10.96.0.1:80")), Some(1));
    world.api().apply(endpoints(1));
    until("it is well again", || check() == Some((200, json!(true))) && healthz("/healthz") == Some(200));
}
