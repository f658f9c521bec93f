//! Everything returns to zero: by the timeouts of `bpvs run`, by resets, and by the end of processes.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use bpvs_tests::agent::Agent;
use bpvs_tests::topology::Topology;
use bpvs_tests::traffic::{DEADLINE, Dial, UdpClient};
use bpvs_tests::world::{TCP, UDP, World, frontends, wait_for};

use crate::active::counts;

fn world() -> World {
    let world = World::new(Topology::builder().servers(2).build().unwrap()).unwrap();
    world.publish("web", &world.service("web", 1)).unwrap();
    world
}

fn until_zero(agent: &Agent<'_>, protocol: &str, deadline: Duration) {
    for to in frontends(1, if protocol == "TCP" { TCP } else { UDP }) {
        let none = || Ok(counts(agent, protocol, to).is_empty().then_some(()));
        let left = || format!("{:?}\n{}", counts(agent, protocol, to), agent.command(&["connections"]).unwrap());
        wait_for(&format!("{protocol} {to} without connections"), deadline, none, left).unwrap();
    }
}

#[test]
fn quiet_flows_and_connections_leave_after_the_timeouts_of_the_command_line() {
    let world = world();
    let mut builder = Agent::builder(&world.topology.node.namespace).manifests(&world.manifests);
    for argument in
        ["--udp-timeout", "1s", "--tcp-timeout", "2s", "--tcp-fin-timeout", "1s", "--sweep-interval", "100ms"]
    {
        builder = builder.argument(argument);
    }
    let agent = builder.start().unwrap();
    let begin = Instant::now();
    let mut quiet = Vec::new();
    let mut sockets = Vec::new();
    for (who, client) in world.clients() {
        for to in frontends(1, UDP) {
            let udp = UdpClient::unconnected(&client.namespace, None, to).unwrap();
            udp.request(9, DEADLINE).unwrap();
            sockets.push(udp);
        }
        if who != "node" {
            quiet.extend(frontends(1, TCP).map(|to| Dial::new(&client.namespace, to).open().unwrap()));
        }
    }
    until_zero(&agent, "UDP", Duration::from_secs(5));
    assert!(begin.elapsed() >= Duration::from_secs(1), "gone after {:?}", begin.elapsed());
    until_zero(&agent, "TCP", Duration::from_secs(5));
    assert!(begin.elapsed() >= Duration::from_secs(2), "gone after {:?}", begin.elapsed());
    assert_eq!(agent.command(&["connections"]).unwrap().lines().count(), 2, "only the two lines of the head");
    // A datagram of the same socket begins anew.
    for udp in &sockets {
        udp.request(9, DEADLINE).unwrap();
    }
    let flows: u64 =
        frontends(1, UDP).map(|to| counts(&agent, "UDP", to).values().map(|count| count.1).sum::<u64>()).iter().sum();
    assert_eq!(flows, 6);
}

#[test]
fn a_connection_half_closed_by_the_server_leaves_after_the_fin_timeout() {
    let world = World::new(Topology::builder().servers(1).build().unwrap()).unwrap();
    world.publish("web", &world.service("web", 1).port("TCP", 81, 9090)).unwrap();
    let mut builder = Agent::builder(&world.topology.node.namespace).manifests(&world.manifests);
    for argument in ["--tcp-fin-timeout", "1s", "--sweep-interval", "100ms"] {
        builder = builder.argument(argument);
    }
    let agent = builder.start().unwrap();
    let to = frontends(1, 81)[0];
    let listener =
        world.topology.servers[0].namespace.enter(|| TcpListener::bind((Ipv4Addr::UNSPECIFIED, 9090))).unwrap();
    let client = world.topology.clients[0].namespace.enter(|| TcpStream::connect_timeout(&to, DEADLINE)).unwrap();
    let (server, _) = listener.accept().unwrap();
    let begin = Instant::now();
    assert_eq!(counts(&agent, "TCP", to), BTreeMap::from([(1, (1, 0))]));
    server.shutdown(std::net::Shutdown::Write).unwrap();
    // The end of the stream has come to the client, and so has passed the node.
    client.set_read_timeout(Some(DEADLINE)).unwrap();
    assert_eq!(std::io::Read::read(&mut &client, &mut [0]).unwrap(), 0);
    let shown = agent.command(&["connections"]).unwrap();
    assert!(shown.contains("FIN_WAIT"), "{shown}");
    let none = || Ok(counts(&agent, "TCP", to).is_empty().then_some(()));
    wait_for("end of the connection", Duration::from_secs(5), none, || agent.command(&["connections"]).unwrap())
        .unwrap();
    assert!(begin.elapsed() >= Duration::from_secs(1), "gone after {:?}", begin.elapsed());
}

#[test]
fn a_reset_connection_leaves_within_seconds() {
    let world = world();
    let agent = world.agent().unwrap();
    let mut held = Vec::new();
    for (_, client) in world.clients() {
        for to in frontends(1, TCP) {
            held.push(Dial::new(&client.namespace, to).open().unwrap());
        }
    }
    let begin = Instant::now();
    held.into_iter().for_each(|held| held.reset().unwrap());
    let active: u64 =
        frontends(1, TCP).map(|to| counts(&agent, "TCP", to).values().map(|count| count.0).sum::<u64>()).iter().sum();
    assert_eq!(active, 0, "a reset connection is not active");
    until_zero(&agent, "TCP", Duration::from_secs(15));
    // CLOSE lasts 10 s.
    assert!(begin.elapsed() >= Duration::from_secs(9), "gone after {:?}", begin.elapsed());
}
