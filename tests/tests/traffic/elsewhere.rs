//! Endpoints on another node, which is reached by the interface that external clients come in from.

use std::net::{IpAddr, SocketAddr};
use std::process::Command;
use std::time::Duration;

use bpvs_tests::agent::{Agent, ServiceManifest};
use bpvs_tests::namespace::{End, Namespace, veth};
use bpvs_tests::topology::{Topology, UPLINK};
use bpvs_tests::traffic::{DEADLINE, Dial, DialError, UdpClient};
use bpvs_tests::world::{TCP, TCP_TARGET, UDP, UDP_TARGET, World, virtual_addresses, wait_for};

use crate::node_ports::servers;

const TCP_PORT: u16 = 30_080;
const UDP_PORT: u16 = 30_053;
/// A pod of the other node.
const POD: [&str; 2] = ["10.2.1.9", "fd00:2:1::9"];
const POD_NUMBER: u16 = 9;
/// The other node, as its pod sees it.
const ROUTER: [&str; 2] = ["10.2.1.1", "fd00:2:1::1"];

/// A pod of the other node, which is the host outside: external clients have that one's own address.
struct Elsewhere {
    world: World,
    _pod: Namespace,
}

impl Elsewhere {
    fn new(servers: u16, offload: bool) -> Self {
        let topology = Topology::builder().servers(servers).checksum_offload(offload).build().unwrap();
        let world = World::new(topology).unwrap();
        let (node, other) = (&world.topology.node, &world.topology.external);
        let [v4, v6] = POD;
        let pod = Namespace::new("elsewhere").unwrap();
        let near = End { namespace: &other.namespace, interface: "pod", mac: [2, 7, 0, 0, 1, 1] };
        veth(near, End { namespace: &pod, interface: "eth0", mac: [2, 7, 0, 0, 0, 1] }, 1500).unwrap();
        let addresses = [
            "link set eth0 up".to_owned(),
            format!("addr add {v4}/24 dev eth0"),
            format!("addr add {v6}/64 dev eth0 nodad"),
        ];
        pod.ip(&addresses).unwrap();
        other.namespace.sysctls(&[("ipv4/ip_forward", "1"), ("ipv6/conf/all/forwarding", "1")]).unwrap();
        let [near_v4, near_v6] = ROUTER;
        let near = [
            "link set pod up".to_owned(),
            format!("addr add {near_v4}/24 dev pod"),
            format!("addr add {near_v6}/64 dev pod nodad"),
        ];
        other.namespace.ip(&near).unwrap();
        pod.ip(&[format!("route add default via {near_v4}"), format!("route add ::/0 via {near_v6}")]).unwrap();
        let routes = [
            format!("route add 10.2.1.0/24 via {} dev {UPLINK}", other.v4),
            format!("route add fd00:2:1::/64 via {} dev {UPLINK}", other.v6),
        ];
        node.namespace.ip(&routes).unwrap();
        world.servers.tcp(&pod, POD_NUMBER, TCP_TARGET).unwrap();
        world.servers.udp(&pod, POD_NUMBER, UDP_TARGET).unwrap();
        Self { world, _pod: pod }
    }
}

fn service(world: &World) -> ServiceManifest {
    let mut service = ServiceManifest::new("web", &virtual_addresses(1))
        .node_port("TCP", TCP, TCP_TARGET, TCP_PORT)
        .node_port("UDP", UDP, UDP_TARGET, UDP_PORT)
        .server(POD_NUMBER, &POD.map(|address| address.parse::<IpAddr>().unwrap()), 1)
        .on_node(POD_NUMBER, "there");
    for server in &world.topology.servers {
        service = service.server(server.id, &[server.v4.into(), server.v6.into()], 1).on_node(server.id, "here");
    }
    service
}

fn agent(world: &World) -> Agent<'_> {
    let arguments = ["--node-name", "here", "--cluster-cidr", "10.0.0.0/13,fd00::/29"];
    let builder = Agent::builder(&world.topology.node.namespace).manifests(&world.manifests);
    arguments.into_iter().fold(builder, |builder, argument| builder.argument(argument)).start().unwrap()
}

#[test]
fn endpoints_here_and_on_another_node_are_one_service() {
    for offload in [false, true] {
        let elsewhere = Elsewhere::new(1, offload);
        let world = &elsewhere.world;
        world.publish("web", &service(world)).unwrap();
        let _agent = agent(world);
        let topology = &world.topology;
        let [v4, v6] = virtual_addresses(1);
        let cluster = [TCP, UDP].map(|port| [SocketAddr::new(v4, port), SocketAddr::new(v6, port)]);
        let node_port = [topology.node.at(TCP_PORT), topology.node.at(UDP_PORT)];
        let (pod, outside, node) = (&topology.clients[0], &topology.external, &topology.node);
        for (what, client, to, seen) in [
            ("a pod keeps its address", pod, cluster, pod),
            ("the node has the one that its routes name", node, cluster, node),
            ("who is no pod comes from the node", outside, cluster, node),
            ("a pod at a node port", pod, node_port, node),
            ("the node at its own port", node, node_port, node),
            ("an external client at a node port", outside, node_port, node),
        ] {
            assert_eq!(servers(client, to, seen), [1, POD_NUMBER], "{what}");
        }
    }
}

/// In and out by one interface, which is what most nodes have.
#[test]
fn a_node_without_endpoints_serves_its_node_ports_from_its_own_address() {
    for offload in [false, true] {
        let elsewhere = Elsewhere::new(0, offload);
        let world = &elsewhere.world;
        world.publish("web", &service(world)).unwrap();
        let _agent = agent(world);
        let (outside, node) = (&world.topology.external, &world.topology.node);
        assert_eq!(servers(outside, [node.at(TCP_PORT), node.at(UDP_PORT)], node), [POD_NUMBER]);
        for to in node.at(UDP_PORT) {
            for udp in [
                UdpClient::connected(&outside.namespace, None, to),
                UdpClient::unconnected(&outside.namespace, None, to),
            ] {
                let udp = udp.unwrap();
                for size in [0, 1472, 2000, 8192] {
                    let answer =
                        udp.request(size, DEADLINE).unwrap_or_else(|error| panic!("{size} bytes to {to}: {error}"));
                    assert_eq!((answer.from, answer.seen_peer.ip()), (to, node.address_like(to.ip())), "{size} bytes");
                }
            }
        }
    }
}

/// The way to the pod is narrow behind the other node: its error goes to whom the packet came from, which is this node
/// where clients come from it.
#[test]
fn too_big_is_told_to_the_client_by_a_router_on_the_way_to_the_server() {
    for offload in [false, true] {
        let elsewhere = Elsewhere::new(0, offload);
        let world = &elsewhere.world;
        world.publish("web", &service(world)).unwrap();
        let _agent = agent(world);
        let (pod, outside, node) = (&world.topology.clients[0], &world.topology.external, &world.topology.node);
        let [v4, v6] = POD;
        let narrow =
            [(v4, 32), (v6, 128)].map(|(pod, bits)| format!("route replace {pod}/{bits} dev pod mtu lock 1300"));
        outside.namespace.ip(&narrow).unwrap();
        let cluster = virtual_addresses(1);
        let [node_v4, node_v6] = [IpAddr::from(node.v4), node.v6.into()];
        for (who, client, address) in [
            ("a pod", pod, cluster[0]),
            ("a pod", pod, cluster[1]),
            ("a pod", pod, node_v4),
            ("a pod", pod, node_v6),
            ("an external client", outside, node_v4),
            ("an external client", outside, node_v6),
        ] {
            let [tcp, udp] = if cluster.contains(&address) { [TCP, UDP] } else { [TCP_PORT, UDP_PORT] };
            let to = SocketAddr::new(address, udp);
            let socket = UdpClient::connected(&client.namespace, None, to).unwrap();
            // Linux sets DF on datagrams that fit the path as far as it knows it.
            let error = socket.request(1400, DEADLINE).expect_err("the way is narrow");
            let is_too_big =
                matches!(&error, DialError::Io(error) if error.raw_os_error() == Some(nix::libc::EMSGSIZE));
            assert!(is_too_big, "{who} to {to}: {error}");
            // In fragments. What the other node has learned as a client it knows as the pod's router, too (IPv6): it
            // tells the pod, whose first answer is lost by that.
            let answer = || Ok(socket.request(1400, Duration::from_secs(1)).ok());
            wait_for("answer in fragments", DEADLINE, answer, || format!("{who} to {to}")).unwrap();
            // What UDP has learned must not help TCP.
            for family in ["-4", "-6"] {
                let mut ip = Command::new("ip");
                client.namespace.run(ip.args([family, "route", "flush", "cache"])).unwrap();
            }
            let to = SocketAddr::new(address, tcp);
            let held = Dial::new(&client.namespace, to).open().unwrap_or_else(|error| panic!("{who} to {to}: {error}"));
            held.stream_through(1 << 20).unwrap_or_else(|error| panic!("{who} to {to}: {error:#}"));
        }
    }
}
