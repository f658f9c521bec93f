//! Opening a connection: schedule, find a free reply key, insert both entries, count.

use aya_ebpf::{
    bindings::{BPF_ANY, BPF_NOEXIST},
    helpers::bpf_get_prandom_u32,
};
use lb_common::{
    address::{Address, Port, Protocol},
    connection,
    drops::Drop,
    layout::{Connection, ConnectionKey, ConnectionState, Service, Settings},
    nat::Rewrite,
    packet::Packet,
    timeouts::Timeouts,
};

use crate::{
    connections::Entry,
    count,
    maps::{CONNECTIONS, DESTINATIONS_MAP},
    schedule::{Request, schedule},
};

/// A connection as it was opened.
pub struct Opened {
    /// What its requests become.
    pub rewrite: Rewrite,
    /// The client is its own server.
    pub hairpin: bool,
}

/// Tries to find a free source port for a connection whose own is taken.
const PORT_TRIES: u32 = 16;
/// Source ports that are tried: the upper part of the dynamic range (RFC 6335), where clients' own ports are rarest.
const FIRST_PORT: u32 = 61_000;
const PORTS: u32 = 4_096;

/// Opens a connection for a packet that has none. `old` is one that ends with this packet: it is still counted while
/// the server is chosen, as in IPVS.
#[inline(always)]
pub fn open(
    packet: &Packet,
    protocol: Protocol,
    service: &Service,
    settings: &Settings,
    old: Option<Entry>,
    now: u64,
) -> Result<Opened, Drop> {
    let key = &packet.key;
    let request = Request {
        client: key.source,
        destination: key.destination,
        now,
        client_port: u32::from(key.source_port.number()),
    };
    let server = schedule(service, &request);
    if server == 0 {
        return Err(Drop::NoDestination);
    }
    let Some(destination) = DESTINATIONS_MAP.get(server) else { return Err(Drop::NoDestination) };
    if let Some(old) = old {
        old.close(key);
    }

    let hairpin = destination.address == key.source;
    let source = if hairpin { node_address(settings, &key.source) } else { key.source };
    let transition = connection::open(protocol, packet);
    let flags = if hairpin { ConnectionState::HAIRPIN } else { 0 };
    let mut entry = Connection {
        source: key.destination,
        destination: key.source,
        source_port: key.destination_port,
        destination_port: key.source_port,
        server,
        service: service.id,
        state: ConnectionState::REPLY | flags,
        last_seen: now,
        timeout: 0,
        pad: 0,
    };
    let mut reply_key = ConnectionKey {
        source: destination.address,
        destination: source,
        source_port: destination.port,
        destination_port: key.source_port,
        protocol: key.protocol,
        pad: [0; 3],
    };
    reserve_reply(&mut reply_key, &entry)?;

    entry.source = reply_key.destination;
    entry.destination = reply_key.source;
    entry.source_port = reply_key.destination_port;
    entry.destination_port = reply_key.source_port;
    entry.state = transition.state.0 | flags;
    entry.timeout = timeout(&settings.timeouts, protocol, transition.state);
    if CONNECTIONS.insert(key, &entry, u64::from(BPF_NOEXIST)).is_err() {
        // Full, or another CPU opened the same connection with a retransmission: that one stands, the next
        // retransmission finds it.
        let _ = CONNECTIONS.remove(&reply_key);
        return Err(Drop::TableFull);
    }
    count::load(server, transition.load);
    count::scheduled(server);
    count::request(server, packet.length);
    Ok(Opened { rewrite: Rewrite::of(&entry), hairpin })
}

#[inline(always)]
fn timeout(timeouts: &Timeouts, protocol: Protocol, state: ConnectionState) -> u32 {
    timeouts.of(protocol, state.number())
}

/// The address that a hairpin connection's server sees as its client: its own would never leave it.
#[inline(always)]
fn node_address(settings: &Settings, client: &Address) -> Address {
    if client.is_v4() { settings.node_v4 } else { settings.node_v6 }
}

/// `E2BIG`: the map is full.
const FULL: i32 = -7;

/// Inserts the reply entry. If its key is taken (one client port talks to two services that share a server), another
/// source port keeps the two apart: IPVS would answer from the newer one.
#[inline(always)]
fn reserve_reply(key: &mut ConnectionKey, entry: &Connection) -> Result<(), Drop> {
    for _ in 0..PORT_TRIES {
        match CONNECTIONS.insert(&*key, entry, u64::from(BPF_NOEXIST)) {
            Ok(()) => return Ok(()),
            Err(FULL) => return Err(Drop::TableFull),
            Err(_) => {}
        }
        if take_over(key, entry) {
            return Ok(());
        }
        // SAFETY: the helper takes no arguments and has no preconditions.
        let random = unsafe { bpf_get_prandom_u32() };
        key.destination_port = Port::new((FIRST_PORT + random % PORTS) as u16);
    }
    Err(Drop::NoSourcePort)
}

/// Takes over a reply entry that a lost race left behind for this very connection.
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
