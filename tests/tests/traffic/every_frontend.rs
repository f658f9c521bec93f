//! A Service at every kind of frontend: cluster addresses, node ports, load balancers' addresses and external ones. Who is
//! refused, who gets no answer, and what goes on as if there were no Service.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use bpvs_tests::agent::{Agent, ServiceManifest};
use bpvs_tests::packets::{RawSocket, Summary, protocol};
use bpvs_tests::topology::Topology;
use bpvs_tests::traffic::{DEADLINE, Dial, DialError, UdpClient};
use bpvs_tests::world::{TCP, TCP_TARGET, UDP, UDP_TARGET, World, virtual_addresses};

const TCP_PORT: u16 = 30_080;
const UDP_PORT: u16 = 30_053;
const HERE: &str = "here";
const LOAD_BALANCER: [&str; 2] = ["203.0.113.10", "2001:db8::10"];
const EXTERNAL: [&str; 2] = ["198.51.100.9", "2001:db8:1::9"];
/// Far below the first repetition of a SYN (1 s).
const AT_ONCE: Duration = Duration::from_millis(200);
/// Longer than an answer takes, and longer than the first repetition of a SYN.
const SILENCE: Duration = Duration::from_millis(1500);

fn service(world: &World) -> ServiceManifest {
    let mut service = ServiceManifest::new("web", &virtual_addresses(1))
        .node_port("TCP", TCP, TCP_TARGET, TCP_PORT)
        .node_port("UDP", UDP, UDP_TARGET, UDP_PORT)
        .spec(&format!("externalIPs: {EXTERNAL:?}"));
    for server in &world.topology.servers {
        service = service.server(server.id, &[server.v4.into(), server.v6.into()], 1);
    }
    service
}

/// The Service with the load balancer's addresses.
fn balanced(service: &ServiceManifest) -> String {
    let [v4, v6] = LOAD_BALANCER;
    let status = format!("status: {{loadBalancer: {{ingress: [{{ip: \"{v4}\"}}, {{ip: \"{v6}\"}}]}}}}\n---\n");
    let yaml = service.yaml().replacen("---\n", &status, 1);
    yaml.replacen("type: NodePort", "type: LoadBalancer", 1).replacen("type: ClusterIP", "type: LoadBalancer", 1)
}

fn agent(world: &World) -> Agent<'_> {
    let arguments = ["--node-name", HERE, "--cluster-cidr", "10.1.0.0/16,fd00:1::/32"];
    let builder = Agent::builder(&world.topology.node.namespace).manifests(&world.manifests);
    arguments.into_iter().fold(builder, |builder, argument| builder.argument(argument)).start().unwrap()
}

/// Addresses that are the Service's alone.
fn addresses() -> Vec<IpAddr> {
    let named = [LOAD_BALANCER, EXTERNAL].concat().into_iter().map(|address| address.parse().unwrap());
    virtual_addresses(1).into_iter().chain(named).collect()
}

/// All frontends of the TCP port, or of the UDP port.
fn frontends(world: &World, port: u16) -> Vec<SocketAddr> {
    let node_port = if port == TCP { TCP_PORT } else { UDP_PORT };
    let own = addresses().into_iter().map(|address| SocketAddr::new(address, port));
    own.chain(world.topology.node.at(node_port)).collect()
}

/// ICMP port unreachable in the name of `to`, about a packet that was sent there.
fn unreachable(packet: &Summary, to: SocketAddr) -> bool {
    let numbers = if to.is_ipv4() { (protocol::ICMP, 3, 3) } else { (protocol::ICMPV6, 1, 4) };
    (packet.protocol, packet.kind, packet.code) == numbers
        && packet.from.ip() == to.ip()
        && packet.embedded.as_ref().is_some_and(|about| about.to == to)
}

#[test]
fn without_endpoints_everybody_is_refused_at_every_frontend() {
    let world = World::new(Topology::builder().servers(0).build().unwrap()).unwrap();
    world.manifests.write("web.yaml", &balanced(&service(&world))).unwrap();
    let _agent = agent(&world);
    for (who, client) in world.clients() {
        for to in frontends(&world, TCP) {
            // What a process of the node asks for is refused before there is a packet.
            let wire = (who != "node").then(|| RawSocket::open(&client.namespace, "eth0").unwrap());
            let error = Dial::new(&client.namespace, to).open().expect_err("nobody serves");
            assert!(error.is_refused(), "{who} to {to}: {error}");
            if let Some(wire) = wire {
                wire.expect(AT_ONCE, |packet| unreachable(packet, to))
                    .unwrap_or_else(|error| panic!("{who}: {error:#}"));
            }
        }
        for to in frontends(&world, UDP) {
            let asked = UdpClient::connected(&client.namespace, None, to).map_err(DialError::from);
            let error = asked.and_then(|udp| udp.request(10, DEADLINE)).expect_err("nobody serves");
            assert!(error.is_refused(), "{who} to {to}: {error}");
        }
    }
}

/// A process of the node is told at once, as there is nobody whom silence would send to another node.
#[test]
fn with_internal_policy_local_and_endpoints_elsewhere_pods_get_no_answer() {
    let world = World::new(Topology::builder().servers(2).build().unwrap()).unwrap();
    let elsewhere = service(&world).spec("internalTrafficPolicy: Local").on_node(1, "there").on_node(2, "there");
    world.publish("web", &elsewhere).unwrap();
    let _agent = agent(&world);
    let [pod, outside, node] = world.clients().map(|(_, client)| client);
    for address in virtual_addresses(1) {
        let (tcp, udp) = (SocketAddr::new(address, TCP), SocketAddr::new(address, UDP));
        for client in [pod, outside] {
            let wire = RawSocket::open(&client.namespace, "eth0").unwrap();
            let dial = Dial::new(&client.namespace, tcp).deadline(SILENCE).open();
            assert!(matches!(dial, Err(DialError::Silent(_))), "{tcp}: {dial:?}");
            let ask = UdpClient::connected(&client.namespace, None, udp).unwrap().request(10, AT_ONCE);
            assert!(matches!(ask, Err(DialError::Silent(_))), "{udp}: {ask:?}");
            let answer = wire.expect(Duration::ZERO, |packet| packet.from.ip() == address);
            assert!(answer.is_err(), "{answer:?}");
        }
        let error = Dial::new(&node.namespace, tcp).open().expect_err("nobody serves here");
        assert!(error.is_refused(), "the node to {tcp}: {error}");
    }
    // The external policy is Cluster.
    for (who, client) in world.clients() {
        for to in world.topology.node.at(TCP_PORT) {
            Dial::new(&client.namespace, to).open().unwrap_or_else(|error| panic!("{who} to {to}: {error}"));
        }
    }
}

#[test]
fn a_port_of_no_service_goes_on_as_it_is_and_never_to_the_nodes_own_daemons() {
    let world = World::new(Topology::builder().servers(1).build().unwrap()).unwrap();
    let node = &world.topology.node;
    world.manifests.write("web.yaml", &balanced(&service(&world))).unwrap();
    // At all addresses of the node, as sshd.
    world.servers.tcp(&node.namespace, 9, 22).unwrap();
    world.servers.udp(&node.namespace, 9, 22).unwrap();
    let _agent = agent(&world);
    for (who, client) in world.clients() {
        for to in node.at(22) {
            assert_eq!(Dial::new(&client.namespace, to).open().unwrap().server, 9, "{who} to the node itself");
        }
        for address in addresses() {
            let to = SocketAddr::new(address, 22);
            let error = Dial::new(&client.namespace, to).deadline(AT_ONCE).open().expect_err("nobody has this address");
            assert!(!error.is_refused(), "{who} to {to}: {error}");
            if who != "external" {
                let packet = world.leaves_by_the_default_route(&client.namespace, to).unwrap();
                assert_eq!((packet.to, packet.from.ip()), (to, client.address_like(address)), "{who}");
            }
        }
    }
    assert_eq!(world.servers.served(9), 6, "three clients, two addresses of the node");
}

#[test]
fn source_ranges_close_the_load_balancers_address_for_their_service_alone() {
    let world = World::new(Topology::builder().servers(1).build().unwrap()).unwrap();
    let ranges = "loadBalancerSourceRanges: [\"10.9.0.0/24\", \"fd00:9::/64\"]";
    world.manifests.write("web.yaml", &balanced(&service(&world).spec(ranges))).unwrap();
    // Another Service shares the address.
    let server = &world.topology.servers[0];
    let other = ServiceManifest::new("other", &virtual_addresses(2)).port("TCP", 81, TCP_TARGET);
    let other = other.server(server.id, &[server.v4.into(), server.v6.into()], 1);
    world.manifests.write("other.yaml", &balanced(&other)).unwrap();
    let _agent = agent(&world);
    let [pod, outside, _] = world.clients().map(|(_, client)| client);
    for (family, address) in LOAD_BALANCER.map(|address| address.parse::<IpAddr>().unwrap()).into_iter().enumerate() {
        let dial = |client: &bpvs_tests::topology::Host, to| Dial::new(&client.namespace, to).deadline(SILENCE).open();
        let [closed, open] = [TCP, 81].map(|port| SocketAddr::new(address, port));
        dial(outside, closed).unwrap_or_else(|error| panic!("{closed}, whose range has it: {error}"));
        let refused = dial(pod, closed);
        assert!(matches!(refused, Err(DialError::Silent(_))), "{closed}: {refused:?}");
        let others =
            [open, world.topology.node.at(TCP_PORT)[family], SocketAddr::new(EXTERNAL[family].parse().unwrap(), TCP)];
        for to in others {
            dial(pod, to).unwrap_or_else(|error| panic!("{to}: {error}"));
        }
    }
}
