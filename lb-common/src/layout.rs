//! Keys and values of every BPF map, pinned under `/sys/fs/bpf/bpvs`.
//!
//! All are `repr(C)` and [`Pod`], with their padding named, so that `bpftool map dump` prints each field and a
//! byte-wise compare is a compare. [`VERSION`] changes with any of them; maps of another version are refused.

use bytemuck::{Pod, Zeroable};

use crate::address::{Address, Port};

/// Version of all layouts in this file together. Kept in the `settings` map; an agent refuses maps of another version.
pub const VERSION: u32 = 1;

/// Highest number of destinations in one service. A load-time setting may lower it, never raise it: positions are
/// held in 16 bits ([`SchedulerWord`](crate::scheduler::word::SchedulerWord)).
pub const MAX_DESTINATIONS_PER_SERVICE: u32 = 16_384;

/// Key of `services`: what a packet must match, exactly.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Pod, Zeroable)]
#[repr(C)]
pub struct ServiceKey {
    /// Virtual address.
    pub address: Address,
    /// Virtual port, network order.
    pub port: Port,
    /// IANA protocol number: 6, 17 or 132.
    pub protocol: u8,
    /// Always 0.
    pub pad: u8,
}

/// Value of `services`: one lookup decides everything about a new connection. Flipping this value publishes a new
/// set of destinations, tables and scheduler at once.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Pod, Zeroable)]
#[repr(C)]
pub struct Service {
    /// Service id, from 1. Index into `scheduler_state`; never 0.
    pub id: u32,
    /// Counts the versions of this service, modulo 2^16: a cursor of another version belongs to another set.
    pub version: u16,
    /// A [`Scheduler`](crate::scheduler::Scheduler) number.
    pub scheduler: u8,
    /// [`SERVICE_HASH_PORT`], [`SERVICE_HASH_FALLBACK`].
    pub flags: u8,
    /// First slot of the destination set in `destination_slots`. Slot 0 of the set is the head of IPVS's list: the
    /// newest destination.
    pub set_base: u32,
    /// Destinations in the set, 0 to [`MAX_DESTINATIONS_PER_SERVICE`].
    pub set_length: u32,
    /// First slot of the scheduler's table in `destination_slots` (sh, dh); otherwise 0.
    pub table_base: u32,
    /// Slots in the table: 256 for sh and dh, or 0 when there is none.
    pub table_length: u32,
    /// wrr: `max weight - (gcd - 1)`, IPVS's `mw`.
    pub max_weight: i32,
    /// wrr: greatest common divisor of the positive weights, IPVS's `di`.
    pub weight_step: i32,
}

/// [`Service::flags`]: hash the source port too (`sh-port`).
pub const SERVICE_HASH_PORT: u8 = 1 << 0;
/// [`Service::flags`]: take another server when the hashed one is unusable (`sh-fallback`).
pub const SERVICE_HASH_FALLBACK: u8 = 1 << 1;

/// Value of `destination_slots`: a place in a destination set or in a scheduler's table. The weight stands here, not
/// in `destinations`, so that the weights of one version of a service are published together.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Pod, Zeroable)]
#[repr(C)]
pub struct DestinationSlot {
    /// Destination id, from 1; 0 is an empty cell.
    pub destination: u32,
    /// Weight, 0 to 2147483647. 0 takes no new connections.
    pub weight: i32,
}

/// Value of `destinations`: a real server of one virtual service.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Pod, Zeroable)]
#[repr(C)]
pub struct Destination {
    /// Address of the real server.
    pub address: Address,
    /// Port of the real server, network order.
    pub port: Port,
    /// [`DESTINATION_AVAILABLE`].
    pub flags: u16,
    /// Service id that this destination belongs to; 0 when the slot is free.
    pub service: u32,
    /// Changes each time the id is given to another destination, so that a cache can tell a reused id.
    pub epoch: u32,
    /// Weight in the newest version of the service, for observers. Schedulers read [`DestinationSlot::weight`].
    pub weight: i32,
}

/// [`Destination::flags`]: in its service's set. Cleared when removed, while connections may still refer to it.
pub const DESTINATION_AVAILABLE: u16 = 1 << 0;

/// Value of `destination_load`: what the least-connection schedulers read. Changed by atomic adds only.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Pod, Zeroable)]
#[repr(C, align(8))]
pub struct DestinationLoad {
    /// Active connections in the high 32 bits, inactive in the low: one atomic add moves a connection between them.
    pub connections: u64,
    /// Active connections that other nodes report for this server; 0 until they do.
    pub remote_active: u32,
    /// Counts the changes of `connections`, so that the sweep knows whether its recount saw a quiet destination.
    pub changes: u32,
}

impl DestinationLoad {
    /// One active connection, as a summand of [`Self::connections`].
    pub const ONE_ACTIVE: u64 = 1 << 32;
    /// One inactive connection, as a summand of [`Self::connections`].
    pub const ONE_INACTIVE: u64 = 1;

    /// Active connections seen by this node.
    #[inline(always)]
    pub const fn active(&self) -> u32 {
        (self.connections >> 32) as u32
    }

    /// Inactive connections seen by this node.
    #[inline(always)]
    pub const fn inactive(&self) -> u32 {
        self.connections as u32
    }
}

/// Value of `destination_traffic`, per CPU: what `bpvs list --stats` sums.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Pod, Zeroable)]
#[repr(C)]
pub struct Traffic {
    /// Connections scheduled.
    pub connections: u64,
    /// Packets from clients.
    pub in_packets: u64,
    /// Packets to clients.
    pub out_packets: u64,
    /// Bytes from clients, whole IP packets.
    pub in_bytes: u64,
    /// Bytes to clients, whole IP packets.
    pub out_bytes: u64,
}

/// Key of `connections`: a packet's addresses and ports, as it arrives.
///
/// Each connection has two: (client, frontend) for requests and (real server, client) for replies.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Pod, Zeroable)]
#[repr(C)]
pub struct ConnectionKey {
    /// Source address.
    pub source: Address,
    /// Destination address.
    pub destination: Address,
    /// Source port, network order.
    pub source_port: Port,
    /// Destination port, network order.
    pub destination_port: Port,
    /// IANA protocol number.
    pub protocol: u8,
    /// Always 0.
    pub pad: [u8; 3],
}

impl ConnectionKey {
    /// The key of packets in the other direction.
    #[inline(always)]
    pub const fn reversed(&self) -> Self {
        Self {
            source: self.destination,
            destination: self.source,
            source_port: self.destination_port,
            destination_port: self.source_port,
            protocol: self.protocol,
            pad: [0; 3],
        }
    }
}

/// Value of `connections`. The request entry owns the connection's state; the reply entry holds the way back and its
/// own `last_seen`, so that a reply in a settled connection touches one entry only.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Pod, Zeroable)]
#[repr(C)]
pub struct Connection {
    /// Source address to write.
    pub source: Address,
    /// Destination address to write.
    pub destination: Address,
    /// Source port to write, network order.
    pub source_port: Port,
    /// Destination port to write, network order.
    pub destination_port: Port,
    /// Destination id of the real server.
    pub server: u32,
    /// Service id.
    pub service: u32,
    /// State and flags as [`ConnectionState`] packs them, changed by compare-and-swap. The reply entry's copy only
    /// says whether it may skip the request entry.
    pub state: u32,
    /// Last packet in this direction, nanoseconds of the monotonic clock (coarse).
    pub last_seen: u64,
    /// Life after the last packet in either direction, milliseconds. Request entry only.
    pub timeout: u32,
    /// Always 0.
    pub pad: u32,
}

/// What [`Connection::state`] packs: the protocol's state in the low 8 bits, flags above.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ConnectionState(pub u32);

impl ConnectionState {
    /// Entry for replies (real server to client).
    pub const REPLY: u32 = 1 << 8;
    /// Counted as inactive (IPVS `IP_VS_CONN_F_INACTIVE`).
    pub const INACTIVE: u32 = 1 << 9;
    /// Being removed: whoever set this deletes both entries and gives the count back; nobody else touches it.
    pub const CLOSING: u32 = 1 << 10;
    /// Reply entry: the request entry was ESTABLISHED when last seen, so plain ACKs need not look at it.
    pub const SETTLED: u32 = 1 << 11;
    /// The client is its own server: both directions turn round at the interface they arrive on.
    pub const HAIRPIN: u32 = 1 << 12;

    /// The protocol's state number (`tcp::State`, `sctp::State`; 0 for UDP).
    #[inline(always)]
    pub const fn number(self) -> u8 {
        self.0 as u8
    }

    /// True if the flag is set.
    #[inline(always)]
    pub const fn has(self, flag: u32) -> bool {
        self.0 & flag != 0
    }
}

/// Key of `fragments`: the datagram that a fragment belongs to (RFC 791, RFC 8200 4.5).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Pod, Zeroable)]
#[repr(C)]
pub struct FragmentKey {
    /// Source address as it arrives.
    pub source: Address,
    /// Destination address as it arrives.
    pub destination: Address,
    /// Identification field, zero-extended for IPv4.
    pub identification: u32,
    /// IANA protocol number.
    pub protocol: u8,
    /// Always 0.
    pub pad: [u8; 3],
}

/// Value of `fragments`: the ports, which only the first fragment carries.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Pod, Zeroable)]
#[repr(C)]
pub struct FragmentPorts {
    /// Source port, network order.
    pub source_port: Port,
    /// Destination port, network order.
    pub destination_port: Port,
}

/// Key of `locality` (lblc, lblcr): a virtual service and the packet's destination address.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Pod, Zeroable)]
#[repr(C)]
pub struct LocalityKey {
    /// The packet's destination address.
    pub address: Address,
    /// Service id.
    pub service: u32,
    /// 0 for the entry itself; lblcr: 1 + number of the chunk of its set in `locality_sets`.
    pub chunk: u32,
}

/// Value of `locality`. lblc uses `server` alone; lblcr has a set of `count` servers in `locality_sets`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Pod, Zeroable)]
#[repr(C)]
pub struct Locality {
    /// Last use, nanoseconds of the monotonic clock.
    pub last_used: u64,
    /// lblcr: last change of the set, same clock.
    pub last_modified: u64,
    /// lblc: the server.
    pub server: ServerReference,
    /// lblcr: places in use at the end of the set, holes included.
    pub length: u32,
    /// lblcr: servers in the set.
    pub count: u32,
}

/// Servers in one value of `locality_sets`.
pub const LOCALITY_CHUNK: usize = 16;

/// Value of `locality_sets`: sixteen servers of an lblcr set, oldest first; a reference of id 0 is a hole.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Pod, Zeroable)]
#[repr(C)]
pub struct LocalityChunk {
    /// The servers.
    pub servers: [ServerReference; LOCALITY_CHUNK],
}

/// A destination as a cache remembers it: id and the epoch it was valid in.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Pod, Zeroable)]
#[repr(C)]
pub struct ServerReference {
    /// Destination id; 0 for none.
    pub destination: u32,
    /// [`Destination::epoch`] when it was stored.
    pub epoch: u32,
}

/// Key of `socket_flows`: an unconnected socket's flow to one real server.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Pod, Zeroable)]
#[repr(C)]
pub struct SocketFlowKey {
    /// Socket cookie.
    pub cookie: u64,
    /// Peer address: the frontend for requests, the real server for replies.
    pub peer: Address,
    /// Peer port, network order.
    pub peer_port: Port,
    /// Protocol number, with [`SOCKET_FLOW_REPLY`] for the way back.
    pub protocol: u16,
    /// Always 0.
    pub pad: u32,
}

/// [`SocketFlowKey::protocol`]: the key of replies.
pub const SOCKET_FLOW_REPLY: u16 = 1 << 8;

/// Value of `socket_flows`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Pod, Zeroable)]
#[repr(C)]
pub struct SocketFlow {
    /// Peer to put in its place.
    pub peer: Address,
    /// Its port, network order.
    pub peer_port: Port,
    /// Always 0.
    pub pad: u16,
    /// Destination id.
    pub server: u32,
    /// Last use, nanoseconds of the monotonic clock.
    pub last_seen: u64,
    /// State as [`ConnectionState`] packs it.
    pub state: u32,
    /// Service id.
    pub service: u32,
}

/// Value of `settings`, one entry: what the agent tells every program.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Pod, Zeroable)]
#[repr(C)]
pub struct Settings {
    /// [`VERSION`] of the maps beside it.
    pub version: u32,
    /// Entries in `destinations`, `destination_load` and `sweep_recount`: how far the recount goes.
    pub max_destinations: u32,
    /// This node's IPv4 address, for hairpin connections and local clients; unspecified if it has none.
    pub node_v4: Address,
    /// This node's IPv6 address, likewise.
    pub node_v6: Address,
    /// Network namespace cookie of the node: socket programs leave sockets of other namespaces alone.
    pub namespace_cookie: u64,
    /// Timeouts per state, in milliseconds.
    pub timeouts: crate::timeouts::Timeouts,
}

/// Value of `sockets`, by socket cookie: the connection that a local process holds through a connected socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Pod, Zeroable)]
#[repr(C)]
pub struct SocketConnection {
    /// The frontend that the process asked for.
    pub frontend: Address,
    /// The real server it got.
    pub server_address: Address,
    /// The frontend's port, network order.
    pub frontend_port: Port,
    /// The real server's port, network order.
    pub server_port: Port,
    /// Destination id.
    pub server: u32,
    /// Service id.
    pub service: u32,
    /// IANA protocol number.
    pub protocol: u32,
    /// When it was connected, nanoseconds of the monotonic clock.
    pub connected: u64,
}

/// Value of `sweep_recount`, by destination id: what the sweep counts while it runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Pod, Zeroable)]
#[repr(C)]
pub struct Recount {
    /// As [`DestinationLoad::connections`], counted anew.
    pub connections: u64,
    /// [`DestinationLoad::changes`] when the count began.
    pub changes: u32,
    /// Always 0.
    pub pad: u32,
}

/// Value of `sweep_result`, one entry: what the last sweep found, and what all sweeps did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Pod, Zeroable)]
#[repr(C)]
pub struct SweepResult {
    /// Entries of `connections` seen by the last sweep.
    pub entries: u64,
    /// Connections removed by all sweeps.
    pub expired: u64,
    /// Reply entries without their request entry, removed by all sweeps. Stays 0 unless the kernel lost a delete.
    pub orphans: u64,
    /// Destinations whose counts a recount had to correct, in all sweeps. Stays 0 unless a change was lost.
    pub corrections: u64,
    /// Recounts that were finished, by all sweeps.
    pub recounts: u64,
    /// 1: the next sweep also recounts. Set by the agent, cleared by the sweep.
    pub recount_asked: u64,
}
