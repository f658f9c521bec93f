//! Servers that do as little as servers can: a thread for each socket, which waits in the system call.
//!
//! The first byte of a TCP connection says what it is for ([`SHORT`], [`KEPT`], [`STREAM`]); UDP is echoed. Every answer
//! begins with the server's number and the IPv4 address that the server sees.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use anyhow::{Context, Result};
use bpvs_tests::topology::{Host, Topology};
use nix::sys::socket::{Shutdown, SockaddrIn, recvfrom, shutdown};

use super::network::TARGET;
use crate::machine;

/// One answer, and the server closes.
pub(crate) const SHORT: u8 = b's';
/// Every message is answered until the client closes.
pub(crate) const KEPT: u8 = b'k';
/// All is read until the client has sent everything; then the number of bytes is answered.
pub(crate) const STREAM: u8 = b'b';
/// Bytes of a request and of an answer.
pub(crate) const MESSAGE: usize = 64;
/// Bytes of one write or read of a stream.
pub(crate) const PIECE: usize = 128 * 1024;

/// Servers in every server pod of a network. Dropping it ends them.
pub(crate) struct Servers {
    ending: Arc<AtomicBool>,
    tcp: Vec<Arc<TcpListener>>,
    udp: Vec<Arc<UdpSocket>>,
    threads: Vec<JoinHandle<()>>,
}

impl Servers {
    /// Starts them.
    pub(crate) fn start(topology: &Topology) -> Result<Self> {
        let mut servers = Self { ending: Arc::default(), tcp: Vec::new(), udp: Vec::new(), threads: Vec::new() };
        for host in &topology.servers {
            servers.add(host).with_context(|| format!("server {}", host.id))?;
        }
        Ok(servers)
    }

    fn add(&mut self, host: &Host) -> Result<()> {
        let any = (Ipv4Addr::UNSPECIFIED, TARGET);
        let (tcp, udp) =
            host.namespace.enter(|| Ok::<_, io::Error>((TcpListener::bind(any)?, UdpSocket::bind(any)?)))?;
        let (tcp, udp) = (Arc::new(tcp), Arc::new(udp));
        let id = host.id;
        let (socket, ending) = (Arc::clone(&tcp), Arc::clone(&self.ending));
        self.threads.push(host.namespace.thread("tcp", move || serve_tcp(&socket, id, &ending))?);
        let (socket, ending) = (Arc::clone(&udp), Arc::clone(&self.ending));
        self.threads.push(host.namespace.thread("udp", move || serve_udp(&socket, id, &ending))?);
        self.tcp.push(tcp);
        self.udp.push(udp);
        Ok(())
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        self.ending.store(true, Ordering::Relaxed);
        // Wakes who waits. The kernel calls a UDP socket without a peer not connected, and wakes its reader all the same.
        for socket in self.tcp.iter().map(|socket| socket.as_raw_fd()).chain(self.udp.iter().map(|s| s.as_raw_fd())) {
            let _woken = shutdown(socket, Shutdown::Both);
        }
        for thread in self.threads.drain(..) {
            let _ended = thread.join();
        }
    }
}

fn serve_tcp(listener: &TcpListener, id: u16, ending: &AtomicBool) {
    machine::stay_on_one_cpu().and_then(|()| machine::go_first()).expect("a thread of root can be bound to a CPU");
    let mut buffer = vec![0; PIECE];
    while !ending.load(Ordering::Relaxed) {
        if let Ok((stream, peer)) = listener.accept() {
            // What went wrong is seen, and judged, by the client.
            let _ended = serve(stream, &answer(id, peer), &mut buffer);
        }
    }
}

fn serve(mut stream: TcpStream, answer: &[u8; MESSAGE], buffer: &mut [u8]) -> io::Result<()> {
    let mut count = stream.read(buffer)?;
    match buffer[0] {
        _ if count == 0 => Ok(()),
        SHORT => stream.write_all(answer),
        KEPT => {
            stream.set_nodelay(true)?;
            while count > 0 {
                stream.write_all(answer)?;
                count = stream.read(buffer)?;
            }
            Ok(())
        }
        _ => {
            let mut all = 0;
            while count > 0 {
                all += count as u64;
                count = stream.read(buffer)?;
            }
            stream.write_all(&all.to_be_bytes())
        }
    }
}

fn serve_udp(socket: &UdpSocket, id: u16, ending: &AtomicBool) {
    machine::stay_on_one_cpu().and_then(|()| machine::go_first()).expect("a thread of root can be bound to a CPU");
    let mut buffer = [0; MESSAGE];
    while !ending.load(Ordering::Relaxed) {
        // Not std's: that panics at what a socket that was shut down returns, nothing from nobody.
        if let Ok((_, Some(peer))) = recvfrom::<SockaddrIn>(socket.as_raw_fd(), &mut buffer) {
            let peer = SocketAddr::from((peer.ip(), peer.port()));
            let _gone = socket.send_to(&answer(id, peer), peer);
        }
    }
}

fn answer(id: u16, peer: SocketAddr) -> [u8; MESSAGE] {
    let mut answer = [0; MESSAGE];
    answer[..2].copy_from_slice(&id.to_be_bytes());
    if let SocketAddr::V4(peer) = peer {
        answer[2..6].copy_from_slice(&peer.ip().octets());
    }
    answer
}

/// Who answered, and what address of the client that server saw.
pub(crate) fn read_answer(answer: &[u8; MESSAGE]) -> (u16, Ipv4Addr) {
    let [a, b, c, d] = [answer[2], answer[3], answer[4], answer[5]];
    (u16::from_be_bytes([answer[0], answer[1]]), Ipv4Addr::new(a, b, c, d))
}
