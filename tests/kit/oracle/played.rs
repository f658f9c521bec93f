//! Scripts played to a director with real packets.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use lb_common::address::Protocol;

use super::control::{Director, RealServer, RealServerState, VirtualService};
use super::network::{Network, Outcome};
use super::script::{Answer, Event, Flow, Listed, Script, Server, Share, Side, Signal};
use super::subject::Subject;
use super::{differences, signals};
use crate::packets::{Packet, Summary, flags, protocol};

/// Timers run at the next tick, 10 ms away at most.
const SEVERAL_TICKS: Duration = Duration::from_millis(50);

/// What a director on a network of its own can do besides what it is told in `ipvsadm`'s terms.
pub trait Playable: Director {
    /// What to call it.
    const NAME: &'static str;
    /// A connection that a packet ends is counted for another moment.
    const ENDS_LATER: bool;

    /// Lets time pass; true if it really did. `passed`: it really did already.
    fn pass_time(&mut self, time: Duration, passed: bool) -> Result<bool>;

    /// Forgets what is left of a script whose service is deleted, as far as later scripts could see it.
    fn forget(&mut self) -> Result<()>;
}

/// A director, its network, and where the script is.
#[derive(Debug)]
pub struct Played<D> {
    director: D,
    network: Network,
    script: Option<Script>,
    service: Option<VirtualService>,
    /// The server of each connection and where it got the packet, also of those that ended meanwhile.
    flows: BTreeMap<Flow, (Server, SocketAddr)>,
    /// Servers in the list.
    listed: BTreeMap<Server, Share>,
    /// Some event may have made a template invalid.
    has_invalid_templates: bool,
}

impl<D: Playable> Played<D> {
    /// A director on a network.
    pub fn new(director: D, network: Network) -> Self {
        let (flows, listed) = (BTreeMap::new(), BTreeMap::new());
        Self { director, network, script: None, service: None, flows, listed, has_invalid_templates: false }
    }

    /// The director.
    pub fn director(&mut self) -> &mut D {
        &mut self.director
    }

    fn script(&self) -> Result<&Script> {
        self.script.as_ref().context("no script has begun")
    }

    fn service(&self) -> Result<VirtualService> {
        self.service.context("no script has begun")
    }

    fn packet(&mut self, flow: Flow, from: Side, signal: Signal) -> Result<Answer> {
        let script = self.script()?;
        let (client, service) = (script.client(flow), script.virtual_address(flow));
        let transport = |packet: &Packet| signals::transport(script.protocol, packet, from, signal);
        let known = self.flows.get(&flow).copied();
        if from == Side::Server {
            let Some((_, server)) = known.filter(|_| !differences::is_not_answered(script)) else {
                return Ok(Answer::Void);
            };
            return match self.network.from_server(Packet::new(server, client), transport)? {
                Outcome::Nothing => Ok(Answer::Silence),
                Outcome::ToClient(found) if (found.from, found.to) == (service, client) => Ok(Answer::Reply),
                Outcome::ToClient(found) if (found.from, found.to) == (server, client) => Ok(Answer::Bare),
                other => bail!("a packet from {server} to {client} became {other:?}"),
            };
        }
        if known.is_some_and(|(server, _)| differences::is_not_compared(script, self.listed.contains_key(&server))) {
            return Ok(Answer::Void);
        }
        // Datagrams begin a new connection only where the old one's server is gone.
        let is_stream = script.protocol != Protocol::Udp || script.switches.expire_nodest_conn;
        let may_end_one = D::ENDS_LATER && known.is_some() && is_stream && signals::opens(script.protocol, signal);
        let before = if may_end_one { Some(self.total()?) } else { None };
        let script = self.script()?;
        let transport = |packet: &Packet| signals::transport(script.protocol, packet, from, signal);
        let outcome = self.network.from_client(Packet::new(client, service), transport)?;
        let mut reached = None;
        let answer = match &outcome {
            Outcome::Nothing => Answer::Silence,
            Outcome::ToServer(found) if found.from == client => {
                let server = script.reached(found.to, service.port());
                let (server, answer) = server.with_context(|| format!("sent to {}, which is no server", found.to))?;
                reached = Some((server, found.to));
                answer
            }
            Outcome::ToClient(found) if is_refusal(found, client, service) => Answer::Unreachable,
            Outcome::ToClient(found) if is_reset(found, client, service) => Answer::Reset,
            other => bail!("a packet from {client} to {service} became {other:?}"),
        };
        match reached {
            Some(reached) => drop(self.flows.insert(flow, reached)),
            None if answer == Answer::Unreachable => drop(self.flows.remove(&flow)),
            None => {}
        }
        if let Some(before) = before {
            // One that takes the place of another, or one less.
            self.settle(if answer == Answer::Unreachable { before.saturating_sub(1) } else { before })?;
        }
        Ok(answer)
    }

    /// Waits until a connection that a packet may have ended is counted no more. If it had timed out before, the others are
    /// more: a tick of the clock ends the wait.
    fn settle(&mut self, most: u32) -> Result<()> {
        let end = Instant::now() + SEVERAL_TICKS;
        while self.total()? > most && Instant::now() < end {
            thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    /// With `expire_nodest_conn` a worker ends the connections of removed servers, from the next tick on
    /// (`expire_nodest_conn_handler`): also those of a later script, if it is not waited for.
    fn flush(&self) -> Result<()> {
        if D::ENDS_LATER && self.script()?.switches.expire_nodest_conn {
            thread::sleep(SEVERAL_TICKS);
        }
        Ok(())
    }

    /// Connections of all servers in the list.
    fn total(&mut self) -> Result<u32> {
        Ok(self.list()?.iter().map(|listed| listed.active + listed.inactive).sum())
    }

    fn list(&mut self) -> Result<Vec<Listed>> {
        let key = self.service()?.key;
        let servers = self.director.servers(&key)?;
        let script = self.script()?;
        let listed = |state: &RealServerState| {
            let address = SocketAddr::new(state.address, state.port);
            let server = script.server_at(address).with_context(|| format!("{address} is in the list"))?;
            let share = self.listed.get(&server).with_context(|| format!("{server} was not added"))?;
            ensure!(share.weight == state.weight, "weight of {server}: {}, not {}", state.weight, share.weight);
            let persistent = if self.has_invalid_templates { 0 } else { state.persistent };
            Ok(Listed { server, active: state.active, inactive: state.inactive, persistent })
        };
        servers.iter().map(listed).collect()
    }

    fn real(&self, server: Server, share: Share) -> Result<RealServer> {
        let address = self.script()?.server(server);
        let Share { weight, upper, lower } = share;
        Ok(RealServer { address: address.ip(), port: address.port(), weight, upper, lower })
    }
}

impl<D: Playable> Subject for Played<D> {
    fn name(&self) -> &str {
        D::NAME
    }

    fn begin(&mut self, script: &Script) -> Result<()> {
        let service = script.choice.service(script.key());
        self.director.set_switches(&script.switches)?;
        self.director.set_timeouts(900, 120, 300)?;
        self.director.add_service(&service)?;
        self.flows.clear();
        self.listed.clear();
        self.has_invalid_templates = false;
        (self.script, self.service) = (Some(script.clone()), Some(service));
        Ok(())
    }

    fn event(&mut self, event: &Event) -> Result<Answer> {
        let service = self.service()?;
        self.has_invalid_templates |= differences::invalidates_templates(self.script()?, event);
        match *event {
            Event::Packet { flow, from, signal } => return self.packet(flow, from, signal),
            Event::Look => return self.list().map(Answer::List),
            Event::Add(server, share) => {
                self.director.add_server(&service.key, &self.real(server, share)?)?;
                self.listed.insert(server, share);
            }
            Event::Edit(server, share) => {
                self.director.edit_server(&service.key, &self.real(server, share)?)?;
                self.listed.insert(server, share);
            }
            Event::Remove(server) => {
                let address = self.script()?.server(server);
                self.director.delete_server(&service.key, address.ip(), address.port())?;
                self.listed.remove(&server);
                self.flush()?;
            }
            Event::Service(choice) => {
                let service = choice.service(service.key);
                self.director.edit_service(&service)?;
                self.service = Some(service);
            }
            Event::Renew => {
                self.director.delete_service(&service.key)?;
                self.flush()?;
                self.director.add_service(&service)?;
                self.listed.clear();
            }
            Event::Timeouts(tcp, fin, udp) => self.director.set_timeouts(tcp, fin, udp)?,
            Event::Wait(_) => bail!("time passes for all subjects at once"),
        }
        Ok(Answer::Done)
    }

    fn wait(&mut self, milliseconds: u32, passed: bool) -> Result<bool> {
        self.director.pass_time(Duration::from_millis(milliseconds.into()), passed)
    }

    fn end(&mut self) -> Result<()> {
        let service = self.service.take().context("no script has begun")?;
        self.director.delete_service(&service.key)?;
        self.flush()?;
        self.script = None;
        ensure!(self.network.is_quiet()?, "packets came that nothing had caused");
        self.director.forget()
    }
}

/// ICMP unreachable about the client's packet.
fn is_refusal(found: &Summary, client: SocketAddr, service: SocketAddr) -> bool {
    let unreachable = match found.protocol {
        // Port, or the whole protocol: of SCTP the stack knows nothing.
        protocol::ICMP => found.kind == 3 && matches!(found.code, 2 | 3),
        protocol::ICMPV6 => (found.kind == 1 && found.code == 4) || (found.kind == 4 && found.code == 1),
        _ => false,
    };
    unreachable && found.embedded.as_ref().is_some_and(|quoted| (quoted.from, quoted.to) == (client, service))
}

fn is_reset(found: &Summary, client: SocketAddr, service: SocketAddr) -> bool {
    let reset = found.protocol == protocol::TCP && found.kind & flags::RST != 0;
    reset && (found.from, found.to) == (service, client)
}
