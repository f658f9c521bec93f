//! TCP clients: open a connection, learn who answered, hold it, end it in a chosen way.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, ensure};
use nix::sys::socket::{setsockopt, sockopt};

use super::sequence::{Sequence, SequenceCheck};
use super::{DEADLINE, socket};
use crate::namespace::Namespace;

/// Why there is no answer.
#[derive(Debug)]
pub enum DialError {
    /// Refused: RST or ICMP port unreachable, this long after the attempt.
    Refused(Duration),
    /// Nothing came before the deadline.
    Silent(Duration),
    /// No route or host, by the local stack or an ICMP error.
    Unreachable(io::Error),
    /// Answered, and then not as the servers of this kit do.
    Broken(String),
    /// Anything else.
    Io(io::Error),
}

impl DialError {
    pub(super) fn new(error: io::Error, after: Duration) -> Self {
        match error.kind() {
            io::ErrorKind::ConnectionRefused => Self::Refused(after),
            io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => Self::Silent(after),
            io::ErrorKind::HostUnreachable | io::ErrorKind::NetworkUnreachable => Self::Unreachable(error),
            _ => Self::Io(error),
        }
    }

    /// True for [`Self::Refused`].
    pub fn is_refused(&self) -> bool {
        matches!(self, Self::Refused(_))
    }
}

impl fmt::Display for DialError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(after) => write!(f, "refused after {after:.1?}"),
            Self::Silent(after) => write!(f, "no answer within {after:.1?}"),
            Self::Unreachable(error) | Self::Io(error) => write!(f, "{error}"),
            Self::Broken(what) => f.write_str(what),
        }
    }
}

impl std::error::Error for DialError {}

impl From<io::Error> for DialError {
    fn from(error: io::Error) -> Self {
        Self::new(error, Duration::ZERO)
    }
}

/// An attempt to connect.
#[derive(Debug, Clone, Copy)]
pub struct Dial<'a> {
    from: &'a Namespace,
    source: Option<SocketAddr>,
    to: SocketAddr,
    deadline: Duration,
}

impl<'a> Dial<'a> {
    /// From a namespace to an address, from any source address and port.
    pub fn new(from: &'a Namespace, to: SocketAddr) -> Self {
        Self { from, source: None, to, deadline: DEADLINE }
    }

    /// Binds the client to this address and port; port 0 leaves the port open.
    pub fn source(mut self, source: SocketAddr) -> Self {
        self.source = Some(source);
        self
    }

    /// Longest time for the handshake, and again for the greeting.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// Connects and reads the server's greeting.
    pub fn open(self) -> Result<Held, DialError> {
        let Self { from, source, to, deadline } = self;
        from.enter(|| open_here(source, to, deadline))
    }
}

/// [`Dial::open`] by a thread that already is in the namespace.
pub(super) fn open_here(source: Option<SocketAddr>, to: SocketAddr, deadline: Duration) -> Result<Held, DialError> {
    let begin = Instant::now();
    let failed = |error| DialError::new(error, begin.elapsed());
    let mut stream = socket::tcp_connect_here(source, to, deadline).map_err(failed)?;
    let took = begin.elapsed();
    stream.set_read_timeout(Some(deadline)).map_err(failed)?;
    stream.set_write_timeout(Some(deadline)).map_err(failed)?;
    let (server, seen_peer) = read_greeting(&mut stream).map_err(|error| match error.kind() {
        io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof => {
            DialError::Broken(format!("connected to {to}, but {error}"))
        }
        _ => failed(error),
    })?;
    Ok(Held { stream, server, seen_peer, took })
}

fn read_greeting(stream: &mut TcpStream) -> io::Result<(u16, SocketAddr)> {
    let mut line = Vec::new();
    let mut byte = [0];
    // Byte by byte: what follows the line belongs to the connection's user.
    while line.len() < 128 {
        stream.read_exact(&mut byte)?;
        if byte == *b"\n" {
            break;
        }
        line.push(byte[0]);
    }
    parse_greeting(&line)
}

/// Reads `server <id> peer <address>`, without the line end.
pub(super) fn parse_greeting(line: &[u8]) -> io::Result<(u16, SocketAddr)> {
    let text = String::from_utf8_lossy(line);
    let parsed = (|| {
        let (id, peer) = text.strip_prefix("server ")?.split_once(" peer ")?;
        Some((id.parse().ok()?, peer.parse().ok()?))
    })();
    parsed.ok_or_else(|| {
        io::Error::new(io::ErrorKind::InvalidData, format!("the greeting is {text:?}, not `server N peer ADDRESS`"))
    })
}

/// An open connection. Dropping it closes it normally, without waiting.
#[derive(Debug)]
pub struct Held {
    stream: TcpStream,
    /// The server that answered.
    pub server: u16,
    /// The client address and port that the server saw.
    pub seen_peer: SocketAddr,
    /// Time that the handshake took.
    pub took: Duration,
}

impl Held {
    /// The client's own address and port.
    pub fn local(&self) -> io::Result<SocketAddr> {
        self.stream.local_addr()
    }

    /// The peer as the client's socket names it: the virtual address, if translation is right.
    pub fn peer(&self) -> io::Result<SocketAddr> {
        self.stream.peer_addr()
    }

    /// The socket, for more than this type offers.
    pub fn stream(&self) -> &TcpStream {
        &self.stream
    }

    /// Sends bytes and reads them back.
    pub fn exchange(&mut self, payload: &[u8]) -> Result<(), DialError> {
        let begin = Instant::now();
        let failed = |error| DialError::new(error, begin.elapsed());
        let mut back = vec![0; payload.len()];
        // In pieces, so that neither end has to buffer more than a window.
        for (sent, received) in payload.chunks(16 * 1024).zip(back.chunks_mut(16 * 1024)) {
            self.stream.write_all(sent).map_err(failed)?;
            self.stream.read_exact(received).map_err(failed)?;
        }
        match payload.iter().zip(&back).position(|(sent, received)| sent != received) {
            None => Ok(()),
            Some(at) => Err(DialError::Broken(format!("byte {at} of {} came back changed", payload.len()))),
        }
    }

    /// Sends this many bytes while it reads them back, as fast as both ends can, and closes. Returns the time it took.
    pub fn stream_through(self, bytes: usize) -> anyhow::Result<Duration> {
        let begin = Instant::now();
        let mut sent = vec![0; bytes];
        Sequence::default().fill(&mut sent);
        let mut check = SequenceCheck::default();
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| (&self.stream).write_all(&sent));
            let mut buffer = vec![0; 64 * 1024];
            while check.offset() < bytes as u64 {
                let count =
                    (&self.stream).read(&mut buffer).with_context(|| format!("after byte {}", check.offset()))?;
                ensure!(count > 0, "the server closed after byte {}", check.offset());
                check.take(&buffer[..count])?;
            }
            writer.join().map_err(|_| anyhow!("the writer panicked"))?.context("writing")
        })?;
        let took = begin.elapsed();
        self.close()?;
        Ok(took)
    }

    /// Closes as a well-behaved client does and waits until the server has closed too: both FINs have passed.
    pub fn close(mut self) -> Result<(), DialError> {
        let begin = Instant::now();
        let failed = |error| DialError::new(error, begin.elapsed());
        self.stream.shutdown(Shutdown::Write).map_err(failed)?;
        let mut rest = Vec::new();
        self.stream.read_to_end(&mut rest).map_err(failed)?;
        match rest.len() {
            0 => Ok(()),
            count => Err(DialError::Broken(format!("{count} bytes after the last that was sent"))),
        }
    }

    /// Ends the connection with a RST.
    pub fn reset(self) -> io::Result<()> {
        let linger = nix::libc::linger { l_onoff: 1, l_linger: 0 };
        setsockopt(&self.stream, sockopt::Linger, &linger)?;
        Ok(())
    }
}
