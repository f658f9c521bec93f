//! Opening a connection: schedule, find a free reply key, insert both entries, count.

use aya_ebpf::{
    bindings::{BPF_ANY, BPF_NOEXIST},
    helpers::bpf_get_prandom_u32,
};
use lb_common::{
    address::{Address, Port, Protocol},
    connection,
    layout::{
        Connection, ConnectionKey, ConnectionState, DESTINATION_LOCAL, DESTINATION_ROUTE, DESTINATION_TUNNEL,
        Destination, KEY_PACKET, SERVICE_ALL_PORTS, SERVICE_MARKED, SERVICE_ONE_PACKET, SERVICE_PERSISTENT, Service,
    },
    nat::Rewrite,
    packet::Packet,
};

use crate::{
    connections::Entry,
    count,
    maps::{CONNECTIONS, DESTINATIONS_MAP},
    persistence,
    schedule::{Request, schedule},
    settings::{now, settings},
};

/// A connection as it was opened, and what it is made of: on the stack of Linux 6.1 there is no room for it.
pub struct Opened {
    /// What its requests become.
    pub rewrite: Rewrite,
    /// The client is its own server.
    pub hairpin: bool,
    /// Not 0: its requests reach the server from the node's address ([`begin`](crate::masquerade::begin)).
    pub masqueraded: u32,
    /// Index of the interface that its first packet came by.
    pub came_by: u32,
    /// The node's address that stands for the client, of a hairpin or a masqueraded connection.
    pub node: Address,
    /// The entry that is inserted, first for replies, then for requests.
    pub entry: Connection,
    /// Key of the reply entry.
    pub reply_key: ConnectionKey,
}

/// Result of [`open`]: a number, as functions of BPF programs return.
pub const OPENED: u32 = 0;
/// No usable destination.
pub const NO_DESTINATION: u32 = 1;
/// No free source port.
pub const NO_SOURCE_PORT: u32 = 2;
/// The table is full.
pub const TABLE_FULL: u32 = 3;
/// Another CPU opened this very connection meanwhile: that one stands.
pub const EXISTS: u32 = 4;

/// Tries to find a free source port for a connection whose own is taken.
const PORT_TRIES: u32 = 16;
/// Source ports that are tried: the upper part of the dynamic range (RFC 6335), where clients' own ports are rarest.
const FIRST_PORT: u32 = 61_000;
const PORTS: u32 = 4_096;

/// Opens the connection of a packet that has none to a server, which [`source::choose`] has been asked about.
///
/// [`source::choose`]: crate::source::choose
#[inline(never)]
pub fn open(packet: &Packet, service: &Service, chosen: &Chosen, opened: &mut Opened) -> u32 {
    let server = chosen.server;
    let (Some(settings), Some(protocol)) = (settings(), Protocol::from_number(packet.key.protocol)) else {
        return TABLE_FULL;
    };
    let now = now();
    let key = &packet.key;
    let Some(destination) = DESTINATIONS_MAP.get(server) else { return NO_DESTINATION };
    if server == 0 || destination.service != service.id {
        // An id that changed hands under this packet: nobody's server until the client tries again.
        return NO_DESTINATION;
    }

    let method = method(destination);
    // A hairpin comes from the node's address already.
    let mut flags = if opened.hairpin { ConnectionState::HAIRPIN } else { method | opened.masqueraded };
    // Its own address would never leave the server.
    let source = if opened.hairpin { opened.node } else { key.source };
    if source == Address::UNSPECIFIED {
        // The node has no address of this family: better a counted drop than a packet from nobody.
        return NO_SOURCE_PORT;
    }
    let one_packet = service.flags & SERVICE_ONE_PACKET != 0 && matches!(protocol, Protocol::Udp);
    if one_packet {
        flags |= ConnectionState::ONE_PACKET;
    }
    let Opened { rewrite, entry, reply_key, .. } = opened;
    *entry = Connection {
        source: key.destination,
        destination: key.source,
        source_port: key.destination_port,
        destination_port: key.source_port,
        server,
        service: service.id,
        state: ConnectionState::REPLY | flags,
        last_seen: now,
        timeout: 0,
        control: 0,
    };
    *reply_key = ConnectionKey {
        source: destination.address,
        destination: source,
        source_port: server_port(service, destination, key.destination_port),
        destination_port: key.source_port,
        protocol: key.protocol,
        kind: KEY_PACKET,
        pad: [0; 2],
    };
    if method == 0 {
        let reserved = reserve_reply(reply_key, entry);
        if reserved != OPENED {
            return reserved;
        }
    } else {
        // Answers do not come by here, and the client's port is free to talk to the same server by NAT.
        reply_key.source_port = key.destination_port;
    }

    if one_packet {
        // What brings the answer back is all that stays of it, and nothing is counted as open: IPVS ends the connection with
        // the datagram.
        count::opened(server, packet.length);
        *rewrite = Rewrite {
            source: reply_key.destination,
            destination: reply_key.source,
            source_port: reply_key.destination_port,
            destination_port: reply_key.source_port,
        };
        return OPENED;
    }

    let transition = connection::open(protocol, packet);
    entry.control = chosen.control;
    entry.source = reply_key.destination;
    entry.destination = reply_key.source;
    entry.source_port = reply_key.destination_port;
    entry.destination_port = reply_key.source_port;
    entry.state = transition.state.0 | flags;
    entry.timeout = settings.timeouts.of(protocol, transition.state.number());
    // Counted before it can be found, so that no recount sees an entry without its count.
    count::bind(server, destination, transition.load);
    if CONNECTIONS.insert(key, &*entry, u64::from(BPF_NOEXIST)).is_err() {
        return step_back(key, reply_key, server, transition.load, method);
    }
    count::opened(server, packet.length);
    *rewrite = Rewrite::of(entry);
    OPENED
}

/// How requests reach a destination: one of [`ConnectionState::DIRECT_RETURN`], or 0 for NAT, also of a tunnel's server of
/// this node.
#[inline(always)]
pub fn method(destination: &Destination) -> u32 {
    if destination.flags & DESTINATION_LOCAL != 0 {
        0
    } else if destination.flags & DESTINATION_TUNNEL != 0 {
        ConnectionState::TUNNEL
    } else if destination.flags & DESTINATION_ROUTE != 0 {
        ConnectionState::ROUTE
    } else {
        0
    }
}

/// Port of the server for a client that asked for this one: the same where the server has none of its own, or where a
/// persistent service stands for more than one port (`ip_vs_sched_persist`).
#[inline(always)]
pub fn server_port(service: &Service, destination: &Destination, asked: Port) -> Port {
    let several = service.flags & SERVICE_PERSISTENT != 0 && service.flags & (SERVICE_ALL_PORTS | SERVICE_MARKED) != 0;
    if several || destination.port.0 == 0 { asked } else { destination.port }
}

/// A server, and how it was found.
#[derive(Clone, Copy)]
pub struct Chosen {
    /// Destination id; 0 for none.
    pub server: u32,
    /// What the connection's entry will have as its control word.
    pub control: u32,
}

/// Chooses a server for a packet's connection.
#[inline(always)]
pub fn choose(packet: &Packet, service: &Service, request: &mut Request) -> Chosen {
    request.client = packet.key.source;
    request.destination = packet.key.destination;
    request.now = now();
    request.client_port = u32::from(packet.key.source_port.number());
    request.control = 0;
    // Both ask for themselves whether the service is persistent: a flag kept here would have the verifier follow each
    // scheduler twice.
    let mut server = request.server;
    if server == 0 {
        server = persistence::recall(service, &packet.key, request);
    }
    if server == 0 {
        server = schedule(service, request);
        persistence::remember(service, &packet.key, server, request);
    }
    Chosen { server, control: request.control }
}

/// `E2BIG`: the map is full.
const FULL: i32 = -7;

/// Inserts the reply entry. If its key is taken (one client port talks to two services that share a server), another
/// source port keeps the two apart: IPVS would answer from the newer one.
#[inline(always)]
fn reserve_reply(key: &mut ConnectionKey, entry: &Connection) -> u32 {
    for _ in 0..PORT_TRIES {
        match CONNECTIONS.insert(&*key, entry, u64::from(BPF_NOEXIST)) {
            Ok(()) => return OPENED,
            Err(FULL) => return TABLE_FULL,
            Err(_) => {}
        }
        if take_over(key, entry) {
            return OPENED;
        }
        // SAFETY: the helper takes no arguments and has no preconditions.
        let random = unsafe { bpf_get_prandom_u32() };
        key.destination_port = Port::new((FIRST_PORT + random % PORTS) as u16);
    }
    NO_SOURCE_PORT
}

/// Gives up a connection whose request entry could not be inserted: the table is full, or another CPU was faster with
/// a packet of the same connection. If that one goes to the same server, the reply entry is its too, and stays. Its
/// `load` is given back.
///
/// Part of its caller: a frame of its own is one too many for Linux 6.1 (docs/kernels.md).
#[inline(always)]
fn step_back(key: &ConnectionKey, reply_key: &ConnectionKey, server: u32, load: u64, method: u32) -> u32 {
    count::unbind(server, load);
    let other = Entry::find(key);
    if method != 0 {
        return if other.is_some() { EXISTS } else { TABLE_FULL };
    }
    let Some(other) = other else {
        let _ = CONNECTIONS.remove(reply_key);
        return TABLE_FULL;
    };
    let value = other.value();
    let shared = value.destination == reply_key.source
        && value.destination_port.0 == reply_key.source_port.0
        && value.source == reply_key.destination
        && value.source_port.0 == reply_key.destination_port.0;
    if !shared {
        let _ = CONNECTIONS.remove(reply_key);
    }
    EXISTS
}

/// Takes over a reply entry of this very connection: of another CPU that is opening it too, or left behind by one.
#[inline(always)]
fn take_over(key: &ConnectionKey, entry: &Connection) -> bool {
    let Some(found) = Entry::find(key) else { return false };
    let value = found.value();
    let same = value.source == entry.source
        && value.source_port.0 == entry.source_port.0
        && value.destination == entry.destination
        && value.destination_port.0 == entry.destination_port.0;
    same && CONNECTIONS.insert(key, entry, u64::from(BPF_ANY)).is_ok()
}
