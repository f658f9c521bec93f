//! A datapath with services of all protocols, and the addresses around it, in one family.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use bpvs_tests::datapath::{Datapath, NODE_V4, NODE_V6, Sizes};
use lb_common::{address::Protocol, scheduler::Scheduler};
use lb_userspace::plan::{DesiredDestination, DesiredService, Frontend, Plan, Scope};

/// Frontend port whose server listens on [`SERVER_PORT`].
pub(crate) const CHANGED: u16 = 80;
/// Frontend port whose server listens on the same.
pub(crate) const SAME: u16 = 90;
/// Frontend port without servers.
pub(crate) const EMPTY: u16 = 81;
/// Frontend port whose only server has weight 0.
pub(crate) const DRAINED: u16 = 82;
/// Frontend port whose only server is the client.
pub(crate) const HAIRPIN: u16 = 85;
/// Frontend port with two servers.
pub(crate) const PAIR: u16 = 86;
/// A node port.
pub(crate) const NODE_PORT: u16 = 30_080;
/// Where servers listen.
pub(crate) const SERVER_PORT: u16 = 8080;

/// The datapath, and whose addresses are which.
pub(crate) struct World {
    pub(crate) datapath: Datapath,
    pub(crate) v6: bool,
}

impl World {
    /// One for each family, with every service.
    pub(crate) fn both() -> [Self; 2] {
        [false, true].map(|v6| {
            let mut world = Self::empty(v6);
            let plan = world.plan();
            world.apply(&plan);
            world
        })
    }

    /// One without services.
    pub(crate) fn empty(v6: bool) -> Self {
        Self { datapath: Datapath::load(Sizes::default()).unwrap(), v6 }
    }

    /// The address with this number at the end of its network's.
    fn address(&self, network: u8, host: u8) -> IpAddr {
        match self.v6 {
            false => Ipv4Addr::new(10, network, 0, host).into(),
            true => Ipv6Addr::new(0xfd00, network.into(), 0, 0, 0x1234, 0, 0xffff, host.into()).into(),
        }
    }

    pub(crate) fn client(&self, port: u16) -> SocketAddr {
        SocketAddr::new(self.address(10, 2), port)
    }

    pub(crate) fn vip(&self, port: u16) -> SocketAddr {
        SocketAddr::new(self.address(96, 1), port)
    }

    /// Another, with the same servers.
    pub(crate) fn other_vip(&self, port: u16) -> SocketAddr {
        SocketAddr::new(self.address(96, 2), port)
    }

    pub(crate) fn server(&self, port: u16) -> SocketAddr {
        SocketAddr::new(self.address(1, 9), port)
    }

    pub(crate) fn second_server(&self, port: u16) -> SocketAddr {
        SocketAddr::new(self.address(1, 8), port)
    }

    /// Someone on the way, of no port.
    pub(crate) fn router(&self) -> SocketAddr {
        SocketAddr::new(self.address(77, 7), 0)
    }

    pub(crate) fn node(&self, port: u16) -> SocketAddr {
        SocketAddr::new(if self.v6 { NODE_V6.into() } else { NODE_V4.into() }, port)
    }

    /// The frontend of [`NODE_PORT`], in a scope of node ports.
    pub(crate) fn node_port(&self, protocol: Protocol, scope: Scope) -> Frontend {
        let any: IpAddr = if self.v6 { Ipv6Addr::UNSPECIFIED.into() } else { Ipv4Addr::UNSPECIFIED.into() };
        Frontend { scope, ..Frontend::new(any, NODE_PORT, protocol) }
    }

    /// Every service, of every protocol.
    pub(crate) fn plan(&self) -> Plan {
        let mut plan = Plan::default();
        let server = (self.server(0).ip(), SERVER_PORT, 1);
        for protocol in Protocol::ALL {
            let mut add = |vip: SocketAddr, destinations: &[(IpAddr, u16, i32)]| {
                let (frontend, service) = service(protocol, vip, destinations);
                plan.services.insert(frontend, service);
            };
            add(self.vip(CHANGED), &[server]);
            add(self.other_vip(CHANGED), &[server]);
            add(self.vip(SAME), &[(self.server(0).ip(), SAME, 1)]);
            add(self.vip(EMPTY), &[]);
            add(self.vip(DRAINED), &[(self.server(0).ip(), SERVER_PORT, 0)]);
            add(self.vip(HAIRPIN), &[(self.client(0).ip(), SERVER_PORT, 1)]);
            add(self.vip(PAIR), &[(self.second_server(0).ip(), SERVER_PORT, 1), server]);
        }
        plan
    }

    pub(crate) fn apply(&mut self, plan: &Plan) {
        self.datapath.apply(plan).unwrap();
    }

    /// The frontend of a VIP's port.
    pub(crate) fn frontend(protocol: Protocol, vip: SocketAddr) -> Frontend {
        Frontend::new(vip.ip(), vip.port(), protocol)
    }

    /// Active and inactive connections of a frontend's server.
    pub(crate) fn counts(&self, protocol: Protocol, vip: SocketAddr, server: SocketAddr) -> (u32, u32) {
        let id = self.datapath.destination_in(&Self::frontend(protocol, vip), server.ip(), server.port()).unwrap();
        self.datapath.counts(id.expect("a server of that frontend")).unwrap()
    }
}

/// A service scheduled in turns.
pub(crate) fn service(
    protocol: Protocol,
    vip: SocketAddr,
    destinations: &[(IpAddr, u16, i32)],
) -> (Frontend, DesiredService) {
    let desired = |&(address, port, weight): &(IpAddr, u16, i32)| DesiredDestination::new(address, port, weight);
    let mut destinations: Vec<_> = destinations.iter().map(desired).collect();
    destinations.sort();
    let service = DesiredService::new(format!("test/{vip}"), Scheduler::RoundRobin, destinations);
    (World::frontend(protocol, vip), service)
}
