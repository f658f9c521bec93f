//! The kit's datapath: a connection through the programs, from SYN to expiry.

use std::time::Duration;

use anyhow::Result;
use bpvs_tests::{
    datapath::{Datapath, NEXT, Sizes, is_reply},
    packets::{Packet, Tcp, flags, verify},
};
use lb_common::{
    address::Protocol,
    drops::Drop,
    layout::{
        LOOKUP_ALL_PORTS, LOOKUP_MARKS, LOOKUP_PREFIXES, SERVICE_ALL_PORTS, SERVICE_MARKED, SERVICE_PERSISTENT,
        SERVICE_THRESHOLDS, SweepResult,
    },
    scheduler::Scheduler,
};
use lb_userspace::plan::{DesiredDestination, DesiredService, Frontend, Persistence, Plan, Scope, Thresholds};

fn plan(vip: &str, server: &str) -> Plan {
    let frontend = Frontend::new(bare(vip).parse().unwrap(), 80, Protocol::Tcp);
    let service = DesiredService::new(
        "test/web:80",
        Scheduler::RoundRobin,
        vec![DesiredDestination::new(bare(server).parse().unwrap(), 8080, 1)],
    );
    Plan { services: [(frontend, service)].into(), ..Plan::default() }
}

fn a_connection_lives(client: &str, vip: &str, server: &str) -> Result<()> {
    let mut datapath = Datapath::load(Sizes::default())?;
    datapath.apply(&plan(vip, server)).unwrap();
    let id = datapath.destination_of(bare(server).parse()?, 8080)?.unwrap();
    let request = Packet::new(format!("{client}:40000").parse()?, format!("{vip}:80").parse()?);
    let request = |flags| request.frame(&request.tcp(Tcp { flags, ..Tcp::default() }, b""));
    let reply = Packet::new(format!("{server}:8080").parse()?, format!("{client}:40000").parse()?);
    let reply = |flags| reply.frame(&reply.tcp(Tcp { flags, ..Tcp::default() }, b""));

    let run = datapath.ingress(&request(flags::SYN))?;
    assert_eq!(run.verdict, NEXT);
    assert_eq!(verify(&run.frame)?.to, format!("{server}:8080").parse()?);
    let run = datapath.egress(&reply(flags::SYN | flags::ACK))?;
    assert_eq!(run.verdict, NEXT);
    assert_eq!(verify(&run.frame)?.from, format!("{vip}:80").parse()?);
    datapath.ingress(&request(flags::ACK))?;
    assert_eq!(datapath.counts(id)?, (1, 0));
    assert_eq!(datapath.traffic(id)?.connections, 1);
    let connections = datapath.connections()?;
    assert_eq!(connections.len(), 2);
    assert_eq!(connections.iter().filter(|(_, value)| is_reply(value)).count(), 1);

    datapath.age(Duration::from_secs(899))?;
    assert_eq!(datapath.sweep(false)?, SweepResult { entries: 2, ..SweepResult::default() });
    datapath.age(Duration::from_secs(2))?;
    assert_eq!(datapath.sweep(false)?.expired, 1);
    assert_eq!((datapath.counts(id)?, datapath.connections()?.len()), ((0, 0), 0));
    assert_eq!(datapath.ingress(&request(flags::ACK))?.verdict, bpvs_tests::datapath::REDIRECTED);
    assert_eq!(datapath.drops(Drop::NotSyn)?, 1);
    Ok(())
}

#[test]
fn an_ipv4_connection_lives_until_it_times_out() -> Result<()> {
    a_connection_lives("10.10.0.2", "10.96.0.1", "10.1.0.9")
}

#[test]
fn an_ipv6_connection_lives_until_it_times_out() -> Result<()> {
    a_connection_lives("[fd00:10::2]", "[fd00:96::1]", "[fd00:1::9]")
}

#[test]
fn every_scope_stands_in_the_maps_that_the_programs_read() -> Result<()> {
    let mut datapath = Datapath::load(Sizes::default())?;
    let mut service = plan("10.96.0.1", "10.1.0.9").services.values().next().unwrap().as_ref().clone();
    service.persistence = Some(Persistence { timeout: 60, netmask: 24 });
    service.destinations[0].thresholds = Thresholds { upper: 4, lower: 2 };
    let frontend =
        |address: [u8; 4], port, scope| Frontend { scope, ..Frontend::new(address.into(), port, Protocol::Tcp) };
    let scopes = [
        (frontend([0; 4], 0, Scope::Mark(7)), SERVICE_MARKED, LOOKUP_MARKS),
        (frontend([10, 97, 0, 1], 0, Scope::Address), SERVICE_ALL_PORTS, LOOKUP_ALL_PORTS),
        (frontend([10, 98, 0, 0], 80, Scope::Prefix(16)), 0, LOOKUP_PREFIXES),
    ];
    for (frontend, flag, lookups) in scopes {
        datapath.apply(&Plan { services: [(frontend, service.clone())].into(), ..Plan::default() }).unwrap();
        let entry = datapath.service(&frontend)?.expect("published");
        assert_eq!(entry.flags, SERVICE_PERSISTENT | SERVICE_THRESHOLDS | flag);
        assert_eq!((entry.persistence_prefix, entry.persistence_timeout), (96 + 24, 60_000));
        let id = datapath.destination_in(&frontend, service.destinations[0].address, 8080)?.expect("in its set");
        let record = datapath.destination(id)?;
        assert_eq!((record.upper, record.lower), (4, 2));
        assert_eq!(datapath.get::<u32>("lookups", 0)?, lookups, "the one before is gone");
    }
    datapath.apply(&Plan::default()).unwrap();
    assert_eq!(datapath.get::<u32>("lookups", 0)?, 0);
    Ok(())
}

/// An address without the brackets that IPv6 wears beside a port.
fn bare(address: &str) -> &str {
    address.trim_matches(['[', ']'])
}
