//! Keys and values of every BPF map, pinned under `/sys/fs/bpf/bpvs`.
//!
//! All are `repr(C)` and [`Pod`], with their padding named, so that `bpftool map dump` prints each field and a
//! byte-wise compare is a compare. [`VERSION`] changes with any of them; maps of another version are refused.

use bytemuck::{Pod, Zeroable};

use crate::address::{Address, Port};

mod connection;
mod locality;
mod socket;
mod sweep;

pub use connection::{Connection, ConnectionKey, ConnectionState, FragmentKey, FragmentPorts};
pub use locality::{LOCALITY_CHUNK, Locality, LocalityChunk, LocalityKey, ServerReference};
pub use socket::{SOCKET_FLOW_NEWEST, SOCKET_FLOW_REPLY, SocketConnection, SocketFlow, SocketFlowKey};
pub use sweep::{Recount, SweepResult};

/// Version of all layouts in this file together. Kept in the `settings` map; an agent refuses maps of another version.
pub const VERSION: u32 = 2;

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
    /// First slot of the scheduler's table in `destination_slots` (sh, dh, mh); otherwise 0.
    pub table_base: u32,
    /// Slots in the table: 256 for sh and dh, 4093 for mh, or 0 when there is none.
    pub table_length: u32,
    /// wrr: `max weight - (gcd - 1)`, IPVS's `mw`.
    pub max_weight: i32,
    /// wrr: greatest common divisor of the positive weights, IPVS's `di`.
    pub weight_step: i32,
    /// [`Self::version`] with which the scheduler began: what lblc and lblcr remember from before is not theirs.
    pub started: u16,
    /// Always 0.
    pub pad: u16,
}

/// [`Service::flags`]: hash the source port too (`sh-port`, `mh-port`).
pub const SERVICE_HASH_PORT: u8 = 1 << 0;
/// [`Service::flags`]: take another server when the hashed one is unusable (`sh-fallback`,
/// `mh-fallback`).
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
    /// IPVS's `last_weight`: the weight that the destination was added with, then the last one above 0. mh's table
    /// follows from it, so that a server that drains keeps its cells. No program reads it; a restarted agent does.
    pub last_weight: i32,
    /// Always 0.
    pub pad: u32,
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

impl Traffic {
    /// The sum of both; a count that would overflow stays at the highest.
    #[must_use]
    pub const fn plus(&self, other: &Self) -> Self {
        Self {
            connections: self.connections.saturating_add(other.connections),
            in_packets: self.in_packets.saturating_add(other.in_packets),
            out_packets: self.out_packets.saturating_add(other.out_packets),
            in_bytes: self.in_bytes.saturating_add(other.in_bytes),
            out_bytes: self.out_bytes.saturating_add(other.out_bytes),
        }
    }
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
