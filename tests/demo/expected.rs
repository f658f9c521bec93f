//! What IPVS does, to hold beside what bpvs did.
//!
//! For TCP over IPv4 it is what Linux IPVS was recorded to do. Where the answer hangs on an address that the recording
//! did not have (dh's destination, mh's servers, IPv6) or on UDP, it is the tests' own model of IPVS, which gives the recorded
//! answers for all that was recorded.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use anyhow::{Result, anyhow};
use bpvs_tests::model::{Director, Flags, Packet};
use bpvs_tests::sequences::{Edit, Script, Target, WEIGHTS};

/// A service of the model with the demo's servers.
pub(crate) struct Model {
    director: Director,
    destination: IpAddr,
    tcp: bool,
    servers: Vec<Option<u32>>,
}

impl Model {
    pub(crate) fn new(scheduler: &str, destination: IpAddr, tcp: bool) -> Result<Self> {
        let refused = |refusal| anyhow!("the model refuses {scheduler}: {refusal:?}");
        let mut director = Director::new(scheduler, Flags::default()).map_err(refused)?;
        for (id, weight) in (1..).zip(WEIGHTS) {
            let address: IpAddr = match destination {
                IpAddr::V4(_) => Ipv4Addr::new(10, 1, 1, id as u8).into(),
                IpAddr::V6(_) => Ipv6Addr::new(0xfd00, 1, 1, 0, 0, 0, 0, id as u16).into(),
            };
            let port = if tcp { super::SERVER_TCP } else { super::SERVER_UDP };
            director.add(id, address, port, weight).map_err(refused)?;
        }
        Ok(Self { director, destination, tcp, servers: Vec::new() })
    }

    /// The server of a new connection from this client, which then stays.
    pub(crate) fn connect(&mut self, client: IpAddr) -> Option<u32> {
        let packet = Packet { client, client_port: 20_000, destination: self.destination };
        let server = self.director.pick(packet, 0);
        if let Some(server) = server {
            self.director.connected(server);
            // An answered UDP request stays inactive.
            if self.tcp {
                self.director.activate(server);
            }
        }
        self.servers.push(server);
        server
    }
}

impl Target for Model {
    fn open(&mut self, _connection: usize, client: IpAddr, _destination: IpAddr) -> Result<Option<u32>> {
        Ok(self.connect(client))
    }

    fn close(&mut self, connection: usize) -> Result<()> {
        if let Some(server) = self.servers[connection] {
            self.director.deactivate(server);
        }
        Ok(())
    }

    fn edit(&mut self, edit: Edit) -> Result<()> {
        Err(anyhow!("the demo's scripts have no edits, this one has {edit:?}"))
    }
}

/// The answers of IPVS to a script that talks to `destination`, and how they are known.
pub(crate) fn answers(script: &Script, destination: IpAddr) -> Result<(Vec<Option<u32>>, &'static str)> {
    let known = match script.scheduler.as_str() {
        "dh" => "as IPVS hashes this address",
        "mh" => "as IPVS hashes these servers",
        _ => return Ok((script.recorded(), "as IPVS answered")),
    };
    Ok((script.replay(&mut Model::new(&script.scheduler, destination, true)?)?, known))
}
