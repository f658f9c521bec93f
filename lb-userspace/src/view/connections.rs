//! Rows of `bpvs connections`.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use anyhow::Result;
use lb_common::address::{Address, Port, Protocol};
use lb_common::layout::{
    Connection, ConnectionKey, ConnectionState, KEY_AFFINITY, KEY_PACKET, SERVICE_BY_MARK, SOCKET_FLOW_REPLY, Service,
    ServiceKey, SocketFlowKey,
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
        // Who answers past this node has no reply entry; one of that key is another connection's.
        let answered = !state.has(ConnectionState::DIRECT_RETURN);
        let reply = entries.get(&reply_key(key, connection)).filter(|_| answered);
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
        key.kind != KEY_PACKET && !ConnectionState(connection.state).has(ConnectionState::CLOSING)
    });
    let mut marks: Option<HashMap<u32, u32>> = None;
    let mut groups: Option<HashMap<u32, (ServiceKey, Service)>> = None;
    let mut rows = Vec::new();
    for (key, template) in templates {
        if key.kind == KEY_AFFINITY {
            let groups = match &mut groups {
                Some(groups) => groups,
                none => none.insert(members_of_groups(tables)?),
            };
            rows.push(affinity(&key, &template, groups, now));
            continue;
        }
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

/// What is remembered of a client of an affinity group, at the frontend that found it its server; at none if that one is
/// gone, which others of the group may outlive.
fn affinity(
    key: &ConnectionKey,
    template: &Connection,
    groups: &HashMap<u32, (ServiceKey, Service)>,
    now: Duration,
) -> ConnectionRow {
    let member =
        groups.get(&template.service).filter(|(_, service)| service.affinity_group == key.destination.words[2..]);
    let nowhere = if key.source.is_v4() { Address::from_v4_word(0) } else { Address::UNSPECIFIED };
    let (address, port) = member.map_or((nowhere, Port(0)), |(frontend, _)| (frontend.address, frontend.port));
    let timeout = member.map_or(template.timeout, |(_, service)| service.persistence_timeout);
    ConnectionRow {
        protocol: protocol_name(key.protocol),
        expires_seconds: Some(left(timeout, template.last_seen, now)),
        state: "NONE",
        source: Client::Address(socket(key.source, Port(0))),
        virtual_address: socket(address, port),
        destination: socket(template.destination, template.destination_port),
        inactive: false,
    }
}

/// Services of affinity groups, by id.
fn members_of_groups(tables: &impl Tables) -> Result<HashMap<u32, (ServiceKey, Service)>> {
    let members = tables.services()?.into_iter().filter(|(_, service)| service.affinity_group != [0; 2]);
    Ok(members.map(|(key, service)| (service.id, (key, service))).collect())
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
mod tests;
