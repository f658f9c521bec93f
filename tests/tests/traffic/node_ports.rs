//! Node ports, load balancers' addresses and external ones: who is served by whom, and as whom.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use bpvs_tests::agent::{Agent, ServiceManifest};
use bpvs_tests::topology::{Host, Topology, UPLINK};
use bpvs_tests::traffic::{DEADLINE, Dial, UdpClient};
use bpvs_tests::world::{CHANGE, TCP, TCP_TARGET, UDP, UDP_TARGET, World, virtual_addresses, wait_for};

pub(super) const TCP_PORT: u16 = 30_080;
pub(super) const UDP_PORT: u16 = 30_053;
/// Longer than an answer takes, and shorter than the first repetition of a SYN twice.
const SILENCE: Duration = Duration::from_millis(1500);
const HERE: &str = "here";

pub(super) fn service(world: &World) -> ServiceManifest {
    let mut service = ServiceManifest::new("web", &virtual_addresses(1))
        .node_port("TCP", TCP, TCP_TARGET, TCP_PORT)
        .node_port("UDP", UDP, UDP_TARGET, UDP_PORT);
    for server in &world.topology.servers {
        service = service.server(server.id, &[server.v4.into(), server.v6.into()], 1);
    }
    service
}

pub(super) fn agent<'a>(world: &'a World, arguments: &[&str]) -> Agent<'a> {
    let mut builder = Agent::builder(&world.topology.node.namespace)
        .manifests(&world.manifests)
        .argument("--node-name")
        .argument(HERE);
    for argument in arguments {
        builder = builder.argument(*argument);
    }
    builder.start().unwrap()
}

/// One connection and one datagram; the servers that answered, and that they saw this client.
fn asks(client: &Host, [tcp, udp]: [SocketAddr; 2], seen: IpAddr) -> [u16; 2] {
    let what = format!("{} to {tcp} and {udp}", client.namespace.name());
    let mut held = Dial::new(&client.namespace, tcp).open().unwrap_or_else(|error| panic!("{what}: {error}"));
    assert_eq!(held.peer().unwrap(), tcp, "{what}");
    assert_eq!(held.seen_peer.ip(), seen, "{what}: the client as the server sees it");
    held.exchange(&[7; 20_000]).unwrap_or_else(|error| panic!("{what}: {error}"));
    let server = held.server;
    held.close().unwrap();
    let socket = UdpClient::unconnected(&client.namespace, None, udp).unwrap();
    let mut answers = [10, 3000].map(|size| {
        let answer = socket.request(size, DEADLINE).unwrap_or_else(|error| panic!("{what}, {size} bytes: {error}"));
        assert_eq!((answer.from, answer.seen_peer.ip()), (udp, seen), "{what}");
        answer.server
    });
    answers.sort_unstable();
    assert_eq!(answers[0], answers[1], "one flow, one server");
    [server, answers[0]]
}

/// Everybody's servers in some connections, sorted and once each.
pub(super) fn servers(client: &Host, to: [[SocketAddr; 2]; 2], seen: &Host) -> Vec<u16> {
    let [tcp, udp] = to;
    let ask = |family: usize| asks(client, [tcp[family], udp[family]], seen.address_like(tcp[family].ip()));
    let mut all: Vec<u16> = (0..4).flat_map(|_| [ask(0), ask(1)]).flatten().collect();
    all.sort_unstable();
    all.dedup();
    all
}

#[test]
fn with_policy_cluster_everybody_comes_from_the_node() {
    for offload in [false, true] {
        let world = World::new(Topology::builder().servers(3).checksum_offload(offload).build().unwrap()).unwrap();
        world.publish("web", &service(&world)).unwrap();
        let agent = agent(&world, &[]);
        let node = &world.topology.node;
        for (who, client) in world.clients() {
            let found = servers(client, [node.at(TCP_PORT), node.at(UDP_PORT)], node);
            assert_eq!(found, [1, 2, 3], "{who}");
        }
        // Not the cluster's address: its clients keep theirs.
        for (who, client) in world.clients() {
            let [v4, v6] = virtual_addresses(1);
            let to = |port| [SocketAddr::new(v4, port), SocketAddr::new(v6, port)];
            assert_eq!(servers(client, [to(TCP), to(UDP)], client), [1, 2, 3], "{who}");
        }
        let list = agent.command(&["list", "-n"]).unwrap();
        assert!(list.contains(&format!("TCP  0.0.0.0:{TCP_PORT}")), "{list}");
        let connections = agent.command(&["connections"]).unwrap();
        let shown = connections.lines().filter(|line| line.contains(&format!("{}:{TCP_PORT}", node.v4))).count();
        // Four of the external host and four of the pod: one line each, whatever entries it takes.
        assert_eq!(shown, 8, "{connections}");
    }
}

#[test]
fn with_policy_local_external_clients_keep_their_address_and_reach_this_node_alone() {
    let world = World::new(Topology::builder().servers(4).build().unwrap()).unwrap();
    let local = service(&world).spec("externalTrafficPolicy: Local").on_node(1, HERE).on_node(2, HERE);
    let local = local.on_node(3, "there").on_node(4, "there");
    world.publish("web", &local).unwrap();
    let _agent = agent(&world, &["--cluster-cidr", "10.1.0.0/16,fd00:1::/32"]);
    let topology = &world.topology;
    let to = [topology.node.at(TCP_PORT), topology.node.at(UDP_PORT)];
    assert_eq!(servers(&topology.external, to, &topology.external), [1, 2]);
    let pod = &topology.clients[0];
    assert_eq!(servers(pod, to, pod), [1, 2, 3, 4], "short-circuit: pods reach all");
    assert_eq!(servers(&topology.node, to, &topology.node), [1, 2, 3, 4], "and so does the node");
    // At the cluster's address whoever is no pod comes from the node.
    let [v4, v6] = virtual_addresses(1);
    let cluster = |port| [SocketAddr::new(v4, port), SocketAddr::new(v6, port)];
    let cluster = [cluster(TCP), cluster(UDP)];
    assert_eq!(servers(&topology.external, cluster, &topology.node), [1, 2, 3, 4]);
    assert_eq!(servers(pod, cluster, pod), [1, 2, 3, 4]);
}

#[test]
fn without_a_server_here_external_clients_get_no_answer() {
    let world = World::new(Topology::builder().servers(2).build().unwrap()).unwrap();
    let elsewhere = service(&world).spec("externalTrafficPolicy: Local").on_node(1, "there").on_node(2, "there");
    world.publish("web", &elsewhere).unwrap();
    let agent = agent(&world, &["--cluster-cidr", "10.1.0.0/16,fd00:1::/32"]);
    let topology = &world.topology;
    for to in topology.node.at(TCP_PORT) {
        let error = Dial::new(&topology.external.namespace, to).deadline(SILENCE).open().expect_err("nobody is here");
        assert!(!error.is_refused(), "{to}: {error}");
    }
    let to = [topology.node.at(TCP_PORT), topology.node.at(UDP_PORT)];
    assert_eq!(servers(&topology.clients[0], to, &topology.clients[0]), [1, 2]);
    // One comes here.
    world.publish("web", &elsewhere.clone().on_node(2, HERE)).unwrap();
    let reached = || Ok(Dial::new(&topology.external.namespace, to[0][0]).deadline(SILENCE).open().ok());
    let held = wait_for("connection", CHANGE, reached, || agent.log().text(0)).unwrap();
    assert_eq!((held.server, held.seen_peer.ip()), (2, topology.external.v4.into()));
}

#[test]
fn an_address_that_comes_serves_node_ports_and_one_that_goes_does_not() {
    let world = World::new(Topology::builder().servers(1).build().unwrap()).unwrap();
    world.publish("web", &service(&world)).unwrap();
    let agent = agent(&world, &[]);
    let topology = &world.topology;
    let to: SocketAddr = format!("10.9.0.77:{TCP_PORT}").parse().unwrap();
    let dial = || Dial::new(&topology.external.namespace, to).deadline(SILENCE).open();
    let address = |what: &str| topology.node.namespace.ip(&[format!("addr {what} 10.9.0.77/24 dev {UPLINK}")]).unwrap();
    address("add");
    let held = wait_for("connection", CHANGE, || Ok(dial().ok()), || agent.log().text(0)).unwrap();
    assert_eq!(held.peer().unwrap(), to);
    held.close().unwrap();
    address("del");
    // What is then sent there is none of this node's business.
    wait_for("silence", CHANGE, || Ok(dial().is_err().then_some(())), || agent.log().text(0)).unwrap();
    let dump = agent.command(&["list", "-n"]).unwrap();
    assert!(dump.contains(&format!("0.0.0.0:{TCP_PORT}")), "{dump}");
}

#[test]
fn only_the_named_networks_reach_a_load_balancers_address() {
    let world = World::new(Topology::builder().servers(2).build().unwrap()).unwrap();
    let vip: IpAddr = "203.0.113.10".parse().unwrap();
    let publish = |ranges: &str| {
        let yaml = service(&world).spec("loadBalancerSourceRanges: [").yaml();
        let yaml = yaml.replace("loadBalancerSourceRanges: [", &format!("loadBalancerSourceRanges: [{ranges}]"));
        let yaml = yaml.replacen("type: NodePort", "type: LoadBalancer", 1);
        let status = format!("status:\n  loadBalancer:\n    ingress:\n    - ip: {vip}\n---\n");
        world.manifests.write("web.yaml", &yaml.replacen("---\n", &status, 1)).unwrap();
    };
    publish("\"10.9.0.0/24\"");
    let agent = agent(&world, &[]);
    let topology = &world.topology;
    let to = SocketAddr::new(vip, TCP);
    topology.external.namespace.ip(&[format!("route add {vip} via {}", topology.node.v4)]).unwrap();
    let (external, pod) = (&topology.external, &topology.clients[0]);
    let dial = |from: &Host| Dial::new(&from.namespace, to).deadline(SILENCE).open();
    assert_eq!(dial(external).unwrap().seen_peer.ip(), IpAddr::from(topology.node.v4));
    assert!(!dial(pod).expect_err("10.1.2.1 is not in 10.9.0.0/24").is_refused());
    assert!(dial(&topology.node).is_ok(), "the node's address is");
    // The node port of the same Service is open to all.
    assert!(Dial::new(&pod.namespace, topology.node.at(TCP_PORT)[0]).open().is_ok());
    publish("\" 10.1.0.0/16 \"");
    let closed = || Ok((dial(external).is_err() && dial(pod).is_ok()).then_some(()));
    wait_for("other clients", CHANGE, closed, || agent.log().text(0)).unwrap();
    assert!(dial(&topology.node).is_err());
    publish("");
    wait_for("all clients", CHANGE, || Ok(dial(external).is_ok().then_some(())), || agent.log().text(0)).unwrap();
    assert!(dial(pod).is_ok() && dial(&topology.node).is_ok());
}

/// MQ-3: at cluster addresses too everybody comes from the node then.
#[test]
fn with_masquerade_all_everybody_comes_from_the_node_at_cluster_addresses() {
    let world = World::new(Topology::builder().servers(2).build().unwrap()).unwrap();
    world.publish("web", &service(&world)).unwrap();
    let [v4, v6] = virtual_addresses(1);
    let cluster = [TCP, UDP].map(|port| [SocketAddr::new(v4, port), SocketAddr::new(v6, port)]);
    let node = &world.topology.node;
    for masquerade in [false, true] {
        let mut arguments = vec!["--cluster-cidr", "10.1.0.0/16,fd00:1::/32"];
        arguments.extend(masquerade.then_some("--masquerade-all"));
        let agent = agent(&world, &arguments);
        let pod = &world.topology.clients[0];
        assert_eq!(servers(pod, cluster, if masquerade { node } else { pod }), [1, 2]);
        agent.cleanup().unwrap();
    }
}

/// SY-4: whatever a first start has made when it serves the first connection, the way back is there too.
#[test]
fn from_the_first_connection_of_a_first_start_on_none_fails_and_all_come_from_the_node() {
    let world = World::new(Topology::builder().servers(2).build().unwrap()).unwrap();
    world.publish("web", &service(&world)).unwrap();
    let node = &world.topology.node;
    let builder = Agent::builder(&node.namespace).manifests(&world.manifests);
    let agent = builder.argument("--node-name").argument(HERE).build().unwrap();
    let mark = agent.launch().unwrap();
    let end = std::time::Instant::now() + 6 * CHANGE;
    // A family is served by one write, before or after the other.
    let mut served = [0; 2];
    while served.iter().any(|count| *count < 100) {
        assert!(std::time::Instant::now() < end, "{}", agent.log().text(mark));
        for (served, to) in served.iter_mut().zip(node.at(TCP_PORT)) {
            match Dial::new(&world.topology.external.namespace, to).open() {
                Ok(held) => {
                    assert_eq!(held.seen_peer.ip(), node.address_like(to.ip()));
                    held.close().unwrap();
                    *served += 1;
                }
                Err(error) => assert!(*served == 0 && error.is_refused(), "after {served}, {to}: {error}"),
            }
        }
    }
}

/// NP-3: of mode iptables, where it is asked for, and of IPv4 alone.
#[test]
fn processes_of_the_node_reach_node_ports_at_loopback_where_that_is_asked_for() {
    let world = World::new(Topology::builder().servers(2).build().unwrap()).unwrap();
    world.publish("web", &service(&world).spec("externalTrafficPolicy: Local").on_node(1, "there")).unwrap();
    let node = &world.topology.node;
    let [tcp, udp] = [TCP_PORT, UDP_PORT].map(|port| SocketAddr::from(([127, 0, 0, 1], port)));
    for (arguments, served) in [
        (&["--iptables-localhost-nodeports"] as &[&str], true),
        (&["--iptables-localhost-nodeports", "--nodeport-addresses=10.0.0.0/8"], false),
        (&["--iptables-localhost-nodeports", "--proxy-mode=ipvs"], false),
        (&[], false),
    ] {
        let agent = agent(&world, arguments);
        if served {
            // The node's own address, as kube-proxy masquerades: no server could answer to 127.0.0.1.
            for _ in 0..4 {
                asks(node, [tcp, udp], node.v4.into());
            }
            let other = SocketAddr::from(([127, 9, 9, 9], TCP_PORT));
            assert_eq!(Dial::new(&node.namespace, other).open().unwrap().peer().unwrap(), other);
        } else {
            let error = Dial::new(&node.namespace, tcp).open().expect_err("nobody listens there");
            assert!(error.is_refused(), "{arguments:?}: {error}");
        }
        let v6 = SocketAddr::new("::1".parse().unwrap(), TCP_PORT);
        let error = Dial::new(&node.namespace, v6).open().expect_err("never");
        assert!(error.is_refused(), "{arguments:?}: {error}");
        agent.cleanup().unwrap();
    }
}
