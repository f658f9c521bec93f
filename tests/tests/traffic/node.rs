//! The node that the agent runs on: its own addresses and ports beside those of Services, what is to leave it, its routes and
//! its families.

use std::net::SocketAddr;
use std::time::Duration;

use bpvs_tests::agent::{Agent, ServiceManifest};
use bpvs_tests::packets::RawSocket;
use bpvs_tests::topology::{Topology, UPLINK};
use bpvs_tests::traffic::{Dial, DialError};
use bpvs_tests::world::{CHANGE, TCP, TCP_TARGET, World, virtual_addresses, wait_for};

const NODE_PORT: u16 = 30_080;
/// A daemon's number and port; it listens at all addresses of the node.
const DAEMON: u16 = 9;
const SSH: u16 = 22;
/// Far below the first repetition of a SYN (1 s).
const AT_ONCE: Duration = Duration::from_millis(200);

fn service(world: &World) -> ServiceManifest {
    let service = ServiceManifest::new("web", &virtual_addresses(1)).node_port("TCP", TCP, TCP_TARGET, NODE_PORT);
    let add = |service: ServiceManifest, server: &bpvs_tests::topology::Host| {
        service.server(server.id, &[server.v4.into(), server.v6.into()], 1)
    };
    world.topology.servers.iter().fold(service, add)
}

/// The Service with these addresses of a load balancer.
fn balanced(service: &ServiceManifest, ingress: &[String]) -> String {
    let status = format!("status: {{loadBalancer: {{ingress: [{}]}}}}\n---\n", ingress.join(", "));
    service.yaml().replacen("---\n", &status, 1).replacen("type: NodePort", "type: LoadBalancer", 1)
}

fn agent(world: &World) -> Agent<'_> {
    Agent::builder(&world.topology.node.namespace).manifests(&world.manifests).start().unwrap()
}

/// FE-4: a load balancer's address that the node has itself.
#[test]
fn a_load_balancers_address_that_is_the_nodes_own_has_its_services_port_and_all_others_are_the_nodes() {
    let world = World::new(Topology::builder().servers(2).build().unwrap()).unwrap();
    let node = &world.topology.node;
    world.servers.tcp(&node.namespace, DAEMON, SSH).unwrap();
    world.servers.tcp(&node.namespace, DAEMON, TCP).unwrap();
    let ingress = node.at(0).map(|at| format!("{{ip: \"{}\"}}", at.ip()));
    world.manifests.write("web.yaml", &balanced(&service(&world), &ingress)).unwrap();
    let agent = agent(&world);
    let dial = |client, to: SocketAddr| Dial::new(client, to).open().unwrap_or_else(|error| panic!("{to}: {error}"));
    for (who, client) in world.clients() {
        for (own, others) in node.at(TCP).into_iter().zip(node.at(SSH)) {
            assert!(dial(&client.namespace, own).server < DAEMON, "{who}: the Service's, and not the daemon's");
            assert_eq!(dial(&client.namespace, others).server, DAEMON, "{who}");
        }
    }
    // The Service goes, and the address stays.
    world.manifests.remove("web.yaml").unwrap();
    for (who, client) in world.clients() {
        for to in node.at(TCP) {
            let own = || Ok((dial(&client.namespace, to).server == DAEMON).then_some(()));
            wait_for(&format!("{who} to reach the daemon"), CHANGE, own, || agent.log().text(0)).unwrap();
        }
    }
}

/// NP-4, NP-5: nothing listens for a node port, which has its port before any process; at other addresses it has not.
#[test]
fn a_node_port_comes_before_a_process_that_listens_there_and_is_at_the_nodes_addresses_alone() {
    let world = World::new(Topology::builder().servers(2).build().unwrap()).unwrap();
    let node = &world.topology.node;
    world.publish("web", &service(&world)).unwrap();
    let agent = agent(&world);
    let listening = node.namespace.run(std::process::Command::new("ss").args(["-Hltn"])).unwrap();
    let listening = String::from_utf8(listening.stdout).unwrap();
    assert!(!listening.contains(&NODE_PORT.to_string()), "{listening}");
    // So that a process may have the port, and gets nobody.
    world.servers.tcp(&node.namespace, DAEMON, NODE_PORT).unwrap();
    for (who, client) in world.clients() {
        for to in node.at(NODE_PORT) {
            let server = Dial::new(&client.namespace, to).open().unwrap().server;
            assert!(server < DAEMON, "{who} to {to}");
        }
        for address in virtual_addresses(1) {
            let to = SocketAddr::new(address, NODE_PORT);
            let error = Dial::new(&client.namespace, to).deadline(AT_ONCE).open().expect_err("no port of this address");
            assert!(!error.is_refused(), "{who} to {to}: {error}");
        }
    }
    assert_eq!(world.servers.served(DAEMON), 0);
    world.manifests.remove("web.yaml").unwrap();
    let (outside, [to, _]) = (&world.topology.external.namespace, node.at(NODE_PORT));
    let own = || Ok(Dial::new(outside, to).open().ok().filter(|held| held.server == DAEMON).map(drop));
    wait_for("the process to be reached", CHANGE, own, || agent.log().text(0)).unwrap();
}

/// MQ-10: what a load balancer is to have itself leaves the node; what it hands on does not.
#[test]
fn with_ip_mode_proxy_pods_reach_the_load_balancer_and_with_vip_the_service() {
    let world = World::new(Topology::builder().servers(2).build().unwrap()).unwrap();
    let addresses = ["203.0.113.10", "2001:db8::10"];
    let publish = |mode: &str| {
        let ingress = addresses.map(|address| format!("{{ip: \"{address}\", ipMode: {mode}}}"));
        world.manifests.write("web.yaml", &balanced(&service(&world), &ingress)).unwrap();
    };
    publish("Proxy");
    let agent = agent(&world);
    let (pod, node) = (&world.topology.clients[0], &world.topology.node);
    for address in addresses {
        let to = SocketAddr::new(address.parse().unwrap(), TCP);
        for client in [pod, node] {
            let wire = RawSocket::open(&world.topology.external.namespace, "eth0").unwrap();
            let dial = Dial::new(&client.namespace, to).deadline(AT_ONCE).open();
            assert!(matches!(dial, Err(DialError::Silent(_) | DialError::Unreachable(_))), "{to}: {dial:?}");
            let (_, packet) = wire.expect(CHANGE, |packet| packet.to == to).unwrap();
            assert_eq!(packet.from.ip(), client.address_like(to.ip()), "as it is, by {UPLINK}");
        }
    }
    publish("VIP");
    for address in addresses {
        let to = SocketAddr::new(address.parse().unwrap(), TCP);
        for client in [pod, node] {
            let served = || Ok(Dial::new(&client.namespace, to).deadline(AT_ONCE).open().ok().map(drop));
            wait_for("the Service to be reached", CHANGE, served, || agent.log().text(0)).unwrap();
        }
    }
}

/// NE-2: who has no route to a frontend is refused all the same, as the answer comes before routing.
#[test]
fn without_a_route_to_the_frontend_clients_are_refused_and_served() {
    let world = World::new(Topology::builder().servers(1).build().unwrap()).unwrap();
    let node = &world.topology.node;
    node.namespace.ip(&["route del default".to_owned(), format!("route del ::/0 dev {UPLINK}")]).unwrap();
    world.publish("none", &world.empty_service("none", 2)).unwrap();
    world.publish("web", &world.service("web", 1)).unwrap();
    let _agent = agent(&world);
    let pod = &world.topology.clients[0].namespace;
    for (served, refused) in virtual_addresses(1).into_iter().zip(virtual_addresses(2)) {
        assert_eq!(Dial::new(pod, SocketAddr::new(served, TCP)).open().unwrap().server, 1);
        let to = SocketAddr::new(refused, TCP);
        let error = Dial::new(pod, to).open().expect_err("nobody serves");
        assert!(error.is_refused(), "{to}: {error}");
        let error = Dial::new(&node.namespace, to).open().expect_err("nobody serves");
        assert!(error.is_refused(), "the node to {to}: {error}");
    }
}

/// FE-8: `disable_ipv6`, as on nodes of one family.
#[test]
fn a_node_without_ipv6_serves_services_of_both_families_by_ipv4() {
    let world = World::new(Topology::builder().servers(2).build().unwrap()).unwrap();
    let node = &world.topology.node;
    node.namespace.sysctls(&[("ipv6/conf/all/disable_ipv6", "1"), ("ipv6/conf/default/disable_ipv6", "1")]).unwrap();
    let checked = service(&world).spec("externalTrafficPolicy: Cluster").yaml();
    world.manifests.write("web.yaml", &checked).unwrap();
    let agent = agent(&world);
    let log = agent.log().text(0);
    assert!(!log.contains("WARN"), "{log}");
    for (who, client) in world.clients() {
        for to in [SocketAddr::new(virtual_addresses(1)[0], TCP), node.at(NODE_PORT)[0]] {
            Dial::new(&client.namespace, to).open().unwrap_or_else(|error| panic!("{who} to {to}: {error}"));
        }
    }
}
