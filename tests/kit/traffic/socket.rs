//! Sockets made inside a namespace, and waiting for them with a deadline.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, SockaddrStorage, bind, connect, getsockopt, listen, setsockopt, socket,
    sockopt,
};

use crate::namespace::Namespace;

fn open(address: SocketAddr, kind: SockType) -> io::Result<OwnedFd> {
    let family = if address.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    let fd = socket(family, kind, SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK, None)?;
    if address.is_ipv6() {
        setsockopt(&fd, sockopt::Ipv6V6Only, &true)?;
    }
    Ok(fd)
}

/// A TCP listener of one family, non-blocking.
pub(super) fn tcp_listener(namespace: &Namespace, address: SocketAddr) -> io::Result<TcpListener> {
    namespace.enter(|| {
        let fd = open(address, SockType::Stream)?;
        setsockopt(&fd, sockopt::ReuseAddr, &true)?;
        bind(fd.as_raw_fd(), &SockaddrStorage::from(address))?;
        listen(&fd, Backlog::new(4096)?)?;
        Ok(fd.into())
    })
}

/// A UDP socket of one family, bound, non-blocking.
pub(super) fn udp_socket(namespace: &Namespace, address: SocketAddr) -> io::Result<UdpSocket> {
    namespace.enter(|| {
        let fd = open(address, SockType::Datagram)?;
        bind(fd.as_raw_fd(), &SockaddrStorage::from(address))?;
        Ok(fd.into())
    })
}

/// A connected TCP stream, blocking, made by the calling thread in its own namespace.
pub(super) fn tcp_connect_here(
    source: Option<SocketAddr>,
    to: SocketAddr,
    deadline: Duration,
) -> io::Result<TcpStream> {
    let fd = open(to, SockType::Stream)?;
    if let Some(source) = source {
        setsockopt(&fd, sockopt::ReuseAddr, &true)?;
        bind(fd.as_raw_fd(), &SockaddrStorage::from(source))?;
    }
    match connect(fd.as_raw_fd(), &SockaddrStorage::from(to)) {
        Ok(()) => {}
        Err(Errno::EINPROGRESS) => {
            wait(&fd, PollFlags::POLLOUT, Instant::now() + deadline)?;
            let error = getsockopt(&fd, sockopt::SocketError)?;
            if error != 0 {
                return Err(io::Error::from_raw_os_error(error));
            }
        }
        Err(error) => return Err(error.into()),
    }
    let stream = TcpStream::from(fd);
    stream.set_nonblocking(false)?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// Waits until one of `events` (or an error) is there and returns what is; `TimedOut` at `deadline`.
pub(super) fn wait(fd: &impl AsFd, events: PollFlags, deadline: Instant) -> io::Result<PollFlags> {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
        let mut fds = [PollFd::new(fd.as_fd(), events)];
        match poll(&mut fds, timeout) {
            Ok(0) if Instant::now() >= deadline => return Err(io::ErrorKind::TimedOut.into()),
            // Poll rounds down to milliseconds.
            Ok(0) => std::thread::sleep(Duration::from_micros(200)),
            Ok(_) => return Ok(fds[0].revents().unwrap_or(PollFlags::empty())),
            Err(Errno::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}
