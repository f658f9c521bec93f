//! UDP sockets of this network namespace by sock_diag(7): which are connected, and the end of one.

use std::collections::BTreeSet;
use std::io;
use std::net::{Ipv4Addr, UdpSocket};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use nix::libc;

/// `SOCK_DIAG_BY_FAMILY` and `SOCK_DESTROY`, of `linux/sock_diag.h`; not in every libc.
const BY_FAMILY: u16 = 20;
const DESTROY: u16 = 21;
/// Bytes of `nlmsghdr`, and of `inet_diag_sockid`, which stands after four bytes in answers and after eight in requests.
const HEADER: usize = 16;
const ID: usize = 48;
/// Where an id has the port of the peer and the cookie.
const ID_PEER_PORT: usize = 2;
const ID_COOKIE: usize = 40;
/// `TCP_ESTABLISHED`, which a connected UDP socket is in too, and the state of any other.
const CONNECTED: u32 = 1;
const ANY_STATE: u32 = u32::MAX;
/// Room for the kernel's answers, which come in parts of at most 32 kB.
const ROOM: usize = 64 * 1024;

/// A socket, as the kernel knows it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Found {
    family: u8,
    id: [u8; ID],
}

impl Found {
    fn cookie(&self) -> u64 {
        self.id.get(ID_COOKIE..).and_then(|bytes| bytes.try_into().ok()).map_or(0, u64::from_ne_bytes)
    }
}

/// Asks the kernel.
#[derive(Debug)]
pub struct Diag(OwnedFd);

impl Diag {
    /// A socket to the kernel.
    pub fn open() -> io::Result<Self> {
        // SAFETY: plain numbers; the descriptor that comes back is this process's own.
        let descriptor: RawFd =
            unsafe { libc::socket(libc::AF_NETLINK, libc::SOCK_RAW | libc::SOCK_CLOEXEC, libc::NETLINK_SOCK_DIAG) };
        if descriptor < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: just opened, and nobody else's.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(descriptor) }))
    }

    /// Ends the connected sockets that have these cookies: they are connected no more, their process gets `ECONNABORTED` as
    /// the socket's error (`recv()`, `poll()`, `SO_ERROR`), and `EDESTADDRREQ` if it sends. Returns how many there were.
    ///
    /// # Errors
    /// The kernel cannot list or end sockets.
    pub fn end_connected(&self, cookies: &BTreeSet<u64>) -> io::Result<usize> {
        let mut ended = 0;
        for family in [libc::AF_INET, libc::AF_INET6] {
            for found in self.connected(family as u8)?.iter().filter(|found| cookies.contains(&found.cookie())) {
                match self.destroy(found) {
                    Ok(()) => ended += 1,
                    // Closed or connected anew meanwhile.
                    Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ESTALE)) => {}
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(ended)
    }

    fn connected(&self, family: u8) -> io::Result<Vec<Found>> {
        self.send(BY_FAMILY, libc::NLM_F_DUMP, family, 1 << CONNECTED, &[0; ID])?;
        let mut found = Vec::new();
        let mut buffer = vec![0; ROOM];
        loop {
            let answer = self.receive(&mut buffer)?;
            if read(answer, &mut found)? {
                return Ok(found);
            }
        }
    }

    fn destroy(&self, found: &Found) -> io::Result<()> {
        self.send(DESTROY, libc::NLM_F_ACK, found.family, ANY_STATE, &found.id)?;
        let mut buffer = vec![0; ROOM];
        let answer = self.receive(&mut buffer)?;
        read(answer, &mut Vec::new()).map(|_| ())
    }

    fn send(&self, kind: u16, flags: i32, family: u8, states: u32, id: &[u8; ID]) -> io::Result<()> {
        let mut request = Vec::with_capacity(HEADER + 8 + ID);
        request.extend(((HEADER + 8 + ID) as u32).to_ne_bytes());
        request.extend(kind.to_ne_bytes());
        request.extend(((libc::NLM_F_REQUEST | flags) as u16).to_ne_bytes());
        request.extend([0; 8]);
        request.extend([family, libc::IPPROTO_UDP as u8, 0, 0]);
        request.extend(states.to_ne_bytes());
        request.extend(id);
        // SAFETY: the buffer is as long as is said.
        let sent = unsafe { libc::send(self.0.as_raw_fd(), request.as_ptr().cast(), request.len(), 0) };
        if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    fn receive<'a>(&self, buffer: &'a mut [u8]) -> io::Result<&'a [u8]> {
        // SAFETY: the buffer is as long as is said.
        let length = unsafe { libc::recv(self.0.as_raw_fd(), buffer.as_mut_ptr().cast(), buffer.len(), 0) };
        match usize::try_from(length) {
            Ok(length) => Ok(buffer.get(..length).unwrap_or_default()),
            Err(_) => Err(io::Error::last_os_error()),
        }
    }
}

/// Reads the messages of an answer. True if it is the last one.
fn read(mut answer: &[u8], found: &mut Vec<Found>) -> io::Result<bool> {
    let short = || io::Error::new(io::ErrorKind::InvalidData, "sock_diag: an answer is shorter than it says");
    while !answer.is_empty() {
        let number = |place: usize| -> Option<u32> {
            answer.get(place..place + 4).and_then(|bytes| bytes.try_into().ok()).map(u32::from_ne_bytes)
        };
        let length = number(0).ok_or_else(short)? as usize;
        let kind = number(4).ok_or_else(short)? as u16;
        let message = answer.get(HEADER..length).ok_or_else(short)?;
        match i32::from(kind) {
            libc::NLMSG_DONE => return Ok(true),
            libc::NLMSG_ERROR => {
                let code = message.get(..4).and_then(|bytes| bytes.try_into().ok()).map(i32::from_ne_bytes);
                return match code.ok_or_else(short)? {
                    0 => Ok(true),
                    code => Err(io::Error::from_raw_os_error(-code)),
                };
            }
            _ => {
                let id = message.get(4..4 + ID).and_then(|bytes| bytes.try_into().ok()).ok_or_else(short)?;
                found.push(Found { family: message.first().copied().unwrap_or(0), id });
            }
        }
        // Messages begin at multiples of four.
        answer = answer.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    Ok(false)
}

/// Ends a socket of its own, to learn whether this kernel and this process can.
///
/// # Errors
/// What the kernel answered: `EOPNOTSUPP` without `CONFIG_INET_DIAG_DESTROY`, `ENOENT` without `CONFIG_INET_UDP_DIAG`,
/// `EPERM` without the privilege.
pub fn probe() -> io::Result<()> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
    let mut id = [0; ID];
    let port = socket.local_addr()?.port().to_be_bytes();
    id[..ID_PEER_PORT].copy_from_slice(&port);
    id[ID_COOKIE..].copy_from_slice(&cookie(&socket)?.to_ne_bytes());
    Diag::open()?.destroy(&Found { family: libc::AF_INET as u8, id })
}

/// A socket's cookie (Linux 4.6).
fn cookie(socket: &impl AsRawFd) -> io::Result<u64> {
    let mut cookie = 0_u64;
    let mut length = size_of::<u64>() as libc::socklen_t;
    // SAFETY: `cookie` is eight writable bytes and `length` says so; the descriptor is open for the call's duration.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_COOKIE,
            std::ptr::from_mut(&mut cookie).cast(),
            &raw mut length,
        )
    };
    if result == 0 { Ok(cookie) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(kind: i32, body: &[u8]) -> Vec<u8> {
        let mut bytes = ((HEADER + body.len()) as u32).to_ne_bytes().to_vec();
        bytes.extend((kind as u16).to_ne_bytes());
        bytes.extend([0; 10]);
        bytes.extend(body);
        bytes
    }

    #[test]
    fn answers_are_read_to_their_end_and_damaged_ones_are_errors() {
        let mut body = vec![2, 1, 0, 0];
        body.extend([0; ID_COOKIE]);
        body.extend(77_u64.to_ne_bytes());
        body.extend([0; 20]);
        let mut answer = message(i32::from(BY_FAMILY), &body);
        answer.extend(message(libc::NLMSG_DONE, &[0; 4]));
        let mut found = Vec::new();
        assert!(read(&answer, &mut found).unwrap());
        assert_eq!(found.iter().map(|one| (one.family, one.cookie())).collect::<Vec<_>>(), [(2, 77)]);
        // Any beginning of it is no answer, but for whole messages.
        for length in 1..answer.len() {
            let result = read(&answer[..length], &mut Vec::new());
            assert_eq!(result.is_ok(), length == HEADER + body.len(), "{length}: {result:?}");
        }
        assert!(read(&message(20, &[]), &mut Vec::new()).is_err());
        assert!(read(&[0; 16], &mut Vec::new()).is_err(), "a message of no length is not read for ever");
        let refused = read(&message(libc::NLMSG_ERROR, &(-libc::EPERM).to_ne_bytes()), &mut Vec::new());
        assert_eq!(refused.unwrap_err().raw_os_error(), Some(libc::EPERM));
        assert!(read(&message(libc::NLMSG_ERROR, &[0; 4]), &mut Vec::new()).unwrap());
    }

    #[test]
    fn a_connected_socket_is_ended_and_another_is_not() {
        let own = UdpSocket::bind("127.0.0.1:0").unwrap();
        let peer = own.local_addr().unwrap();
        let open = |bind: &str, to: std::net::SocketAddr| {
            let socket = UdpSocket::bind(bind).unwrap();
            socket.connect(to).unwrap();
            socket
        };
        let mapped = std::net::SocketAddr::new(Ipv4Addr::LOCALHOST.to_ipv6_mapped().into(), peer.port());
        let ended = [open("127.0.0.1:0", peer), open("0.0.0.0:0", peer), open("[::]:0", mapped)];
        let other = open("127.0.0.1:0", peer);
        let cookies = ended.iter().map(|socket| cookie(socket).unwrap()).collect();
        assert_eq!(Diag::open().unwrap().end_connected(&cookies).unwrap(), 3);
        for socket in &ended {
            assert_eq!(socket.send(b"?").unwrap_err().raw_os_error(), Some(libc::EDESTADDRREQ));
            assert_eq!(socket.take_error().unwrap().unwrap().raw_os_error(), Some(libc::ECONNABORTED));
            socket.connect(if socket.local_addr().unwrap().is_ipv4() { peer } else { mapped }).unwrap();
            socket.send(b"?").unwrap();
        }
        other.send(b"?").unwrap();
        assert_eq!(Diag::open().unwrap().end_connected(&[1].into()).unwrap(), 0);
        probe().unwrap();
    }
}
