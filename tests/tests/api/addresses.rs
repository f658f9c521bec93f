//! Addresses where there is nothing but services, as the API server states them.

use std::net::SocketAddr;
use std::time::Duration;

use bpvs_tests::namespace::Namespace;
use bpvs_tests::packets::{RawSocket, Summary, protocol};
use bpvs_tests::traffic::{Dial, UdpClient};
use serde_json::{Value, json};

use super::objects::{ready, service, slice, with};
use super::{DEADLINE, World, address, until};

const FRONTENDS: [&str; 2] = ["10.96.0.1:80", "[fd00:96::1]:80"];
/// Ports of the cluster addresses that no Service has.
const OTHER_PORTS: [&str; 2] = ["10.96.0.1:4711", "[fd00:96::1]:4711"];
/// Addresses of the ServiceCIDR that no Service has.
const NOBODY: [&str; 2] = ["10.96.7.7:4711", "[fd00:96::77]:4711"];

/// Far below the first repetition of a SYN (1 s).
const AT_ONCE: Duration = Duration::from_millis(200);

fn service_cidr(name: &str, networks: &[&str]) -> Value {
    json!({"apiVersion": "networking.k8s.io/v1", "kind": "ServiceCIDR", "metadata": {"name": name},
           "spec": {"cidrs": networks}})
}

/// Whether a datagram leaves the node by the default route.
fn leaves(world: &World, from: &Namespace, to: SocketAddr) -> bool {
    let wire = RawSocket::open(&world.topology.external.namespace, "eth0").unwrap();
    let udp = UdpClient::unconnected(from, None, to).unwrap();
    udp.socket().send_to(b"nobody", to).unwrap();
    let port = udp.local().unwrap().port();
    let ours = |packet: &Summary| packet.protocol == protocol::UDP && packet.from.port() == port;
    wire.expect(AT_ONCE, ours).is_ok()
}

#[test]
fn other_ports_of_a_cluster_address_are_refused_and_addresses_of_no_service_stay_on_the_node() {
    let world = World::new(1);
    let addresses = ["10.96.0.1", "fd00:96::1"];
    world.api().apply(service("a", &addresses));
    world.api().apply(slice("a-1", "a", &ready(&[1])));
    let _agent = world.agent().start().unwrap();
    let (pod, node, outside) = (&world.topology.clients[0].namespace, world.node(), &world.topology.external.namespace);
    world.expect(address(FRONTENDS[0]), &[1]);
    for to in OTHER_PORTS.map(address) {
        for (who, client) in [("pod", pod), ("node", node), ("external", outside)] {
            let error = Dial::new(client, to).deadline(DEADLINE).open().expect_err("nobody serves this port");
            assert!(error.is_refused(), "{who} to {to}: {error}");
        }
    }
    // Nothing is known of the networks yet.
    for to in NOBODY.map(address) {
        assert!(leaves(&world, pod, to) && leaves(&world, node, to), "{to}");
    }
    // One that comes while the agent runs.
    world.api().apply(service_cidr("kubernetes", &["10.96.0.0/16", "fd00:96::/112"]));
    for to in NOBODY.map(address) {
        until(&format!("what a pod sends to {to} stays on the node"), || !leaves(&world, pod, to));
        assert!(!leaves(&world, node, to), "a process of the node to {to}");
        let error = Dial::new(pod, to).deadline(AT_ONCE).open().expect_err("nobody has it");
        assert!(!error.is_refused(), "silence, as a Service of this address may be on its way: {error}");
    }
    assert_eq!(world.dial(address(FRONTENDS[0])), Some(1));
    // A Service that another proxy of the node serves is unknown here, and its packets are its own until they leave: a
    // Service that gets an address of the network is served.
    world.api().apply(service("b", &["10.96.7.7"]));
    world.api().apply(slice("b-1", "b", &ready(&[1])));
    world.expect(address("10.96.7.7:80"), &[1]);
    // Other proxies' Services give their addresses back to whoever has them.
    world.api().apply(with(service("a", &addresses), "labels", "service.kubernetes.io/service-proxy-name", "other"));
    for to in OTHER_PORTS.map(address) {
        until(&format!("{to} is refused no more"), || {
            !Dial::new(pod, to).deadline(AT_ONCE).open().expect_err("nobody has it").is_refused()
        });
    }
    world.api().delete("ServiceCIDR", "", "kubernetes");
    for to in [NOBODY[1], OTHER_PORTS[0]].map(address) {
        until(&format!("what is sent to {to} leaves the node"), || leaves(&world, pod, to));
    }
}

/// A cluster from before there were ServiceCIDRs, or a role from then.
#[test]
fn an_api_server_without_service_cidrs_is_asked_seldom_and_hinders_nothing() {
    for (status, times) in [(404, 1..=1), (403, 2..=7)] {
        let world = World::new(1);
        world.api().refuse("servicecidrs", Some(status));
        world.api().apply(service("a", &["10.96.0.1"]));
        world.api().apply(slice("a-1", "a", &ready(&[1])));
        let agent = world.agent().start().unwrap();
        world.expect(address(FRONTENDS[0]), &[1]);
        let told = |line: &str| line.contains("servicecidrs") && line.contains("goes on by the routes");
        agent.wait_for_log(0, "what is not known", DEADLINE, told).unwrap();
        // Longer than the first delays after trouble are.
        std::thread::sleep(Duration::from_secs(4));
        let asked = world.api().requests().into_iter().filter(|request| request.collection == "servicecidrs").count();
        assert!(times.contains(&asked), "{status}: {asked}");
        let warned = agent.log().text(0).lines().any(|line| line.contains("WARN") && line.contains("servicecidrs"));
        assert!(!warned, "{status}: {}", agent.log().text(0));
    }
}

#[test]
fn a_restarted_agent_takes_over_what_is_refused_and_takes_back_what_is_gone() {
    let world = World::new(1);
    world.api().apply(service("a", &["10.96.0.1"]));
    world.api().apply(service("b", &["10.96.0.2"]));
    world.api().apply(service_cidr("kubernetes", &["10.96.0.0/16"]));
    let agent = world.agent().start().unwrap();
    let pod = &world.topology.clients[0].namespace;
    let [kept, gone, nobody] = ["10.96.0.1:4711", "10.96.0.2:4711", "10.96.7.7:4711"].map(address);
    let refused = |to| matches!(Dial::new(pod, to).deadline(AT_ONCE).open(), Err(error) if error.is_refused());
    until("both addresses refuse, and the network is known", || {
        refused(kept) && refused(gone) && !leaves(&world, pod, nobody)
    });
    agent.stop().unwrap();
    assert!(refused(kept) && refused(gone) && !leaves(&world, pod, nobody), "what is programmed stays");
    world.api().delete("Service", "demo", "b");
    world.api().delete("ServiceCIDR", "", "kubernetes");
    agent.start().unwrap();
    until("what is gone is taken back", || refused(kept) && leaves(&world, pod, gone) && leaves(&world, pod, nobody));
}
