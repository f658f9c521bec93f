//! Opening a connection: schedule, find a free reply key, insert both entries, count.

use aya_ebpf::{
    bindings::{BPF_ANY, BPF_NOEXIST},
    helpers::bpf_get_prandom_u32,
};
use lb_common::{
    address::{Address, Port, Protocol},
    connection,
    drops::Drop,
    layout::{Connection, ConnectionKey, ConnectionState, KEY_PACKET, Service, Settings},
    nat::Rewrite,
    packet::Packet,
};

use crate::{
    connections::Entry,
    count,
    maps::{CONNECTIONS, DESTINATIONS_MAP},
    schedule::{Request, schedule},
    settings::{now, settings},
};

/// A connection as it was opened.
pub struct Opened {
    /// What its requests become.
    pub rewrite: Rewrite,
    /// The client is its own server.
    pub hairpin: bool,
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

/// Opens the connection of a packet that has none to `server`. `old` is one that ends with this packet: it was still
/// counted while the server was chosen, as in IPVS.
#[inline(never)]
pub fn open(packet: &Packet, service: &Service, server: u32, old: Option<Entry>, opened: &mut Opened) -> u32 {
    let (Some(settings), Some(protocol)) = (settings(), Protocol::from_number(packet.key.protocol)) else {
        return TABLE_FULL;
    };
    let now = now();
    let key = &packet.key;
    if let Some(old) = old {
        // Gone also if nothing takes its place, as in IPVS, which lets it expire before it schedules.
        old.close(key);
    }
    let Some(destination) = DESTINATIONS_MAP.get(server) else { return no_destination() };
    if server == 0 || destination.service != service.id {
        // An id that changed hands under this packet: nobody's server until the client tries again.
        return no_destination();
    }

    opened.hairpin = destination.address == key.source;
    let source = if opened.hairpin { node_address(settings, &key.source) } else { key.source };
    if source == Address::UNSPECIFIED {
        // The node has no address of this family: better a counted drop than a packet from nobody.
        return NO_SOURCE_PORT;
    }
    let flags = if opened.hairpin { ConnectionState::HAIRPIN } else { 0 };
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
        control: 0,
    };
    let mut reply_key = ConnectionKey {
        source: destination.address,
        destination: source,
        source_port: destination.port,
        destination_port: key.source_port,
        protocol: key.protocol,
        kind: KEY_PACKET,
        pad: [0; 2],
    };
    let reserved = reserve_reply(&mut reply_key, &entry);
    if reserved != OPENED {
        return reserved;
    }

    let transition = connection::open(protocol, packet);
    entry.source = reply_key.destination;
    entry.destination = reply_key.source;
    entry.source_port = reply_key.destination_port;
    entry.destination_port = reply_key.source_port;
    entry.state = transition.state.0 | flags;
    entry.timeout = settings.timeouts.of(protocol, transition.state.number());
    // Counted before it can be found, so that no recount sees an entry without its count.
    count::load(server, transition.load);
    if CONNECTIONS.insert(key, &entry, u64::from(BPF_NOEXIST)).is_err() {
        return step_back(key, &reply_key, server, transition.load);
    }
    count::opened(server, packet.length);
    opened.rewrite = Rewrite::of(&entry);
    OPENED
}

#[inline(always)]
fn no_destination() -> u32 {
    count::drop(Drop::NoDestination);
    NO_DESTINATION
}

/// Chooses a server for a packet's connection; 0 for none.
#[inline(always)]
pub fn choose(packet: &Packet, service: &Service, request: &mut Request) -> u32 {
    request.client = packet.key.source;
    request.destination = packet.key.destination;
    request.now = now();
    request.client_port = u32::from(packet.key.source_port.number());
    schedule(service, request)
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
fn step_back(key: &ConnectionKey, reply_key: &ConnectionKey, server: u32, load: u64) -> u32 {
    count::load(server, load.wrapping_neg());
    let Some(other) = Entry::find(key) else {
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
