//! Rows of connections, templates and sockets.

use lb_common::layout::{KEY_TEMPLATE, SERVICE_PERSISTENT, SocketConnection, SocketFlow};

use super::*;
use crate::model::{Frontend, Scope};
use crate::view::services;
use crate::view::testing::Memory;
use lb_common::scheduler::Scheduler;

fn address(text: &str) -> (Address, Port) {
    let socket: SocketAddr = text.parse().unwrap();
    (socket.ip().into(), Port::new(socket.port()))
}

fn add(memory: &mut Memory, client: &str, frontend: &str, server: &str, state: u32, seen: [u64; 2]) {
    let ((client, client_port), (frontend, frontend_port), (server, server_port)) =
        (address(client), address(frontend), address(server));
    let key = ConnectionKey {
        source: client,
        destination: frontend,
        source_port: client_port,
        destination_port: frontend_port,
        protocol: 6,
        kind: KEY_PACKET,
        pad: [0; 2],
    };
    let request = Connection {
        source: client,
        destination: server,
        source_port: client_port,
        destination_port: server_port,
        state,
        last_seen: seen[0] * 1_000_000_000,
        timeout: 900_000,
        ..Connection::default()
    };
    let reply = Connection {
        source: frontend,
        destination: client,
        source_port: frontend_port,
        destination_port: client_port,
        state: state | ConnectionState::REPLY,
        last_seen: seen[1] * 1_000_000_000,
        ..Connection::default()
    };
    memory.connections.push((reply_key(&key, &request), reply));
    memory.connections.push((key, request));
}

#[test]
fn a_connection_is_one_row_that_lives_from_its_last_packet_in_either_direction() {
    let mut memory = Memory::default();
    add(&mut memory, "10.1.2.3:1006", "10.96.0.1:80", "192.168.60.1:8080", 1, [100, 103]);
    add(&mut memory, "10.1.2.3:1005", "10.96.0.1:80", "192.168.60.1:8080", 1 | ConnectionState::CLOSING, [100, 0]);
    let rows = connections(&memory, Duration::from_millis(106_500)).unwrap();
    assert_eq!(rows.len(), 1);
    assert_eq!(rows[0].expires_seconds, Some(896));
    assert_eq!(rows[0].state, "ESTABLISHED");
    assert_eq!(rows[0].source, Client::Address("10.1.2.3:1006".parse().unwrap()));
    assert_eq!(rows[0].destination, "192.168.60.1:8080".parse().unwrap());
}

#[test]
fn who_answers_past_this_node_lives_from_the_clients_last_packet() {
    for (method, expected) in [(0, 897), (ConnectionState::ROUTE, 894), (ConnectionState::TUNNEL, 894)] {
        let mut memory = Memory::default();
        // Of NAT, by the same client port to the same server, later.
        add(&mut memory, "10.1.2.3:1006", "10.96.0.2:80", "192.168.60.1:80", 1, [100, 103]);
        add(&mut memory, "10.1.2.3:1006", "10.96.0.1:80", "192.168.60.1:80", 1 | method, [100, 0]);
        // It has no reply entry of its own.
        let reply = memory.connections.remove(2);
        assert!(ConnectionState(reply.1.state).has(ConnectionState::REPLY));
        let rows = connections(&memory, Duration::from_millis(105_500)).unwrap();
        assert_eq!(rows[0].virtual_address, "10.96.0.1:80".parse().unwrap());
        assert_eq!(rows[0].expires_seconds, Some(expected));
    }
}

#[test]
fn templates_are_rows_from_port_0_and_counted_for_their_server() {
    let mut memory = Memory::default();
    let mark = Frontend { scope: Scope::Mark(300), ..Frontend::new([0; 4].into(), 0, Protocol::Tcp) };
    let mark6 = Frontend { address: Ipv6Addr::UNSPECIFIED.into(), ..mark };
    let web = Frontend::new([10, 96, 0, 1].into(), 80, Protocol::Tcp);
    for frontend in [&web, &mark, &mark6] {
        let server = if frontend.address.is_ipv6() { "fd01::1" } else { "192.168.60.1" };
        memory.add(frontend, Scheduler::RoundRobin, &[(server, 1)]);
    }
    // As the programs make them: with a server and no address.
    let mut add = |client: &str, frontend: (&str, u16), protocol, service, state| {
        let key = ConnectionKey {
            source: client.parse::<IpAddr>().unwrap().into(),
            destination: frontend.0.parse::<IpAddr>().unwrap().into(),
            source_port: Port(0),
            destination_port: Port::new(frontend.1),
            protocol,
            kind: KEY_TEMPLATE,
            pad: [0; 2],
        };
        let template = Connection {
            server: service,
            service,
            state: state | ConnectionState::TEMPLATE,
            last_seen: 100_000_000_000,
            timeout: 360_000,
            ..Connection::default()
        };
        memory.connections.push((key, template));
    };
    add("10.1.2.0", ("10.96.0.1", 80), 6, 1, ConnectionState::ASSURED);
    add("10.1.3.0", ("10.96.0.1", 80), 6, 1, ConnectionState::CLOSING);
    add("10.1.4.0", ("10.96.0.1", 0), 6, 1, 0);
    add("10.1.2.3", ("0.0.0.2", 0), 0, 2, 0);
    add("fd00::1", ("::3", 0), 0, 3, 0);
    let rows = connections(&memory, Duration::from_secs(101)).unwrap();
    let expected = "IPVS connection entries\n\
                    pro expire state       source             virtual            destination\n\
                    IP  05:59  NONE        10.1.2.3:0         0.0.1.44:0         192.168.60.1:0\n\
                    IP  05:59  NONE        [fd00::1]:0        [0:12c::]:0        [fd01::1]:0\n\
                    TCP 05:59  NONE        10.1.4.0:0         10.96.0.1:0        192.168.60.1:0\n\
                    TCP 05:59  ASSURED     10.1.2.0:0         10.96.0.1:80       192.168.60.1:8080\n";
    assert_eq!(crate::render::text::connections(&rows), expected);
    let mut services = services::services(&memory, None).unwrap();
    services::count_persistent(&memory, &mut services).unwrap();
    let counts: Vec<_> = services.iter().map(|row| row.destinations[0].persistent_connections).collect();
    assert_eq!(counts, [Some(2), Some(1), Some(1)]);
}

#[test]
fn what_a_group_remembers_is_a_row_at_the_frontend_that_chose_and_counted_there() {
    let mut memory = Memory::default();
    let web = Frontend::new([10, 96, 0, 1].into(), 80, Protocol::Tcp);
    memory.add(&web, Scheduler::RoundRobin, &[("192.168.60.1", 1)]);
    for (_, service) in &mut memory.services {
        service.flags |= SERVICE_PERSISTENT;
        (service.affinity_group, service.persistence_timeout) = ([7, 9], 60_000);
    }
    let (server, server_port) = address("192.168.60.1:8080");
    let mut add = |client: &str, group: [u32; 2], server_id| {
        let key = ConnectionKey {
            source: client.parse::<IpAddr>().unwrap().into(),
            destination: Address { words: [0, 0, group[0], group[1]] },
            protocol: 6,
            kind: KEY_AFFINITY,
            ..ConnectionKey::default()
        };
        let template = Connection {
            destination: server,
            destination_port: server_port,
            server: server_id,
            service: 1,
            state: ConnectionState::TEMPLATE,
            last_seen: 100_000_000_000,
            timeout: 360_000,
            ..Connection::default()
        };
        memory.connections.push((key, template));
    };
    add("10.1.2.3", [7, 9], 1);
    // Of a service that had the id before, and of a server whose id is another's by now.
    add("10.1.2.4", [7, 8], 2);
    let rows = connections(&memory, Duration::from_secs(101)).unwrap();
    let expected = "IPVS connection entries\n\
                    pro expire state       source             virtual            destination\n\
                    TCP 05:59  NONE        10.1.2.4:0         0.0.0.0:0          192.168.60.1:8080\n\
                    TCP 00:59  NONE        10.1.2.3:0         10.96.0.1:80       192.168.60.1:8080\n";
    assert_eq!(crate::render::text::connections(&rows), expected);
    let mut services = services::services(&memory, None).unwrap();
    services::count_persistent(&memory, &mut services).unwrap();
    assert_eq!(services[0].destinations[0].persistent_connections, Some(1));
}

#[test]
fn an_overdue_connection_has_nothing_left_and_a_packet_from_the_future_has_all() {
    assert_eq!(left(10_000, 1_000_000_000, Duration::from_secs(60)), 0);
    assert_eq!(left(10_000, 61_000_000_000, Duration::from_secs(60)), 10);
}

#[test]
fn sockets_of_local_processes_are_rows_too() {
    let mut memory = Memory::default();
    let ((frontend, frontend_port), (server, server_port)) = (address("10.96.0.1:53"), address("10.1.0.1:5353"));
    memory.sockets.push((
        7,
        SocketConnection {
            frontend,
            frontend_port,
            server_address: server,
            server_port,
            protocol: 6,
            ..SocketConnection::default()
        },
    ));
    memory.settings.timeouts.udp = 300_000;
    let key = SocketFlowKey { cookie: 9, peer: frontend, peer_port: frontend_port, protocol: 17, pad: 0 };
    let flow = SocketFlow { peer: server, peer_port: server_port, last_seen: 5_000_000_000, ..SocketFlow::default() };
    let reply = SocketFlowKey { peer: server, peer_port: server_port, protocol: 17 | SOCKET_FLOW_REPLY, ..key };
    memory.socket_flows.push((key, flow));
    memory.socket_flows.push((reply, SocketFlow { last_seen: 8_000_000_000, ..flow }));
    let rows = connections(&memory, Duration::from_secs(10)).unwrap();
    assert_eq!(rows.len(), 2);
    assert_eq!((rows[0].source, rows[0].expires_seconds, rows[0].state), (Client::Socket(7), None, "ESTABLISHED"));
    assert_eq!((rows[1].source, rows[1].expires_seconds, rows[1].state), (Client::Socket(9), Some(298), "UDP"));
}
