//! A node with two uplinks: who comes from the node has the address of the one that the packet leaves by (MQ-5), on
//! every hook.
//!
//! ```text
//!  external 10.9.0.2 -- up0 10.9.0.1 \
//!                                     node -- pods
//!  second   10.8.0.2 -- up1 10.8.0.1 /
//! ```

use std::net::{IpAddr, SocketAddr};

use bpvs_tests::agent::{Agent, ServiceManifest};
use bpvs_tests::namespace::{End, Namespace, veth};
use bpvs_tests::topology::{Topology, offload_off};
use bpvs_tests::traffic::{DEADLINE, Dial, UdpClient};
use bpvs_tests::world::{CHANGE, TCP, TCP_TARGET, UDP, UDP_TARGET, World, virtual_addresses, wait_for};

const SECOND: &str = "up1";
const NODE: [&str; 2] = ["10.8.0.1", "fd00:8::1"];
const HOST: [&str; 2] = ["10.8.0.2", "fd00:8::2"];
/// Numbers of the servers on the hosts behind the uplinks, and where each one's service has its node ports.
const SERVERS: [(u16, u16); 2] = [(9, 30_090), (8, 30_080)];

struct Uplinks {
    world: World,
    second: Namespace,
}

impl Uplinks {
    fn new(offload: bool) -> Self {
        let topology = Topology::builder().servers(0).clients(1).checksum_offload(offload).build().unwrap();
        topology.take_frames().unwrap();
        let world = World::new(topology).unwrap();
        let node = &world.topology.node.namespace;
        let second = Namespace::new("second").unwrap();
        let near = End { namespace: node, interface: SECOND, mac: [2, 8, 0, 0, 1, 1] };
        veth(near, End { namespace: &second, interface: "eth0", mac: [2, 8, 0, 0, 0, 1] }, 1500).unwrap();
        let up = |dev: &str, [v4, v6]: [&str; 2]| {
            [
                format!("link set {dev} up"),
                format!("addr add {v4}/24 dev {dev}"),
                format!("addr add {v6}/64 dev {dev} nodad"),
            ]
        };
        node.ip(&up(SECOND, NODE)).unwrap();
        second.ip(&up("eth0", HOST)).unwrap();
        let [v4, v6] = NODE;
        second.ip(&[format!("route add default via {v4}"), format!("route add ::/0 via {v6}")]).unwrap();
        for (host, (number, _)) in [&world.topology.external.namespace, &second].into_iter().zip(SERVERS) {
            world.servers.tcp(host, number, TCP_TARGET).unwrap();
            world.servers.udp(host, number, UDP_TARGET).unwrap();
        }
        if !offload {
            offload_off(node, SECOND).unwrap();
            offload_off(&second, "eth0").unwrap();
        }
        // XDP sends to a veth whose other end has it.
        let mut gro = std::process::Command::new("ethtool");
        second.run(gro.args(["-K", "eth0", "gro", "on"])).unwrap();
        let uplinks = Self { world, second };
        for (host, (number, port)) in uplinks.hosts().into_iter().zip(SERVERS) {
            let service = ServiceManifest::new(&format!("web-{number}"), &virtual_addresses(number))
                .node_port("TCP", TCP, TCP_TARGET, port)
                .node_port("UDP", UDP, UDP_TARGET, port + 1)
                .server(number, &host, 1);
            uplinks.world.publish(&format!("web-{number}"), &service).unwrap();
        }
        uplinks
    }

    /// The hosts' addresses.
    fn hosts(&self) -> [[IpAddr; 2]; 2] {
        let external = &self.world.topology.external;
        [[external.v4.into(), external.v6.into()], HOST.map(|text| text.parse().unwrap())]
    }

    /// The node's addresses on the same links.
    fn node(&self) -> [[IpAddr; 2]; 2] {
        let node = &self.world.topology.node;
        [[node.v4.into(), node.v6.into()], NODE.map(|text| text.parse().unwrap())]
    }

    fn agent(&self, arguments: &[&str]) -> Agent<'_> {
        let builder = Agent::builder(&self.world.topology.node.namespace).manifests(&self.world.manifests);
        arguments.iter().fold(builder, |builder, argument| builder.argument(*argument)).start().unwrap()
    }

    /// Everybody asks the server behind each uplink, at the node's address on either, and is seen with the address that
    /// the node has towards the server.
    fn everybody_has_the_address_of_the_servers_side(&self, how: &str) {
        let clients =
            [&self.world.topology.external.namespace, &self.second, &self.world.topology.clients[0].namespace];
        for client in clients {
            for ((number, port), seen) in SERVERS.into_iter().zip(self.node()) {
                for (to, seen) in self.node().into_iter().flat_map(|addresses| addresses.into_iter().zip(seen)) {
                    let what = format!("{how}: {} to server {number} at {to}", client.name());
                    ask(client, to, port, (number, seen), &what);
                }
            }
        }
    }
}

/// A connection, a datagram that fits and one in fragments.
fn ask(client: &Namespace, to: IpAddr, port: u16, expected: (u16, IpAddr), what: &str) {
    let at = SocketAddr::new(to, port);
    let mut held = Dial::new(client, at).open().unwrap_or_else(|error| panic!("{what}: {error}"));
    assert_eq!((held.server, held.seen_peer.ip()), expected, "{what}");
    held.exchange(&[7; 20_000]).unwrap_or_else(|error| panic!("{what}: {error}"));
    held.close().unwrap();
    let at = SocketAddr::new(to, port + 1);
    for udp in [UdpClient::connected(client, None, at), UdpClient::unconnected(client, None, at)] {
        let udp = udp.unwrap();
        for size in [10, 3000] {
            let answer = udp.request(size, DEADLINE).unwrap_or_else(|error| panic!("{what}, {size} bytes: {error}"));
            assert_eq!((answer.server, answer.seen_peer.ip()), expected, "{what}, {size} bytes");
        }
    }
}

#[test]
fn clients_come_from_the_nodes_address_on_the_servers_side() {
    for offload in [false, true] {
        let uplinks = Uplinks::new(offload);
        for arguments in
            [&[][..], &["--forwarding", "direct"], &["--xdp", "generic", "--uplinks", "up*"], &["--tc", "clsact"]]
        {
            let agent = uplinks.agent(arguments);
            uplinks.everybody_has_the_address_of_the_servers_side(&format!("{arguments:?}, offload {offload}"));
            agent.cleanup().unwrap();
        }
    }
}

#[test]
fn in_the_driver_too() {
    let uplinks = Uplinks::new(false);
    let _agent = uplinks.agent(&["--xdp", "native", "--uplinks", "up*"]);
    uplinks.everybody_has_the_address_of_the_servers_side("native");
}

/// The next connection has what the interface has then.
#[test]
fn an_interfaces_addresses_are_followed() {
    let uplinks = Uplinks::new(false);
    let agent = uplinks.agent(&[]);
    let topology = &uplinks.world.topology;
    let (client, [_, (number, port)]) = (&topology.external.namespace, SERVERS);
    let seen = |to: IpAddr| {
        let held = Dial::new(client, SocketAddr::new(to, port)).open();
        held.ok().filter(|held| held.server == number).map(|held| held.seen_peer.ip())
    };
    let expect = |to: IpAddr, address: &str| {
        let wanted: IpAddr = address.parse().unwrap();
        let ask = || Ok((seen(to) == Some(wanted)).then_some(()));
        wait_for(&format!("connection from {wanted}"), CHANGE, ask, || agent.log().text(0)).unwrap();
    };
    let [[v4, v6], _] = uplinks.node();
    expect(v4, "10.8.0.1");
    expect(v6, "fd00:8::1");
    let ip = |line: &str| topology.node.namespace.ip(&[line.to_owned()]).unwrap();
    // A secondary address stands for nobody while the first one is there.
    ip("addr add 10.8.0.7/24 dev up1");
    ip("addr add fd00:8::7/64 dev up1 nodad");
    topology.node.namespace.sysctls(&[("ipv4/conf/up1/promote_secondaries", "1")]).unwrap();
    ip("addr del 10.8.0.1/24 dev up1");
    ip("addr del fd00:8::1/64 dev up1");
    expect(v4, "10.8.0.7");
    expect(v6, "fd00:8::7");
}
