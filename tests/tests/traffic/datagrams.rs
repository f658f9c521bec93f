//! Datagrams of one port while their Service comes, changes and goes. The node's connection tracking sees all of them.

use std::net::SocketAddr;
use std::time::Duration;

use bpvs_tests::agent::{Agent, ListedService, ServiceManifest};
use bpvs_tests::topology::Topology;
use bpvs_tests::traffic::{DEADLINE, DialError, UdpClient};
use bpvs_tests::world::{CHANGE, UDP, UDP_TARGET, World, frontends, virtual_addresses, wait_for, wait_listed};

const OTHER_TARGET: u16 = 5354;
const UDP_PORT: u16 = 30_053;
/// Longer than an answer takes.
const SILENCE: Duration = Duration::from_millis(200);

/// nf_conntrack keeps an entry of what the node forwards and sends once a rule asks for states.
const CONNECTION_TRACKING: &str = "
table inet seen {
  chain forward { type filter hook forward priority filter; ct state established counter; }
  chain output { type filter hook output priority filter; ct state established counter; }
}";

fn world() -> World {
    let world = World::new(Topology::builder().servers(1).build().unwrap()).unwrap();
    let server = &world.topology.servers[0];
    world.servers.udp(&server.namespace, 11, OTHER_TARGET).unwrap();
    world.topology.node.namespace.nft(CONNECTION_TRACKING).unwrap();
    world
}

/// Ends a test: had nf_conntrack seen nothing, it would have shown less than it says.
fn was_tracked(world: &World) {
    let rules = world.topology.node.namespace.nft("list ruleset").unwrap();
    assert_eq!(rules.matches("counter packets").count(), 2, "{rules}");
    assert!(!rules.contains("counter packets 0 "), "{rules}");
}

/// The Service, with this target port.
fn service(world: &World, target: u16) -> ServiceManifest {
    let server = &world.topology.servers[0];
    ServiceManifest::new("dns", &virtual_addresses(1)).node_port("UDP", UDP, target, UDP_PORT).server(
        server.id,
        &[server.v4.into(), server.v6.into()],
        1,
    )
}

/// Sockets with a port of their own, at cluster addresses and node ports, and who has them.
struct Sockets(Vec<(String, UdpClient)>);

impl Sockets {
    fn new(world: &World) -> Self {
        let mut all = Vec::new();
        for (who, client) in world.clients() {
            let node_ports = world.topology.node.at(UDP_PORT);
            for (port, to) in (20_000..).zip(frontends(1, UDP).into_iter().chain(node_ports)) {
                let source = SocketAddr::new(client.address_like(to.ip()), port);
                // A connected socket of the node is tied to its server until it connects anew.
                let open = if who == "node" { UdpClient::unconnected } else { UdpClient::connected };
                all.push((format!("{who} to {to}"), open(&client.namespace, Some(source), to).unwrap()));
            }
        }
        Self(all)
    }

    fn answered_by(&self, server: u16) {
        for (who, udp) in &self.0 {
            for size in [20, 2000] {
                let answer = udp.request(size, DEADLINE).unwrap_or_else(|error| panic!("{who}, {size} bytes: {error}"));
                assert_eq!(answer.server, server, "{who}, {size} bytes");
            }
        }
    }

    /// Nobody answers; where the node itself was asked, it refuses.
    fn unanswered(&self) {
        for (who, udp) in &self.0 {
            let answer = udp.request(20, SILENCE);
            assert!(matches!(answer, Err(DialError::Silent(_) | DialError::Refused(_))), "{who}: {answer:?}");
        }
    }

    fn refused(&self) {
        for (who, udp) in &self.0 {
            let error = udp.request(20, DEADLINE).expect_err("nobody serves");
            assert!(error.is_refused(), "{who}: {error}");
        }
    }
}

fn until(agent: &Agent<'_>, what: &str, wanted: impl Fn(Option<&ListedService>) -> bool) {
    wait_listed(agent, what, |list| frontends(1, UDP).iter().all(|to| wanted(list.service("UDP", *to)))).unwrap();
}

fn until_served_at(agent: &Agent<'_>, port: u16) {
    let served = |service: &ListedService| service.servers.iter().any(|server| server.address.port() == port);
    until(agent, &format!("servers at port {port}"), |service| service.is_some_and(served));
}

#[test]
fn datagrams_that_were_sent_before_their_service_are_answered_once_it_is_there() {
    let world = world();
    let agent = Agent::builder(&world.topology.node.namespace).manifests(&world.manifests).build().unwrap();
    let sockets = Sockets::new(&world);
    sockets.unanswered();
    agent.start().unwrap();
    sockets.unanswered();
    // The Service before its slices.
    let whole = service(&world, UDP_TARGET).yaml();
    let (alone, _) = whole.split_once("---\n").unwrap();
    world.manifests.write("dns.yaml", alone).unwrap();
    until(&agent, "service without servers", |service| service.is_some_and(|service| service.servers.is_empty()));
    sockets.refused();
    world.manifests.write("dns.yaml", &whole).unwrap();
    until_served_at(&agent, UDP_TARGET);
    sockets.answered_by(1);
    was_tracked(&world);
}

#[test]
fn another_target_port_gets_the_next_datagram() {
    let world = world();
    world.publish("dns", &service(&world, UDP_TARGET)).unwrap();
    let agent = world.agent().unwrap();
    let sockets = Sockets::new(&world);
    sockets.answered_by(1);
    for (target, server) in [(OTHER_TARGET, 11), (UDP_TARGET, 1)] {
        world.publish("dns", &service(&world, target)).unwrap();
        until_served_at(&agent, target);
        sockets.answered_by(server);
    }
    was_tracked(&world);
}

#[test]
fn no_datagram_gets_to_the_server_of_a_service_that_is_gone() {
    let world = world();
    world.publish("dns", &service(&world, UDP_TARGET)).unwrap();
    let agent = world.agent().unwrap();
    let sockets = Sockets::new(&world);
    sockets.answered_by(1);
    world.manifests.remove("dns.yaml").unwrap();
    until(&agent, "no service", |service| service.is_none());
    let served = world.servers.served(1);
    sockets.unanswered();
    assert_eq!(world.servers.served(1), served, "datagrams that got to the server");
    // And back, on the same ports.
    world.publish("dns", &service(&world, UDP_TARGET)).unwrap();
    until_served_at(&agent, UDP_TARGET);
    sockets.answered_by(1);
    was_tracked(&world);
}

/// docs/limits.md: it is what somebody who runs a client on the node has to know. The kernel moves no connected socket.
#[test]
fn a_connected_socket_of_the_node_is_ended_with_its_server_and_served_when_it_connects_anew() {
    let world = world();
    world.publish("dns", &service(&world, UDP_TARGET)).unwrap();
    let agent = world.agent().unwrap();
    let to = frontends(1, UDP)[0];
    let connect = || UdpClient::connected(&world.topology.node.namespace, None, to).unwrap();
    let held = connect();
    assert_eq!(held.request(20, DEADLINE).unwrap().server, 1);
    world.publish("dns", &service(&world, OTHER_TARGET)).unwrap();
    until_served_at(&agent, OTHER_TARGET);
    let told = || Ok(held.socket().take_error().unwrap());
    let error = wait_for("an error of the socket", CHANGE, told, || agent.log().text(0)).unwrap();
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionAborted, "{error}");
    held.socket().connect(to).unwrap();
    assert_eq!(held.request(20, DEADLINE).unwrap().server, 11);
}
