//! What a director can be told, in `ipvsadm`'s terms: the interface that IPVS and bpvs have in common.

use std::net::IpAddr;

use anyhow::Result;
use lb_common::address::Protocol;
use lb_common::scheduler::Scheduler;

/// What packets of a virtual service have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum VirtualKey {
    /// `-t`, `-u`, `--sctp-service`: an address and a port; port 0 stands for every port and needs persistence.
    Address {
        /// Protocol.
        protocol: Protocol,
        /// Virtual address.
        address: IpAddr,
        /// Virtual port.
        port: u16,
    },
    /// `-f`: a firewall mark, in one family.
    Mark {
        /// The mark, not 0.
        mark: u32,
        /// IPv6 (`-6`).
        v6: bool,
    },
}

/// A virtual service (`-A`, `-E`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VirtualService {
    /// What its packets have in common.
    pub key: VirtualKey,
    /// Scheduler (`-s`).
    pub scheduler: Scheduler,
    /// `-b sh-port`, `mh-port`.
    pub hash_port: bool,
    /// `-b sh-fallback`, `mh-fallback`.
    pub hash_fallback: bool,
    /// `-p`: seconds; 0 for none.
    pub persistence: u32,
    /// `-M`: length of the prefix that clients share a template by; 32 or 128 for one client each.
    pub netmask: u8,
    /// `-o`: one-packet scheduling.
    pub one_packet: bool,
}

/// A real server (`-a`, `-e`), by NAT (`-m`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RealServer {
    /// Address.
    pub address: IpAddr,
    /// Port; 0 keeps the client's destination port (services by mark).
    pub port: u16,
    /// Weight (`-w`).
    pub weight: i32,
    /// `-x`: upper threshold in connections; 0 for none.
    pub upper: u32,
    /// `-y`: lower threshold; 0 for three quarters of the upper one.
    pub lower: u32,
}

/// A real server's state, as a listing shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RealServerState {
    /// Address.
    pub address: IpAddr,
    /// Port.
    pub port: u16,
    /// Weight.
    pub weight: i32,
    /// Active connections.
    pub active: u32,
    /// Inactive connections.
    pub inactive: u32,
    /// Persistence templates.
    pub persistent: u32,
}

/// The switches of a director that have a counterpart in `net.ipv4.vs`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Switches {
    /// `expire_nodest_conn`.
    pub expire_nodest_conn: bool,
    /// `expire_quiescent_template`.
    pub expire_quiescent_template: bool,
    /// `sloppy_tcp`.
    pub sloppy_tcp: bool,
}

/// A director: IPVS or bpvs. Every call returns when its effect holds for the next packet.
pub trait Director {
    /// `-A`.
    fn add_service(&mut self, service: &VirtualService) -> Result<()>;
    /// `-E`.
    fn edit_service(&mut self, service: &VirtualService) -> Result<()>;
    /// `-D`.
    fn delete_service(&mut self, key: &VirtualKey) -> Result<()>;
    /// `-a`.
    fn add_server(&mut self, key: &VirtualKey, server: &RealServer) -> Result<()>;
    /// `-e`.
    fn edit_server(&mut self, key: &VirtualKey, server: &RealServer) -> Result<()>;
    /// `-d`.
    fn delete_server(&mut self, key: &VirtualKey, address: IpAddr, port: u16) -> Result<()>;
    /// `--set`: seconds; 0 keeps.
    fn set_timeouts(&mut self, tcp: u32, tcp_fin: u32, udp: u32) -> Result<()>;
    /// The switches.
    fn set_switches(&mut self, switches: &Switches) -> Result<()>;
    /// The real servers of a service, in the order of its list: the newest first.
    fn servers(&mut self, key: &VirtualKey) -> Result<Vec<RealServerState>>;
}
