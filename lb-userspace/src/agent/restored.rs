//! What an earlier agent programmed, kept for as long as some of the input has never been readable: it may be what
//! those services came from.

use std::sync::Arc;

use anyhow::Result;
use lb_common::layout::{ConnectionKey, ConnectionState, KEY_PACKET, SERVICE_BY_ADDRESS, ServiceKey};
use lb_common::scheduler::Scheduler;

use crate::plan::{DesiredDestination, DesiredService, Frontend, Plan};
use crate::view::services::ServiceRow;
use crate::view::tables::Tables;

/// The services that were programmed when this agent started.
#[derive(Debug, Default)]
pub struct Restored {
    services: Vec<(Frontend, Arc<DesiredService>)>,
}

impl Restored {
    /// Reads what is programmed.
    pub fn read(tables: &impl Tables) -> Result<Self> {
        let rows = crate::view::services::services(tables, None)?;
        Ok(Self { services: rows.iter().filter_map(service).collect() })
    }

    /// Adds what no plan states to a plan.
    pub fn fill(&self, plan: &mut Plan) {
        for (frontend, service) in &self.services {
            plan.services.insert_missing(*frontend, service);
        }
    }

    /// Forgets everything: from now on the plan says it all.
    pub fn forget(&mut self) {
        self.services = Vec::new();
    }
}

/// Ids and frontends of services, as their connections tell. A connection of a mark, a network or every port tells what
/// its client asked for: the writer knows those services and uses no names for them. A template is no packet's connection.
pub fn names(tables: &impl Tables) -> Result<Vec<(u32, ServiceKey)>> {
    let mut names = Vec::new();
    for (key, connection) in tables.connections()? {
        let other = ConnectionState::REPLY | ConnectionState::PASSING;
        if key.kind == KEY_PACKET && connection.state & other == 0 {
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

fn service(row: &ServiceRow) -> Option<(Frontend, Arc<DesiredService>)> {
    let frontend = row.frontend()?;
    let mut destinations: Vec<DesiredDestination> = row
        .destinations
        .iter()
        .map(|row| DesiredDestination {
            address: row.address,
            port: row.port,
            weight: row.weight,
            thresholds: row.thresholds,
            method: row.forward,
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
        persistence: row.persistence,
        affinity: row.affinity,
        one_packet: row.one_packet,
        destinations,
        access: row.access.clone(),
    };
    Some((frontend, desired.into()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Persistence, Scope, Thresholds};
    use crate::view::testing::Memory;
    use lb_common::address::{Address, Port, Protocol};
    use lb_common::layout::{Connection, KEY_TEMPLATE, SERVICE_ONE_PACKET, SERVICE_PERSISTENT};

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
        let stated = DesiredService::new("dns", Scheduler::SourceHash, vec![]);
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

    #[test]
    fn what_was_programmed_comes_back_with_all_that_it_was() {
        let mut memory = Memory::default();
        let any: [u8; 4] = [0; 4];
        let scopes = [Scope::Mark(7), Scope::Prefix(8), Scope::Address];
        let frontends = scopes.map(|scope| Frontend { scope, ..Frontend::new(any.into(), 0, Protocol::Tcp) });
        let network = Frontend { address: [10, 0, 0, 0].into(), port: 80, ..frontends[1] };
        let frontends = [frontends[0], network, frontends[2]];
        for frontend in &frontends {
            memory.add(frontend, Scheduler::LeastConnection, &[("10.1.0.1", 1)]);
        }
        let kept = |service: &mut lb_common::layout::Service, timeout| {
            service.flags = SERVICE_PERSISTENT;
            (service.persistence_timeout, service.persistence_prefix) = (timeout, 96 + 24);
        };
        memory.services.iter_mut().for_each(|(_, service)| kept(service, 300_000));
        memory.prefixes.iter_mut().for_each(|(_, service)| kept(service, 1000));
        memory.services[0].1.flags |= SERVICE_ONE_PACKET;
        memory.destinations.iter_mut().for_each(|server| (server.upper, server.lower) = (9, 7));
        let mut plan = Plan::default();
        Restored::read(&memory).unwrap().fill(&mut plan);
        assert_eq!(plan.services.len(), 3);
        for (frontend, timeout, one_packet) in
            [(frontends[0], 300, true), (frontends[1], 1, false), (frontends[2], 300, false)]
        {
            let service = &plan.services[&frontend];
            assert_eq!(service.persistence, Some(Persistence { timeout, netmask: 24 }), "{frontend:?}");
            assert_eq!(service.one_packet, one_packet, "{frontend:?}");
            assert_eq!(service.destinations[0].thresholds, Thresholds { upper: 9, lower: 7 });
        }
    }

    #[test]
    fn a_template_tells_no_name() {
        let mut memory = Memory::default();
        let destination = Address::from(std::net::Ipv4Addr::new(10, 0, 0, 1));
        let packet = ConnectionKey { destination, destination_port: Port::new(80), protocol: 6, ..Default::default() };
        memory.connections.push((packet, Connection { service: 4, ..Connection::default() }));
        let template = ConnectionKey { kind: KEY_TEMPLATE, destination_port: Port::new(0), ..packet };
        memory.connections.push((template, Connection { service: 5, ..Connection::default() }));
        let names = names(&memory).unwrap();
        assert_eq!(names.len(), 1);
        assert_eq!((names[0].0, names[0].1.port), (4, Port::new(80)));
    }
}
