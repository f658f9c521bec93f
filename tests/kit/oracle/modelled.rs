//! Scripts played to the model: what IPVS would answer, by [`crate::model`]'s schedulers and the rules of `ip_vs_core.c` for
//! connections. It needs neither root nor IPVS, and it is no oracle: it knows what we know.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, anyhow, bail};
use lb_common::address::Protocol;

use super::control::Switches;
use super::differences;
use super::script::{Answer, Choice, Event, Flow, Listed, Script, Server, Side, Signal};
use super::signals;
use super::states::State;
use super::subject::Subject;
use crate::model::{Director, Flags, Packet, Refusal};

#[derive(Clone, Copy, Debug)]
struct Connection {
    server: Server,
    state: State,
    /// Milliseconds.
    last_seen: u64,
    timeout: u64,
}

/// The model and its connections.
#[derive(Debug, Default)]
pub struct Modelled {
    script: Option<Script>,
    director: Option<Director>,
    choice: Option<Choice>,
    connections: BTreeMap<Flow, Connection>,
    /// Last server of each connection, also of those that are over.
    flows: BTreeMap<Flow, Server>,
    listed: BTreeSet<Server>,
    /// Milliseconds.
    now: u64,
    /// `--set`, in seconds.
    timeouts: [u32; 3],
}

fn flags(choice: &Choice) -> Flags {
    Flags { port: choice.port, fallback: choice.fallback }
}

fn refused(refusal: Refusal) -> anyhow::Error {
    anyhow!("the model refuses: {refusal:?}")
}

/// True if the model knows all that a script is about: it has schedulers and connections, and neither thresholds,
/// persistence, one-packet scheduling nor switches.
pub fn knows(script: &Script) -> bool {
    let simple = |choice: &Choice| choice.persistence == 0 && !choice.one_packet;
    let known = |event: &Event| match event {
        Event::Add(_, share) | Event::Edit(_, share) => share.upper == 0,
        Event::Service(choice) => simple(choice),
        _ => true,
    };
    script.switches == Switches::default()
        && simple(&script.choice)
        && script.steps.iter().all(|(event, _)| known(event))
}

impl Modelled {
    fn script(&self) -> Result<&Script> {
        self.script.as_ref().context("no script has begun")
    }

    fn director(&mut self) -> Result<&mut Director> {
        self.director.as_mut().context("no script has begun")
    }

    fn protocol(&self) -> Result<Protocol> {
        Ok(self.script()?.protocol)
    }

    fn timeout(&self, protocol: Protocol, state: State) -> u64 {
        let settable = match protocol {
            Protocol::Tcp => state.is_settable(),
            Protocol::Udp => Some(2),
            Protocol::Sctp => None,
        };
        u64::from(settable.map_or_else(|| state.seconds(protocol), |place| self.timeouts[place])) * 1000
    }

    fn close(&mut self, flow: Flow) -> Result<()> {
        let protocol = self.protocol()?;
        if let Some(connection) = self.connections.remove(&flow) {
            self.director()?.closed(connection.server.into(), connection.state.is_active(protocol));
        }
        Ok(())
    }

    /// A packet on a known connection.
    fn advance(&mut self, flow: Flow, from: Side, signal: Signal) -> Result<()> {
        let protocol = self.protocol()?;
        let connection = *self.connections.get(&flow).context("no such connection")?;
        let state = connection.state.after(protocol, from, signal);
        let server = connection.server.into();
        match (connection.state.is_active(protocol), state.is_active(protocol)) {
            (false, true) => self.director()?.activate(server),
            (true, false) => self.director()?.deactivate(server),
            _ => {}
        }
        let (last_seen, timeout) = (self.now, self.timeout(protocol, state));
        self.connections.insert(flow, Connection { state, last_seen, timeout, ..connection });
        Ok(())
    }

    fn client(&mut self, flow: Flow, signal: Signal) -> Result<Answer> {
        let (protocol, script) = (self.protocol()?, self.script()?);
        let known = self.flows.get(&flow).copied();
        if known.is_some_and(|server| differences::is_not_compared(script, self.listed.contains(&server))) {
            return Ok(Answer::Void);
        }
        let packet = Packet {
            client: script.client(flow).ip(),
            client_port: script.client(flow).port(),
            destination: script.virtual_address(flow).ip(),
        };
        let opens = signals::opens(protocol, signal);
        let old = self.connections.get(&flow).copied();
        let over = old.filter(|connection| opens && connection.state.is_over(protocol));
        if let Some(connection) = old.filter(|_| over.is_none()) {
            self.advance(flow, Side::Client, signal)?;
            return Ok(Answer::Server(connection.server));
        }
        if !opens {
            if protocol != Protocol::Tcp {
                // Refused: for the script there is no such connection any more.
                self.flows.remove(&flow);
            }
            let reset = [Signal::Abort, Signal::Finished].contains(&signal);
            return Ok(match protocol {
                Protocol::Tcp if reset => Answer::Silence,
                Protocol::Tcp => Answer::Reset,
                _ => Answer::Unreachable,
            });
        }
        // The old one is still counted while the server is chosen.
        let now = self.now / 1000;
        let picked = self.director()?.pick(packet, now);
        self.close(flow)?;
        let Some(id) = picked else {
            self.flows.remove(&flow);
            return Ok(Answer::Unreachable);
        };
        let server = Server::try_from(id)?;
        self.director()?.connected(id);
        let connection = Connection { server, state: State::NONE, last_seen: self.now, timeout: 0 };
        self.connections.insert(flow, connection);
        self.flows.insert(flow, server);
        self.advance(flow, Side::Client, signal)?;
        Ok(Answer::Server(server))
    }

    fn server(&mut self, flow: Flow, signal: Signal) -> Result<Answer> {
        if !self.flows.contains_key(&flow) {
            return Ok(Answer::Void);
        }
        if !self.connections.contains_key(&flow) {
            return Ok(Answer::Bare);
        }
        self.advance(flow, Side::Server, signal)?;
        Ok(Answer::Reply)
    }

    fn list(&mut self) -> Result<Vec<Listed>> {
        let of = |server: crate::model::Server| {
            let (active, inactive) = (server.active.try_into()?, server.inactive.try_into()?);
            Ok(Listed { server: Server::try_from(server.id)?, active, inactive, persistent: 0 })
        };
        self.director()?.list().into_iter().map(of).collect()
    }

    /// The service anew: the scheduler forgets, the trash does not.
    fn renew(&mut self) -> Result<()> {
        let choice = self.choice.context("no script has begun")?;
        for server in std::mem::take(&mut self.listed) {
            self.director()?.delete(server.into()).map_err(refused)?;
        }
        let other = if choice.scheduler.name() == "lc" { "rr" } else { "lc" };
        self.director()?.switch(other, flags(&choice)).map_err(refused)?;
        self.director()?.switch(choice.scheduler.name(), flags(&choice)).map_err(refused)
    }
}

impl Subject for Modelled {
    fn name(&self) -> &str {
        "model"
    }

    fn begin(&mut self, script: &Script) -> Result<()> {
        let director = Director::new(script.choice.scheduler.name(), flags(&script.choice)).map_err(refused)?;
        *self = Self {
            script: Some(script.clone()),
            director: Some(director),
            choice: Some(script.choice),
            timeouts: [900, 120, 300],
            ..Self::default()
        };
        Ok(())
    }

    fn event(&mut self, event: &Event) -> Result<Answer> {
        match *event {
            Event::Packet { flow, from: Side::Client, signal } => return self.client(flow, signal),
            Event::Packet { flow, from: Side::Server, signal } => return self.server(flow, signal),
            Event::Look => return self.list().map(Answer::List),
            Event::Add(server, share) => {
                let address = self.script()?.server(server);
                let added = self.director()?.add(server.into(), address.ip(), address.port(), share.weight);
                added.map_err(refused)?;
                self.listed.insert(server);
            }
            Event::Edit(server, share) => self.director()?.edit(server.into(), share.weight).map_err(refused)?,
            Event::Remove(server) => {
                self.director()?.delete(server.into()).map_err(refused)?;
                self.listed.remove(&server);
            }
            Event::Service(choice) => {
                self.director()?.switch(choice.scheduler.name(), flags(&choice)).map_err(refused)?;
                self.choice = Some(choice);
            }
            Event::Renew => self.renew()?,
            Event::Timeouts(tcp, fin, udp) => {
                for (place, seconds) in [tcp, fin, udp].into_iter().enumerate().filter(|(_, seconds)| *seconds != 0) {
                    self.timeouts[place] = seconds;
                }
            }
            Event::Wait(_) => bail!("time passes for all subjects at once"),
        }
        Ok(Answer::Done)
    }

    fn wait(&mut self, milliseconds: u32, _passed: bool) -> Result<bool> {
        self.now += u64::from(milliseconds);
        let over = |connection: &Connection| self.now - connection.last_seen >= connection.timeout;
        let over: Vec<Flow> =
            self.connections.iter().filter(|(_, connection)| over(connection)).map(|(flow, _)| *flow).collect();
        over.into_iter().try_for_each(|flow| self.close(flow))?;
        Ok(false)
    }

    fn end(&mut self) -> Result<()> {
        self.script = None;
        self.director = None;
        Ok(())
    }
}
