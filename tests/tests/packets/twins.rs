//! A datapath and the host's model of it, which get the same frames.

use std::{collections::HashMap, net::SocketAddr};

use bpvs_tests::datapath::{DROPPED, Datapath, Hook, Options, Sizes};
use lb_common::{
    address::{Address, Port, Protocol},
    drops::Drop,
    layout::{Connection, ConnectionKey, ConnectionState, DestinationLoad, KEY_PACKET},
    sctp, tcp,
    timeouts::Timeouts,
};
use lb_userspace::plan::Plan;

use crate::{
    reference::Host,
    rows::hex,
    shapes::{Around, Inside},
    world::{CHANGED, HAIRPIN, SAME, SERVER_PORT, World, service},
};

/// The client's port in every connection.
pub(crate) const CLIENT_PORT: u16 = 4000;
/// What a client port became that another connection had.
const OTHER_PORT: u16 = 61_234;
const AN_HOUR: u32 = 3_600_000;

/// A connection's two entries.
fn entries(
    protocol: Protocol,
    [client, frontend, seen, real]: [Ends; 4],
    server: u32,
    service: u32,
    now: u64,
) -> [(ConnectionKey, Connection); 2] {
    let hairpin = if client.0 == real.0 { ConnectionState::HAIRPIN } else { 0 };
    let state = match protocol {
        Protocol::Tcp => u32::from(tcp::State::Established as u8),
        Protocol::Sctp => u32::from(sctp::State::Established as u8),
        Protocol::Udp => ConnectionState::INACTIVE,
    };
    let key = |from: Ends, to: Ends| ConnectionKey {
        source: from.0,
        destination: to.0,
        source_port: from.1,
        destination_port: to.1,
        protocol: protocol as u8,
        kind: KEY_PACKET,
        pad: [0; 2],
    };
    let value = |from: Ends, to: Ends, state| Connection {
        source: from.0,
        destination: to.0,
        source_port: from.1,
        destination_port: to.1,
        server,
        service,
        state: state | hairpin,
        last_seen: now,
        timeout: AN_HOUR,
        control: 0,
    };
    [
        (key(client, frontend), value(seen, real, state)),
        (key(real, seen), value(frontend, client, ConnectionState::REPLY)),
    ]
}

type Ends = (Address, Port);

/// A datapath and the host's model of it, with the same connections.
pub(crate) struct Twins {
    pub(crate) world: World,
    host: Host,
    connections: Vec<(ConnectionKey, Connection)>,
    server: u32,
}

impl Twins {
    pub(crate) fn new(v6: bool) -> Self {
        let sizes = Sizes { fragments: 65_536, ..Sizes::default() };
        let mut world = World { datapath: Datapath::load(sizes).unwrap(), v6 };
        let timeouts = Timeouts { tcp: [AN_HOUR; 16], sctp: [AN_HOUR; 16], udp: AN_HOUR, pad: 0 };
        world.datapath.set_timeouts(timeouts).unwrap();
        // One service, which no frame is for: it gives the connections a server that is there.
        let elsewhere = SocketAddr::new(world.router().ip(), 1);
        let (frontend, desired) = service(Protocol::Udp, elsewhere, &[(world.server(0).ip(), 1, 1)]);
        world.apply(&Plan { services: [(frontend, desired)].into(), ..Plan::default() });
        let server = world.datapath.destination_of(world.server(0).ip(), 1).unwrap().unwrap();
        let service = world.datapath.service(&frontend).unwrap().unwrap().id;
        // A connection of its own tells what time it is to BPF.
        world.datapath.ingress(&Around::Plain.frame(world.client(1), elsewhere, Inside::Udp)).unwrap();
        let now = world.datapath.connections().unwrap()[0].1.last_seen;
        let ends = |address: SocketAddr| (Address::from(address.ip()), Port::new(address.port()));
        let client = world.client(CLIENT_PORT);
        let mut connections = Vec::new();
        for protocol in Protocol::ALL {
            for (vip, seen, real) in [
                (world.vip(CHANGED), client, world.server(SERVER_PORT)),
                (world.vip(SAME), client, world.server(SAME)),
                (world.other_vip(CHANGED), world.client(OTHER_PORT), world.server(SERVER_PORT)),
                (world.vip(HAIRPIN), world.node(CLIENT_PORT), world.client(SERVER_PORT)),
            ] {
                let request = [client, vip, seen, real].map(ends);
                connections.extend(entries(protocol, request, server, service, now));
            }
        }
        let mut twins = Self { world, host: Host::default(), connections, server };
        twins.reset();
        twins
    }

    /// The same connections in both, and nothing else.
    pub(crate) fn reset(&mut self) {
        for (key, _) in self.world.datapath.connections().unwrap() {
            self.world.datapath.remove_connection(key).unwrap();
        }
        for &(key, value) in &self.connections {
            self.world.datapath.set_connection(key, value).unwrap();
        }
        self.host.connections = self.connections.iter().copied().collect();
        self.host.load = 1000 * (DestinationLoad::ONE_ACTIVE + DestinationLoad::ONE_INACTIVE);
        let load = DestinationLoad { connections: self.host.load, ..DestinationLoad::default() };
        self.world.datapath.set_destination_load(self.server, load).unwrap();
    }

    pub(crate) fn compare(&mut self, hook: Hook, frame: &[u8]) {
        let (verdict, out) = self.host.run(hook, frame);
        let run = self.world.datapath.run(hook, frame, Options::default()).unwrap();
        assert_eq!(run.verdict, verdict, "verdict on {hook:?} of {}", hex(frame));
        // What is dropped may have been written to in part.
        if verdict != DROPPED && run.frame != out {
            panic!("{hook:?}\n sent {}\n host {}\n BPF  {}", hex(frame), hex(&out), hex(&run.frame));
        }
        if self.host.connections.len() != self.connections.len() {
            self.compare_tables();
            self.reset();
        }
    }

    pub(crate) fn compare_tables(&self) {
        let state = |value: Connection| Connection { last_seen: 0, timeout: 0, ..value };
        let found = self.world.datapath.connections().unwrap();
        let found: HashMap<_, _> = found.into_iter().map(|(key, value)| (key, state(value))).collect();
        let expected: HashMap<_, _> = self.host.connections.iter().map(|(key, value)| (*key, state(*value))).collect();
        assert_eq!(found, expected);
        assert_eq!(self.world.datapath.destination_load(self.server).unwrap().connections, self.host.load);
        let failed = self.host.rewrite_failed;
        let drops = if failed == 0 { vec![] } else { vec![(Drop::RewriteFailed.name(), failed)] };
        assert_eq!(self.world.datapath.all_drops().unwrap(), drops);
    }
}
