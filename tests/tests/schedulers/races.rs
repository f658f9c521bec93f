//! Two CPUs at once: whatever they do to one connection, it has both entries or none, and its count once.

use std::{
    collections::HashMap,
    net::SocketAddr,
    sync::{
        Barrier,
        atomic::{AtomicBool, AtomicU32, Ordering::SeqCst},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use bpvs_tests::{
    datapath::{Datapath, NEXT, Sizes, is_reply},
    packets::Packet,
};
use lb_common::{
    address::Protocol,
    layout::{Connection, ConnectionKey, ConnectionState, SweepResult},
    scheduler::Scheduler,
    timeouts::Timeouts,
};
use lb_userspace::plan::{DesiredDestination, DesiredService, Frontend, Plan};

use crate::world::{PORT, SERVER_PORT, address};

/// A UDP service with this many servers.
fn datapath(sizes: Sizes, servers: u16) -> Result<Datapath> {
    let mut datapath = Datapath::load(sizes)?;
    let destination = |number| DesiredDestination::new(address(false, 1, 10 + number), SERVER_PORT, 1);
    let service = DesiredService::new("test/races", Scheduler::RoundRobin, (1..=servers).map(destination).collect());
    let frontend = Frontend::new(address(false, 96, 1), PORT, Protocol::Udp);
    let applied = datapath.apply(&Plan { services: [(frontend, service)].into(), ..Plan::default() });
    ensure!(applied.is_ok(), "the plan was not applied: {applied:?}");
    Ok(datapath)
}

fn datagram(port: u16) -> Vec<u8> {
    let packet =
        Packet::new(SocketAddr::new(address(false, 50, 1), port), SocketAddr::new(address(false, 96, 1), PORT));
    packet.frame(&packet.udp(b"?"))
}

/// Checks that each request entry has its reply entry and the other way round, and that the counts are theirs.
fn check(datapath: &Datapath, destinations: u32) -> Result<usize> {
    let entries: HashMap<ConnectionKey, Connection> = datapath.connections()?.into_iter().collect();
    for (key, value) in &entries {
        let other = ConnectionKey {
            source: value.destination,
            destination: value.source,
            source_port: value.destination_port,
            destination_port: value.source_port,
            ..*key
        };
        let kind = if is_reply(value) { "reply" } else { "request" };
        ensure!(entries.contains_key(&other), "a {kind} entry is alone: {key:?} {value:?}");
        ensure!(!ConnectionState(value.state).has(ConnectionState::CLOSING), "nobody removes {key:?} {value:?}");
    }
    let counts = (1..destinations).map(|id| datapath.counts(id)).collect::<Result<Vec<_>>>()?;
    let (active, inactive) = counts.iter().fold((0, 0), |sum, count| (sum.0 + count.0, sum.1 + count.1));
    let connections = entries.len() / 2;
    ensure!((active, inactive) == (0, connections as u32), "{connections} connections, counted {active} + {inactive}");
    Ok(connections)
}

#[test]
fn two_first_packets_of_one_connection_open_it_once_and_both_arrive() -> Result<()> {
    for servers in [1, 3] {
        let datapath = datapath(Sizes { connections: 65_536, ..Sizes::default() }, servers)?;
        let (rounds, go, arrived) = (8_000, AtomicU32::new(0), AtomicU32::new(0));
        let cpu = || -> Result<()> {
            for round in 0..rounds {
                let frame = datagram(2_000 + round as u16);
                // Both at once, as near as may be.
                go.fetch_add(1, SeqCst);
                while go.load(SeqCst) < 2 * (round + 1) {
                    std::hint::spin_loop();
                }
                let run = datapath.ingress(&frame)?;
                arrived.fetch_add(u32::from(run.verdict == NEXT), SeqCst);
            }
            Ok(())
        };
        thread::scope(|scope| {
            let other = scope.spawn(cpu);
            cpu()?;
            other.join().ok().context("the other CPU's thread")?
        })?;
        ensure!(check(&datapath, 512)? == rounds as usize);
        ensure!(arrived.into_inner() == 2 * rounds, "lost: {:?}", datapath.all_drops()?);
    }
    Ok(())
}

#[test]
fn sweeps_and_packets_that_end_the_same_connections_end_each_once() -> Result<()> {
    const PORTS: u16 = 24;
    let sizes = Sizes { connections: 128, destinations: 16, ..Sizes::default() };
    let mut datapath = datapath(sizes, 3)?;
    // Less than a tick of the programs' clock: each connection is over when the clock moves on.
    datapath.set_timeouts(Timeouts { udp: 1, ..Timeouts::IPVS })?;
    let (started, stop) = (Barrier::new(2), AtomicBool::new(false));
    let end = Instant::now() + Duration::from_secs(4);
    let senders = &datapath;
    thread::scope(|scope| {
        let sender = scope.spawn(|| -> Result<()> {
            started.wait();
            let frames: Vec<Vec<u8>> = (0..PORTS).map(|number| datagram(2_000 + number)).collect();
            while !stop.load(SeqCst) {
                frames.iter().try_for_each(|frame| senders.ingress(frame).map(drop))?;
            }
            Ok(())
        });
        started.wait();
        let mut result = Ok(());
        while Instant::now() < end && result.is_ok() {
            result = senders.sweep_beside().map(drop);
        }
        stop.store(true, SeqCst);
        match sender.join() {
            Ok(sent) => sent.and(result),
            Err(_) => bail!("the sender's thread"),
        }
    })?;
    let result: SweepResult = datapath.get("sweep_result", 0)?;
    ensure!(result.expired > 100 && result.orphans == 0, "{result:?}");
    // One may have been caught between two clocks; then nobody races.
    check(&datapath, 16)?;
    datapath.age(Duration::from_secs(1))?;
    datapath.sweep(true)?;
    ensure!(check(&datapath, 16)? == 0, "connections are left");
    ensure!(datapath.get::<SweepResult>("sweep_result", 0)?.corrections == 0);
    Ok(())
}
