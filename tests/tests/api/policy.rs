//! Traffic policies: what a change of one does to connections, and what they mean to the node's own processes and to pods on
//! its network. Both families.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;

use bpvs_tests::agent::{Agent, Listing};
use bpvs_tests::namespace::Namespace;
use bpvs_tests::topology::Host;
use bpvs_tests::traffic::{DEADLINE, Dial, DialError, Held, Servers, UdpClient};
use serde_json::{Value, json};

use super::objects::{endpoint, service, slice};
use super::{World, address, until};

const SERVERS: u16 = 3;
const NODE_PORT: u16 = 30_080;
const FRONTENDS: [&str; 2] = ["10.96.0.1:80", "[fd00:96::1]:80"];
/// Longer than an answer takes, and shorter than the first repetition of a SYN twice.
const SILENCE: Duration = Duration::from_millis(1500);

/// A Service for TCP and UDP with these policies.
fn stated(internal: &str, external: &str) -> Value {
    let mut object = service("a", &["10.96.0.1", "fd00:96::1"]);
    object["spec"]["type"] = json!("NodePort");
    object["spec"]["ports"] = json!([{"name": "web", "port": 80, "protocol": "TCP", "nodePort": NODE_PORT},
                                     {"name": "dns", "port": 53, "protocol": "UDP"}]);
    object["spec"]["internalTrafficPolicy"] = json!(internal);
    object["spec"]["externalTrafficPolicy"] = json!(external);
    object
}

/// Publishes ready endpoints and the nodes that they are on.
fn publish(world: &World, endpoints: &[(&Host, &str)]) {
    for (name, at) in [("a-4", 0), ("a-6", 1)] {
        let endpoints: Vec<_> = endpoints
            .iter()
            .map(|(host, node)| {
                let mut endpoint = endpoint(&host.at(0)[at].ip().to_string(), json!({"ready": true}));
                endpoint["nodeName"] = json!(node);
                endpoint
            })
            .collect();
        let mut slice = slice(name, "a", &endpoints);
        slice["ports"] = json!([{"name": "web", "port": 8080, "protocol": "TCP"},
                                {"name": "dns", "port": 5353, "protocol": "UDP"}]);
        world.api().apply(slice);
    }
}

/// Waits until both families' frontends have as many servers.
#[track_caller]
fn programmed(agent: &Agent<'_>, servers: usize) {
    until(&format!("there are {servers} servers"), || {
        let listing = Listing::read(agent).unwrap();
        let count = |to| listing.service("TCP", address(to)).map(|service| service.servers.len());
        FRONTENDS.iter().all(|to| count(to) == Some(servers))
    });
}

/// Who asks, and where: everybody at the cluster's addresses, the node's own and a pod at the node port.
fn everybody(world: &World) -> Vec<(&Namespace, SocketAddr)> {
    let topology = &world.topology;
    let (pod, node, outside) = (&topology.clients[0].namespace, world.node(), &topology.external.namespace);
    let inside = FRONTENDS.iter().flat_map(|to| [(pod, address(to)), (node, address(to))]);
    let node_ports = topology.node.at(NODE_PORT).into_iter().flat_map(|to| [(pod, to), (node, to), (outside, to)]);
    inside.chain(node_ports).collect()
}

fn open(from: &Namespace, to: SocketAddr) -> Held {
    Dial::new(from, to).open().unwrap_or_else(|error| panic!("{} to {to}: {error}", from.name()))
}

/// The servers of some new connections.
fn servers_of(from: &Namespace, to: SocketAddr) -> BTreeSet<u16> {
    (0..2 * SERVERS).map(|_| open(from, to).server).collect()
}

#[test]
fn a_change_of_policy_leaves_established_connections_where_they_are() {
    let world = World::new(SERVERS);
    let servers = &world.topology.servers;
    world.api().apply(stated("Cluster", "Cluster"));
    publish(&world, &[(&servers[0], "n0"), (&servers[1], "n1"), (&servers[2], "n1")]);
    let agent = world.agent().start().unwrap();
    programmed(&agent, 3);
    let mut held: Vec<_> = everybody(&world).into_iter().map(|(from, to)| (from, to, open(from, to))).collect();
    // Round robin takes the other two, too.
    held.extend((0..3).flat_map(|_| everybody(&world)).map(|(from, to)| (from, to, open(from, to))));
    let elsewhere = held.iter().filter(|(.., held)| held.server != 1).count();
    assert!(elsewhere > held.len() / 2, "{elsewhere} of {} are with a server of another node", held.len());
    for (internal, external, left) in
        [("Local", "Cluster", 1), ("Local", "Local", 1), ("Cluster", "Local", 3), ("Cluster", "Cluster", 3)]
    {
        world.api().apply(stated(internal, external));
        programmed(&agent, left);
        let there = if external == "Local" { 1 } else { SERVERS.into() };
        let outside = &world.topology.external.namespace;
        until(&format!("{there} servers for clients outside"), || {
            let to = world.topology.node.at(NODE_PORT);
            to.iter().all(|&to| servers_of(outside, to).len() == there)
        });
        for (from, to, held) in &mut held {
            let what = format!("{} to {to}, internal {internal}, external {external}", from.name());
            held.exchange(&[7; 3000]).unwrap_or_else(|error| panic!("{what}: {error}"));
            assert_eq!(held.peer().unwrap(), *to, "{what}");
        }
        // New ones follow it.
        for (from, to) in everybody(&world).into_iter().filter(|(_, to)| to.port() == 80) {
            let found = servers_of(from, to);
            assert_eq!(found.len(), left, "{} to {to}: {found:?}", from.name());
        }
    }
    for (from, to, held) in held {
        held.close().unwrap_or_else(|error| panic!("{} to {to}: {error}", from.name()));
    }
}

/// A packet from a pod is dropped; a process of the node is told by `connect()` and `sendto()` (docs/limits.md).
#[test]
fn where_internal_traffic_stays_and_nobody_is_here_no_other_node_is_reached() {
    let world = World::new(SERVERS);
    let servers = &world.topology.servers;
    world.api().apply(stated("Local", "Cluster"));
    publish(&world, &[(&servers[0], "n1"), (&servers[1], "n2")]);
    let agent = world.agent().start().unwrap();
    programmed(&agent, 0);
    let clients = [("pod", &world.topology.clients[0]), ("node", &world.topology.node)];
    for (who, client) in clients {
        let is_right = |what: &str, error: DialError| match (who, &error) {
            ("node", DialError::Refused(_)) | ("pod", DialError::Silent(_)) => {}
            _ => panic!("{what}: {error}"),
        };
        for to in FRONTENDS.map(address) {
            let opened = Dial::new(&client.namespace, to).deadline(SILENCE).open();
            is_right(&format!("{who} to {to}"), opened.expect_err("nobody is here"));
            let to = SocketAddr::new(to.ip(), 53);
            for open in [UdpClient::connected, UdpClient::unconnected] {
                let socket = open(&client.namespace, None, to).map_err(DialError::from);
                let answer = socket.and_then(|socket| socket.request(20, SILENCE));
                is_right(&format!("{who} to UDP {to}"), answer.expect_err("nobody is here"));
            }
        }
    }
    // One comes here.
    publish(&world, &[(&servers[0], "n1"), (&servers[1], "n0")]);
    programmed(&agent, 1);
    for (who, client) in clients {
        for to in FRONTENDS.map(address) {
            assert_eq!(open(&client.namespace, to).server, 2, "{who} to {to}");
            let to = SocketAddr::new(to.ip(), 53);
            let socket = UdpClient::unconnected(&client.namespace, None, to).unwrap();
            assert_eq!(socket.request(20, DEADLINE).unwrap().server, 2, "{who}, UDP {to}");
        }
    }
}

#[test]
fn a_pod_on_the_nodes_network_serves_others_and_itself() {
    const ITS: u16 = 77;
    let world = World::new(1);
    let node = &world.topology.node;
    let own = Servers::new().unwrap();
    own.tcp(&node.namespace, ITS, 8080).unwrap();
    own.udp(&node.namespace, ITS, 5353).unwrap();
    world.api().apply(stated("Cluster", "Cluster"));
    publish(&world, &[(node, "n0")]);
    let agent = world.agent().start().unwrap();
    programmed(&agent, 1);
    for policy in ["Cluster", "Local"] {
        world.api().apply(stated(policy, policy));
        programmed(&agent, 1);
        for (from, to) in everybody(&world) {
            let mut held = open(from, to);
            assert_eq!((held.server, held.peer().unwrap()), (ITS, to), "{}", from.name());
            held.exchange(&[3; 100_000]).unwrap_or_else(|error| panic!("{} to {to}: {error}", from.name()));
            held.close().unwrap();
        }
        for (who, client) in [("pod", &world.topology.clients[0]), ("node", node)] {
            for to in FRONTENDS.map(|to| SocketAddr::new(address(to).ip(), 53)) {
                for open in [UdpClient::connected, UdpClient::unconnected] {
                    let socket = open(&client.namespace, None, to).unwrap();
                    for size in [10, 1400, 8192] {
                        let answer = socket.request(size, DEADLINE);
                        let answer = answer.unwrap_or_else(|error| panic!("{who}, {size} bytes to {to}: {error}"));
                        assert_eq!(answer.server, ITS, "{who} to {to}");
                    }
                }
            }
        }
    }
}
