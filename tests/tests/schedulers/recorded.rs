//! What Linux IPVS answered, replayed through the BPF programs.

use std::{
    collections::BTreeMap,
    net::{IpAddr, SocketAddr},
};

use anyhow::{Context, Result, ensure};
use bpvs_tests::{
    datapath::{Datapath, NEXT, Sizes},
    model::SCHEDULERS,
    packets::{flags, verify},
    sequences::{self, Edit, Script, Step, Target, WEIGHTS},
};
use lb_common::{address::Protocol, scheduler::Scheduler};
use lb_userspace::plan::{DesiredDestination, DesiredService, Frontend, Plan};

use crate::{packets::segment, world::PORT};

const FIRST_CLIENT_PORT: u16 = 40_000;

/// The programs as a target of recorded scripts. All destination addresses of a script are one service's, as they were
/// when the answers were recorded.
struct Played<'a> {
    script: &'a Script,
    datapath: Datapath,
    scheduler: Scheduler,
    destinations: Vec<IpAddr>,
    servers: BTreeMap<u32, i32>,
    /// Client, virtual address and server of each connection.
    connections: Vec<Option<[SocketAddr; 3]>>,
}

impl<'a> Played<'a> {
    fn new(script: &'a Script) -> Result<Self> {
        let destination =
            |step: &Step| if let Step::Open { destination, .. } = step { Some(*destination) } else { None };
        let mut destinations: Vec<IpAddr> = script.steps.iter().filter_map(destination).collect();
        destinations.sort_unstable();
        destinations.dedup();
        let mut played = Self {
            script,
            datapath: Datapath::load(Sizes { slots: 1 << 17, ..Sizes::default() })?,
            scheduler: Scheduler::from_name(&script.scheduler).context("a scheduler that bpvs does not have")?,
            destinations,
            servers: BTreeMap::new(),
            connections: Vec::new(),
        };
        for (number, &weight) in (1..).zip(&WEIGHTS) {
            played.servers.insert(number, weight);
            played.apply()?;
        }
        Ok(played)
    }

    fn apply(&mut self) -> Result<()> {
        let frontend = Frontend::new(self.destinations[0], PORT, Protocol::Tcp);
        let destination = |(&number, &weight): (&u32, &i32)| {
            let server = self.script.server(number);
            DesiredDestination::new(server.ip(), server.port(), weight)
        };
        let service =
            DesiredService::new("test/recorded", self.scheduler, self.servers.iter().map(destination).collect());
        let applied = self.datapath.apply(&Plan { services: [(frontend, service)].into(), ..Plan::default() });
        ensure!(applied.is_ok(), "the plan was not applied: {applied:?}");
        self.destinations[1..].iter().try_for_each(|&address| self.datapath.publish_as(&frontend, address))
    }

    fn request(&self, [client, vip, _]: [SocketAddr; 3], tcp_flags: u8) -> Result<()> {
        let run = self.datapath.ingress(&segment(client, vip, tcp_flags))?;
        ensure!(run.verdict == NEXT, "a segment of an established connection: {run:?}");
        Ok(())
    }

    fn reply(&self, [client, _, server]: [SocketAddr; 3], tcp_flags: u8) -> Result<()> {
        let run = self.datapath.egress(&segment(server, client, tcp_flags))?;
        ensure!(run.verdict == NEXT, "a reply of an established connection: {run:?}");
        Ok(())
    }
}

impl Target for Played<'_> {
    fn open(&mut self, connection: usize, client: IpAddr, destination: IpAddr) -> Result<Option<u32>> {
        let client = SocketAddr::new(client, FIRST_CLIENT_PORT + connection as u16);
        let vip = SocketAddr::new(destination, PORT);
        let run = self.datapath.ingress(&segment(client, vip, flags::SYN))?;
        if run.verdict != NEXT {
            self.connections.push(None);
            return Ok(None);
        }
        let chosen = verify(&run.frame)?.to;
        let number = (1..=WEIGHTS.len() as u32).find(|&number| {
            let server = self.script.server(number);
            // A server without a port of its own has the client's.
            let port = if server.port() == 0 { PORT } else { server.port() };
            SocketAddr::new(server.ip(), port) == chosen
        });
        let ends = [client, vip, chosen];
        self.connections.push(Some(ends));
        self.reply(ends, flags::SYN | flags::ACK)?;
        self.request(ends, flags::ACK)?;
        Ok(Some(number.with_context(|| format!("sent to {chosen}, which is no server"))?))
    }

    fn close(&mut self, connection: usize) -> Result<()> {
        let ends = self.connections[connection].context("the script closes a connection that was refused")?;
        self.request(ends, flags::FIN | flags::ACK)?;
        self.reply(ends, flags::FIN | flags::ACK)?;
        self.request(ends, flags::ACK)
    }

    fn edit(&mut self, edit: Edit) -> Result<()> {
        match edit {
            Edit::Weight(server, weight) => self.servers.insert(server, weight),
            Edit::Delete(server) => self.servers.remove(&server),
            Edit::Add(server) => self.servers.insert(server, WEIGHTS[server as usize - 1]),
        };
        self.apply()
    }
}

#[test]
fn every_recorded_answer_of_ipvs_is_the_programs_answer() -> Result<()> {
    let scripts = sequences::recorded()?;
    for scheduler in SCHEDULERS {
        assert!(scripts.iter().any(|script| script.scheduler == scheduler), "{scheduler} is not recorded");
    }
    let mut wrong = Vec::new();
    for script in &scripts {
        let replayed = Played::new(script).and_then(|mut played| script.replay(&mut played));
        let found = script.render(&replayed.with_context(|| format!("line {}", script.line))?);
        let recorded = script.render(&script.recorded());
        if found != recorded {
            wrong.push(format!("line {} {}\n recorded {recorded}\n found    {found}", script.line, script.scheduler));
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
    Ok(())
}
