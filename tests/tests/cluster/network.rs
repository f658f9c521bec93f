//! Two nodes, a control plane and a host outside on one link, and pods behind the nodes:
//!
//! ```text
//!  control plane .1   node-a .11   node-b .12   outside .50     10.9.0.0/24, fd00:9::/64
//!        |               |            |            |
//!        '------------ bridge --------'------------'
//!                        |            |
//!                    10.1.1.n     10.1.2.n      pods, fd00:1:1::n, fd00:1:2::n
//! ```

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::process::Command;
use std::time::{Duration, Instant};

use bpvs_tests::namespace::{self, End, Namespace, veth_command};
use bpvs_tests::traffic::Servers;

pub(crate) const TCP_TARGET: u16 = 8080;
pub(crate) const UDP_TARGET: u16 = 5353;

/// Both addresses of whoever has this number on the link.
pub(crate) fn on_link(number: u8) -> [IpAddr; 2] {
    [Ipv4Addr::new(10, 9, 0, number).into(), Ipv6Addr::new(0xfd00, 9, 0, 0, 0, 0, 0, number.into()).into()]
}

/// A namespace with an uplink.
#[derive(Debug)]
pub(crate) struct Host {
    pub(crate) namespace: Namespace,
    pub(crate) addresses: [IpAddr; 2],
}

/// A node: `node-a` is number 1, `node-b` number 2.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) host: Host,
    pub(crate) name: &'static str,
    pub(crate) number: u8,
}

impl Node {
    pub(crate) fn pod_networks(&self) -> [String; 2] {
        [format!("10.1.{}.0/24", self.number), format!("fd00:1:{}::/64", self.number)]
    }
}

/// A pod on a node. It serves as the server of this number.
#[derive(Debug)]
pub(crate) struct Pod {
    pub(crate) namespace: Namespace,
    pub(crate) name: String,
    pub(crate) node: &'static str,
    pub(crate) addresses: [IpAddr; 2],
}

/// All of it but the control plane, whose namespace goes to the control plane.
#[derive(Debug)]
pub(crate) struct Network {
    pub(crate) servers: Servers,
    pub(crate) nodes: [Node; 2],
    pub(crate) outside: Host,
    _bridge: Namespace,
}

impl Network {
    pub(crate) fn new() -> (Self, Namespace) {
        for name in namespace::reap_leftovers().unwrap() {
            eprintln!("removed {name}, left behind by a killed run");
        }
        let bridge = Namespace::new("bridge").unwrap();
        bridge.ip(&["link add br0 type bridge".to_owned(), "link set br0 up".to_owned()]).unwrap();
        let host = |role, number| linked(&bridge, role, number);
        let control = host("control-plane", 1);
        let node = |name, number: u8| Node { host: host(name, 10 + number), name, number };
        let nodes = [node("node-a", 1), node("node-b", 2)];
        let outside = host("outside", 50);
        for (here, there) in [(&nodes[0], &nodes[1]), (&nodes[1], &nodes[0])] {
            here.host.namespace.sysctls(&[("ipv4/ip_forward", "1"), ("ipv6/conf/all/forwarding", "1")]).unwrap();
            for (network, via) in there.pod_networks().iter().zip(there.host.addresses) {
                here.host.namespace.ip(&[format!("route add {network} via {via} dev eth0")]).unwrap();
            }
        }
        // As a cloud's network does with a load balancer's address, and as a router does for the pods.
        let [v4, v6] = nodes[0].host.addresses;
        outside
            .namespace
            .ip(&[format!("route add default via {v4}"), format!("route add ::/0 via {v6} dev eth0")])
            .unwrap();
        for node in &nodes {
            let [v4, v6] = on_link(1);
            let lines = [format!("route add default via {v4}"), format!("route add ::/0 via {v6} dev eth0")];
            node.host.namespace.ip(&lines).unwrap();
        }
        (Self { servers: Servers::new().unwrap(), nodes, outside, _bridge: bridge }, control.namespace)
    }

    /// A pod that serves on a node. Numbers are unique.
    pub(crate) fn pod(&self, node: usize, id: u16) -> Pod {
        let node = &self.nodes[node];
        let name = format!("pod-{id}");
        let namespace = Namespace::new(&name).unwrap();
        let addresses: [IpAddr; 2] = [
            Ipv4Addr::new(10, 1, node.number, id as u8).into(),
            Ipv6Addr::new(0xfd00, 1, node.number.into(), 0, 0, 0, 0, id).into(),
        ];
        quiet(&namespace);
        let port = format!("v{id}");
        let mac = |side, id: u16| [2, 1, node.number, side, 0, id as u8];
        let near = End { namespace: &node.host.namespace, interface: &port, mac: mac(1, id) };
        let far = End { namespace: &namespace, interface: "eth0", mac: mac(0, id) };
        namespace::ip(&[veth_command(near, far, 1500)]).unwrap();
        let ([v4, v6], [own4, own6]) = (addresses, node.host.addresses);
        let lines = [
            format!("link set {port} up"),
            format!("addr add 169.254.1.1/32 dev {port} scope link"),
            format!("addr add fe80::1/64 dev {port} nodad"),
            format!("route add {v4}/32 dev {port} src {own4}"),
            format!("route add {v6}/128 dev {port} src {own6}"),
        ];
        node.host.namespace.ip(&lines).unwrap();
        let lines = [
            "link set eth0 up".to_owned(),
            format!("addr add {v4}/32 dev eth0"),
            format!("addr add {v6}/128 dev eth0 nodad"),
            "route add default via 169.254.1.1 dev eth0 onlink".to_owned(),
            "route add ::/0 via fe80::1 dev eth0".to_owned(),
        ];
        namespace.ip(&lines).unwrap();
        up(&node.host.namespace);
        self.servers.tcp(&namespace, id, TCP_TARGET).unwrap();
        self.servers.udp(&namespace, id, UDP_TARGET).unwrap();
        Pod { namespace, name, node: node.name, addresses }
    }
}

fn linked(bridge: &Namespace, role: &str, number: u8) -> Host {
    let namespace = Namespace::new(role).unwrap();
    quiet(&namespace);
    let port = format!("p{number}");
    let near = End { namespace: bridge, interface: &port, mac: [2, 8, 0, 0, 0, number] };
    let far = End { namespace: &namespace, interface: "eth0", mac: [2, 9, 0, 0, 0, number] };
    namespace::ip(&[veth_command(near, far, 1500)]).unwrap();
    bridge.ip(&[format!("link set {port} master br0"), format!("link set {port} up")]).unwrap();
    let addresses = on_link(number);
    let [v4, v6] = addresses;
    let lines = [
        "link set eth0 up".to_owned(),
        format!("addr add {v4}/24 dev eth0"),
        format!("addr add {v6}/64 dev eth0 nodad"),
    ];
    namespace.ip(&lines).unwrap();
    up(&namespace);
    Host { namespace, addresses }
}

fn quiet(namespace: &Namespace) {
    let settings = [
        ("ipv6/conf/all/accept_dad", "0"),
        ("ipv6/conf/default/accept_dad", "0"),
        ("ipv6/conf/default/accept_ra", "0"),
        ("ipv4/conf/all/rp_filter", "0"),
        ("ipv4/conf/default/rp_filter", "0"),
        ("ipv4/conf/all/send_redirects", "0"),
        ("ipv4/conf/default/send_redirects", "0"),
        ("ipv4/icmp_ratelimit", "0"),
        ("ipv6/icmp/ratelimit", "0"),
    ];
    namespace.sysctls(&settings).unwrap();
}

/// The kernel notices a carrier a moment after both ends are up.
fn up(namespace: &Namespace) {
    let end = Instant::now() + Duration::from_secs(5);
    let all = || {
        let output = namespace.run(Command::new("ip").args(["-j", "link", "show", "type", "veth"])).unwrap();
        let links: Vec<serde_json::Value> = serde_json::from_slice(&output.stdout).unwrap();
        links.iter().all(|link| link["operstate"] == "UP")
    };
    while !all() {
        assert!(Instant::now() < end, "the links of {} did not come up in 5 s", namespace.name());
        std::thread::sleep(Duration::from_millis(5));
    }
}
