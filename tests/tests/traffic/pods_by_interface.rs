//! Pods that are known by the interface that their packets come in by (MQ-7): `InterfaceNamePrefix`, `BridgeInterface`.

use std::net::{IpAddr, SocketAddr};

use bpvs_tests::agent::Agent;
use bpvs_tests::namespace::{End, Namespace, veth};
use bpvs_tests::topology::Topology;
use bpvs_tests::traffic::{Dial, Held};
use bpvs_tests::world::{CHANGE, TCP, UDP, World, frontends, wait_for};

use crate::node_ports::{self, TCP_PORT, UDP_PORT, servers};

/// Two servers, of which one is here, and a policy that shows whether a client is taken for a pod.
fn world() -> World {
    let world = World::new(Topology::builder().servers(2).build().unwrap()).unwrap();
    let service = node_ports::service(&world).spec("externalTrafficPolicy: Local");
    world.publish("web", &service.on_node(1, "here").on_node(2, "there")).unwrap();
    world
}

fn cluster() -> [[SocketAddr; 2]; 2] {
    [frontends(1, TCP), frontends(1, UDP)]
}

fn dial(from: &Namespace, to: SocketAddr) -> Option<Held> {
    Dial::new(from, to).open().ok()
}

#[test]
fn pods_are_who_comes_in_by_an_interface_of_the_prefix() {
    for mode in ["stack", "direct"] {
        let world = world();
        let topology = &world.topology;
        // c1 and c2 are pods' interfaces; s1 and s2, and the uplink, are not.
        let arguments =
            ["--forwarding", mode, "--detect-local-mode", "InterfaceNamePrefix", "--pod-interface-name-prefix", "c"];
        let agent = node_ports::agent(&world, &arguments);
        let node = &topology.node;
        let node_port = [node.at(TCP_PORT), node.at(UDP_PORT)];
        let (pod, outside) = (&topology.clients[0], &topology.external);
        assert_eq!(servers(pod, cluster(), pod), [1, 2], "a pod keeps its address");
        assert_eq!(servers(pod, node_port, pod), [1, 2], "and reaches all at a node port");
        assert_eq!(servers(outside, cluster(), node), [1, 2], "others come from the node");
        assert_eq!(servers(outside, node_port, outside), [1], "and reach this node's");
        // One that comes later; then its interface has another name.
        let late = topology.new_client(2).unwrap();
        let seen = |wanted: IpAddr| {
            let to = frontends(1, TCP)[0];
            let ask = || Ok(dial(&late.namespace, to).filter(|held| held.seen_peer.ip() == wanted));
            wait_for(&format!("connection from {wanted}"), CHANGE, ask, || agent.log().text(0)).unwrap();
        };
        seen(late.v4.into());
        node.namespace.ip(&["link set c2 name x2".to_owned()]).unwrap();
        seen(node.v4.into());
    }
}

#[test]
fn pods_are_who_comes_in_by_a_port_of_the_bridge() {
    let world = world();
    let node = &world.topology.node;
    let agent = node_ports::agent(&world, &["--detect-local-mode=BridgeInterface", "--pod-bridge-interface=cni9"]);
    // The bridge and its pod come when the agent is there already.
    let pod = Namespace::new("bridged").unwrap();
    let port = End { namespace: &node.namespace, interface: "port9", mac: [2, 6, 0, 0, 1, 1] };
    node.namespace.ip(&["link add cni9 type bridge".to_owned()]).unwrap();
    veth(port, End { namespace: &pod, interface: "eth0", mac: [2, 6, 0, 0, 0, 1] }, 1500).unwrap();
    let lines = [
        "link set port9 master cni9 up",
        "link set cni9 up",
        "addr add 10.3.0.1/24 dev cni9",
        "addr add fd00:3::1/64 dev cni9 nodad",
    ];
    node.namespace.ip(&lines.map(str::to_owned)).unwrap();
    let lines = [
        "link set eth0 up",
        "addr add 10.3.0.2/24 dev eth0",
        "addr add fd00:3::2/64 dev eth0 nodad",
        "route add default via 10.3.0.1",
        "route add ::/0 via fd00:3::1",
    ];
    pod.ip(&lines.map(str::to_owned)).unwrap();
    let own: [IpAddr; 2] = ["10.3.0.2", "fd00:3::2"].map(|text| text.parse().unwrap());
    for (to, own) in frontends(1, TCP).into_iter().zip(own) {
        let ask = || Ok(dial(&pod, to).filter(|held| held.seen_peer.ip() == own));
        wait_for(&format!("connection from {own}"), CHANGE, ask, || agent.log().text(0)).unwrap();
    }
    // Behind an interface of its own, and so no pod.
    let other = &world.topology.clients[0];
    assert_eq!(servers(other, cluster(), node), [1, 2]);
    assert_eq!(servers(other, [node.at(TCP_PORT), node.at(UDP_PORT)], other), [1]);
}

/// The agent says what it lacks.
#[test]
fn a_mode_without_its_name_is_refused() {
    let world = world();
    let builder = Agent::builder(&world.topology.node.namespace).manifests(&world.manifests);
    let error = builder.argument("--detect-local-mode=BridgeInterface").start().unwrap_err();
    assert!(format!("{error:#}").contains("--pod-bridge-interface NAME"), "{error:#}");
}
