//! Active and inactive counts follow the connections, one by one.

use std::collections::BTreeMap;

use bpvs_tests::agent::{Agent, Listing};
use bpvs_tests::topology::Topology;
use bpvs_tests::traffic::{DEADLINE, Dial, UdpClient};
use bpvs_tests::world::{TCP, UDP, World, frontends};

/// Active and inactive connections by server, without those that have none.
pub(crate) fn counts(agent: &Agent<'_>, protocol: &str, to: std::net::SocketAddr) -> BTreeMap<u16, (u64, u64)> {
    let list = Listing::read(agent).unwrap();
    let service = list.service(protocol, to).unwrap_or_else(|| panic!("{protocol} {to} in {list:?}"));
    let counts = service.servers.iter().map(|server| (server.number(), (server.active, server.inactive)));
    counts.filter(|(_, counts)| *counts != (0, 0)).collect()
}

#[test]
fn held_connections_are_active_and_closed_ones_inactive() {
    let world = World::new(Topology::builder().build().unwrap()).unwrap();
    world.publish("web", &world.service("web", 1).scheduler("wrr")).unwrap();
    let agent = world.agent().unwrap();
    for to in frontends(1, TCP) {
        let mut expected: BTreeMap<u16, (u64, u64)> = BTreeMap::new();
        let mut held = Vec::new();
        for index in 0..30 {
            let (who, client) = world.clients()[index % 3];
            let connection = Dial::new(&client.namespace, to).open();
            let connection = connection.unwrap_or_else(|error| panic!("{who} to {to}: {error}"));
            expected.entry(connection.server).or_default().0 += 1;
            held.push((who, connection));
            assert_eq!(counts(&agent, "TCP", to), expected, "after {} connections to {to}", index + 1);
        }
        for (who, connection) in held {
            let count = expected.get_mut(&connection.server).unwrap();
            count.0 -= 1;
            // The socket of a process is counted while it is there; packets leave a TIME_WAIT behind.
            count.1 += u64::from(who != "node");
            connection.close().unwrap();
        }
        expected.retain(|_, count| *count != (0, 0));
        assert_eq!(counts(&agent, "TCP", to), expected, "after all to {to} were closed");
    }
    for to in frontends(1, UDP) {
        let mut expected: BTreeMap<u16, (u64, u64)> = BTreeMap::new();
        let mut sockets = Vec::new();
        for index in 0..12 {
            let (who, client) = world.clients()[index % 3];
            let open = if index % 2 == 0 { UdpClient::connected } else { UdpClient::unconnected };
            let udp = open(&client.namespace, None, to).unwrap();
            let answer = udp.request(9, DEADLINE).unwrap_or_else(|error| panic!("{who} to {to}: {error}"));
            expected.entry(answer.server).or_default().1 += 1;
            sockets.push(udp);
            assert_eq!(counts(&agent, "UDP", to), expected, "after {} flows to {to}", index + 1);
        }
    }
}
