//! What a Service says: who is served, as whom, who is refused, and who is not answered.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use bpvs_tests::agent::ServiceManifest;
use bpvs_tests::packets::{Packet, RawSocket, Summary, Tcp, flags};
use bpvs_tests::topology::Host;
use bpvs_tests::traffic::{DEADLINE, Dial, DialError, UdpClient};
use bpvs_tests::world::{TCP, TCP_TARGET, UDP, UDP_TARGET, World, frontends, virtual_addresses};

use super::hook::HERE;
use super::{Case, On};

/// Longer than an answer takes, and shorter than the second repetition of a SYN.
const SILENCE: Duration = Duration::from_millis(1500);

/// The table.
pub(crate) const CASES: &[Case] = &[
    Case { name: "served at the cluster's address, as oneself", service: everyone, check: served_as_oneself },
    Case { name: "served at a node port, as the node", service: at_node_ports, check: served_as_the_node },
    Case { name: "without servers refused", service: nobody, check: refused },
    Case { name: "with drained servers refused", service: drained, check: refused },
    Case { name: "policy Local without a server here: no answer", service: elsewhere, check: no_local_server },
    Case { name: "policy Local: the servers here alone", service: here_and_there, check: local_servers },
    Case { name: "source ranges: others get no answer", service: of_nobodys_range, check: not_in_range },
    Case { name: "session affinity: one server", service: sticky, check: one_server },
    Case { name: "one client port, two frontends, one server", service: two_ports, check: told_apart },
    Case { name: "a stray segment is reset", service: everyone, check: stray_is_reset },
];

/// A Service with every server.
fn manifest(world: &World, number: u16, node_port: u16) -> ServiceManifest {
    let mut service = ServiceManifest::new(&format!("case-{number}"), &virtual_addresses(number))
        .node_port("TCP", TCP, TCP_TARGET, node_port)
        .node_port("UDP", UDP, UDP_TARGET, node_port);
    for server in &world.topology.servers {
        service = service.server(server.id, &[server.v4.into(), server.v6.into()], 1);
    }
    service
}

/// Node port of a case.
fn node_port(number: u16) -> u16 {
    30_000 + number
}

fn everyone(world: &World, number: u16) -> String {
    world.service(&format!("case-{number}"), number).yaml()
}

fn at_node_ports(world: &World, number: u16) -> String {
    manifest(world, number, node_port(number)).yaml()
}

fn nobody(world: &World, number: u16) -> String {
    world.empty_service(&format!("case-{number}"), number).yaml()
}

fn drained(world: &World, number: u16) -> String {
    let mut service = world.service(&format!("case-{number}"), number);
    for server in &world.topology.servers {
        service = service.server(server.id, &[server.v4.into(), server.v6.into()], 0);
    }
    service.scheduler("wrr").yaml()
}

fn elsewhere(world: &World, number: u16) -> String {
    let service = manifest(world, number, node_port(number)).spec("externalTrafficPolicy: Local");
    world.topology.servers.iter().fold(service, |service, server| service.on_node(server.id, "there")).yaml()
}

fn here_and_there(world: &World, number: u16) -> String {
    let service = manifest(world, number, node_port(number)).spec("externalTrafficPolicy: Local");
    service.on_node(1, HERE).on_node(2, HERE).on_node(3, "there").on_node(4, "there").yaml()
}

/// A load balancer's address, taken for clients of a network that nobody is in.
fn of_nobodys_range(world: &World, number: u16) -> String {
    let yaml = manifest(world, number, node_port(number)).spec("loadBalancerSourceRanges: [\"192.0.2.0/24\"]").yaml();
    let address = load_balancer(number);
    let status = format!("status:\n  loadBalancer:\n    ingress:\n    - ip: \"{address}\"\n---\n");
    yaml.replacen("type: NodePort", "type: LoadBalancer", 1).replacen("---\n", &status, 1)
}

fn load_balancer(number: u16) -> IpAddr {
    IpAddr::from([10, 97, 0, number as u8])
}

fn sticky(world: &World, number: u16) -> String {
    world.service(&format!("case-{number}"), number).spec("sessionAffinity: ClientIP").yaml()
}

/// Both frontends of a family, the cluster's address and the node port, have the one server.
fn two_ports(world: &World, number: u16) -> String {
    let service = manifest(world, number, node_port(number)).port("TCP", 8081, TCP_TARGET);
    service.without(2).without(3).without(4).yaml()
}

/// A connection and datagrams; the servers that answered. They saw this client.
fn asks(client: &Host, [tcp, udp]: [SocketAddr; 2], seen: IpAddr) -> [u16; 2] {
    let what = format!("{} to {tcp} and {udp}", client.namespace.name());
    let mut held = Dial::new(&client.namespace, tcp).open().unwrap_or_else(|error| panic!("{what}: {error}"));
    assert_eq!(held.peer().unwrap(), tcp, "{what}: getpeername");
    assert_eq!(held.seen_peer.ip(), seen, "{what}: the client as the server sees it");
    held.exchange(&[7; 40_000]).unwrap_or_else(|error| panic!("{what}: {error}"));
    let server = held.server;
    held.close().unwrap_or_else(|error| panic!("{what}: {error}"));
    let mut answered = Vec::new();
    for socket in [UdpClient::connected, UdpClient::unconnected] {
        let socket = socket(&client.namespace, None, udp).unwrap();
        let mut one = None;
        for size in [0, 100, 1300, 3000] {
            let answer = socket.request(size, DEADLINE).unwrap_or_else(|error| panic!("{what}, {size} bytes: {error}"));
            assert_eq!((answer.from, answer.seen_peer.ip()), (udp, seen), "{what}, {size} bytes");
            assert_eq!(*one.get_or_insert(answer.server), answer.server, "{what}: one flow, one server");
            answered.push(answer.server);
        }
    }
    [server, answered[0]]
}

/// Both families' frontends, TCP and UDP.
fn cluster(number: u16) -> [[SocketAddr; 2]; 2] {
    let [tcp, udp] = [TCP, UDP].map(|port| frontends(number, port));
    [[tcp[0], udp[0]], [tcp[1], udp[1]]]
}

/// The same at the node's port.
fn node_ports(on: &On<'_>, number: u16) -> [[SocketAddr; 2]; 2] {
    on.world.topology.node.at(node_port(number)).map(|to| [to, to])
}

/// All servers that answer a client, sorted.
fn answering(client: &Host, to: [[SocketAddr; 2]; 2], seen: &Host) -> Vec<u16> {
    let ask = |[tcp, udp]: [SocketAddr; 2]| asks(client, [tcp, udp], seen.address_like(tcp.ip()));
    let mut all: Vec<u16> = (0..4).flat_map(|_| to.into_iter().flat_map(ask)).collect();
    all.sort_unstable();
    all.dedup();
    all
}

fn served_as_oneself(on: &On<'_>, number: u16) {
    for (who, client) in on.clients() {
        // Whoever is no pod comes from the node at a cluster's address.
        let seen = if who == "external" { &on.world.topology.node } else { client };
        assert_eq!(answering(client, cluster(number), seen), [1, 2, 3, 4], "{who}");
    }
}

fn served_as_the_node(on: &On<'_>, number: u16) {
    let node = &on.world.topology.node;
    for (who, client) in on.clients() {
        assert_eq!(answering(client, node_ports(on, number), node), [1, 2, 3, 4], "{who}");
    }
}

/// Refused on the spot, over both protocols and families.
fn refused(on: &On<'_>, number: u16) {
    let before = on.drops("no-destination");
    for (who, client) in on.clients() {
        for [tcp, udp] in cluster(number) {
            let result = Dial::new(&client.namespace, tcp).open();
            assert!(result.as_ref().is_err_and(DialError::is_refused), "{who} to {tcp}: {result:?}");
            let asked = UdpClient::connected(&client.namespace, None, udp).map_err(DialError::from);
            let error = asked.and_then(|socket| socket.request(10, DEADLINE)).expect_err("nobody is there to answer");
            assert!(error.is_refused(), "{who} to {udp}: {error}");
        }
    }
    let refused = on.drops("no-destination") - before;
    assert!(refused >= 4 * on.clients().len() as u64, "{refused} counted");
}

fn no_answer(client: &Host, to: SocketAddr) {
    let result = Dial::new(&client.namespace, to).deadline(SILENCE).open();
    assert!(matches!(result, Err(DialError::Silent(_))), "{to}: {result:?}");
    let result = UdpClient::unconnected(&client.namespace, None, to).unwrap().request(10, Duration::from_millis(300));
    assert!(matches!(result, Err(DialError::Silent(_))), "{to}: {result:?}");
}

fn no_local_server(on: &On<'_>, number: u16) {
    let topology = &on.world.topology;
    for (who, client) in on.clients() {
        if who != "external" {
            // Short-circuit: pods, and the node, reach all.
            assert_eq!(answering(client, node_ports(on, number), client), [1, 2, 3, 4], "{who}");
            continue;
        }
        let before = on.drops("no-local-destination");
        topology.node.at(node_port(number)).into_iter().for_each(|to| no_answer(client, to));
        assert!(on.drops("no-local-destination") >= before + 4);
    }
}

fn local_servers(on: &On<'_>, number: u16) {
    for (who, client) in on.clients() {
        let expected: &[u16] = if who == "external" { &[1, 2] } else { &[1, 2, 3, 4] };
        assert_eq!(answering(client, node_ports(on, number), client), expected, "{who}");
    }
}

fn not_in_range(on: &On<'_>, number: u16) {
    let to = SocketAddr::new(load_balancer(number), TCP);
    for (who, client) in on.clients() {
        let before = on.drops("source-not-allowed");
        let result = Dial::new(&client.namespace, to).deadline(SILENCE).open();
        match who {
            // A process is told at once: nobody would wait for its packets.
            "node" => assert!(result.is_err(), "{result:?}"),
            _ => assert!(matches!(result, Err(DialError::Silent(_))), "{who}: {result:?}"),
        }
        assert!(on.drops("source-not-allowed") > before, "{who}");
    }
}

fn one_server(on: &On<'_>, number: u16) {
    for (who, client) in on.clients() {
        for to in frontends(number, TCP) {
            let mut servers: Vec<u16> =
                (0..6).map(|_| Dial::new(&client.namespace, to).open().unwrap().server).collect();
            servers.dedup();
            assert_eq!(servers.len(), 1, "{who} to {to}: {servers:?}");
        }
    }
}

fn told_apart(on: &On<'_>, number: u16) {
    for (who, client) in on.clients() {
        if who == "node" {
            // A process's packets are addressed to the server itself, which one port cannot reach twice.
            continue;
        }
        for family in [0, 1] {
            let targets = [TCP, 8081].map(|port| frontends(number, port)[family]);
            let source = SocketAddr::new(client.address_like(targets[0].ip()), 20_000 + number);
            let mut held = targets.map(|to| Dial::new(&client.namespace, to).source(source).open().unwrap());
            for (held, to) in held.iter_mut().zip(targets) {
                assert_eq!(held.peer().unwrap(), to, "{who}");
                held.exchange(to.to_string().as_bytes()).unwrap();
            }
            for held in held {
                held.close().unwrap();
            }
        }
    }
}

fn stray_is_reset(on: &On<'_>, number: u16) {
    if !on.hook.on_the_wire() {
        return;
    }
    let external = &on.world.topology.external;
    let before = on.drops("not-syn");
    let wire = RawSocket::open(&external.namespace, "eth0").unwrap();
    for to in frontends(number, TCP) {
        let from = SocketAddr::new(external.address_like(to.ip()), 40_000 + number);
        let packet = Packet::new(from, to).macs(external.mac, external.gateway_mac);
        let segment = packet.tcp(Tcp { flags: flags::ACK, sequence: 7, acknowledgment: 9, ..Tcp::default() }, b"stray");
        wire.send(&packet.frame(&segment)).unwrap();
        let is_reset = |seen: &Summary| seen.from == to && seen.to == from;
        wire.expect(DEADLINE, is_reset).unwrap_or_else(|error| panic!("no reset from {to}: {error:#}"));
    }
    assert_eq!(on.drops("not-syn"), before + 2);
}
