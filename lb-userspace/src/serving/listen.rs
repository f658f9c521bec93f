//! Sockets that listen, of one family where there is one for each.

use std::io;
use std::net::SocketAddr;

use nix::sys::socket::{setsockopt, sockopt};
use tokio::net::{TcpListener, TcpSocket};

/// Connections that wait to be taken.
const BACKLOG: u32 = 128;

/// Which clients an IPv6 socket takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Families {
    /// IPv6 alone: beside it there is one for IPv4 (HC-6).
    Own,
    /// IPv4 too, if it listens on all addresses: as Go's servers, and so kube-proxy's, do (HZ-7).
    Both,
}

/// Listens.
pub(crate) fn listen(at: SocketAddr, families: Families) -> io::Result<TcpListener> {
    let socket = match at {
        SocketAddr::V4(_) => TcpSocket::new_v4()?,
        SocketAddr::V6(_) => {
            let socket = TcpSocket::new_v6()?;
            let both = families == Families::Both && at.ip().is_unspecified();
            setsockopt(&socket, sockopt::Ipv6V6Only, &!both)?;
            socket
        }
    };
    socket.set_reuseaddr(true)?;
    socket.bind(at)?;
    socket.listen(BACKLOG)
}
