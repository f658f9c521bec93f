//! What packets do to the three, and time.

use std::{collections::BTreeMap, net::SocketAddr, time::Duration};

use anyhow::{Context, Result, ensure};
use bpvs_tests::{
    datapath::{NEXT, REDIRECTED, Run},
    model,
    oracle::{script::Side, states::State},
    packets::{Packet, Tcp, flags, verify},
};
use lb_common::{
    address::Protocol,
    connection,
    layout::{ConnectionState, DestinationLoad, Locality, LocalityKey},
    tcp::Direction,
};

use crate::{
    host::Request,
    world::{Connection, Name, PORT, SERVER_PORT, World, address},
};

/// A segment without payload.
pub(crate) fn segment(from: SocketAddr, to: SocketAddr, flags: u8) -> Vec<u8> {
    let packet = Packet::new(from, to);
    packet.frame(&packet.tcp(Tcp { flags, ..Tcp::default() }, b""))
}

impl World {
    pub(crate) fn client(&self, name: Name) -> SocketAddr {
        // Clients of many networks, so that source hashes differ.
        SocketAddr::new(address(self.v6, 50 + name.0 as u16 % 7, name.0 as u16 * 37 + 9), name.1)
    }

    pub(crate) fn frontend(&self, name: Name) -> SocketAddr {
        SocketAddr::new(self.services[name.2].addresses[name.3], PORT)
    }

    /// A segment from a client.
    pub(crate) fn request(&mut self, name: Name, tcp_flags: u8) -> Result<()> {
        let opens = tcp_flags & (flags::SYN | flags::RST) == flags::SYN;
        let known = self.connections.get(&name).copied();
        let frame = segment(self.client(name), self.frontend(name), tcp_flags);
        match known {
            // A removed server's connections go on, but it gets no new ones: bpvs does not wait for the old to time out.
            Some(old)
                if opens
                    && (old.state.is_over(Protocol::Tcp)
                        || !self.services[name.2].servers.contains_key(&old.server)) =>
            {
                self.open(name, tcp_flags, &frame, Some(old))
            }
            Some(connection) => {
                let run = self.datapath.ingress(&frame)?;
                let (to, _) = self.passed(&run, "request")?;
                let server = SocketAddr::new(self.server(connection.server), SERVER_PORT);
                ensure!(to == server, "an established connection to {server} was sent to {to}");
                self.advance(name, tcp_flags, true);
                Ok(())
            }
            None if opens => self.open(name, tcp_flags, &frame, None),
            None => {
                let run = self.datapath.ingress(&frame)?;
                ensure!(run.verdict != NEXT, "a segment of no connection passed: {run:?}");
                Ok(())
            }
        }
    }

    /// A segment from the server of a connection.
    pub(crate) fn reply(&mut self, name: Name, tcp_flags: u8) -> Result<()> {
        let connection = *self.connections.get(&name).context("the generator replies on connections only")?;
        let server = SocketAddr::new(self.server(connection.server), SERVER_PORT);
        let run = self.datapath.egress(&segment(server, connection.source, tcp_flags))?;
        let (to, from) = self.passed(&run, "reply")?;
        let expected = (self.client(name), self.frontend(name));
        ensure!((to, from) == expected, "a reply of {server} became {from} -> {to}, expected {expected:?}");
        self.advance(name, tcp_flags, false);
        Ok(())
    }

    /// Destination and source of a packet that went on, with right checksums.
    fn passed(&self, run: &Run, what: &str) -> Result<(SocketAddr, SocketAddr)> {
        ensure!(run.verdict == NEXT, "a {what} ended with verdict {}: {:?}", run.verdict, self.datapath.all_drops()?);
        let summary = verify(&run.frame)?;
        Ok((summary.to, summary.from))
    }

    /// A SYN that is to be scheduled.
    fn open(&mut self, name: Name, tcp_flags: u8, frame: &[u8], old: Option<Connection>) -> Result<()> {
        let (client, destination) = (self.client(name), self.frontend(name).ip());
        let service = &mut self.services[name.2];
        let packet = model::Packet { client: client.ip(), client_port: client.port(), destination };
        let model = service.model.pick(packet, self.now).unwrap_or(0);
        let request =
            Request { client: client.ip(), client_port: client.port(), destination, now: self.now * 1_000_000_000 };
        let host = service.host.pick(&request);
        let run = self.datapath.ingress(frame)?;
        let (bpf, source) = self.chosen(&run)?;
        self.note(&format!(" => {model}"));
        ensure!(
            model == host && model == bpf,
            "chosen (0 for none): model {model}, host {host}, BPF {bpf}; drops {:?}",
            self.datapath.all_drops()?
        );
        if let Some(old) = old {
            self.close(name, &old);
        }
        if bpf == 0 {
            return Ok(());
        }
        let service = &mut self.services[name.2];
        service.model.connected(bpf);
        service.host.move_load(bpf, DestinationLoad::ONE_INACTIVE);
        let host = ConnectionState(ConnectionState::INACTIVE);
        self.connections.insert(name, Connection { server: bpf, state: State::NONE, host, idle: 0, source });
        self.advance(name, tcp_flags, true);
        Ok(())
    }

    /// The server that a new connection was sent to, and its client as the server sees it; 0 if it was refused.
    fn chosen(&self, run: &Run) -> Result<(u32, SocketAddr)> {
        let summary = verify(&run.frame)?;
        if run.verdict == REDIRECTED {
            return Ok((0, summary.from));
        }
        let (to, from) = self.passed(run, "request")?;
        let server = (0..32).find(|&server| SocketAddr::new(self.server(server), SERVER_PORT) == to);
        Ok((server.with_context(|| format!("a new connection was sent to {to}, which is no server"))?, from))
    }

    /// Moves a connection's state on, in the model and on the host.
    fn advance(&mut self, name: Name, tcp_flags: u8, from_client: bool) {
        let Some(connection) = self.connections.get_mut(&name) else { return };
        let service = &mut self.services[name.2];
        let from = if from_client { Side::Client } else { Side::Server };
        let (before, after) = (connection.state, connection.state.after_segment(from, tcp_flags));
        match (before.is_active(Protocol::Tcp), after.is_active(Protocol::Tcp)) {
            (false, true) => service.model.activate(connection.server),
            (true, false) => service.model.deactivate(connection.server),
            _ => {}
        }
        let direction = if from_client { Direction::In } else { Direction::Out };
        let moved = connection::advance(Protocol::Tcp, connection.host, tcp_flags, 255, direction);
        service.host.move_load(connection.server, moved.load);
        *connection = Connection { state: after, host: moved.state, idle: 0, ..*connection };
    }

    /// A connection leaves the table.
    fn close(&mut self, name: Name, connection: &Connection) {
        let service = &mut self.services[name.2];
        service.model.closed(connection.server, connection.state.is_active(Protocol::Tcp));
        service.host.move_load(connection.server, connection::share(connection.host).wrapping_neg());
        self.connections.remove(&name);
    }

    /// Time passes for connections, and a sweep removes those that timed out.
    pub(crate) fn wait(&mut self, seconds: u64, recount: bool) -> Result<()> {
        self.datapath.age(Duration::from_secs(seconds))?;
        let before = self.datapath.get::<lb_common::layout::SweepResult>("sweep_result", 0)?;
        let result = self.datapath.sweep(recount)?;
        let expired: BTreeMap<Name, Connection> = self
            .connections
            .iter_mut()
            .map(|(name, connection)| {
                connection.idle += seconds;
                (*name, *connection)
            })
            .filter(|(_, connection)| connection.idle > u64::from(connection.state.seconds(Protocol::Tcp)))
            .collect();
        for (name, connection) in &expired {
            self.close(*name, connection);
        }
        ensure!(result.expired - before.expired == expired.len() as u64, "{expired:?} should expire: {result:?}");
        ensure!(result.recounts - before.recounts == u64::from(recount), "recounts: {before:?}, {result:?}");
        ensure!((result.corrections, result.orphans) == (0, 0), "the sweep found faults: {result:?}");
        let entries = self.datapath.connections()?.len();
        ensure!(
            entries == 2 * self.connections.len(),
            "{entries} entries for {} connections in the table",
            self.connections.len()
        );
        Ok(())
    }

    /// Time passes for lblc and lblcr only: each half of the test has its own clock, to see more of both.
    pub(crate) fn forget(&mut self, seconds: u64) -> Result<()> {
        for (key, value) in self.datapath.entries::<LocalityKey, Locality>("locality")? {
            let past = |time: u64| time.wrapping_sub(seconds * 1_000_000_000);
            let (last_used, last_modified) = (past(value.last_used), past(value.last_modified));
            self.datapath.insert("locality", key, Locality { last_used, last_modified, ..value })?;
        }
        self.now += seconds;
        for service in &mut self.services {
            // IPVS looks for what to forget at every thirtieth run of its timer.
            (0..30).for_each(|_| service.model.sweep(self.now));
        }
        Ok(())
    }
}
