//! A client, servers, and what a packet between them costs.

use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};

use anyhow::{Context, Result, bail, ensure};
use bpvs_tests::topology::Topology;

/// Server pods.
pub(crate) const PODS: u16 = 5;
/// Port of the servers.
pub(crate) const TARGET: u16 = 5353;
/// Addresses of the first server besides its own, for services of more servers than there are pods.
pub(crate) const MORE: Ipv4Addr = Ipv4Addr::new(10, 3, 0, 0);
/// Bytes of a datagram.
const BYTES: usize = 64;
/// Packets of a known flow that are measured, after those that are not.
const KNOWN: (usize, usize) = (301, 50);
/// New flows that are measured, after those that are not.
const NEW: (usize, usize) = (151, 20);
/// The first port of clients; each flow has its own, so that none is known from before.
const FIRST_PORT: u16 = 1_100;

/// The time stamp counter.
pub(crate) fn counter() -> u64 {
    // SAFETY: every x86-64 processor has this instruction, and it touches no memory.
    unsafe { core::arch::x86_64::_rdtsc() }
}

/// Instructions; what was not measured is none.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cost {
    /// Packet of a client whose flow is known.
    pub(crate) request: Option<u64>,
    /// Its answer.
    pub(crate) reply: Option<u64>,
    /// First packet of a flow.
    pub(crate) new: u64,
}

/// A client pod, a node, and servers.
pub(crate) struct Network {
    /// The namespaces.
    pub(crate) topology: Topology,
    servers: Vec<UdpSocket>,
    next_port: u16,
}

impl Network {
    /// Builds it; nobody translates.
    pub(crate) fn new() -> Result<Self> {
        let topology = Topology::builder().servers(PODS).checksum_offload(true).build()?;
        let mut servers = Vec::new();
        for host in &topology.servers {
            let socket = host.namespace.enter(|| UdpSocket::bind((Ipv4Addr::UNSPECIFIED, TARGET)))?;
            socket.set_nonblocking(true)?;
            servers.push(socket);
        }
        let first = &topology.servers[0];
        first.namespace.ip(&[format!("route add local {MORE}/16 dev lo")])?;
        // By way of the pod's own address, whose neighbour is known.
        let route = format!("route add {MORE}/16 via {} dev {} onlink", first.v4, first.node_interface);
        topology.node.namespace.ip(&[route])?;
        Ok(Self { topology, servers, next_port: FIRST_PORT })
    }

    /// What a packet to a server's own address costs.
    pub(crate) fn plain(&mut self) -> Result<Cost> {
        let to = SocketAddr::from((self.topology.servers[0].v4, TARGET));
        self.cost(to).context("plain routing")
    }

    /// What a request, a reply and a new flow cost.
    pub(crate) fn cost(&mut self, to: SocketAddr) -> Result<Cost> {
        let (request, reply) = self.known_flow(to)?;
        Ok(Cost { request: Some(request), reply: Some(reply), new: self.new_flows(to)? })
    }

    /// First packets of flows.
    pub(crate) fn new_flows(&mut self, to: SocketAddr) -> Result<u64> {
        let mut found = Vec::new();
        for number in 0..NEW.0 + NEW.1 {
            let client = self.client(to)?;
            let begin = counter();
            client.send(&[0; BYTES]).context("sending")?;
            let cost = counter() - begin;
            self.receive().with_context(|| format!("new flow {number} to {to}"))?;
            if number >= NEW.1 {
                found.push(cost);
            }
        }
        Ok(median(found))
    }

    fn known_flow(&mut self, to: SocketAddr) -> Result<(u64, u64)> {
        let client = self.client(to)?;
        let (mut requests, mut replies) = (Vec::new(), Vec::new());
        for number in 0..KNOWN.0 + KNOWN.1 {
            let begin = counter();
            client.send(&[0; BYTES]).context("sending")?;
            let request = counter() - begin;
            let (server, peer) = self.receive().with_context(|| format!("request {number} to {to}"))?;
            let begin = counter();
            self.servers[server].send_to(&[0; BYTES], peer).context("answering")?;
            let reply = counter() - begin;
            let arrived = client.recv(&mut [0; BYTES]);
            arrived.with_context(|| format!("the answer to request {number} to {to} was lost"))?;
            if number >= KNOWN.1 {
                requests.push(request);
                replies.push(reply);
            }
        }
        Ok((median(requests), median(replies)))
    }

    /// A socket of the client pod with a port that was never used.
    fn client(&mut self, to: SocketAddr) -> Result<UdpSocket> {
        let port = self.next_port;
        self.next_port = port.checked_add(1).context("no port is left for another flow")?;
        let pod = &self.topology.clients[0];
        let (namespace, address) = (&pod.namespace, pod.v4);
        let socket = namespace.enter(|| -> std::io::Result<_> {
            let socket = UdpSocket::bind((address, port))?;
            socket.connect(to)?;
            Ok(socket)
        });
        let socket = socket.with_context(|| format!("a socket for {to}"))?;
        socket.set_nonblocking(true)?;
        Ok(socket)
    }

    /// Takes the one packet that has arrived: at which server, from whom.
    fn receive(&self) -> Result<(usize, SocketAddr)> {
        let mut found = None;
        for (number, socket) in self.servers.iter().enumerate() {
            match socket.recv_from(&mut [0; BYTES]) {
                Ok((_, peer)) => {
                    ensure!(found.is_none(), "it arrived twice");
                    found = Some((number, peer));
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => bail!("server {}: {error}", number + 1),
            }
        }
        found.context("it was lost, or is not yet there: this needs one CPU")
    }
}

/// The middle one of an odd number.
fn median(mut values: Vec<u64>) -> u64 {
    values.sort_unstable();
    values[values.len() / 2]
}
