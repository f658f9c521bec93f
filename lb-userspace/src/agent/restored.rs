//! What an earlier agent programmed, kept for as long as some of the input has never been readable: it may be what
//! those services came from.

use anyhow::Result;
use lb_common::address::Protocol;
use lb_common::layout::{ConnectionKey, ConnectionState, SERVICE_BY_ADDRESS, ServiceKey};
use lb_common::scheduler::Scheduler;

use crate::plan::{DesiredDestination, DesiredService, Frontend, Plan, Thresholds};
use crate::view::services::ServiceRow;
use crate::view::tables::Tables;

/// The services that were programmed when this agent started.
#[derive(Debug, Default)]
pub(super) struct Restored {
    services: Vec<(Frontend, DesiredService)>,
}

impl Restored {
    /// Reads what is programmed.
    pub(super) fn read(tables: &impl Tables) -> Result<Self> {
        let rows = crate::view::services::services(tables, None)?;
        Ok(Self { services: rows.iter().filter_map(service).collect() })
    }

    /// Adds what no plan states to a plan.
    pub(super) fn fill(&self, plan: &mut Plan) {
        for (frontend, service) in &self.services {
            plan.services.entry(*frontend).or_insert_with(|| service.clone());
        }
    }

    /// Forgets everything: from now on the plan says it all.
    pub(super) fn forget(&mut self) {
        self.services.clear();
    }
}

/// Ids and frontends of services, as their connections tell.
pub(super) fn names(tables: &impl Tables) -> Result<Vec<(u32, ServiceKey)>> {
    let mut names = Vec::new();
    for (key, connection) in tables.connections()? {
        if !ConnectionState(connection.state).has(ConnectionState::REPLY) {
            let ConnectionKey { destination: address, destination_port: port, protocol, .. } = key;
            names.push((connection.service, ServiceKey { address, port, protocol, kind: SERVICE_BY_ADDRESS }));
        }
    }
    for (_, socket) in tables.sockets()? {
        let (address, port, protocol) = (socket.frontend, socket.frontend_port, socket.protocol as u8);
        names.push((socket.service, ServiceKey { address, port, protocol, kind: SERVICE_BY_ADDRESS }));
    }
    Ok(names)
}

fn service(row: &ServiceRow) -> Option<(Frontend, DesiredService)> {
    let protocol = Protocol::ALL.into_iter().find(|protocol| protocol.name() == row.protocol)?;
    let frontend = Frontend::new(row.address, row.port, protocol);
    let mut destinations: Vec<DesiredDestination> = row
        .destinations
        .iter()
        .map(|row| DesiredDestination {
            address: row.address,
            port: row.port,
            weight: row.weight,
            thresholds: Thresholds::default(),
        })
        .collect();
    destinations.sort();
    let scheduler = Scheduler::from_name(row.scheduler)?;
    let [port, fallback] = scheduler.flag_names();
    let desired = DesiredService {
        origin: "programmed by an earlier agent".to_owned(),
        scheduler,
        hash_port: row.scheduler_flags.contains(&port),
        hash_fallback: row.scheduler_flags.contains(&fallback),
        persistence: None,
        one_packet: false,
        destinations,
    };
    Some((frontend, desired))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::testing::Memory;

    #[test]
    fn what_was_programmed_fills_the_holes_of_a_plan_and_nothing_else() {
        let mut memory = Memory::default();
        memory.add_service(
            Protocol::Tcp,
            "10.0.0.1",
            80,
            Scheduler::WeightedRoundRobin,
            &[("10.1.0.2", 1), ("10.1.0.1", 3)],
        );
        memory.add_service(Protocol::Udp, "10.0.0.1", 53, Scheduler::RoundRobin, &[("10.1.0.1", 1)]);
        let mut restored = Restored::read(&memory).unwrap();
        let frontend = Frontend::new("10.0.0.1".parse().unwrap(), 53, Protocol::Udp);
        let stated = DesiredService {
            origin: "dns".into(),
            scheduler: Scheduler::SourceHash,
            hash_port: false,
            hash_fallback: false,
            persistence: None,
            one_packet: false,
            destinations: vec![],
        };
        let mut plan = Plan::default();
        plan.services.insert(frontend, stated.clone());
        restored.fill(&mut plan);
        assert_eq!(plan.services.len(), 2);
        assert_eq!(plan.services[&frontend], stated);
        let web = &plan.services[&Frontend { port: 80, protocol: Protocol::Tcp, ..frontend }];
        assert_eq!(web.scheduler, Scheduler::WeightedRoundRobin);
        assert_eq!(web.destinations[0].weight, 3);
        restored.forget();
        let mut empty = Plan::default();
        restored.fill(&mut empty);
        assert!(empty.services.is_empty());
    }
}
