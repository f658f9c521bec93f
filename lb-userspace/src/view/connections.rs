//! Rows of `bpvs connections`.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use anyhow::Result;
use lb_common::address::{Address, Port, Protocol};
use lb_common::layout::{
    Connection, ConnectionKey, ConnectionState, KEY_PACKET, KEY_TEMPLATE, SERVICE_BY_MARK, SOCKET_FLOW_REPLY,
    SocketFlowKey,
};
use lb_common::{sctp, tcp};
use serde::Serialize;

use super::tables::Tables;

/// A connection.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct ConnectionRow {
    /// `TCP`, `UDP` or `SCTP`; `IP` for a template of a firewall mark.
    pub protocol: &'static str,
    /// Life left without another packet, in whole seconds; none for a connected socket, which lives until closed.
    pub expires_seconds: Option<u64>,
    /// The protocol's state, as `ipvsadm` names it.
    pub state: &'static str,
    /// Who asked.
    pub source: Client,
    /// The frontend.
    pub virtual_address: SocketAddr,
    /// The real server.
    pub destination: SocketAddr,
    /// Whether it counts as inactive.
    pub inactive: bool,
}

/// Who asked.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Client {
    /// Address and port of packets.
    Address(SocketAddr),
    /// Cookie of a local process's socket: its packets bear the server's address from the start.
    Socket(u64),
}

/// All connections, by protocol, frontend and client.
pub fn connections(tables: &impl Tables, now: Duration) -> Result<Vec<ConnectionRow>> {
    let mut rows = packet_connections(tables, now)?;
    rows.extend(templates(tables, now)?);
    rows.extend(connected_sockets(tables)?);
    rows.extend(datagram_flows(tables, now)?);
    let protocol = |row: &ConnectionRow| Protocol::ALL.iter().position(|known| known.name() == row.protocol);
    rows.sort_by_key(|row| (protocol(row), row.virtual_address, row.source, row.destination));
    Ok(rows)
}

fn packet_connections(tables: &impl Tables, now: Duration) -> Result<Vec<ConnectionRow>> {
    let entries: HashMap<ConnectionKey, Connection> = tables.connections()?.into_iter().collect();
    let rows = entries.iter().filter_map(|(key, connection)| {
        let state = ConnectionState(connection.state);
        let other = ConnectionState::REPLY | ConnectionState::PASSING | ConnectionState::CLOSING;
        if key.kind != KEY_PACKET || state.0 & other != 0 {
            return None;
        }
        let reply = entries.get(&reply_key(key, connection));
        let last_seen = reply.map_or(connection.last_seen, |reply| reply.last_seen.max(connection.last_seen));
        Some(ConnectionRow {
            protocol: protocol_name(key.protocol),
            expires_seconds: Some(left(connection.timeout, last_seen, now)),
            state: state_name(key.protocol, state.number()),
            source: Client::Address(socket(key.source, key.source_port)),
            virtual_address: socket(key.destination, key.destination_port),
            destination: socket(connection.destination, connection.destination_port),
            inactive: state.has(ConnectionState::INACTIVE),
        })
    });
    Ok(rows.collect())
}

/// Persistence templates, as IPVS has them among its connections: from a client's network and port 0. A service by mark
/// has its mark for an address, and no protocol. Where every port is served, by mark or by address, the server's is 0
/// (`ip_vs_sched_persist`). A template names its server only, whose record stays as long as it does.
fn templates(tables: &impl Tables, now: Duration) -> Result<Vec<ConnectionRow>> {
    let templates = tables.connections()?.into_iter().filter(|(key, connection)| {
        key.kind == KEY_TEMPLATE && !ConnectionState(connection.state).has(ConnectionState::CLOSING)
    });
    let mut marks: Option<HashMap<u32, u32>> = None;
    let mut rows = Vec::new();
    for (key, template) in templates {
        let marked = Protocol::from_number(key.protocol).is_none();
        let virtual_address = if marked {
            let marks = match &mut marks {
                Some(marks) => marks,
                none => none.insert(marks_of_services(tables)?),
            };
            let mark = marks.get(&template.service).copied().unwrap_or(0);
            SocketAddr::new(mark_address(mark, key.source.is_v4()), 0)
        } else {
            socket(key.destination, key.destination_port)
        };
        let server = tables.destination(template.server)?;
        if server.service != template.service {
            // Freed since the template was read, which went before.
            continue;
        }
        let server_port = if key.destination_port == Port(0) { Port(0) } else { server.port };
        let state = ConnectionState(template.state);
        rows.push(ConnectionRow {
            protocol: if marked { "IP" } else { protocol_name(key.protocol) },
            expires_seconds: Some(left(template.timeout, template.last_seen, now)),
            state: if state.has(ConnectionState::ASSURED) { "ASSURED" } else { "NONE" },
            source: Client::Address(socket(key.source, Port(0))),
            virtual_address,
            destination: socket(server.address, server_port),
            inactive: false,
        });
    }
    Ok(rows)
}

/// Firewall marks by service id.
fn marks_of_services(tables: &impl Tables) -> Result<HashMap<u32, u32>> {
    let services = tables.services()?.into_iter().filter(|(key, _)| key.kind == SERVICE_BY_MARK);
    Ok(services.map(|(key, service)| (service.id, key.mark())).collect())
}

/// A mark as IPVS writes it where an address belongs: in the first 32 bits.
fn mark_address(mark: u32, v4: bool) -> IpAddr {
    if v4 { Ipv4Addr::from_bits(mark).into() } else { Ipv6Addr::from_bits(u128::from(mark) << 96).into() }
}

/// The key of a connection's replies: from what requests go to, to what they come from, once rewritten.
fn reply_key(key: &ConnectionKey, connection: &Connection) -> ConnectionKey {
    ConnectionKey {
        source: connection.destination,
        destination: connection.source,
        source_port: connection.destination_port,
        destination_port: connection.source_port,
        protocol: key.protocol,
        kind: KEY_PACKET,
        pad: [0; 2],
    }
}

fn connected_sockets(tables: &impl Tables) -> Result<Vec<ConnectionRow>> {
    let rows = tables.sockets()?.into_iter().map(|(cookie, held)| {
        let protocol = held.protocol as u8;
        let connected = if protocol == Protocol::Tcp as u8 { tcp::State::Established as u8 } else { 0 };
        ConnectionRow {
            protocol: protocol_name(protocol),
            expires_seconds: None,
            state: state_name(protocol, connected),
            source: Client::Socket(cookie),
            virtual_address: socket(held.frontend, held.frontend_port),
            destination: socket(held.server_address, held.server_port),
            inactive: protocol == Protocol::Udp as u8,
        }
    });
    Ok(rows.collect())
}

fn datagram_flows(tables: &impl Tables, now: Duration) -> Result<Vec<ConnectionRow>> {
    let timeout = tables.settings()?.timeouts.udp;
    let flows: HashMap<SocketFlowKey, _> = tables.socket_flows()?.into_iter().collect();
    let rows = flows.iter().filter(|(key, _)| key.protocol & SOCKET_FLOW_REPLY == 0).map(|(key, flow)| {
        let reply = SocketFlowKey {
            peer: flow.peer,
            peer_port: flow.peer_port,
            protocol: key.protocol | SOCKET_FLOW_REPLY,
            ..*key
        };
        let last_seen = flows.get(&reply).map_or(flow.last_seen, |reply| reply.last_seen.max(flow.last_seen));
        ConnectionRow {
            protocol: protocol_name(key.protocol as u8),
            expires_seconds: Some(left(timeout, last_seen, now)),
            state: state_name(key.protocol as u8, 0),
            source: Client::Socket(key.cookie),
            virtual_address: socket(key.peer, key.peer_port),
            destination: socket(flow.peer, flow.peer_port),
            inactive: true,
        }
    });
    Ok(rows.collect())
}

/// Whole seconds left of a timeout in milliseconds since `last_seen` in nanoseconds.
fn left(timeout: u32, last_seen: u64, now: Duration) -> u64 {
    let idle = now.saturating_sub(Duration::from_nanos(last_seen));
    Duration::from_millis(timeout.into()).saturating_sub(idle).as_secs()
}

fn socket(address: Address, port: Port) -> SocketAddr {
    SocketAddr::new(address.into(), port.number())
}

fn protocol_name(number: u8) -> &'static str {
    Protocol::from_number(number).map_or("?", Protocol::name)
}

fn state_name(protocol: u8, state: u8) -> &'static str {
    match Protocol::from_number(protocol) {
        Some(Protocol::Tcp) => tcp::State::from_number(state).name(),
        Some(Protocol::Sctp) => sctp::State::from_number(state).name(),
        Some(Protocol::Udp) => "UDP",
        None => "?",
    }
}

#[cfg(test)]
mod tests {
    use lb_common::layout::{SocketConnection, SocketFlow};

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
        let flow =
            SocketFlow { peer: server, peer_port: server_port, last_seen: 5_000_000_000, ..SocketFlow::default() };
        let reply = SocketFlowKey { peer: server, peer_port: server_port, protocol: 17 | SOCKET_FLOW_REPLY, ..key };
        memory.socket_flows.push((key, flow));
        memory.socket_flows.push((reply, SocketFlow { last_seen: 8_000_000_000, ..flow }));
        let rows = connections(&memory, Duration::from_secs(10)).unwrap();
        assert_eq!(rows.len(), 2);
        assert_eq!((rows[0].source, rows[0].expires_seconds, rows[0].state), (Client::Socket(7), None, "ESTABLISHED"));
        assert_eq!((rows[1].source, rows[1].expires_seconds, rows[1].state), (Client::Socket(9), Some(298), "UDP"));
    }
}
