//! `sessionAffinity: ClientIP` while what the cluster states changes: whom a client's next connection and its next datagram
//! reach. Both families, both protocols.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU16, Ordering};

use bpvs_tests::agent::{Agent, Listing};
use bpvs_tests::traffic::{DEADLINE, Dial, UdpClient};
use serde_json::{Value, json};

use super::objects::{endpoint, service, slice, with};
use super::{World, address, until};

/// Servers there are.
const SERVERS: u16 = 5;
/// Enough that clients without affinity are seen at every server.
const ASKED: u16 = 2 * SERVERS;
/// The service's frontends.
const FRONTENDS: [(&str, &str); 4] =
    [("TCP", "10.96.0.1:80"), ("UDP", "10.96.0.1:53"), ("TCP", "[fd00:96::1]:80"), ("UDP", "[fd00:96::1]:53")];

/// What is stated of a server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stated {
    Ready,
    NotReady,
    Terminating,
    Removed,
    /// It is on another node, and the Service's internal traffic stays on the client's.
    OnAnotherNode,
    /// The hints give it to another node.
    HintedElsewhere,
}

impl Stated {
    fn endpoint(self, address: &str) -> Option<Value> {
        let conditions = match self {
            Self::Removed => return None,
            Self::NotReady => json!({"ready": false, "serving": false, "terminating": false}),
            Self::Terminating => json!({"ready": false, "serving": true, "terminating": true}),
            _ => json!({"ready": true}),
        };
        let mut endpoint = endpoint(address, conditions);
        endpoint["nodeName"] = json!(if self == Self::OnAnotherNode { "n1" } else { "n0" });
        endpoint["hints"]["forNodes"] = json!([{"name": if self == Self::HintedElsewhere { "n1" } else { "n0" }}]);
        Some(endpoint)
    }
}

fn sticky(timeout: Option<u32>) -> Value {
    let mut object = service("a", &["10.96.0.1", "fd00:96::1"]);
    object["spec"]["ports"] = json!([{"name": "web", "port": 80, "protocol": "TCP"},
                                     {"name": "dns", "port": 53, "protocol": "UDP"}]);
    if let Some(timeout) = timeout {
        object["spec"]["sessionAffinity"] = json!("ClientIP");
        object["spec"]["sessionAffinityConfig"]["clientIP"]["timeoutSeconds"] = json!(timeout);
    }
    object
}

/// Publishes the endpoints, then the service.
fn publish(world: &World, object: Value, stated: impl Fn(u16) -> Stated) {
    for (name, network) in [("a-4", "10.1.1."), ("a-6", "fd00:1:1::")] {
        let endpoints: Vec<_> =
            (1..=SERVERS).filter_map(|server| stated(server).endpoint(&format!("{network}{server}"))).collect();
        let mut slice = slice(name, "a", &endpoints);
        slice["ports"] = json!([{"name": "web", "port": 8080, "protocol": "TCP"},
                                {"name": "dns", "port": 5353, "protocol": "UDP"}]);
        world.api().apply(slice);
    }
    world.api().apply(object);
}

/// Waits until every frontend has exactly these servers.
#[track_caller]
fn programmed(agent: &Agent<'_>, servers: &[u16]) {
    until(&format!("the servers are {servers:?}"), || {
        let listing = Listing::read(agent).unwrap();
        FRONTENDS.iter().all(|(protocol, to)| {
            let service = listing.service(protocol, address(to));
            let mut found: Vec<_> =
                service.iter().flat_map(|service| &service.servers).map(|one| one.number()).collect();
            found.sort_unstable();
            found == servers
        })
    });
}

/// Waits until every frontend's line ends so.
#[track_caller]
fn listed(agent: &Agent<'_>, end: &str) {
    until(&format!("all lines of services end with {end:?}"), || {
        let list = agent.command(&["list", "-n"]).unwrap();
        let frontend = |(protocol, to): &(&str, &str)| list.contains(&format!("{protocol}  {to} {end}\n"));
        FRONTENDS.iter().all(frontend)
    });
}

/// The server that a new connection, or a datagram of a new socket, reaches. Each has a port of its own: with one that was
/// there before it could be taken for what it is in the table then, a packet of an old flow.
fn ask(world: &World, protocol: &str, to: SocketAddr) -> u16 {
    static PORTS: AtomicU16 = AtomicU16::new(10_000);
    let client = &world.topology.clients[0];
    let source = SocketAddr::new(client.address_like(to.ip()), PORTS.fetch_add(1, Ordering::Relaxed));
    let asked = match protocol {
        "TCP" => Dial::new(&client.namespace, to).source(source).open().map(|held| held.server),
        _ => {
            let socket = UdpClient::unconnected(&client.namespace, Some(source), to).unwrap();
            socket.request(20, DEADLINE).map(|answer| answer.server)
        }
    };
    asked.unwrap_or_else(|error| panic!("{protocol} {to}: {error}"))
}

/// Whom the client reaches in many attempts: sorted, each once.
fn asks(world: &World, protocol: &str, to: &str) -> Vec<u16> {
    let mut found: Vec<_> = (0..ASKED).map(|_| ask(world, protocol, address(to))).collect();
    found.sort_unstable();
    found.dedup();
    found
}

/// The one server of every frontend's client.
#[track_caller]
fn bound(world: &World) -> [u16; 4] {
    FRONTENDS.map(|(protocol, to)| match *asks(world, protocol, to) {
        [server] => server,
        ref servers => panic!("{protocol} {to} is spread over {servers:?}"),
    })
}

#[test]
fn a_client_leaves_a_server_that_is_not_to_be_used_for_another_and_stays_there() {
    let world = World::new(SERVERS);
    publish(&world, sticky(Some(10_800)), |_| Stated::Ready);
    let agent = world.agent().start().unwrap();
    let all: Vec<u16> = (1..=SERVERS).collect();
    for stated in
        [Stated::Terminating, Stated::NotReady, Stated::Removed, Stated::OnAnotherNode, Stated::HintedElsewhere]
    {
        for (index, (protocol, to)) in FRONTENDS.into_iter().enumerate() {
            let what = format!("{stated:?}, {protocol} {to}");
            let before = bound(&world)[index];
            let others: Vec<u16> = all.iter().copied().filter(|&server| server != before).collect();
            let mut object = sticky(Some(10_800));
            if stated == Stated::OnAnotherNode {
                object["spec"]["internalTrafficPolicy"] = json!("Local");
            }
            publish(&world, object, |server| if server == before { stated } else { Stated::Ready });
            programmed(&agent, &others);
            let after = bound(&world)[index];
            assert_ne!(after, before, "{what}");
            publish(&world, sticky(Some(10_800)), |_| Stated::Ready);
            programmed(&agent, &all);
            assert_eq!(bound(&world)[index], after, "{what}: the new binding outlives the reason for it");
        }
    }
}

#[test]
fn a_client_stays_with_a_server_that_terminates_while_no_other_is_ready() {
    let world = World::new(SERVERS);
    publish(&world, sticky(Some(10_800)), |_| Stated::Ready);
    let agent = world.agent().start().unwrap();
    let before = bound(&world);
    publish(
        &world,
        sticky(Some(10_800)),
        |server| if server == SERVERS { Stated::NotReady } else { Stated::Terminating },
    );
    programmed(&agent, &[1, 2, 3, 4]);
    for (index, after) in bound(&world).into_iter().enumerate() {
        assert!(after == before[index] || before[index] == SERVERS, "{:?}: {before:?}", FRONTENDS[index]);
    }
}

#[test]
fn affinity_that_is_switched_on_or_off_holds_from_the_next_connection_on() {
    let world = World::new(SERVERS);
    publish(&world, sticky(None), |_| Stated::Ready);
    let agent = world.agent().start().unwrap();
    let all: Vec<u16> = (1..=SERVERS).collect();
    for timeout in [10_800, 60, 86_400] {
        listed(&agent, "rr");
        for (protocol, to) in FRONTENDS {
            assert_eq!(asks(&world, protocol, to), all, "{protocol} {to} without affinity");
        }
        world.api().apply(sticky(Some(timeout)));
        listed(&agent, &format!("rr persistent {timeout}"));
        let before = bound(&world);
        // Another timeout binds nobody anew.
        world.api().apply(sticky(Some(timeout - 1)));
        listed(&agent, &format!("rr persistent {}", timeout - 1));
        assert_eq!(bound(&world), before, "after {timeout} s became one less");
        world.api().apply(sticky(None));
    }
}

#[test]
fn what_does_not_concern_a_clients_server_leaves_the_client_there() {
    let world = World::new(SERVERS);
    publish(&world, sticky(Some(10_800)), |_| Stated::Ready);
    let agent = world.agent().start().unwrap();
    let before = bound(&world);
    let all: Vec<u16> = (1..=SERVERS).collect();
    // No frontend's client need be at the same server: all but those are changed.
    let free: Vec<u16> = all.iter().copied().filter(|server| !before.contains(server)).collect();
    let kept: Vec<u16> = all.iter().copied().filter(|server| before.contains(server)).collect();
    for stated in [Stated::Terminating, Stated::NotReady, Stated::Removed] {
        publish(&world, sticky(Some(10_800)), |server| if free.contains(&server) { stated } else { Stated::Ready });
        programmed(&agent, &kept);
        assert_eq!(bound(&world), before, "others are {stated:?}");
        publish(&world, sticky(Some(10_800)), |_| Stated::Ready);
        programmed(&agent, &all);
        assert_eq!(bound(&world), before, "others that were {stated:?} are ready again");
    }
    for scheduler in ["wrr", "lc", "sh", "mh", "rr"] {
        world.api().apply(with(sticky(Some(10_800)), "annotations", "bpvs.io/scheduler", scheduler));
        listed(&agent, &format!("{scheduler} persistent 10800"));
        assert_eq!(bound(&world), before, "scheduled by {scheduler}");
    }
    let mut wider = sticky(Some(10_800));
    wider["spec"]["ports"].as_array_mut().unwrap().push(json!({"name": "more", "port": 81, "protocol": "TCP"}));
    world.api().apply(with(wider, "labels", "team", "web"));
    until("port 81 is there", || agent.command(&["list", "-n"]).unwrap().contains("TCP  10.96.0.1:81 "));
    assert_eq!(bound(&world), before, "with another port");
    agent.stop().unwrap();
    assert_eq!(bound(&world), before, "without an agent");
    agent.start().unwrap();
    assert_eq!(bound(&world), before, "with a new agent");
}

/// The Service at every kind of frontend.
fn everywhere(world: &World, timeout: u32) -> Value {
    let mut object = sticky(Some(timeout));
    object["spec"]["type"] = json!("LoadBalancer");
    object["spec"]["externalIPs"] = json!(["10.97.0.1", "fd00:97::1"]);
    object["status"]["loadBalancer"]["ingress"] = json!([{"ip": "10.98.0.1"}, {"ip": "fd00:98::1"}]);
    object["spec"]["ports"] = json!([{"name": "web", "port": 80, "protocol": "TCP", "nodePort": 30_080},
                                     {"name": "dns", "port": 53, "protocol": "UDP", "nodePort": 30_053}]);
    publish(world, object.clone(), |_| Stated::Ready);
    object
}

/// Where the Service is, in one family and protocol: cluster, external and load balancer's addresses, and the node port.
fn places(world: &World, protocol: &str, v4: bool) -> [SocketAddr; 4] {
    let (port, node_port) = if protocol == "TCP" { (80, 30_080) } else { (53, 30_053) };
    let networks =
        if v4 { ["10.96.0.1", "10.97.0.1", "10.98.0.1"] } else { ["fd00:96::1", "fd00:97::1", "fd00:98::1"] };
    let [cluster, external, balancer] = networks.map(|text| SocketAddr::new(text.parse().unwrap(), port));
    [cluster, external, balancer, world.topology.node.at(node_port)[usize::from(!v4)]]
}

/// The server that a new connection of a host reaches, or a datagram of a new socket, connected or not.
fn asked_from(host: &bpvs_tests::topology::Host, protocol: &str, to: SocketAddr, connected: bool) -> u16 {
    let asked = match (protocol, connected) {
        ("TCP", _) => Dial::new(&host.namespace, to).open().map(|held| held.server),
        (_, true) => UdpClient::connected(&host.namespace, None, to).unwrap().request(20, DEADLINE).map(|a| a.server),
        (_, false) => {
            UdpClient::unconnected(&host.namespace, None, to).unwrap().request(20, DEADLINE).map(|a| a.server)
        }
    };
    asked.unwrap_or_else(|error| panic!("{protocol} {to}: {error}"))
}

/// `AF-1`. A process of the node is served at its socket, everybody else by packets.
#[test]
fn a_client_has_one_server_at_all_frontends_of_a_port() {
    let world = World::new(SERVERS);
    let object = everywhere(&world, 10_800);
    let mut agent = world.agent().start().unwrap();
    let topology = &world.topology;
    let hosts = [("pod", &topology.clients[0]), ("outside", &topology.external), ("node", &topology.node)];
    for (protocol, v4) in [("TCP", true), ("UDP", true), ("TCP", false), ("UDP", false)] {
        let places = places(&world, protocol, v4);
        let bound = |host, first: usize| {
            let server = asked_from(host, protocol, places[first], false);
            for to in places.iter().chain(&places) {
                for connected in [false, true] {
                    assert_eq!(asked_from(host, protocol, *to, connected), server, "{protocol} {to}");
                }
            }
            server
        };
        let mut before = Vec::new();
        for (index, (_, host)) in hosts.iter().enumerate() {
            before.push(bound(host, index));
        }
        // Another agent knows what the last one's programs remember.
        agent.stop().unwrap();
        agent = world.agent().start().unwrap();
        for (index, (who, host)) in hosts.iter().enumerate() {
            assert_eq!(bound(host, 3 - index), before[index], "{who}, {protocol}, after a restart");
        }
        // Without the server of one of them, that one has another at all frontends, the rest theirs.
        let gone = before[0];
        publish(&world, object.clone(), |server| if server == gone { Stated::Removed } else { Stated::Ready });
        let all: Vec<u16> = (1..=SERVERS).filter(|server| *server != gone).collect();
        programmed(&agent, &all);
        for (index, (who, host)) in hosts.iter().enumerate() {
            let after = bound(host, 2);
            assert_eq!(after == before[index], before[index] != gone, "{who}, {protocol}: {before:?}, then {after}");
        }
        publish(&world, object.clone(), |_| Stated::Ready);
        programmed(&agent, &(1..=SERVERS).collect::<Vec<_>>());
    }
}

/// `AF-5`, for those who are bound already.
#[test]
fn another_timeout_holds_at_once_for_a_client_that_is_bound() {
    let world = World::new(SERVERS);
    publish(&world, sticky(Some(10_800)), |_| Stated::Ready);
    let agent = world.agent().start().unwrap();
    bound(&world);
    world.api().apply(sticky(Some(1)));
    listed(&agent, "rr persistent 1");
    for (protocol, to) in FRONTENDS {
        let mut seen: Vec<u16> = (0..3)
            .map(|_| {
                std::thread::sleep(std::time::Duration::from_millis(1_050));
                ask(&world, protocol, address(to))
            })
            .collect();
        seen.sort_unstable();
        seen.dedup();
        assert!(seen.len() > 1, "{protocol} {to}: more than a second lies between any two connections: {seen:?}");
    }
}
