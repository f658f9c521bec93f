//! The table that a file of rules builds, line by line, as IPVS's would be built.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::net::IpAddr;
use std::sync::Arc;

use super::command::Command;
use super::words::Wrong;
use crate::model::problem::shown;
use crate::model::{Frontend, RuleOptions, RuleOrigin, RuleServer, RuleService};

/// Services and servers with the order in which they were added.
#[derive(Debug, Default)]
pub(super) struct Table {
    services: BTreeMap<Frontend, Service>,
    /// Grows with each addition.
    order: u64,
}

#[derive(Debug)]
struct Service {
    order: u64,
    line: u32,
    /// None for a service whose `-A` is wrong: an earlier version of the file may know better.
    options: Option<RuleOptions>,
    servers: BTreeMap<(IpAddr, u16), (u64, RuleServer)>,
}

impl Table {
    /// Does what a line says. A line that cannot be done changes nothing.
    pub(super) fn apply(&mut self, line: u32, command: Command) -> Result<(), Wrong> {
        match command {
            Command::AddService(frontend, options) => match self.services.get(&frontend) {
                Some(first) => Err(Wrong::line(format!("the service exists already, from line {}", first.line))),
                None => {
                    self.insert(frontend, line, Some(options));
                    Ok(())
                }
            },
            Command::EditService(frontend, options) => {
                self.service(&frontend)?.options = Some(options);
                Ok(())
            }
            Command::DeleteService(frontend) => {
                self.service(&frontend)?;
                self.services.remove(&frontend);
                Ok(())
            }
            Command::Clear => {
                self.services.clear();
                Ok(())
            }
            Command::AddServer(frontend, server) => {
                self.order += 1;
                let order = self.order;
                match self.service(&frontend)?.servers.entry((server.address, server.port)) {
                    Entry::Occupied(_) => {
                        Err(about(server.address, server.port, "is a server of this service already"))
                    }
                    Entry::Vacant(entry) => {
                        entry.insert((order, server));
                        Ok(())
                    }
                }
            }
            Command::EditServer(frontend, server) => {
                let (address, port) = (server.address, server.port);
                let entry = self.service(&frontend)?.servers.get_mut(&(address, port));
                entry.ok_or_else(|| about(address, port, NO_SERVER))?.1 = server;
                Ok(())
            }
            Command::DeleteServer(frontend, address, port) => {
                let removed = self.service(&frontend)?.servers.remove(&(address, port));
                removed.map(drop).ok_or_else(|| about(address, port, NO_SERVER))
            }
        }
    }

    /// Notes that a wrong line would have added this service, so that the lines of its servers are not wrong too.
    pub(super) fn wanted(&mut self, line: u32, frontend: Frontend) {
        if !self.services.contains_key(&frontend) {
            self.insert(frontend, line, None);
        }
    }

    fn insert(&mut self, frontend: Frontend, line: u32, options: Option<RuleOptions>) {
        self.order += 1;
        self.services.insert(frontend, Service { order: self.order, line, options, servers: BTreeMap::new() });
    }

    fn service(&mut self, frontend: &Frontend) -> Result<&mut Service, Wrong> {
        let missing = || Wrong::line("there is no such service yet: its -A must come before");
        self.services.get_mut(frontend).ok_or_else(missing)
    }

    /// What the table holds, in order of adding. `kept` is what an earlier version of the file held, if this one is
    /// wrong somewhere: what is missing here may be what is wrong, so it stays.
    pub(super) fn finish(self, file: &Arc<str>, kept: &[RuleService]) -> Vec<RuleService> {
        let mut services: Vec<(Frontend, Service)> = self.services.into_iter().collect();
        services.sort_by_key(|(_, service)| service.order);
        let kept_index: BTreeMap<Frontend, &RuleService> = kept.iter().map(|kept| (kept.frontend, kept)).collect();
        let mut result: Vec<RuleService> = Vec::with_capacity(services.len());
        for (frontend, service) in services.iter_mut() {
            let kept = kept_index.get(frontend);
            let Some(options) = service.options.or(kept.map(|kept| kept.options)) else { continue };
            let stated = std::mem::take(&mut service.servers);
            let lost = kept.map_or(&[][..], |kept| &kept.servers);
            let lost: Vec<RuleServer> =
                lost.iter().filter(|server| !stated.contains_key(&(server.address, server.port))).copied().collect();
            let mut servers: Vec<(u64, RuleServer)> = stated.into_values().collect();
            servers.sort_by_key(|(order, _)| *order);
            let servers = lost.into_iter().chain(servers.into_iter().map(|(_, server)| server)).collect();
            let origin = RuleOrigin { file: file.clone(), line: service.line };
            result.push(RuleService { frontend: *frontend, origin, options, servers });
        }
        let stated: std::collections::BTreeSet<Frontend> = result.iter().map(|service| service.frontend).collect();
        result.extend(kept.iter().filter(|kept| !stated.contains(&kept.frontend)).cloned());
        result
    }
}

const NO_SERVER: &str = "is no server of this service: its -a must come before";

fn about(address: IpAddr, port: u16, message: &str) -> Wrong {
    let value = shown(&std::net::SocketAddr::new(address, port).to_string());
    Wrong { field: "-r", value, message: message.to_owned() }
}
