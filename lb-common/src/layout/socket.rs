//! `sockets` and `socket_flows`: what the node's own processes hold.

use bytemuck::{Pod, Zeroable};

use crate::address::{Address, Port};

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
    /// Protocol number, with [`SOCKET_FLOW_REPLY`] for the way back, and [`SOCKET_FLOW_NEWEST`] besides for the
    /// socket's newest flow, by an unspecified peer.
    pub protocol: u16,
    /// Always 0.
    pub pad: u32,
}

/// [`SocketFlowKey::protocol`]: the key of replies.
pub const SOCKET_FLOW_REPLY: u16 = 1 << 8;

/// [`SocketFlowKey::protocol`], always together with [`SOCKET_FLOW_REPLY`]: names the frontend of the socket's newest
/// flow, which ends with the socket. Most sockets have no other; older ones time out.
pub const SOCKET_FLOW_NEWEST: u16 = 1 << 9;

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
    /// State as [`ConnectionState`](super::ConnectionState) packs it.
    pub state: u32,
    /// Service id.
    pub service: u32,
}

/// Bit of [`SocketConnection::protocol`]: the server is gone, as a sweep has found. UDP only, which nothing else tells.
pub const SOCKET_LOST: u32 = 1 << 8;

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
    /// IANA protocol number, with [`SOCKET_LOST`].
    pub protocol: u32,
    /// When it was connected, nanoseconds of the monotonic clock.
    pub connected: u64,
}
