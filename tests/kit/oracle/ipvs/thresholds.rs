//! Which of two rules for thresholds a kernel has: stable kernels changed it in 2026.

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};

use anyhow::{Context, Result, bail, ensure};
use lb_common::address::Protocol;
use lb_common::scheduler::Scheduler;

use super::Ipvs;
use crate::namespace::Namespace;
use crate::oracle::control::{Director, RealServer, VirtualKey, VirtualService};

/// When a real server counts as overloaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ThresholdRule {
    /// The mark is set by a connection that reaches the upper threshold, and removed by the end of one that falls below
    /// the lower threshold; an edit only removes it.
    AtConnections,
    /// An edit of the thresholds sets it too, if the connections that there are reach the upper one, and keeps it as long
    /// as they do not fall below the lower one.
    AtEdits,
}

/// Connections before the edit; it sets an upper threshold below that.
const CONNECTIONS: u32 = 5;
const UPPER: u32 = 3;

/// Tries it, in a network namespace of its own.
pub fn threshold_rule() -> Result<ThresholdRule> {
    let namespace = Namespace::new("thresholds")?;
    let mut ipvs = Ipvs::open(&namespace)?;
    let at = |last, port| SocketAddr::from((Ipv4Addr::new(127, 0, 0, last), port));
    let (client, virtual_address, server) = (at(1, 0), at(2, 9000), at(3, 9000));
    let key =
        VirtualKey::Address { protocol: Protocol::Udp, address: virtual_address.ip(), port: virtual_address.port() };
    ipvs.add_service(&VirtualService {
        key,
        scheduler: Scheduler::RoundRobin,
        hash_port: false,
        hash_fallback: false,
        persistence: 0,
        netmask: 32,
        one_packet: false,
    })?;
    let mut real = RealServer { address: server.ip(), port: server.port(), weight: 1, upper: 0, lower: 0 };
    ipvs.add_server(&key, &real)?;
    let bind = |to| namespace.enter(|| UdpSocket::bind(to)).with_context(|| format!("binding a socket to {to}"));
    // It is there so that nothing is refused; what it receives does not matter.
    let _server = bind(server)?;
    let mut clients = Vec::new();
    for _ in 0..CONNECTIONS {
        let socket = bind(client)?;
        socket.send_to(b"x", virtual_address).context("sending through IPVS")?;
        clients.push(socket);
    }
    let before = count(&mut ipvs, &key)?;
    ensure!(before == CONNECTIONS, "IPVS counts {before} connections, not {CONNECTIONS}");
    real.upper = UPPER;
    ipvs.edit_server(&key, &real)?;
    // Whether this was refused is asked of IPVS: the error of a send is the one of any ICMP message before it.
    let _refused = bind(client)?.send_to(b"x", virtual_address);
    match count(&mut ipvs, &key)? {
        CONNECTIONS => Ok(ThresholdRule::AtEdits),
        after if after == CONNECTIONS + 1 => Ok(ThresholdRule::AtConnections),
        after => bail!("one more packet made {after} connections of {CONNECTIONS}"),
    }
}

fn count(ipvs: &mut Ipvs, key: &VirtualKey) -> Result<u32> {
    Ok(ipvs.servers(key)?.iter().map(|server| server.active + server.inactive).sum())
}
