//! Keys and values of every BPF map, pinned under `/sys/fs/bpf/bpvs`.
//!
//! All are `repr(C)` and [`Pod`], with their padding named, so that `bpftool map dump` prints each field and a
//! byte-wise compare is a compare. [`VERSION`] changes with any of them; maps of another version are refused.

use bytemuck::{Pod, Zeroable};

use crate::address::{Address, Port};

mod connection;
mod locality;
mod settings;
mod socket;
mod sweep;

pub use connection::{
    Connection, ConnectionKey, ConnectionState, Control, FragmentKey, FragmentPorts, KEY_AFFINITY, KEY_PACKET,
    KEY_TEMPLATE, PositionHint,
};
pub use locality::{LOCALITY_CHUNK, Locality, LocalityChunk, LocalityKey, ServerReference};
pub use settings::{
    SETTING_ALL_SOCKETS, SETTING_EXCLUDED_CGROUPS, SETTING_EXPIRE_NODEST, SETTING_EXPIRE_QUIESCENT,
    SETTING_POD_INTERFACES, SETTING_SLOPPY_SCTP, SETTING_SLOPPY_TCP, Settings,
};
pub use socket::{SOCKET_FLOW_NEWEST, SOCKET_FLOW_REPLY, SOCKET_LOST, SocketConnection, SocketFlow, SocketFlowKey};
pub use sweep::{Recount, SweepResult};

/// Version of all layouts of this module together. Kept in the `settings` map; an agent refuses maps of another version.
pub const VERSION: u32 = 8;

/// Highest number of destinations in one service. A load-time setting may lower it, never raise it: positions are
/// held in 16 bits ([`SchedulerWord`](crate::scheduler::word::SchedulerWord)).
pub const MAX_DESTINATIONS_PER_SERVICE: u32 = 16_384;

/// Key of `services`: what a packet must match, exactly.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Pod, Zeroable)]
#[repr(C)]
pub struct ServiceKey {
    /// Virtual address. [`SERVICE_BY_MARK`]: [`ServiceKey::mark`]. [`SERVICE_NODE_PORT`]: unspecified, of the family.
    pub address: Address,
    /// Virtual port, network order. 0: every port of the address that has no service of its own.
    pub port: Port,
    /// IANA protocol number: 6, 17 or 132. By mark: 0, any of them.
    pub protocol: u8,
    /// [`SERVICE_BY_ADDRESS`], [`SERVICE_BY_MARK`] or [`SERVICE_NODE_PORT`]; the first and the last may be
    /// [`SERVICE_EXTERNAL`] besides.
    pub kind: u8,
}

/// [`ServiceKey::kind`]: by address, protocol and port.
pub const SERVICE_BY_ADDRESS: u8 = 0;
/// [`ServiceKey::kind`]: by the packet's firewall mark, in one address family (`ipvsadm -f`).
pub const SERVICE_BY_MARK: u8 = 1;
/// [`ServiceKey::kind`]: by protocol and port, at each address of the node that node ports are served on
/// ([`NETWORK_NODE_PORTS`]).
pub const SERVICE_NODE_PORT: u8 = 2;
/// Bit of [`ServiceKey::kind`]: for external clients, where the entry without it has [`ACCESS_SPLIT`].
pub const SERVICE_EXTERNAL: u8 = 1 << 2;

impl ServiceKey {
    /// The key of a firewall mark's service, in the address family of a packet with this address.
    #[inline(always)]
    pub const fn of_mark(mark: u32, v4: bool) -> Self {
        let word = mark.to_be();
        let address = if v4 { Address::from_v4_word(word) } else { Address { words: [0, 0, 0, word] } };
        Self { address, port: Port(0), protocol: 0, kind: SERVICE_BY_MARK }
    }

    /// The firewall mark of a key by mark.
    #[inline(always)]
    pub const fn mark(&self) -> u32 {
        u32::from_be(self.address.words[3])
    }
}

/// Key of `service_prefixes`, a longest-prefix-match trie: a whole network as virtual service. Protocol and port must
/// match in full, so that the prefix is [`PREFIX_BASE`] bits longer than the network's (an IPv4 network's by 96 more).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Pod, Zeroable)]
#[repr(C)]
pub struct ServicePrefix {
    /// IANA protocol number.
    pub protocol: u8,
    /// Always 0.
    pub pad: u8,
    /// Virtual port, network order. 0: every port.
    pub port: Port,
    /// The network's address; bits after the prefix are 0.
    pub network: Address,
}

/// Bits of [`ServicePrefix`] before its address.
pub const PREFIX_BASE: u32 = 32;

/// Value of `lookups`, one entry: [`LOOKUP_MARKS`] and its kind. What no service has is not looked for.
pub const LOOKUP_MARKS: u32 = 1 << 0;
/// [`LOOKUP_MARKS`]' kind: there are services of every port of an address.
pub const LOOKUP_ALL_PORTS: u32 = 1 << 1;
/// [`LOOKUP_MARKS`]' kind: there are prefixes.
pub const LOOKUP_PREFIXES: u32 = 1 << 2;

/// [`LOOKUP_MARKS`]' kind: there are node ports.
pub const LOOKUP_NODE_PORTS: u32 = 1 << 3;
/// [`LOOKUP_MARKS`]' kind: there are cluster addresses ([`NETWORK_CLUSTER_ADDRESSES`]).
pub const LOOKUP_CLUSTER_ADDRESSES: u32 = 1 << 4;
/// [`LOOKUP_MARKS`]' kind: there are networks of cluster addresses ([`NETWORK_SERVICES`]).
pub const LOOKUP_SERVICE_NETWORKS: u32 = 1 << 5;
/// [`LOOKUP_MARKS`]' kind: there are services with [`SERVICE_TUNNELS`], for which packets inside of others are looked into.
pub const LOOKUP_TUNNELS: u32 = 1 << 6;

/// Value of `direct`: the packet is sent as the stack would send it.
pub const DIRECT_NEIGHBOUR: u32 = 1;
/// Value of `direct`: the interface is a veth, and the packet arrives at once at its other end, in a network namespace of its
/// own.
pub const DIRECT_PEER: u32 = 2;

/// Flag of a value of `uplinks`, which is an index otherwise: what leaves by where it came in is redirected there. A veth keeps
/// what XDP_TX gives it until something else is sent, unless its other end has an XDP program.
pub const UPLINK_REDIRECTS: u32 = 1 << 31;

/// Key of `networks`, a longest-prefix-match trie of networks that clients or node ports are in. The owner must match in
/// full, so that the prefix is [`NETWORK_BASE`] bits longer than the network's (an IPv4 network's by 96 more).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Pod, Zeroable)]
#[repr(C)]
pub struct NetworkKey {
    /// A service id: clients that the service takes ([`ACCESS_SOURCES`]). Or [`NETWORK_PODS`], [`NETWORK_NODE_PORTS`].
    pub owner: u32,
    /// The network's address; bits after the prefix are 0.
    pub network: Address,
}

/// Bits of [`NetworkKey`] before its address.
pub const NETWORK_BASE: u32 = 32;
/// [`NetworkKey::owner`]: the cluster's pods.
pub const NETWORK_PODS: u32 = 0;
/// [`NetworkKey::owner`]: addresses of the node that node ports are served on.
pub const NETWORK_NODE_PORTS: u32 = u32::MAX;
/// [`NetworkKey::owner`]: cluster addresses of Services. What is no service there is refused.
pub const NETWORK_CLUSTER_ADDRESSES: u32 = u32::MAX - 1;
/// [`NetworkKey::owner`]: networks that cluster addresses are taken from. What is sent there and is for no service does not
/// leave the node.
pub const NETWORK_SERVICES: u32 = u32::MAX - 2;

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
    /// [`SERVICE_HASH_PORT`] and its kind.
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
    /// [`SERVICE_PERSISTENT`]: bits of a client's [`Address`] that it shares its template by: 128 for one client each,
    /// 96 + n for an IPv4 netmask of n bits.
    pub persistence_prefix: u8,
    /// [`ACCESS_SPLIT`] and its kind.
    pub access: u8,
    /// [`SERVICE_PERSISTENT`]: milliseconds from a client's last new connection to the end of its template.
    pub persistence_timeout: u32,
    /// [`SERVICE_PERSISTENT`]: all services of this group share what is remembered of a client ([`KEY_AFFINITY`]), by the
    /// real server's address and port. Zeros: the service has templates of its own, as in IPVS.
    pub affinity_group: [u32; 2],
}

/// Value of `affinity_timeouts`, by service id: what the sweep goes by, which has no [`Service`] at hand.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Pod, Zeroable)]
#[repr(C, align(8))]
pub struct AffinityTimeout {
    /// Second word of [`Service::affinity_group`]: another one's is of a service that had the id before, or has it now.
    pub group: u32,
    /// [`Service::persistence_timeout`]; 0 where the service is of no group.
    pub timeout: u32,
}

impl AffinityTimeout {
    /// That of a service.
    pub const fn of(service: &Service) -> Self {
        match service.affinity_group {
            [0, 0] => Self { group: 0, timeout: 0 },
            [_, group] => Self { group, timeout: service.persistence_timeout },
        }
    }
}

/// [`Service::flags`]: hash the source port too (`sh-port`, `mh-port`).
pub const SERVICE_HASH_PORT: u8 = 1 << 0;
/// [`Service::flags`]: take another server when the hashed one is unusable (`sh-fallback`,
/// `mh-fallback`).
pub const SERVICE_HASH_FALLBACK: u8 = 1 << 1;
/// [`Service::flags`]: each datagram is scheduled for itself (`ipvsadm -o`). UDP only.
pub const SERVICE_ONE_PACKET: u8 = 1 << 2;
/// [`Service::flags`]: new connections of a client go where its last one went (`ipvsadm -p`).
pub const SERVICE_PERSISTENT: u8 = 1 << 3;
/// [`Service::flags`]: the virtual port is 0.
pub const SERVICE_ALL_PORTS: u8 = 1 << 4;
/// [`Service::flags`]: found by mark.
pub const SERVICE_MARKED: u8 = 1 << 5;
/// [`Service::flags`]: some destination of the set has an upper threshold.
pub const SERVICE_THRESHOLDS: u8 = 1 << 6;
/// [`Service::flags`]: some destination of the set has [`DESTINATION_LOCAL`].
pub const SERVICE_TUNNELS: u8 = 1 << 7;

/// [`Service::access`]: external clients have an entry of their own ([`SERVICE_EXTERNAL`]).
pub const ACCESS_SPLIT: u8 = 1 << 0;
/// [`Service::access`]: requests of external clients come from the node's address.
pub const ACCESS_MASQUERADE_EXTERNAL: u8 = 1 << 1;
/// [`Service::access`]: all requests come from the node's address.
pub const ACCESS_MASQUERADE: u8 = 1 << 2;
/// [`Service::access`]: without destinations nothing is answered.
pub const ACCESS_SILENT: u8 = 1 << 3;
/// [`Service::access`]: only clients of the service's networks are taken ([`NetworkKey`]).
pub const ACCESS_SOURCES: u8 = 1 << 4;

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
    /// [`DESTINATION_AVAILABLE`] and its kind.
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
    /// Upper threshold: with this many connections it takes no new ones (`ipvsadm -x`). 0 for none.
    pub upper: u32,
    /// Lower threshold: with fewer than this it takes new ones again (`ipvsadm -y`). 0: three quarters of the upper.
    pub lower: u32,
}

impl Destination {
    /// Whether a destination with this many connections is overloaded, which it was or was not before
    /// (`ip_vs_dest_update_overload`; 2026).
    #[inline(always)]
    pub const fn overload(&self, connections: u32, before: bool) -> bool {
        let lower = if self.lower != 0 { self.lower } else { self.upper - (self.upper >> 2) };
        self.upper != 0 && (connections >= self.upper || (before && connections >= lower))
    }
}

/// [`Destination::flags`]: in its service's set. Cleared when removed, while connections may still refer to it.
pub const DESTINATION_AVAILABLE: u16 = 1 << 0;
/// [`Destination::flags`]: its service is by mark, of a network or of every port, so that what its connections' clients
/// asked for is not the service's name. No program reads it; a restarted agent does.
pub const DESTINATION_WIDE: u16 = 1 << 1;
/// [`Destination::flags`]: direct routing (`ipvsadm -g`, IPVS's `IP_VS_CONN_F_DROUTE`): the packet goes to it as it is, by its
/// hardware address; it has the virtual address itself, and answers the client past the director. Without this and
/// [`DESTINATION_TUNNEL`]: NAT (`-m`).
pub const DESTINATION_ROUTE: u16 = 1 << 2;
/// [`Destination::flags`]: tunnelling (`ipvsadm -i`, `IP_VS_CONN_F_TUNNEL`): the packet goes to it inside of another one (RFC
/// 2003, RFC 2473), which the node of the server unwraps; it answers the client past the director.
pub const DESTINATION_TUNNEL: u16 = 1 << 3;
/// [`Destination::flags`]: with [`DESTINATION_TUNNEL`]: the server is of this node. It is reached as by NAT, and what comes for
/// it inside of another packet is unwrapped. Its address is of its service's family.
pub const DESTINATION_LOCAL: u16 = 1 << 4;

/// Value of `destination_load`: what the least-connection schedulers read. Changed by atomic adds only.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Pod, Zeroable)]
#[repr(C, align(8))]
pub struct DestinationLoad {
    /// Active connections in the high 32 bits, inactive in the low: one atomic add moves a connection between them.
    /// The highest bit is [`Self::OVERLOADED`].
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
    /// Bit of [`Self::connections`]: over its upper threshold, and not yet under the lower one.
    pub const OVERLOADED: u64 = 1 << 63;

    /// Active connections seen by this node.
    #[inline(always)]
    pub const fn active(&self) -> u32 {
        (self.connections >> 32) as u32 & (u32::MAX >> 1)
    }

    /// Inactive connections seen by this node.
    #[inline(always)]
    pub const fn inactive(&self) -> u32 {
        self.connections as u32
    }

    /// Takes no new connections, having had its upper threshold of them.
    #[inline(always)]
    pub const fn overloaded(&self) -> bool {
        self.connections & Self::OVERLOADED != 0
    }

    /// What is left of a destination's weight for new connections: all of it, or 0 while it is overloaded.
    #[inline(always)]
    pub const fn usable(&self, weight: i32) -> i32 {
        weight & !((self.connections as i64 >> 63) as i32)
    }

    /// Active and inactive connections together, as thresholds count them.
    #[inline(always)]
    pub const fn total(&self) -> u32 {
        self.active().wrapping_add(self.inactive())
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
