//! What the steps share: a network, servers, manifests and the agent.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use anyhow::{Context, Result};
use bpvs_tests::agent::{Agent, Manifests, ServiceManifest};
use bpvs_tests::topology::Topology;
use bpvs_tests::traffic::Servers;
use lb_common::scheduler::Scheduler;

/// Servers behind every service.
pub(crate) const SERVERS: u16 = 2;

/// Ports of the services and of the servers.
const TCP: (u16, u16) = (80, 8080);
const UDP: (u16, u16) = (53, 5353);

/// A network, and what the steps make on it.
pub(crate) struct World<'a> {
    /// The network.
    pub(crate) topology: &'a Topology,
    // The agent goes before the manifests that it watches.
    agent: Option<Agent<'a>>,
    manifests: Option<Manifests>,
    servers: Option<Servers>,
}

impl<'a> World<'a> {
    /// Nothing but the network.
    pub(crate) fn new(topology: &'a Topology) -> Self {
        Self { topology, agent: None, manifests: None, servers: None }
    }

    /// Starts the servers, and the agent on the node with all services, and waits until it is ready.
    pub(crate) fn start(&mut self) -> Result<String> {
        self.servers = Some(Servers::everywhere(self.topology, TCP.1, UDP.1)?);
        let manifests = self.manifests.insert(Manifests::new()?);
        for (number, scheduler) in Scheduler::ALL.iter().enumerate() {
            let mut service = service(scheduler.name(), address(number as u16)).scheduler(scheduler.name());
            for server in &self.topology.servers {
                service = service.server(server.id, &[server.v4.into(), server.v6.into()], 1);
            }
            manifests.write(&format!("{}.yaml", scheduler.name()), &service.yaml())?;
        }
        manifests.write("nobody.yaml", &service("nobody", nobody()).yaml())?;
        self.agent = Some(Agent::builder(&self.topology.node.namespace).manifests(manifests).start()?);
        Ok(format!("{} services", Scheduler::ALL.len() + 1))
    }

    /// The agent.
    pub(crate) fn agent(&self) -> Result<&Agent<'a>> {
        self.agent.as_ref().context("there is no agent")
    }
}

fn service(name: &str, addresses: [IpAddr; 2]) -> ServiceManifest {
    ServiceManifest::new(name, &addresses).port("TCP", TCP.0, TCP.1).port("UDP", UDP.0, UDP.1)
}

fn address(number: u16) -> [IpAddr; 2] {
    [Ipv4Addr::new(10, 96, 0, 10 + number as u8).into(), Ipv6Addr::new(0xfd00, 0x96, 0, 0, 0, 0, 0, 10 + number).into()]
}

/// Addresses of a service without servers.
fn nobody() -> [IpAddr; 2] {
    address(100)
}

/// TCP and UDP frontends of a scheduler's service, IPv4 first.
pub(crate) fn frontends(scheduler: Scheduler) -> Result<([SocketAddr; 2], [SocketAddr; 2])> {
    let number =
        Scheduler::ALL.iter().position(|known| *known == scheduler).context("this scheduler has no service")?;
    let at = |port| address(number as u16).map(|address| SocketAddr::new(address, port));
    Ok((at(TCP.0), at(UDP.0)))
}

/// TCP frontends of the service without servers.
pub(crate) fn nobodys_frontends() -> [SocketAddr; 2] {
    nobody().map(|address| SocketAddr::new(address, TCP.0))
}
