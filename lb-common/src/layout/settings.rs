//! `settings`.

use bytemuck::{Pod, Zeroable};

use crate::address::Address;

/// Value of `settings`, one entry: what the agent tells every program.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Pod, Zeroable)]
#[repr(C)]
pub struct Settings {
    /// [`VERSION`](super::VERSION) of the maps beside it.
    pub version: u32,
    /// Entries in `destinations`, `destination_load` and `sweep_recount`: how far the recount goes.
    pub max_destinations: u32,
    /// This node's IPv4 address, for hairpin connections and local clients; unspecified if it has none.
    pub node_v4: Address,
    /// This node's IPv6 address, likewise.
    pub node_v6: Address,
    /// Network namespace cookie of the node: socket programs leave sockets of other namespaces alone, unless
    /// [`SETTING_ALL_SOCKETS`] is set. 0: no socket is the node's.
    pub namespace_cookie: u64,
    /// Timeouts per state, in milliseconds.
    pub timeouts: crate::timeouts::Timeouts,
    /// [`SETTING_EXPIRE_NODEST`] and its kind.
    pub switches: u32,
    /// First of the ports that the node's own sockets take (`net.ipv4.ip_local_port_range`), at least 1024: no client is
    /// masqueraded with one of them.
    pub local_ports_first: u16,
    /// Last of them. They leave some of the ports from 1024 on.
    pub local_ports_last: u16,
}

/// [`Settings::switches`]: connections end with their destination (`net.ipv4.vs.expire_nodest_conn`): a removed server's
/// next packet, or a SYN for a server of weight 0, is scheduled anew.
pub const SETTING_EXPIRE_NODEST: u32 = 1 << 0;
/// [`Settings::switches`]: a template of a server of weight 0 is over (`net.ipv4.vs.expire_quiescent_template`).
pub const SETTING_EXPIRE_QUIESCENT: u32 = 1 << 1;
/// [`Settings::switches`]: a TCP connection may begin with any segment but RST (`net.ipv4.vs.sloppy_tcp`).
pub const SETTING_SLOPPY_TCP: u32 = 1 << 2;
/// [`Settings::switches`]: an SCTP association may begin with any chunk but ABORT (`net.ipv4.vs.sloppy_sctp`).
pub const SETTING_SLOPPY_SCTP: u32 = 1 << 3;
/// [`Settings::switches`]: sockets of every network namespace are balanced, those of pods with that.
pub const SETTING_ALL_SOCKETS: u32 = 1 << 4;
/// [`Settings::switches`]: there are cgroups whose sockets are not balanced (`excluded_cgroups`).
pub const SETTING_EXCLUDED_CGROUPS: u32 = 1 << 5;
/// [`Settings::switches`]: a client is a pod if it comes in by one of `pod_interfaces`, not by its address.
pub const SETTING_POD_INTERFACES: u32 = 1 << 6;
