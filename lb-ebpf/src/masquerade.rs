//! Requests that reach their server from the node's address, so that the server answers through the node (SNAT).
//!
//! ```text
//! request:  client -> frontend  =ingress=>  client -> server  =egress, server's side=>   node -> server
//! reply:    frontend -> client  <=egress=   server -> client  <=ingress, server's side=  server -> node
//! ```
//!
//! The first half is every connection's. The second one has two entries of its own, both [`PASSING`]: (client, server)
//! for requests, and (server, node) for replies. Netfilter and routing, which are between the halves, see client and
//! server in both directions. A server that is a process of this node has no second half: its answers come through the
//! node anyway.
//!
//! [`PASSING`]: ConnectionState::PASSING

use core::ffi::c_long;

use aya_ebpf::{
    bindings::{BPF_ANY, BPF_NOEXIST},
    btf_maps::lpm_trie::Key,
    helpers::bpf_get_prandom_u32,
};
use lb_common::{
    address::{Address, Port},
    layout::{
        ACCESS_MASQUERADE, ACCESS_MASQUERADE_EXTERNAL, Connection, ConnectionKey, ConnectionState, NETWORK_BASE,
        NETWORK_PODS, NetworkKey, SETTING_POD_INTERFACES, Service,
    },
    nat::Rewrite,
    packet::Packet,
};

use crate::{
    connections::Entry,
    frame::Frame,
    maps::{CONNECTIONS, NETWORKS, POD_INTERFACES},
    schedule::repeat,
    settings::{now, scratch, settings},
    translate::translate,
    verdict::NEXT,
};

/// Tries to find a free port. With nineteen of twenty ports taken, one connection in seven hundred finds none.
const TRIES: u32 = 128;
/// Lowest port of the node that stands for a client.
const FIRST_PORT: u32 = 1_024;
/// One more than the highest.
const AFTER_PORTS: u32 = 65_536;

/// Half of a connection: what is inserted, and its key. In the scratch space, since stacks are small.
pub struct Passing {
    key: ConnectionKey,
    entry: Connection,
}

/// True if an address is in one of the networks of this owner.
#[inline(always)]
pub fn is_in(owner: u32, address: &Address) -> bool {
    NETWORKS.get(&Key::new(NETWORK_BASE + 128, NetworkKey { owner, network: *address })).is_some()
}

/// Not 0 if a client that comes in by this interface is a pod of the cluster.
#[inline(never)]
pub fn is_pod(client: &Address, came_by: u32) -> u32 {
    let Some(settings) = settings() else { return 0 };
    let known = if settings.switches & SETTING_POD_INTERFACES != 0 {
        // SAFETY: a value is one word, and presence alone counts.
        unsafe { POD_INTERFACES.get(&came_by) }.is_some()
    } else {
        is_in(NETWORK_PODS, client)
    };
    known.into()
}

/// [`ConnectionState::MASQUERADED`] if this client's connections to the service are to be, else 0.
#[inline(always)]
pub fn flag(service: &Service, client: &Address, came_by: u32) -> u32 {
    let external = service.access & ACCESS_MASQUERADE_EXTERNAL != 0 && is_pod(client, came_by) == 0;
    if service.access & ACCESS_MASQUERADE != 0 || external { ConnectionState::MASQUERADED } else { 0 }
}

/// [`begin`]: there are both entries.
pub const BEGUN: u32 = 0;
/// [`begin`]: the node has no address of the family, or no port is free, or the table is full.
pub const NO_PORT: u32 = 1;

/// Makes the second half of a connection that was opened, by its reply key, in the scratch space.
#[inline(never)]
pub fn begin() -> u32 {
    let (Some(settings), Some(scratch)) = (settings(), scratch()) else { return NO_PORT };
    let reply = &scratch.opened.reply_key;
    let request = reply.reversed();
    if let Some(known) = Entry::find(&request) {
        if !known.state().has(ConnectionState::PASSING) {
            return NO_PORT;
        }
        // Of this very connection: a datagram alone, or another CPU was faster.
        known.touch(now());
        return BEGUN;
    }
    let node = scratch.opened.node;
    if node == Address::UNSPECIFIED {
        return NO_PORT;
    }
    let passing = &mut scratch.passing;
    passing.key = ConnectionKey { destination: node, ..*reply };
    passing.entry = Connection {
        source: reply.source,
        destination: reply.destination,
        source_port: reply.source_port,
        destination_port: reply.destination_port,
        server: scratch.opened.entry.server,
        service: scratch.opened.entry.service,
        state: ConnectionState::REPLY | ConnectionState::PASSING,
        last_seen: now(),
        timeout: 0,
        control: 0,
    };
    let (first, last) = (u32::from(settings.local_ports_first), u32::from(settings.local_ports_last));
    let left_out = last.wrapping_sub(first).wrapping_add(1);
    let mut search = Search { found: 0, first, left_out, ports: (AFTER_PORTS - FIRST_PORT).wrapping_sub(left_out) };
    repeat(TRIES, reserve, &mut search);
    if search.found == 0 {
        return NO_PORT;
    }
    // From here on for requests: what they become.
    passing.entry.source = node;
    passing.entry.destination = request.destination;
    passing.entry.source_port = passing.key.destination_port;
    passing.entry.destination_port = request.destination_port;
    passing.entry.state = ConnectionState::PASSING;
    if CONNECTIONS.insert(&request, &passing.entry, u64::from(BPF_ANY)).is_err() {
        let _ = CONNECTIONS.remove(&passing.key);
        return NO_PORT;
    }
    BEGUN
}

/// The ports of the node's own sockets, from `first` on, are left out.
struct Search {
    found: u32,
    first: u32,
    left_out: u32,
    ports: u32,
}

unsafe extern "C" fn reserve(_: u32, search: *mut Search) -> c_long {
    let Some(scratch) = scratch() else { return 1 };
    // SAFETY: bpf_loop passes the pointer that `repeat` gave it.
    let search = unsafe { &mut *search };
    // SAFETY: the helper takes no arguments and has no preconditions.
    let random = unsafe { bpf_get_prandom_u32() };
    let Some(offset) = random.checked_rem(search.ports) else { return 1 };
    let mut port = FIRST_PORT + offset;
    if port >= search.first {
        port += search.left_out;
    }
    scratch.passing.key.destination_port = Port::new(port as u16);
    if CONNECTIONS.insert(&scratch.passing.key, &scratch.passing.entry, u64::from(BPF_NOEXIST)).is_err() {
        return 0;
    }
    search.found = 1;
    1
}

/// Removes the second half of the connection with this reply key, if it has one.
#[inline(never)]
pub fn end(reply: &ConnectionKey) -> u32 {
    let request = reply.reversed();
    let Some(entry) = Entry::find(&request) else { return 0 };
    if !entry.state().has(ConnectionState::PASSING) {
        return 0;
    }
    let _ = CONNECTIONS.remove(&entry.other_key(reply.protocol));
    let _ = CONNECTIONS.remove(&request);
    1
}

/// A packet that enters the node and has a passing entry: a reply for the node's address, or what has only the key of
/// one, such as a client that speaks to the server itself.
#[inline(never)]
pub fn inbound(frame: Frame, packet: &Packet, entry: &Entry) -> i32 {
    if !entry.state().has(ConnectionState::REPLY) {
        return NEXT;
    }
    let rewrite = Rewrite::of(entry.value());
    translate(frame, packet, &rewrite)
}

/// A packet that leaves the node and has a passing entry: a request.
#[inline(never)]
pub fn outbound(frame: Frame, packet: &Packet, entry: &Entry) -> i32 {
    if entry.state().has(ConnectionState::REPLY) {
        return NEXT;
    }
    let rewrite = Rewrite::of(entry.value());
    translate(frame, packet, &rewrite)
}

/// Sees to a passing entry in a sweep: it lasts as long as the reply entry of its connection. True if it was removed.
#[inline(always)]
pub fn sweep(key: &ConnectionKey, entry: &Entry) -> bool {
    let state = entry.state();
    // Of the connection: the key of the reply as it leaves the node.
    let reply = if state.has(ConnectionState::REPLY) {
        let value = entry.value();
        ConnectionKey { destination: value.destination, destination_port: value.destination_port, ..*key }
    } else {
        key.reversed()
    };
    Entry::find(&reply).is_none() && CONNECTIONS.remove(key).is_ok()
}
