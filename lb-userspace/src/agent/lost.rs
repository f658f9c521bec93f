//! Connected UDP sockets of the node's processes whose server is gone: nothing would tell them, as their packets go to its
//! address from the start. They are ended, so that the process learns it from its next call.

use std::collections::BTreeSet;

use anyhow::{Context, Result};
use aya::Ebpf;
use aya::maps::{Array, HashMap, MapError};
use lb_common::address::Protocol;
use lb_common::layout::{DESTINATION_AVAILABLE, Destination, SOCKET_LOST, SocketConnection};
use tracing::{info, warn};

use crate::kernel::raw::Raw;
use crate::kernel::sock_diag::{self, Diag};

/// Ends them.
#[derive(Debug)]
pub struct LostSockets {
    can: bool,
    pending: bool,
}

impl LostSockets {
    /// Asks the kernel whether it can end sockets, if any are balanced. A new agent looks once: the last one may have been
    /// away when a server went.
    pub fn new(balanced: bool) -> Self {
        let can = balanced
            && match sock_diag::probe() {
                Ok(()) => true,
                Err(error) => {
                    warn!(
                        "connected UDP sockets of the node will stay with a server that is gone until they connect anew: the \
                     kernel ends no socket: {error} (CONFIG_INET_DIAG_DESTROY and CONFIG_INET_UDP_DIAG)"
                    );
                    false
                }
            };
        Self { can, pending: true }
    }

    /// Ends the sockets that have lost their server, if there are any new ones.
    pub fn end(&mut self, ebpf: &Ebpf, new: u64) -> Result<()> {
        self.pending |= new > 0;
        if !self.can || !self.pending {
            return Ok(());
        }
        let lost = lost(ebpf)?;
        if !lost.is_empty() {
            let ended = Diag::open().and_then(|diag| diag.end_connected(&lost));
            match ended.context("cannot end connected UDP sockets whose server is gone")? {
                0 => {}
                ended => info!("{ended} connected UDP sockets were ended: their server is gone"),
            }
        }
        self.pending = false;
        Ok(())
    }
}

/// Cookies of the sockets that a sweep has found, if their server is not back.
fn lost(ebpf: &Ebpf) -> Result<BTreeSet<u64>> {
    let sockets = ebpf.map("sockets").context("the BPF object has no map `sockets`")?;
    let sockets = HashMap::<_, u64, Raw<SocketConnection>>::try_from(sockets)?;
    let destinations = ebpf.map("destinations").context("the BPF object has no map `destinations`")?;
    let destinations = Array::<_, Raw<Destination>>::try_from(destinations)?;
    let mut lost = BTreeSet::new();
    for cookie in sockets.keys() {
        let cookie = cookie.context("cannot read the map `sockets`")?;
        let socket = match sockets.get(&cookie, 0) {
            Ok(Raw(socket)) => socket,
            Err(MapError::KeyNotFound) => continue,
            Err(error) => return Err(error).context("cannot read the map `sockets`"),
        };
        if socket.protocol != Protocol::Udp as u32 | SOCKET_LOST {
            continue;
        }
        let server = destinations.get(&socket.server, 0).context("cannot read the map `destinations`")?.0;
        if server.flags & DESTINATION_AVAILABLE == 0 {
            lost.insert(cookie);
        }
    }
    Ok(lost)
}
