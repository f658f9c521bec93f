//! Direct routing and tunnels by wire: a director and a server's node, each with programs of its own, and streams of real
//! clients, with and without offload. Agents with the same: `traffic`.
//!
//! ```text
//!  client -- director -- other node -- server of the tunnel
//!               |
//!            server with the virtual address
//! ```

use std::net::{IpAddr, SocketAddr};

use bpvs_tests::{
    datapath::{Datapath, Sizes},
    namespace::{End, Namespace, veth},
    topology::{Host, Topology, UPLINK},
    traffic::{DEADLINE, Dial, Servers, UdpClient},
    world::{TCP, UDP, virtual_addresses},
};
use lb_common::{
    address::{Address, Protocol},
    drops::Drop,
    layout::{DESTINATION_LOCAL, DESTINATION_ROUTE, DESTINATION_TUNNEL, LOOKUP_TUNNELS, SERVICE_TUNNELS, Settings},
    scheduler::Scheduler,
};
use lb_userspace::plan::{DesiredDestination, DesiredService, Frontend, Plan};

/// The tunnel's server, and its node as it sees it.
const POD: [&str; 2] = ["10.2.1.9", "fd00:2:1::9"];
const POD_NUMBER: u16 = 9;
const ROUTER: [&str; 2] = ["10.2.1.1", "fd00:2:1::1"];
/// Where the tunnel's server listens; the frontends' ports are others.
const TCP_TARGET: u16 = 8080;
const UDP_TARGET: u16 = 5353;
/// A mebibyte each way.
const BYTES: usize = 1 << 20;

/// Number of the service by direct routing; its server is server 1 of the topology.
const ROUTED: u16 = 1;
/// Number of the service in tunnels.
const TUNNELLED: u16 = 2;

struct Network {
    director: Datapath,
    other: Datapath,
    servers: Servers,
    topology: Topology,
    _pod: Namespace,
}

impl Network {
    fn new(offload: bool) -> Self {
        let topology = Topology::builder().servers(1).checksum_offload(offload).build().unwrap();
        let pod = pod_of_the_other_node(&topology);
        let servers = Servers::new().unwrap();
        servers.tcp(&pod, POD_NUMBER, TCP_TARGET).unwrap();
        servers.udp(&pod, POD_NUMBER, UDP_TARGET).unwrap();
        let routed = &topology.servers[0];
        let addresses = virtual_addresses(ROUTED);
        routed
            .namespace
            .ip(&[
                "link set lo up".to_owned(),
                format!("addr add {}/32 dev lo", addresses[0]),
                format!("addr add {}/128 dev lo nodad", addresses[1]),
            ])
            .unwrap();
        servers.tcp(&routed.namespace, routed.id, TCP).unwrap();

        let pods = POD.map(|address| address.parse().unwrap());
        let tunnelled = |flags| Served { number: TUNNELLED, servers: pods, targets: [TCP_TARGET, UDP_TARGET], flags };
        let of_routed = Served {
            number: ROUTED,
            servers: [routed.v4.into(), routed.v6.into()],
            targets: [TCP, UDP],
            flags: DESTINATION_ROUTE,
        };
        let (mut director, mut other) = (datapath(&topology.node), datapath(&topology.external));
        serve(&mut director, &[of_routed, tunnelled(DESTINATION_TUNNEL)]);
        serve(&mut other, &[tunnelled(DESTINATION_TUNNEL | DESTINATION_LOCAL)]);
        let client = topology.clients[0].node_interface.clone();
        director.attach(&topology.node.namespace, &[&client, UPLINK, &routed.node_interface]).unwrap();
        other.attach(&topology.external.namespace, &["eth0", "pod"]).unwrap();
        Self { director, other, servers, topology, _pod: pod }
    }

    /// What was dropped where, for a test that fails.
    fn drops(&self) -> String {
        let of = |datapath: &Datapath| datapath.all_drops().unwrap();
        format!("dropped by the director {:?}, by the other node {:?}", of(&self.director), of(&self.other))
    }
}

/// Packets to a service's servers and back, as a datapath counted them.
fn packets(datapath: &Datapath, number: u16, protocol: Protocol) -> (u64, u64) {
    let mut sum = (0, 0);
    for address in virtual_addresses(number) {
        let frontend = Frontend::new(address, if protocol == Protocol::Tcp { TCP } else { UDP }, protocol);
        let service = datapath.service(&frontend).unwrap().expect("the service is programmed");
        for id in (1..64).filter(|&id| datapath.destination(id).unwrap().service == service.id) {
            let traffic = datapath.traffic(id).unwrap();
            sum = (sum.0 + traffic.in_packets, sum.1 + traffic.out_packets);
        }
    }
    sum
}

/// A pod behind the host outside, which is another node here.
fn pod_of_the_other_node(topology: &Topology) -> Namespace {
    let (node, other) = (&topology.node, &topology.external);
    let pod = Namespace::new("elsewhere").unwrap();
    let near = End { namespace: &other.namespace, interface: "pod", mac: [2, 7, 0, 0, 1, 1] };
    veth(near, End { namespace: &pod, interface: "eth0", mac: [2, 7, 0, 0, 0, 1] }, 1500).unwrap();
    let ([v4, v6], [near_v4, near_v6]) = (POD, ROUTER);
    let addresses = |dev: &str, v4: &str, v6: &str| {
        [
            format!("link set {dev} up"),
            format!("addr add {v4}/24 dev {dev}"),
            format!("addr add {v6}/64 dev {dev} nodad"),
        ]
    };
    pod.ip(&addresses("eth0", v4, v6)).unwrap();
    other.namespace.sysctls(&[("ipv4/ip_forward", "1"), ("ipv6/conf/all/forwarding", "1")]).unwrap();
    other.namespace.ip(&addresses("pod", near_v4, near_v6)).unwrap();
    pod.ip(&[format!("route add default via {near_v4}"), format!("route add ::/0 via {near_v6}")]).unwrap();
    node.namespace
        .ip(&[
            format!("route add 10.2.1.0/24 via {} dev {UPLINK}", other.v4),
            format!("route add fd00:2:1::/64 via {} dev {UPLINK}", other.v6),
        ])
        .unwrap();
    pod
}

fn datapath(node: &Host) -> Datapath {
    let mut datapath = Datapath::load(Sizes::default()).unwrap();
    let settings = datapath.settings().unwrap();
    let settings = Settings { node_v4: Address::from(node.v4), node_v6: Address::from(node.v6), ..settings };
    datapath.set_settings(settings).unwrap();
    datapath
}

/// A service of both protocols and families with one server each, which has a method.
struct Served {
    number: u16,
    servers: [IpAddr; 2],
    targets: [u16; 2],
    flags: u16,
}

impl Served {
    /// Frontend, server and where it listens.
    fn all(&self) -> impl Iterator<Item = (Frontend, IpAddr, u16)> {
        virtual_addresses(self.number).into_iter().zip(self.servers).flat_map(|(address, server)| {
            [(Protocol::Tcp, TCP, self.targets[0]), (Protocol::Udp, UDP, self.targets[1])]
                .map(|(protocol, port, target)| (Frontend::new(address, port, protocol), server, target))
        })
    }
}

/// Programs services.
fn serve(datapath: &mut Datapath, services: &[Served]) {
    let mut plan = Plan::default();
    for (frontend, server, target) in services.iter().flat_map(Served::all) {
        let destinations = vec![DesiredDestination::new(server, target, 1)];
        plan.services.insert(frontend, DesiredService::new("test/dsr".to_owned(), Scheduler::RoundRobin, destinations));
    }
    datapath.apply(&plan).unwrap();
    for service in services {
        for (frontend, server, target) in service.all() {
            let id = datapath.destination_in(&frontend, server, target).unwrap().unwrap();
            datapath.change_destination(id, |record| record.flags |= service.flags).unwrap();
            if service.flags & DESTINATION_LOCAL != 0 {
                datapath.change_service(&frontend, |service| service.flags |= SERVICE_TUNNELS).unwrap();
                datapath.set("lookups", 0, LOOKUP_TUNNELS).unwrap();
            }
        }
    }
}

#[test]
fn streams_and_datagrams_reach_servers_that_answer_themselves() {
    for offload in [false, true] {
        let network = Network::new(offload);
        let client = &network.topology.clients[0];
        for (number, server) in [(ROUTED, 1), (TUNNELLED, POD_NUMBER)] {
            for address in virtual_addresses(number) {
                let what = format!("{address}, offload {offload}");
                let held = Dial::new(&client.namespace, SocketAddr::new(address, TCP)).open();
                let held = held.unwrap_or_else(|error| panic!("{what}: {error}; {}", network.drops()));
                assert_eq!((held.server, held.seen_peer.ip()), (server, client.address_like(address)), "{what}");
                held.stream_through(BYTES).unwrap_or_else(|error| panic!("{what}: {error:#}; {}", network.drops()));
                if number == ROUTED {
                    continue; // The kit's UDP server answers from the address that its routes name.
                }
                let to = SocketAddr::new(address, UDP);
                let udp = UdpClient::connected(&client.namespace, None, to).unwrap();
                for size in [0, 1000, 1400] {
                    let answer = udp.request(size, DEADLINE).unwrap_or_else(|error| panic!("{what}, {size}: {error}"));
                    assert_eq!(
                        (answer.server, answer.seen_peer.ip()),
                        (server, client.address_like(address)),
                        "{what}"
                    );
                }
            }
            let (requests, answers) = packets(&network.director, number, Protocol::Tcp);
            assert!(requests >= 6, "{requests} requests at the director");
            assert_eq!(answers, 0, "answers go past the director");
        }
        let (requests, answers) = packets(&network.other, TUNNELLED, Protocol::Udp);
        assert_eq!((requests, answers), (6, 6), "the server's node translates both ways");
        assert!(network.servers.served(POD_NUMBER) >= 8);
    }
}

/// Datagrams above the MTU of the tunnel: their fragments are told to be smaller first, and then arrive.
#[test]
fn senders_of_what_does_not_fit_learn_what_does() {
    for offload in [false, true] {
        let network = Network::new(offload);
        let client = &network.topology.clients[0];
        for address in virtual_addresses(TUNNELLED) {
            let udp = UdpClient::connected(&client.namespace, None, SocketAddr::new(address, UDP)).unwrap();
            let first = udp.request(1472 - if address.is_ipv6() { 20 } else { 0 }, DEADLINE);
            assert!(first.is_err(), "a datagram that fills the client's own link cannot pass");
            for size in [1472, 4000] {
                let answer = udp.request(size, DEADLINE);
                let answer = answer.unwrap_or_else(|error| panic!("{address}, {size}: {error}; {}", network.drops()));
                assert_eq!(answer.server, POD_NUMBER);
            }
        }
        assert!(network.director.drops(Drop::TooBig).unwrap() >= 2);
    }
}
