//! `connections` and `fragments`.

use bytemuck::{Pod, Zeroable};

use crate::address::{Address, Port};

/// Key of `connections`: a packet's addresses and ports, as it arrives.
///
/// Each connection has two: (client, frontend) for requests and (real server, client) for replies. A persistence template
/// has one, of kind [`KEY_TEMPLATE`]: the client's network with port 0, and what its connections have in common (the
/// frontend, port 0 if it stands for every port; the service id in place of an address, without protocol, for a service by
/// mark). One of an affinity group, of kind [`KEY_AFFINITY`], has the client's network, the group in place of an address,
/// and no ports.
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
    /// [`KEY_PACKET`], [`KEY_TEMPLATE`] or [`KEY_AFFINITY`].
    pub kind: u8,
    /// Always 0.
    pub pad: [u8; 2],
}

/// [`ConnectionKey::kind`]: what packets have.
pub const KEY_PACKET: u8 = 0;
/// [`ConnectionKey::kind`]: a persistence template.
pub const KEY_TEMPLATE: u8 = 1;
/// [`ConnectionKey::kind`]: the template of an affinity group
/// ([`Service::affinity_group`](super::Service::affinity_group)). It names the real server by its address and port, as each
/// service of the group has an id of its own for it, and holds neither the id nor any connection.
pub const KEY_AFFINITY: u8 = 2;

impl ConnectionKey {
    /// Both ports as a native load of the four bytes that they are in a packet.
    #[inline(always)]
    pub const fn ports(&self) -> u32 {
        let ([a, b], [c, d]) = (self.source_port.0.to_ne_bytes(), self.destination_port.0.to_ne_bytes());
        u32::from_ne_bytes([a, b, c, d])
    }

    /// The key of packets in the other direction.
    #[inline(always)]
    pub const fn reversed(&self) -> Self {
        Self {
            source: self.destination,
            destination: self.source,
            source_port: self.destination_port,
            destination_port: self.source_port,
            protocol: self.protocol,
            kind: self.kind,
            pad: [0; 2],
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
    /// Destination address to write. [`KEY_AFFINITY`]: address of the real server.
    pub destination: Address,
    /// Source port to write, network order.
    pub source_port: Port,
    /// Destination port to write, network order. [`KEY_AFFINITY`]: port of the real server.
    pub destination_port: Port,
    /// Destination id of the real server. [`KEY_AFFINITY`]: the one it had in [`Self::service`].
    pub server: u32,
    /// Service id. [`KEY_AFFINITY`]: the service that chose the real server.
    pub service: u32,
    /// State and flags as [`ConnectionState`] packs them, changed by compare-and-swap. The reply entry's copy only
    /// says whether it may skip the request entry.
    pub state: u32,
    /// Last packet in this direction, nanoseconds of the monotonic clock (coarse).
    pub last_seen: u64,
    /// Life after the last packet in either direction, milliseconds. Request entry only. Template: life after the last
    /// new connection.
    pub timeout: u32,
    /// Request entry: which template it is controlled by, as [`Control`] packs it; 0 for none. Template: connections that
    /// it controls; of an affinity group: [`PositionHint`].
    pub control: u32,
}

/// What [`Connection::control`] of a connection packs: enough to find its template, and to know it from a later one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Control(pub u32);

impl Control {
    /// The template is of every port.
    pub const ALL_PORTS: u32 = 1 << 8;
    /// The template is of a firewall mark.
    pub const MARKED: u32 = 1 << 9;

    /// Packs; `prefix` is [`Service::persistence_prefix`](super::Service::persistence_prefix) and not 0.
    #[inline(always)]
    pub const fn new(prefix: u8, flags: u32, generation: u16) -> Self {
        Self(prefix as u32 | flags | (generation as u32) << 16)
    }

    /// Bits of the client's address that the template has.
    #[inline(always)]
    pub const fn prefix(self) -> u8 {
        self.0 as u8
    }

    /// True if the flag is set.
    #[inline(always)]
    pub const fn has(self, flag: u32) -> bool {
        self.0 & flag != 0
    }

    /// A random number that the template has too ([`Connection::source_port`]), and one that came after it has not.
    #[inline(always)]
    pub const fn generation(self) -> u16 {
        (self.0 >> 16) as u16
    }
}

/// What [`Connection::control`] of an affinity group's template packs: where the real server stood in the set in which it
/// was searched for last. Services of one group have the same real servers, mostly in the same order, so that those that
/// know the server by another id find it at this position. Never equal to what other entries have there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PositionHint(pub u32);

impl PositionHint {
    /// Packs a position.
    #[inline(always)]
    pub const fn new(position: u32) -> Self {
        Self(1 << 31 | position << 8 | 0xff)
    }

    /// The position.
    #[inline(always)]
    pub const fn position(self) -> u32 {
        self.0 << 1 >> 9
    }
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
    /// A persistence template.
    pub const TEMPLATE: u32 = 1 << 13;
    /// Reply entry of a one-packet datagram: there is no request entry.
    pub const ONE_PACKET: u32 = 1 << 14;
    /// Template: one of its connections was established (IPVS's `ASSURED`).
    pub const ASSURED: u32 = 1 << 15;
    /// Requests come from the node's address: there are two entries more, with [`Self::PASSING`].
    pub const MASQUERADED: u32 = 1 << 16;
    /// Entry that translates the client's address for the server's side: (client, real server) for requests as they leave
    /// the node, and with [`Self::REPLY`] (real server, node) for replies as they enter it.
    pub const PASSING: u32 = 1 << 17;
    /// Packets with this key go by the stack: XDP found that they do not leave by an uplink.
    pub const STACK: u32 = 1 << 18;
    /// Packets with this key go by the stack: tc found that they do not go straight to an interface.
    pub const NOT_DIRECT: u32 = 1 << 19;
    /// Requests go to the server as they are ([`DESTINATION_ROUTE`](super::DESTINATION_ROUTE)). There is no reply entry.
    pub const ROUTE: u32 = 1 << 20;
    /// Requests go to the server inside of another packet ([`DESTINATION_TUNNEL`](super::DESTINATION_TUNNEL)). There is no
    /// reply entry.
    pub const TUNNEL: u32 = 1 << 21;
    /// Both ways on which answers do not come by here.
    pub const DIRECT_RETURN: u32 = Self::ROUTE | Self::TUNNEL;

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
