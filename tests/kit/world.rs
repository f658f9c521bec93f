//! What most integration tests start from: a topology with servers everywhere, a folder of manifests, and waiting for
//! a condition with a deadline.

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::agent::{Agent, Listing, Manifests, ServiceManifest};
use crate::namespace::Namespace;
use crate::packets::{RawSocket, Summary, protocol};
use crate::topology::{Host, Topology};
use crate::traffic::{DEADLINE, Servers, UdpClient};

/// Port of the TCP servers.
pub const TCP_TARGET: u16 = 8080;
/// Port of the UDP servers.
pub const UDP_TARGET: u16 = 5353;
/// TCP port of the services that [`World::service`] makes.
pub const TCP: u16 = 80;
/// Their UDP port.
pub const UDP: u16 = 53;
/// A change of a manifest or an interface works within this time on a busy machine.
pub const CHANGE: Duration = Duration::from_secs(10);

/// A network with servers and manifests. The agent is started on it with [`World::agent`].
#[derive(Debug)]
pub struct World {
    /// What the agent reads.
    pub manifests: Manifests,
    /// Server `i` in each server pod `i`.
    pub servers: Servers,
    /// The network. Declared last: the servers' sockets go first.
    pub topology: Topology,
}

impl World {
    /// Servers everywhere, no manifest.
    pub fn new(topology: Topology) -> Result<Self> {
        let servers = Servers::everywhere(&topology, TCP_TARGET, UDP_TARGET)?;
        Ok(Self { manifests: Manifests::new()?, servers, topology })
    }

    /// The Service `name` with the virtual addresses of this number, ports [`TCP`] and [`UDP`], and every server with
    /// its number as its weight.
    pub fn service(&self, name: &str, number: u16) -> ServiceManifest {
        let mut service = self.empty_service(name, number);
        for server in &self.topology.servers {
            service = service.server(server.id, &[server.v4.into(), server.v6.into()], server.id.into());
        }
        service
    }

    /// The same without servers.
    pub fn empty_service(&self, name: &str, number: u16) -> ServiceManifest {
        ServiceManifest::new(name, &virtual_addresses(number)).port("TCP", TCP, TCP_TARGET).port("UDP", UDP, UDP_TARGET)
    }

    /// Writes a Service's manifest.
    pub fn publish(&self, name: &str, service: &ServiceManifest) -> Result<()> {
        self.manifests.write(&format!("{name}.yaml"), &service.yaml())
    }

    /// Starts an agent on the manifests.
    pub fn agent(&self) -> Result<Agent<'_>> {
        Agent::builder(&self.topology.node.namespace).manifests(&self.manifests).start()
    }

    /// Sends one datagram to `to`, where nobody answers, and returns it as the host outside gets it by the default
    /// route: what becomes of a packet that nobody translates.
    pub fn leaves_by_the_default_route(&self, from: &Namespace, to: SocketAddr) -> Result<Summary> {
        let wire = RawSocket::open(&self.topology.external.namespace, "eth0")?;
        let udp = UdpClient::unconnected(from, None, to)?;
        udp.socket().send_to(b"nobody", to)?;
        let port = udp.local()?.port();
        let ours = |packet: &Summary| packet.protocol == protocol::UDP && packet.from.port() == port;
        Ok(wire.expect(DEADLINE, ours).with_context(|| format!("a datagram to {to}"))?.1)
    }

    /// A pod, a host outside, and the node itself.
    pub fn clients(&self) -> [(&'static str, &Host); 3] {
        let topology = &self.topology;
        [("pod", &topology.clients[0]), ("external", &topology.external), ("node", &topology.node)]
    }
}

/// IPv4 and IPv6 address of the service of this number.
pub fn virtual_addresses(number: u16) -> [IpAddr; 2] {
    let v4 = IpAddr::from([10, 96, 0, number as u8]);
    [v4, std::net::Ipv6Addr::new(0xfd00, 0x96, 0, 0, 0, 0, 0, number).into()]
}

/// Both families' frontends of the service of this number.
pub fn frontends(number: u16, port: u16) -> [SocketAddr; 2] {
    virtual_addresses(number).map(|address| SocketAddr::new(address, port))
}

/// Asks until there is an answer. At the deadline the error says what was wanted and, by `otherwise`, what was there.
pub fn wait_for<T>(
    what: &str,
    deadline: Duration,
    mut ask: impl FnMut() -> Result<Option<T>>,
    otherwise: impl FnOnce() -> String,
) -> Result<T> {
    let end = Instant::now() + deadline;
    loop {
        if let Some(answer) = ask()? {
            return Ok(answer);
        }
        if Instant::now() >= end {
            bail!("no {what} after {deadline:?}; there is:\n{}", otherwise());
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Waits until `bpvs list` shows what is wanted.
pub fn wait_listed(agent: &Agent<'_>, what: &str, wanted: impl Fn(&Listing) -> bool) -> Result<()> {
    let ask = || Ok(wanted(&Listing::read(agent)?).then_some(()));
    wait_for(what, CHANGE, ask, || {
        let list = agent.command(&["list"]).unwrap_or_else(|error| format!("{error:#}"));
        format!("{list}\nlog:\n{}", agent.log().text(0))
    })
}
