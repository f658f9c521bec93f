//! A Node whose zone is told, changed and taken back while the agent runs: Services are manifests here, the Node is the
//! API server's.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use bpvs_tests::agent::Agent;
use bpvs_tests::api_server::ApiServer;
use bpvs_tests::namespace::Namespace;
use bpvs_tests::topology::Topology;
use bpvs_tests::traffic::{Dial, UdpClient};
use bpvs_tests::world::{CHANGE, TCP, UDP, World, frontends, wait_for};
use serde_json::{Value, json};

/// Longer than an answer takes.
const QUICK: Duration = Duration::from_millis(200);

fn node(zone: Option<&str>) -> Value {
    let labels = zone.map_or(json!({}), |zone| json!({"topology.kubernetes.io/zone": zone}));
    json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n0", "labels": labels}})
}

/// The Service, whose servers 1 and 2 are for zone `a`, and server 3 for zone `b`.
fn hinted(world: &World) -> String {
    world.topology.servers.iter().fold(world.service("web", 1).scheduler("rr").yaml(), |yaml, server| {
        let zone = if server.id == 3 { "b" } else { "a" };
        [IpAddr::from(server.v4), server.v6.into()].iter().fold(yaml, |yaml, address| {
            let endpoint = format!("- addresses:\n  - \"{address}\"\n");
            assert_eq!(yaml.matches(&endpoint).count(), 1, "{yaml}");
            yaml.replace(&endpoint, &format!("{endpoint}  hints: {{forZones: [{{name: {zone}}}]}}\n"))
        })
    })
}

/// Servers of some new connections and flows, sorted and once each.
fn reached(from: &Namespace, tcp: SocketAddr, udp: SocketAddr) -> Vec<u16> {
    let dial = |_| Some(Dial::new(from, tcp).deadline(QUICK).open().ok()?.server);
    let ask = |_| Some(UdpClient::connected(from, None, udp).ok()?.request(20, QUICK).ok()?.server);
    let mut all: Vec<u16> = (0..6).filter_map(dial).chain((0..6).filter_map(ask)).collect();
    all.sort_unstable();
    all.dedup();
    all
}

#[test]
fn a_zone_that_the_node_gets_is_where_new_connections_stay() {
    let world = World::new(Topology::builder().servers(3).build().unwrap()).unwrap();
    let here = &world.topology.node.namespace;
    let api = here.block_on(ApiServer::start).unwrap();
    api.apply(node(None));
    world.manifests.write("web.yaml", &hinted(&world)).unwrap();
    let builder = Agent::builder(here).manifests(&world.manifests).kubeconfig(&api.kubeconfig());
    let agent = builder.argument("--node-name").argument("n0").start().unwrap();
    for (zone, servers) in [
        (None, &[1, 2, 3][..]),
        (Some("a"), &[1, 2]),
        (Some("b"), &[3]),
        // Nobody's hints have it.
        (Some("c"), &[1, 2, 3]),
        (Some("a"), &[1, 2]),
        (None, &[1, 2, 3]),
    ] {
        api.apply(node(zone));
        for (who, client) in world.clients() {
            for (tcp, udp) in frontends(1, TCP).into_iter().zip(frontends(1, UDP)) {
                let met = || Ok((reached(&client.namespace, tcp, udp) == servers).then_some(()));
                let wanted = format!("connections of the {who} to {servers:?} at {tcp} in zone {zone:?}");
                wait_for(&wanted, CHANGE, met, || agent.log().text(0)).unwrap();
            }
        }
    }
}
