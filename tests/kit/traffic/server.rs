//! Servers that say who they are, then echo.
//!
//! Both protocols open with one line, `server <id> peer <address the server sees>\n`; TCP sends it once, UDP in front
//! of each echoed payload.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;

use super::socket;
use crate::namespace::Namespace;
use crate::topology::Topology;

/// A server gives up a connection that is silent for this long.
const IDLE: Duration = Duration::from_secs(600);

/// What a server does wrong on purpose, to prove that clients notice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Leaves out the byte at this place of each connection's echo.
    Lose(u64),
    /// Swaps the byte at this place with the next, where both came in one read.
    Swap(u64),
}

/// Servers in any number of namespaces. Dropping it closes all of them and their connections.
#[derive(Debug)]
pub struct Servers {
    runtime: Option<Runtime>,
    tasks: Mutex<Vec<(u16, JoinHandle<()>)>>,
    accepted: Arc<Mutex<BTreeMap<u16, Arc<AtomicU64>>>>,
}

impl Servers {
    /// No server yet.
    pub fn new() -> Result<Self> {
        // Both ends of every connection are in this process; the usual soft limit is 1,024.
        let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
        setrlimit(Resource::RLIMIT_NOFILE, hard, hard)?;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .thread_name("servers")
            .enable_all()
            .build()?;
        Ok(Self { runtime: Some(runtime), tasks: Mutex::default(), accepted: Arc::default() })
    }

    /// Starts server `i` on both ports in each server pod `i` of the topology.
    pub fn everywhere(topology: &Topology, tcp_port: u16, udp_port: u16) -> Result<Self> {
        let servers = Self::new()?;
        for host in &topology.servers {
            servers.tcp(&host.namespace, host.id, tcp_port)?;
            servers.udp(&host.namespace, host.id, udp_port)?;
        }
        Ok(servers)
    }

    /// A TCP echo server on every address of the namespace, both families.
    pub fn tcp(&self, namespace: &Namespace, id: u16, port: u16) -> Result<()> {
        self.tcp_with(namespace, id, port, None)
    }

    /// The same with a fault.
    pub fn tcp_with(&self, namespace: &Namespace, id: u16, port: u16, fault: Option<Fault>) -> Result<()> {
        for address in both_families(port) {
            let listener = socket::tcp_listener(namespace, address)
                .with_context(|| format!("TCP server {id} on {address} in {}", namespace.name()))?;
            self.spawn(id, accept(listener, id, fault, self.counter(id)));
        }
        Ok(())
    }

    /// A UDP server on every address of the namespace, both families.
    pub fn udp(&self, namespace: &Namespace, id: u16, port: u16) -> Result<()> {
        for address in both_families(port) {
            let socket = socket::udp_socket(namespace, address)
                .with_context(|| format!("UDP server {id} on {address} in {}", namespace.name()))?;
            self.spawn(id, answer(socket, id, self.counter(id)));
        }
        Ok(())
    }

    /// Ends the listeners of one server; its open connections go on. Their sockets are closed when it returns: what is sent
    /// from then on is refused, and nothing waits in a socket that nobody reads.
    pub fn stop(&self, id: u16) {
        let mut tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        let (ended, others) = tasks.drain(..).partition(|(owner, _)| *owner == id);
        *tasks = others;
        let ended: Vec<(u16, JoinHandle<()>)> = ended;
        for (_, task) in &ended {
            task.abort();
        }
        // By looking, since a caller inside another runtime may not wait for a task. A task ends at its next turn.
        while !ended.iter().all(|(_, task)| task.is_finished()) {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Connections accepted and datagrams answered by a server.
    pub fn served(&self, id: u16) -> u64 {
        self.counter(id).load(Ordering::Relaxed)
    }

    fn counter(&self, id: u16) -> Arc<AtomicU64> {
        let mut accepted = self.accepted.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(accepted.entry(id).or_default())
    }

    fn spawn(&self, id: u16, work: impl Future<Output = ()> + Send + 'static) {
        if let Some(runtime) = &self.runtime {
            let task = runtime.spawn(work);
            self.tasks.lock().unwrap_or_else(PoisonError::into_inner).push((id, task));
        }
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        let Some(runtime) = self.runtime.take() else {
            return;
        };
        if tokio::runtime::Handle::try_current().is_ok() {
            // Waiting is not allowed inside another runtime.
            runtime.shutdown_background();
        } else {
            runtime.shutdown_timeout(Duration::from_secs(2));
        }
    }
}

fn both_families(port: u16) -> [SocketAddr; 2] {
    [(Ipv4Addr::UNSPECIFIED, port).into(), (Ipv6Addr::UNSPECIFIED, port).into()]
}

fn greeting(id: u16, peer: SocketAddr) -> String {
    format!("server {id} peer {peer}\n")
}

async fn accept(listener: TcpListener, id: u16, fault: Option<Fault>, accepted: Arc<AtomicU64>) {
    let listener = tokio::net::TcpListener::from_std(listener).expect("the listener is non-blocking and new");
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => {
                accepted.fetch_add(1, Ordering::Relaxed);
                tokio::spawn(async move {
                    // The client learns of a failure from its own end, which is where it is judged.
                    let _ended = echo(stream, id, peer, fault).await;
                });
            }
            // A connection that died in the queue, or no file descriptor left for a moment.
            Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
        }
    }
}

async fn echo(mut stream: TcpStream, id: u16, peer: SocketAddr, fault: Option<Fault>) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    stream.write_all(greeting(id, peer).as_bytes()).await?;
    let mut buffer = vec![0; 64 * 1024];
    let mut offset = 0;
    loop {
        let count = tokio::time::timeout(IDLE, stream.read(&mut buffer)).await??;
        if count == 0 {
            // The client has sent all it had; the other direction ends after its last byte.
            return stream.shutdown().await;
        }
        let mut bytes = buffer[..count].to_vec();
        if let Some(fault) = fault {
            spoil(&mut bytes, offset, fault);
        }
        stream.write_all(&bytes).await?;
        offset += count as u64;
    }
}

fn spoil(bytes: &mut Vec<u8>, offset: u64, fault: Fault) {
    let (Fault::Lose(place) | Fault::Swap(place)) = fault;
    let Some(place) = place.checked_sub(offset).map(|place| place as usize) else {
        return;
    };
    match fault {
        Fault::Lose(_) if place < bytes.len() => drop(bytes.remove(place)),
        Fault::Swap(_) if place + 1 < bytes.len() => bytes.swap(place, place + 1),
        _ => {}
    }
}

async fn answer(socket: std::net::UdpSocket, id: u16, answered: Arc<AtomicU64>) {
    let socket = UdpSocket::from_std(socket).expect("the socket is non-blocking and new");
    let mut buffer = vec![0; 65_536];
    loop {
        // An ICMP error for an earlier answer shows here; it concerns that client alone.
        let Ok((count, peer)) = socket.recv_from(&mut buffer).await else {
            continue;
        };
        let mut reply = greeting(id, peer).into_bytes();
        reply.extend_from_slice(&buffer[..count]);
        // Counted first: who has the answer must find it counted. A client that is gone is no business of the server.
        answered.fetch_add(1, Ordering::Relaxed);
        let _gone = socket.send_to(&reply, peer).await;
    }
}
