//! What the agent shows to Prometheus, against what it did. Needs root and the bpvs binary.

mod programming;
mod servers;
mod table;
mod traffic;

use std::net::SocketAddr;

use bpvs_tests::agent::Agent;
use bpvs_tests::exposition::{self, Families};
use bpvs_tests::http::{self, Answer};
use bpvs_tests::world::World;

/// Where kube-proxy's metrics are.
const METRICS: &str = "127.0.0.1:10249";
/// Where the node's health is.
const HEALTHZ: &str = "127.0.0.1:10256";
/// The node's name.
const HERE: &str = "here";

/// An agent with both servers on loopback, and with these arguments.
fn agent<'a>(world: &'a World, arguments: &[&str]) -> Agent<'a> {
    let builder = Agent::builder(&world.topology.node.namespace).manifests(&world.manifests);
    let servers = [
        "--node-name",
        HERE,
        "--metrics-bind-address",
        METRICS,
        "--healthz-bind-address",
        HEALTHZ,
        "--sweep-interval=100ms",
    ];
    servers.iter().chain(arguments).fold(builder, |builder, argument| builder.argument(*argument)).start().unwrap()
}

fn get(world: &World, at: &str, path: &str) -> Answer {
    let at: SocketAddr = at.parse().unwrap();
    http::get(&world.topology.node.namespace, at, path).unwrap_or_else(|error| panic!("http://{at}{path}: {error}"))
}

/// All metrics of now.
fn scrape(world: &World) -> Families {
    let answer = get(world, METRICS, "/metrics");
    assert_eq!(answer.status, 200, "{}", answer.body);
    assert!(answer.headers.contains("content-type: text/plain; version=0.0.4"), "{}", answer.headers);
    exposition::parse(&answer.body).unwrap_or_else(|error| panic!("{error:#}\n{}", answer.body))
}

/// The value of a metric with exactly these labels.
#[track_caller]
fn value(families: &Families, name: &str, labels: &[(&str, &str)]) -> f64 {
    let family = families.get(name).unwrap_or_else(|| panic!("no {name}"));
    family.value(labels).unwrap_or_else(|| panic!("no {name}{labels:?} in {:?}", family.values))
}
