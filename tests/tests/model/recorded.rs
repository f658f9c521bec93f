//! Replays what Linux IPVS answered.

use std::net::IpAddr;

use anyhow::{Result, anyhow};
use bpvs_tests::{
    model::{Director, Packet, SCHEDULERS},
    sequences::{self, Edit, Script, Target, WEIGHTS},
};

use crate::{NONE, open};

/// The model as a target of recorded scripts.
struct Played<'a> {
    script: &'a Script,
    director: Director,
    servers: Vec<u32>,
}

impl<'a> Played<'a> {
    fn new(script: &'a Script) -> Result<Self> {
        let director = Director::new(&script.scheduler, NONE).map_err(|refusal| anyhow!("{refusal:?}"))?;
        let mut played = Self { script, director, servers: Vec::new() };
        (1..).take(WEIGHTS.len()).try_for_each(|server| played.edit(Edit::Add(server)))?;
        Ok(played)
    }
}

impl Target for Played<'_> {
    fn open(&mut self, _connection: usize, client: IpAddr, destination: IpAddr) -> Result<Option<u32>> {
        let server = open(&mut self.director, Packet { client, client_port: 40000, destination }, 0);
        self.servers.push(server.unwrap_or(0));
        Ok(server)
    }

    fn close(&mut self, connection: usize) -> Result<()> {
        self.director.deactivate(self.servers[connection]);
        Ok(())
    }

    fn edit(&mut self, edit: Edit) -> Result<()> {
        match edit {
            Edit::Weight(server, weight) => self.director.edit(server, weight),
            Edit::Delete(server) => self.director.delete(server),
            Edit::Add(server) => {
                let (place, weight) = (self.script.server(server), WEIGHTS[server as usize - 1]);
                self.director.add(server, place.ip(), place.port(), weight)
            }
        }
        .map_err(|refusal| anyhow!("{edit:?}: {refusal:?}"))
    }
}

#[test]
fn every_recorded_sequence_comes_out() -> Result<()> {
    let scripts = sequences::recorded()?;
    for scheduler in SCHEDULERS {
        assert!(scripts.iter().any(|script| script.scheduler == scheduler), "{scheduler} is not recorded");
    }
    let mut wrong = Vec::new();
    for script in &scripts {
        let found = script.render(&script.replay(&mut Played::new(script)?)?);
        let recorded = script.render(&script.recorded());
        if found != recorded {
            wrong.push(format!("line {} {}\n recorded {recorded}\n found    {found}", script.line, script.scheduler));
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
    Ok(())
}
