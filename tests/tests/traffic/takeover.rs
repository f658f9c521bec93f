//! From kube-proxy to bpvs and back on a running node: what becomes of connections, and what the node's firewall has to
//! let through. docs/migration.md says what is shown here, and holds the rules of the firewall.

use std::net::TcpStream;

use bpvs_tests::agent::{Agent, ServiceManifest};
use bpvs_tests::namespace::Namespace;
use bpvs_tests::topology::Topology;
use bpvs_tests::traffic::{DEADLINE, Dial};
use bpvs_tests::world::{TCP, TCP_TARGET, UDP, UDP_TARGET, World, frontends, virtual_addresses};

use crate::node_ports::servers;

const TCP_PORT: u16 = 30_080;
const UDP_PORT: u16 = 30_053;
const HERE: &str = "here";

/// As kube-proxy has the first server of a service of one port, in nftables.
const KUBE_PROXY: &str = "
table ip kube-proxy {
  chain services { ip daddr 10.96.0.1 tcp dport 80 dnat to 10.1.1.1:8080; }
  chain prerouting { type nat hook prerouting priority dstnat; jump services; }
  chain output { type nat hook output priority -100; jump services; }
}
table ip pod-network {
  chain postrouting { type nat hook postrouting priority srcnat; ip daddr 192.0.2.0/24 masquerade; }
}
";

#[test]
fn connections_of_kube_proxy_end_for_pods_and_go_on_for_the_node() {
    let world = World::new(Topology::builder().servers(2).build().unwrap()).unwrap();
    let [to, _] = frontends(1, TCP);
    let topology = &world.topology;
    let node = &topology.node.namespace;
    node.nft(KUBE_PROXY).unwrap();
    let open = |client: &Namespace| Dial::new(client, to).open();
    let mut pods = open(&topology.clients[0].namespace).expect("served by the rules");
    let mut nodes = open(node).expect("served by the rules");
    world.publish("web", &world.service("web", 1)).unwrap();
    let agent = world.agent().unwrap();
    let error = pods.exchange(b"still here?").expect_err("the connection is not in bpvs's table");
    assert!(format!("{error:?}").contains("reset"), "an end that the client is told of: {error:?}");
    nodes.exchange(b"still here?").expect("the rules go on to translate what they have begun");
    // And when they are removed: what nf_conntrack has begun it goes on with.
    node.nft("delete table ip kube-proxy").unwrap();
    nodes.exchange(b"without rules").expect("nf_conntrack has it");
    nodes.close().unwrap();
    for (who, client) in world.clients() {
        let mut held = open(&client.namespace).unwrap_or_else(|error| panic!("{who}: {error}"));
        held.exchange(b"new").unwrap();
        held.close().unwrap();
    }
    // The way back: rules first, then the clean-up.
    let mut held = open(&topology.clients[0].namespace).unwrap();
    node.nft(KUBE_PROXY.split("table ip pod-network").next().unwrap()).unwrap();
    agent.cleanup().unwrap();
    held.exchange(b"still here?").expect_err("bpvs's table is gone");
    for (who, client) in world.clients() {
        open(&client.namespace).unwrap_or_else(|error| panic!("{who}, back: {error}"));
    }
}

/// The document's rules, for the networks of this test's pods.
fn firewall() -> String {
    let document = include_str!("../../../docs/migration.md");
    let rules = document.split("```nft\n").nth(1).and_then(|rest| rest.split("```").next()).expect("rules for nft");
    let mut rules = rules.to_owned();
    for (theirs, ours) in [("10.244.0.0/16", "10.1.0.0/16"), ("fd00:10:244::/56", "fd00:1::/32")] {
        assert_eq!(rules.matches(theirs).count(), 2, "{theirs}: {rules}");
        rules = rules.replace(theirs, ours);
    }
    rules
}

fn service(world: &World) -> ServiceManifest {
    let mut service = ServiceManifest::new("web", &virtual_addresses(1))
        .node_port("TCP", TCP, TCP_TARGET, TCP_PORT)
        .node_port("UDP", UDP, UDP_TARGET, UDP_PORT);
    for server in &world.topology.servers {
        service = service.server(server.id, &[server.v4.into(), server.v6.into()], 1).on_node(server.id, HERE);
    }
    service
}

fn agent(world: &World) -> Agent<'_> {
    let arguments = ["--node-name", HERE, "--healthz-bind-address", "0.0.0.0:10256"];
    let builder = Agent::builder(&world.topology.node.namespace).manifests(&world.manifests);
    arguments.into_iter().fold(builder, |builder, argument| builder.argument(argument)).start().unwrap()
}

#[test]
fn the_documents_firewall_lets_through_what_bpvs_needs() {
    let world = World::new(Topology::builder().servers(2).build().unwrap()).unwrap();
    let topology = &world.topology;
    let node = &topology.node;
    node.namespace.nft(&firewall()).unwrap();
    for policy in ["Cluster", "Local"] {
        let mut published = service(&world).spec(&format!("externalTrafficPolicy: {policy}"));
        if policy == "Local" {
            published = published.spec("healthCheckNodePort: 32000");
        }
        let yaml = published.yaml().replacen("type: NodePort", "type: LoadBalancer", 1);
        world.manifests.write("web.yaml", &yaml).unwrap();
        let agent = agent(&world);
        for (who, client) in world.clients() {
            let seen = if policy == "Cluster" { node } else { client };
            let found = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                servers(client, [node.at(TCP_PORT), node.at(UDP_PORT)], seen)
            }));
            let rules = node.namespace.nft("list ruleset").unwrap();
            assert_eq!(found.ok(), Some(vec![1, 2]), "{who}, policy {policy}; rules:\n{rules}");
            // What the node itself answers.
            let checks = node.at(32_000).into_iter().filter(|_| policy == "Local");
            for at in std::iter::once(node.at(10_256)[0]).chain(checks) {
                let answered = client.namespace.enter(|| TcpStream::connect_timeout(&at, DEADLINE));
                assert!(answered.is_ok(), "{who} {at}: {answered:?}");
            }
        }
        agent.stop().unwrap();
    }
}

/// Node ports pass FORWARD alone, with the server's address: what FORWARD does not let through is not served, and what
/// INPUT says of the node port's number is never asked.
#[test]
fn a_node_port_is_held_up_in_forward_and_not_in_input() {
    let world = World::new(Topology::builder().servers(1).build().unwrap()).unwrap();
    let node = &world.topology.node;
    world.publish("web", &service(&world)).unwrap();
    let _agent = agent(&world);
    let reached = || {
        let dial = |to| Dial::new(&world.topology.external.namespace, to).deadline(DEADLINE / 10).open();
        node.at(TCP_PORT).map(|to| dial(to).is_ok())
    };
    let guard = |chain: &str, port: u16| {
        format!(
            "table inet guard {{\n chain {chain} {{ type filter hook {chain} priority filter; tcp dport {port} drop; }}\n}}\n"
        )
    };
    node.namespace.nft(&guard("input", TCP_PORT)).unwrap();
    assert_eq!(reached(), [true; 2]);
    node.namespace.nft(&guard("forward", TCP_TARGET)).unwrap();
    assert_eq!(reached(), [false; 2]);
}
