//! UDP clients: one socket, any number of requests.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use nix::poll::PollFlags;

use super::client::{DialError, parse_greeting};
use super::sequence::Sequence;
use super::socket;
use crate::namespace::Namespace;

/// A UDP socket in a namespace that talks to one address.
#[derive(Debug)]
pub struct UdpClient {
    socket: UdpSocket,
    to: SocketAddr,
    connected: bool,
}

/// What a server answered.
#[derive(Debug, Clone, Copy)]
pub struct Answer {
    /// The server that answered.
    pub server: u16,
    /// Where the answer came from, as the client's socket sees it. Always the address asked.
    pub from: SocketAddr,
    /// The client address and port that the server saw.
    pub seen_peer: SocketAddr,
    /// Time from request to answer.
    pub took: Duration,
}

impl UdpClient {
    /// A connected socket (`connect`, `send`, `recv`); ICMP errors reach it. `source` `None` takes any address.
    pub fn connected(from: &Namespace, source: Option<SocketAddr>, to: SocketAddr) -> io::Result<Self> {
        let client = Self::open(from, source, to, true)?;
        from.enter(|| client.socket.connect(to))?;
        Ok(client)
    }

    /// An unconnected socket (`sendto`, `recvfrom`).
    pub fn unconnected(from: &Namespace, source: Option<SocketAddr>, to: SocketAddr) -> io::Result<Self> {
        Self::open(from, source, to, false)
    }

    /// The same unconnected socket, talking to another address.
    pub fn towards(&self, to: SocketAddr) -> io::Result<Self> {
        Ok(Self { socket: self.socket.try_clone()?, to, connected: false })
    }

    fn open(from: &Namespace, source: Option<SocketAddr>, to: SocketAddr, connected: bool) -> io::Result<Self> {
        let any = match to {
            SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
            SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
        };
        let socket = socket::udp_socket(from, source.unwrap_or(any))?;
        Ok(Self { socket, to, connected })
    }

    /// The client's own address and port.
    pub fn local(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// The socket, for more than this type offers.
    pub fn socket(&self) -> &UdpSocket {
        &self.socket
    }

    /// Sends `length` bytes, up to 65,000; above the MTU they go in fragments. Waits for the answer, checks that it
    /// comes from the address asked and holds the same bytes.
    pub fn request(&self, length: usize, deadline: Duration) -> Result<Answer, DialError> {
        let begin = Instant::now();
        let failed = |error| DialError::new(error, begin.elapsed());
        let mut payload = vec![0; length];
        Sequence::default().fill(&mut payload);
        self.socket.set_read_timeout(Some(deadline)).map_err(failed)?;
        let sent = match self.connected {
            true => self.socket.send(&payload),
            false => self.socket.send_to(&payload, self.to),
        };
        sent.map_err(failed)?;
        let mut buffer = vec![0; 65_536];
        let (count, from) = self.receive(&mut buffer, begin + deadline).map_err(failed)?;
        let took = begin.elapsed();
        let broken = |what: String| DialError::Broken(format!("answer from {from}: {what}"));
        if from != self.to {
            return Err(broken(format!("the request went to {}", self.to)));
        }
        let Some(end) = buffer[..count].iter().position(|&byte| byte == b'\n') else {
            return Err(broken(format!("{count} bytes without a greeting")));
        };
        let (server, seen_peer) = parse_greeting(&buffer[..end]).map_err(|error| broken(error.to_string()))?;
        let echoed = &buffer[end + 1..count];
        if echoed != payload {
            return Err(broken(format!("{} bytes, not the {length} that were sent", echoed.len())));
        }
        Ok(Answer { server, from, seen_peer, took })
    }

    fn receive(&self, buffer: &mut [u8], deadline: Instant) -> io::Result<(usize, SocketAddr)> {
        loop {
            socket::wait(&self.socket, PollFlags::POLLIN, deadline)?;
            match self.socket.recv_from(buffer) {
                // A datagram with a bad checksum wakes the poll and is dropped by the read.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                result => return result,
            }
        }
    }
}
