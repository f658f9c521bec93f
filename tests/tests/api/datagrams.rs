//! Clients that go on sending from one UDP port, and streams beside them, through everything that becomes of their service:
//! datagrams never go on to whom they should not, and streams are cut by nothing. Every frontend, both families.

use std::net::SocketAddr;

use bpvs_tests::agent::Agent;
use bpvs_tests::namespace::Namespace;
use bpvs_tests::traffic::{DEADLINE, Dial, Held, Servers, UdpClient};
use serde_json::{Value, json};

use super::objects::{endpoint, service, slice};
use super::{World, until};

const SERVERS: u16 = 3;
const DATAGRAMS: u16 = 53;
const STREAMS: u16 = 80;
/// Where a server listens that is asked for nothing at first.
const OTHER_TARGET: u16 = 5354;
/// The cluster's, an external and a load balancer's address.
const ADDRESSES: [&str; 6] = ["10.96.0.1", "198.51.100.9", "203.0.113.10", "fd00:96::1", "fd00:98::9", "fd00:97::10"];
const NODE_PORTS: [(u16, u16); 2] = [(DATAGRAMS, 30_053), (STREAMS, 30_080)];

fn stated() -> Value {
    let mut object = service("a", &["10.96.0.1", "fd00:96::1"]);
    object["spec"]["type"] = json!("LoadBalancer");
    object["spec"]["externalIPs"] = json!(["198.51.100.9", "fd00:98::9"]);
    object["spec"]["ports"] = json!([{"name": "dns", "port": DATAGRAMS, "protocol": "UDP", "nodePort": 30_053},
                                     {"name": "web", "port": STREAMS, "protocol": "TCP", "nodePort": 30_080}]);
    object["status"]["loadBalancer"]["ingress"] = json!([{"ip": "203.0.113.10"}, {"ip": "fd00:97::10"}]);
    object
}

/// Publishes ready endpoints; datagrams go to this port of theirs.
fn publish(world: &World, servers: &[u16], target: u16) {
    for (name, network) in [("a-4", "10.1.1."), ("a-6", "fd00:1:1::")] {
        let ready = |server: &u16| endpoint(&format!("{network}{server}"), json!({"ready": true}));
        let mut slice = slice(name, "a", &servers.iter().map(ready).collect::<Vec<_>>());
        if name == "a-6" {
            slice["addressType"] = json!("IPv6");
        }
        slice["ports"] = json!([{"name": "web", "port": 8080, "protocol": "TCP"},
                                {"name": "dns", "port": target, "protocol": "UDP"}]);
        world.api().apply(slice);
    }
}

/// Every client, and every address and port that it may ask.
fn everybody(world: &World, port: u16) -> Vec<(&Namespace, SocketAddr)> {
    let topology = &world.topology;
    let node_port = NODE_PORTS.iter().find(|(known, _)| *known == port).unwrap().1;
    let addresses = ADDRESSES.map(|to| SocketAddr::new(to.parse().unwrap(), port));
    let to: Vec<_> = addresses.into_iter().chain(topology.node.at(node_port)).collect();
    let from = [&topology.clients[0].namespace, world.node(), &topology.external.namespace];
    from.into_iter().flat_map(|from| to.iter().map(move |&to| (from, to))).collect()
}

/// Open flows, and what goes on beside them.
struct Flows<'a> {
    agent: Agent<'a>,
    flows: Vec<(&'a Namespace, SocketAddr, UdpClient)>,
    streams: Vec<(&'a Namespace, SocketAddr, Held)>,
}

impl<'a> Flows<'a> {
    /// The flows are not begun, the streams are.
    fn open(world: &'a World, agent: Agent<'a>) -> Self {
        let flow = |(from, to)| (from, to, UdpClient::unconnected(from, None, to).unwrap());
        let stream = |(from, to): (&'a Namespace, SocketAddr)| {
            let held = Dial::new(from, to).open();
            (from, to, held.unwrap_or_else(|error| panic!("{} to {to}: {error}", from.name())))
        };
        Self {
            agent,
            flows: everybody(world, DATAGRAMS).into_iter().map(flow).collect(),
            streams: everybody(world, STREAMS).into_iter().map(stream).collect(),
        }
    }

    /// Waits until these destinations are programmed, at every frontend for datagrams.
    #[track_caller]
    fn programmed(&self, destinations: &[(u16, u16)]) {
        let mut wanted: Vec<_> = destinations.iter().map(|&(server, port)| (server, u64::from(port))).collect();
        wanted.sort_unstable();
        until(&format!("datagrams go to {wanted:?}"), || {
            let list = self.agent.command(&["list", "-o", "json"]).unwrap();
            let list: Value = serde_json::from_str(&list).unwrap();
            let services = list["services"].as_array().unwrap().iter().filter(|service| service["protocol"] == "UDP");
            let found: Vec<_> = services.map(destinations_of).collect();
            // Three addresses and the node port of each family.
            found.len() == 8 && found.iter().all(|found| *found == wanted)
        });
    }

    /// The server of each flow; streams go on.
    #[track_caller]
    fn servers(&mut self, what: &str) -> Vec<u16> {
        for (from, to, held) in &mut self.streams {
            held.exchange(&[7; 2000]).unwrap_or_else(|error| panic!("{what}: {} to {to}: {error}", from.name()));
        }
        let ask = |(from, to, socket): &(&Namespace, SocketAddr, UdpClient)| {
            let answer = socket.request(20, DEADLINE);
            let answer = answer.unwrap_or_else(|error| panic!("{what}: {} to UDP {to}: {error}", from.name()));
            assert_eq!(answer.from, *to, "{what}");
            answer.server
        };
        self.flows.iter().map(ask).collect()
    }

    #[track_caller]
    fn all_reach(&mut self, server: u16, what: &str) {
        let found = self.servers(what);
        for (index, found) in found.into_iter().enumerate() {
            let (from, to, _) = &self.flows[index];
            assert_eq!(found, server, "{what}: {} to {to}", from.name());
        }
    }

    /// Each sends what nobody answers. A process of the node may be told so.
    fn send_in_vain(&self) {
        for (_, to, socket) in &self.flows {
            drop(socket.socket().send_to(b"nobody", to));
        }
    }
}

/// Number and port of a listed service's destinations, sorted.
fn destinations_of(service: &Value) -> Vec<(u16, u64)> {
    let mut found: Vec<_> = service["destinations"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| {
            let address = one["address"].as_str().unwrap();
            let number = address.rsplit(['.', ':']).next().unwrap();
            (number.parse().unwrap(), one["port"].as_u64().unwrap())
        })
        .collect();
    found.sort_unstable();
    found
}

/// What makes nf_conntrack follow all that the node forwards, sends and gets.
const FOLLOWED: &str = "
table inet followed {
  chain forward { type filter hook forward priority filter; ct state established,related accept; }
  chain input { type filter hook input priority filter; ct state established,related accept; }
  chain output { type filter hook output priority filter; ct state established,related accept; }
  chain postrouting { type nat hook postrouting priority srcnat; ip daddr 192.0.2.0/24 masquerade; }
}
";

#[test]
fn datagrams_of_open_flows_follow_their_service_and_streams_are_not_cut() {
    changes(&World::new(SERVERS));
}

#[test]
fn so_they_do_where_nf_conntrack_is_in_between() {
    let world = World::new(SERVERS);
    world.node().nft(FOLLOWED).unwrap();
    changes(&world);
}

fn changes(world: &World) {
    const OTHER: u16 = 12;
    let other = Servers::new().unwrap();
    other.udp(&world.topology.servers[1].namespace, OTHER, OTHER_TARGET).unwrap();
    world.api().apply(stated());
    publish(world, &[1], 5353);
    let mut flows = Flows::open(world, world.agent().start().unwrap());
    flows.programmed(&[(1, 5353)]);
    flows.all_reach(1, "at first");

    publish(world, &[2], 5353);
    flows.programmed(&[(2, 5353)]);
    flows.all_reach(2, "another endpoint");

    publish(world, &[2], OTHER_TARGET);
    flows.programmed(&[(2, OTHER_TARGET)]);
    flows.all_reach(OTHER, "another target port");

    publish(world, &[], 5353);
    flows.programmed(&[]);
    flows.send_in_vain();
    publish(world, &[3], 5353);
    flows.programmed(&[(3, 5353)]);
    flows.all_reach(3, "an endpoint after none");

    world.api().delete("Service", "demo", "a");
    until("the service is gone", || !flows.agent.command(&["list", "-n"]).unwrap().contains("10.96.0.1"));
    flows.send_in_vain();
    world.api().apply(stated());
    flows.programmed(&[(3, 5353)]);
    flows.all_reach(3, "a service that comes after its clients");

    flows.agent.stop().unwrap();
    publish(world, &[1], 5353);
    flows.all_reach(3, "without an agent");
    flows.agent.start().unwrap();
    flows.programmed(&[(1, 5353)]);
    flows.all_reach(1, "changed while there was no agent");
}

#[test]
fn a_restart_leaves_flows_with_the_servers_that_they_have() {
    let world = World::new(SERVERS);
    world.api().apply(stated());
    publish(&world, &[1, 2, 3], 5353);
    let mut flows = Flows::open(&world, world.agent().start().unwrap());
    let before = flows.servers("before");
    assert!((1..=SERVERS).all(|server| before.contains(&server)), "all servers have flows: {before:?}");
    flows.agent.stop().unwrap();
    flows.agent.start().unwrap();
    assert_eq!(flows.servers("after a restart"), before);
    flows.agent.kill().unwrap();
    flows.agent.start().unwrap();
    assert_eq!(flows.servers("after SIGKILL"), before);
    // Others come and go: whoever is not concerned stays.
    publish(&world, &[1, 3], 5353);
    flows.programmed(&[(1, 5353), (3, 5353)]);
    for (before, after) in before.into_iter().zip(flows.servers("without server 2")) {
        assert!(if before == 2 { after != 2 } else { after == before }, "{before} became {after}");
    }
}
