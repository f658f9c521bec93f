//! A node with an uplink that everything is behind, and servers that answer their clients past it.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use bpvs_tests::{
    datapath::{Datapath, Hook, NODE_V4, NODE_V6, Options, REDIRECTED, Run, Sizes},
    packets::{Packet, Transport, ones_complement},
    topology::{Topology, UPLINK},
};
use lb_common::{
    address::{Address, Protocol},
    layout::{
        Connection, ConnectionKey, DESTINATION_LOCAL, DESTINATION_ROUTE, DESTINATION_TUNNEL, LOOKUP_TUNNELS,
        SERVICE_TUNNELS,
    },
};

use crate::{
    rows::hex,
    shapes::{Around, Inside},
    world::{CHANGED, SERVER_PORT, World},
};

/// How requests of [`CHANGED`] reach its server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Method {
    /// As they are.
    Route,
    /// Inside of a packet of the same family.
    Tunnel,
    /// Inside of a packet of the other family.
    OtherTunnel,
    /// By NAT: the server is this node's, and what comes for it inside of other packets is unwrapped.
    Unwrapped,
}

impl Method {
    /// Those that go past the director.
    pub(crate) const PAST: [Self; 3] = [Self::Route, Self::Tunnel, Self::OtherTunnel];
}

/// The node.
pub(crate) struct Director {
    pub(crate) topology: Topology,
    pub(crate) world: World,
    pub(crate) options: Options,
    /// The real server's address, as its record has it.
    pub(crate) server: IpAddr,
    pub(crate) method: Method,
}

impl Director {
    /// Every protocol's service of [`CHANGED`] has this method; all others are as ever.
    pub(crate) fn new(v6: bool, method: Method) -> Self {
        Self::with(Datapath::load(Sizes::default()).unwrap(), v6, method)
    }

    /// The same with programs that are loaded.
    pub(crate) fn with(datapath: Datapath, v6: bool, method: Method) -> Self {
        let topology = Topology::builder().servers(0).clients(0).build().unwrap();
        let mut world = World { datapath, v6 };
        let outside = &topology.external;
        let node = &topology.node.namespace;
        node.ip(&[
            format!("route replace 10.0.0.0/8 via {} dev {UPLINK}", outside.v4),
            format!("route replace fd00::/16 via {} dev {UPLINK}", outside.v6),
        ])
        .unwrap();
        let plan = world.plan();
        world.apply(&plan);
        let interface = node.interface_index(UPLINK).unwrap();
        let own = world.server(0).ip();
        let server = match (method, v6) {
            (Method::OtherTunnel, true) => Ipv4Addr::new(10, 1, 0, 99).into(),
            (Method::OtherTunnel, false) => Ipv6Addr::new(0xfd00, 1, 0, 0, 0, 0, 0, 99).into(),
            _ => own,
        };
        let options = Options { interface, ..Options::default() };
        let mut director = Self { topology, world, options, server, method };
        for protocol in Protocol::ALL {
            director.set(protocol, own);
        }
        director
    }

    /// Both families.
    pub(crate) fn both(method: Method) -> [Self; 2] {
        [false, true].map(|v6| Self::new(v6, method))
    }

    /// Every method that goes past the director, in both families.
    pub(crate) fn past() -> impl Iterator<Item = Self> {
        Method::PAST.into_iter().flat_map(Self::both)
    }

    fn set(&mut self, protocol: Protocol, own: IpAddr) {
        let frontend = World::frontend(protocol, self.world.vip(CHANGED));
        let datapath = &mut self.world.datapath;
        let id = datapath.destination_in(&frontend, own, SERVER_PORT).unwrap().expect("the server of the service");
        let flags = match self.method {
            Method::Route => DESTINATION_ROUTE,
            Method::Tunnel | Method::OtherTunnel => DESTINATION_TUNNEL,
            Method::Unwrapped => DESTINATION_TUNNEL | DESTINATION_LOCAL,
        };
        let server = self.server;
        datapath
            .change_destination(id, |record| {
                record.flags |= flags;
                record.address = Address::from(server);
            })
            .unwrap();
        if self.method == Method::Unwrapped {
            datapath.change_service(&frontend, |service| service.flags |= SERVICE_TUNNELS).unwrap();
            let kinds: u32 = datapath.get("lookups", 0).unwrap();
            datapath.set("lookups", 0, kinds | LOOKUP_TUNNELS).unwrap();
        }
    }

    /// The destination id of the server.
    pub(crate) fn id(&self, protocol: Protocol) -> u32 {
        let frontend = World::frontend(protocol, self.world.vip(CHANGED));
        let port = SERVER_PORT;
        self.world.datapath.destination_in(&frontend, self.server, port).unwrap().expect("the server of the service")
    }

    /// A frame that enters the node by its uplink.
    pub(crate) fn ingress(&self, frame: &[u8]) -> Run {
        let run = || self.world.datapath.run(Hook::Ingress, frame, self.options);
        self.topology.node.namespace.enter(run).unwrap()
    }

    /// The client's packet.
    pub(crate) fn request(&self, port: u16, inside: Inside) -> Vec<u8> {
        Around::Plain.frame(self.world.client(port), self.world.vip(CHANGED), inside)
    }

    /// Sends a client's packet, which must leave as it should.
    pub(crate) fn leaves(&self, sent: &[u8]) {
        let run = self.ingress(sent);
        let drops = self.world.datapath.all_drops();
        assert_eq!(run.verdict, REDIRECTED, "{:?}, drops {drops:?}, {}", self.method, hex(sent));
        let (found, expected) = (self.unnumbered(run.frame), self.expected(sent));
        assert!(found == expected, "{:?}\n  got {}\n want {}", self.method, hex(&found), hex(&expected));
    }

    /// A frame without the identification of an outer header that may be cut: a number of no meaning.
    pub(crate) fn unnumbered(&self, mut frame: Vec<u8>) -> Vec<u8> {
        if self.method != Method::Route && self.server.is_ipv4() && frame[20] & 0x40 == 0 {
            frame[18..20].fill(0);
            mend(&mut frame[14..]);
        }
        frame
    }

    /// What becomes of a client's packet, [unnumbered](Self::unnumbered).
    pub(crate) fn expected(&self, sent: &[u8]) -> Vec<u8> {
        let mut onward = sent.to_vec();
        onward[if self.world.v6 { 21 } else { 22 }] -= 1;
        if !self.world.v6 {
            mend(&mut onward[14..]);
        }
        if self.method == Method::Route {
            return onward;
        }
        let (inside, outer_v6) = (&onward[14..], self.server.is_ipv6());
        let class = if self.world.v6 { sent[14] << 4 | sent[15] >> 4 } else { sent[15] };
        // RFC 3168 9.1.1.
        let class = if class & 3 == 3 { class & !1 } else { class };
        let hops = onward[if self.world.v6 { 21 } else { 22 }];
        let whole = !self.world.v6 && sent[20] & 0x40 != 0;
        let mut header = if outer_v6 {
            let length = (inside.len() as u16).to_be_bytes();
            vec![0x60 | class >> 4, class << 4, 0, 0, length[0], length[1], self.protocol(), hops]
        } else {
            let length = (inside.len() as u16 + 20).to_be_bytes();
            let flags = if whole { 0x40 } else { 0 };
            vec![0x45, class, length[0], length[1], 0, 0, flags, 0, hops, self.protocol(), 0, 0]
        };
        for address in [if outer_v6 { IpAddr::from(NODE_V6) } else { NODE_V4.into() }, self.server] {
            match address {
                IpAddr::V4(address) => header.extend(address.octets()),
                IpAddr::V6(address) => header.extend(address.octets()),
            }
        }
        if !outer_v6 {
            mend(&mut header);
        }
        let kind = if outer_v6 { [0x86, 0xdd] } else { [0x08, 0x00] };
        [&sent[..12], &kind[..], &header, inside].concat()
    }

    /// Protocol number of a packet of this world's family inside of another.
    pub(crate) fn protocol(&self) -> u8 {
        if self.world.v6 { 41 } else { 4 }
    }

    /// The frame of an IP packet, from its header on, inside of another packet.
    pub(crate) fn wrapped(&self, from: IpAddr, to: IpAddr, inside: &[u8]) -> Vec<u8> {
        let transport = Transport { protocol: self.protocol(), bytes: inside.to_vec() };
        Packet::new(SocketAddr::new(from, 0), SocketAddr::new(to, 0)).frame(&transport)
    }

    /// The request entry of a client's connection, if there is one.
    pub(crate) fn entry(&self, port: u16, protocol: Protocol) -> Option<(ConnectionKey, Connection)> {
        let (client, vip) = (self.world.client(port), self.world.vip(CHANGED));
        let ours = |key: &ConnectionKey| {
            key.source == Address::from(client.ip())
                && key.source_port.number() == port
                && key.destination == Address::from(vip.ip())
                && key.destination_port.number() == CHANGED
                && key.protocol == protocol as u8
        };
        self.world.datapath.connections().unwrap().into_iter().find(|(key, _)| ours(key))
    }
}

/// Puts the right checksum into the IPv4 header that `packet` begins with.
pub(crate) fn mend(packet: &mut [u8]) {
    let length = usize::from(packet[0] & 15) * 4;
    packet[10..12].fill(0);
    let sum = ones_complement(&[&packet[..length]]);
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
}
