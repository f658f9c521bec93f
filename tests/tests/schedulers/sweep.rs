//! The sweep: what has expired leaves with its count, a recount finds what is wrong and nothing else, and a full table
//! refuses new connections only.

use std::{net::SocketAddr, time::Duration};

use anyhow::{Context, Result, ensure};
use bpvs_tests::{
    datapath::{DROPPED, Datapath, NEXT, Sizes, is_reply},
    packets::{Packet, flags, verify},
};
use lb_common::{
    address::Protocol,
    drops::Drop,
    layout::{Connection, DestinationLoad, SweepResult},
    scheduler::Scheduler,
};
use lb_userspace::plan::{DesiredDestination, DesiredService, Frontend, Plan};

use crate::{
    packets::segment,
    random::{Random, seeds},
    world::{PORT, SERVER_PORT, address},
};

/// A TCP and a UDP service at one address, each with these servers.
fn datapath(v6: bool, sizes: Sizes, servers: u16) -> Result<Datapath> {
    let mut datapath = Datapath::load(sizes)?;
    let destination = |number| DesiredDestination::new(address(v6, 1, 10 + number), SERVER_PORT, 1);
    let service = DesiredService::new("test/sweep", Scheduler::RoundRobin, (1..=servers).map(destination).collect());
    let frontend = |protocol| Frontend::new(address(v6, 96, 1), PORT, protocol);
    let services = [Protocol::Tcp, Protocol::Udp].map(|protocol| (frontend(protocol), service.clone()));
    let applied = datapath.apply(&Plan { services: services.into(), ..Plan::default() });
    ensure!(applied.is_ok(), "the plan was not applied: {applied:?}");
    Ok(datapath)
}

fn vip(v6: bool) -> SocketAddr {
    SocketAddr::new(address(v6, 96, 1), PORT)
}

fn client(v6: bool, number: u16) -> SocketAddr {
    SocketAddr::new(address(v6, 50, 1 + number % 100), 10_000 + number)
}

/// Sends a SYN; the server that it went to.
fn open(datapath: &Datapath, v6: bool, number: u16) -> Result<SocketAddr> {
    let run = datapath.ingress(&segment(client(v6, number), vip(v6), flags::SYN))?;
    ensure!(run.verdict == NEXT, "connection {number} was refused: {:?}", datapath.all_drops()?);
    Ok(verify(&run.frame)?.to)
}

/// Opens a connection up to ESTABLISHED.
fn establish(datapath: &Datapath, v6: bool, number: u16) -> Result<SocketAddr> {
    let server = open(datapath, v6, number)?;
    exchange(datapath, v6, number, server)?;
    Ok(server)
}

/// An ACK in each direction of an established connection.
fn exchange(datapath: &Datapath, v6: bool, number: u16, server: SocketAddr) -> Result<()> {
    let reply = datapath.egress(&segment(server, client(v6, number), flags::ACK))?;
    ensure!(reply.verdict == NEXT && verify(&reply.frame)?.from == vip(v6), "reply of {number}: {reply:?}");
    let request = datapath.ingress(&segment(client(v6, number), vip(v6), flags::ACK))?;
    ensure!(request.verdict == NEXT && verify(&request.frame)?.to == server, "request of {number}: {request:?}");
    Ok(())
}

/// Active and inactive connections of all destinations.
fn total(datapath: &Datapath, destinations: u32) -> Result<(u32, u32)> {
    let counts = (1..destinations).map(|id| datapath.counts(id)).collect::<Result<Vec<_>>>()?;
    Ok(counts.into_iter().fold((0, 0), |sum, each| (sum.0 + each.0, sum.1 + each.1)))
}

#[test]
fn what_has_expired_leaves_with_both_entries_and_its_count() -> Result<()> {
    for v6 in [false, true] {
        let mut datapath = datapath(v6, Sizes::default(), 3)?;
        // Half-open (60 s), established (900 s), closed by the client (60 s) and a datagram (300 s).
        open(&datapath, v6, 0)?;
        establish(&datapath, v6, 1)?;
        establish(&datapath, v6, 2)?;
        datapath.ingress(&segment(client(v6, 2), vip(v6), flags::FIN | flags::ACK))?;
        let datagram = Packet::new(client(v6, 3), vip(v6));
        ensure!(datapath.ingress(&datagram.frame(&datagram.udp(b"?")))?.verdict == NEXT);
        let mut passed = 0;
        for (until, entries, counts) in
            [(58, 8, (2, 2)), (62, 4, (1, 1)), (298, 4, (1, 1)), (302, 2, (1, 0)), (898, 2, (1, 0)), (902, 0, (0, 0))]
        {
            datapath.age(Duration::from_secs(until - passed))?;
            passed = until;
            datapath.sweep(false)?;
            let found = (datapath.connections()?.len(), total(&datapath, 512)?);
            ensure!(found == (entries, counts), "after {until} s: {found:?}, expected {:?}", (entries, counts));
        }
        let result: SweepResult = datapath.get("sweep_result", 0)?;
        ensure!((result.expired, result.orphans, result.corrections) == (4, 0, 0), "{result:?}");
    }
    Ok(())
}

#[test]
fn a_packet_in_either_direction_keeps_a_connection() -> Result<()> {
    let mut datapath = datapath(false, Sizes::default(), 1)?;
    let server = establish(&datapath, false, 0)?;
    for from_client in [true, false, true, false] {
        datapath.age(Duration::from_secs(600))?;
        let frame = if from_client {
            datapath.ingress(&segment(client(false, 0), vip(false), flags::ACK))?
        } else {
            datapath.egress(&segment(server, client(false, 0), flags::ACK))?
        };
        ensure!(frame.verdict == NEXT);
        ensure!(datapath.sweep(false)?.expired == 0, "it had a packet 0 s ago");
    }
    datapath.age(Duration::from_secs(901))?;
    ensure!(datapath.sweep(false)?.expired == 1);
    Ok(())
}

#[test]
fn a_recount_corrects_what_is_wrong_and_counts_that_only() -> Result<()> {
    let mut datapath = datapath(false, Sizes::default(), 2)?;
    (0..6).try_for_each(|number| establish(&datapath, false, number).map(drop))?;
    (6..9).try_for_each(|number| open(&datapath, false, number).map(drop))?;
    let right = datapath.destination_load(1)?;
    ensure!(datapath.sweep(true)?.corrections == 0, "nothing is wrong yet");
    ensure!(datapath.destination_load(1)? == right);
    let broken = [(0, 0), (7, 3), (0, 1), (u64::from(u32::MAX), 0)];
    for (number, (active, inactive)) in (1..).zip(broken) {
        let connections = active * DestinationLoad::ONE_ACTIVE + inactive;
        datapath.set_destination_load(1, DestinationLoad { connections, ..right })?;
        // Without a recount nobody looks.
        ensure!(datapath.sweep(false)?.corrections == number - 1);
        ensure!(datapath.destination_load(1)?.connections == connections);
        let result = datapath.sweep(true)?;
        ensure!((result.corrections, result.recounts) == (number, 1 + number), "{result:?}");
        ensure!(datapath.destination_load(1)?.connections == right.connections);
    }
    Ok(())
}

#[test]
fn halves_of_a_connection_are_removed_and_their_count_is_found() -> Result<()> {
    let mut datapath = datapath(false, Sizes::default(), 1)?;
    establish(&datapath, false, 0)?;
    establish(&datapath, false, 1)?;
    let requests: Vec<_> = datapath.connections()?.into_iter().filter(|(_, value)| !is_reply(value)).collect();
    datapath.remove_connection(requests[0].0)?;
    // A twin that is being inserted looks like this: it gets its time.
    ensure!(datapath.sweep(false)?.orphans == 0);
    datapath.age(Duration::from_secs(5))?;
    let result = datapath.sweep(true)?;
    ensure!((result.orphans, result.corrections, result.expired) == (1, 1, 0), "{result:?}");
    ensure!(total(&datapath, 512)? == (1, 0) && datapath.connections()?.len() == 2);
    // Without its reply entry a connection still expires, by its requests' clock.
    let reply = datapath.connections()?.into_iter().find(|(_, value)| is_reply(value)).context("its reply entry")?;
    datapath.remove_connection(reply.0)?;
    datapath.age(Duration::from_secs(901))?;
    let result = datapath.sweep(true)?;
    ensure!((result.expired, result.corrections) == (1, 1), "{result:?}");
    ensure!(total(&datapath, 512)? == (0, 0) && datapath.connections()?.is_empty());
    Ok(())
}

#[test]
fn a_half_that_comes_while_the_sweep_runs_gets_its_time() -> Result<()> {
    let mut datapath = datapath(false, Sizes::default(), 1)?;
    establish(&datapath, false, 0)?;
    let entries = datapath.connections()?;
    let (request, (key, reply)) = match is_reply(&entries[0].1) {
        true => (entries[1], entries[0]),
        false => (entries[0], entries[1]),
    };
    datapath.remove_connection(request.0)?;
    // The clock of a sweep stands while it runs, so that what comes meanwhile is from its future.
    let last_seen = reply.last_seen + 1_000_000_000;
    datapath.set_connection(key, Connection { last_seen, ..reply })?;
    ensure!(datapath.sweep(false)?.orphans == 0, "its twin is about to be inserted");
    Ok(())
}

/// Packets of many connections, some lost, some senseless, and time that passes for some of them.
fn wild(v6: bool, seed: u64) -> Result<()> {
    let mut random = Random::new(seed);
    let mut datapath = datapath(v6, Sizes { connections: 512, ..Sizes::default() }, 5)?;
    let tcp_flags = [
        flags::SYN,
        flags::SYN | flags::ACK,
        flags::ACK,
        flags::ACK,
        flags::FIN | flags::ACK,
        flags::FIN | flags::ACK,
        flags::RST,
        0,
    ];
    let mut servers = vec![None; 200];
    let mut most = 0;
    for _ in 0..4_000 {
        let number = random.below(servers.len());
        let flags = random.pick(&tcp_flags);
        match (random.below(100), servers[number]) {
            (0..2, _) => {
                let (seconds, part) = (random.pick(&[9, 61, 121, 901]), random.below(3) as u16);
                most = most.max(datapath.connections()?.len());
                datapath.age_if(Duration::from_secs(seconds), |key, _| key.source_port.number() % 3 == part)?;
                let recount = random.percent(50);
                datapath.sweep(recount)?;
            }
            (2..40, Some(server)) => drop(datapath.egress(&segment(server, client(v6, number as u16), flags))?),
            _ => {
                let run = datapath.ingress(&segment(client(v6, number as u16), vip(v6), flags))?;
                if run.verdict == NEXT {
                    servers[number] = Some(verify(&run.frame)?.to);
                }
            }
        }
    }
    ensure!(most > 20, "never more than {most} entries: too few to say anything");
    ensure!(datapath.sweep(true)?.corrections == 0, "before the end");
    datapath.age(Duration::from_secs(1_000))?;
    let result = datapath.sweep(true)?;
    ensure!((result.corrections, result.orphans) == (0, 0), "{result:?}");
    ensure!(datapath.connections()?.is_empty(), "{} entries are left", datapath.connections()?.len());
    for id in 1..512 {
        ensure!(datapath.counts(id)? == (0, 0), "destination {id}: {:?}", datapath.counts(id)?);
    }
    Ok(())
}

#[test]
fn whatever_comes_all_counts_return_to_zero_without_correction() -> Result<()> {
    for seed in seeds(3) {
        for v6 in [false, true] {
            wild(v6, seed).with_context(|| format!("IPv6 {v6}; to repeat: BPVS_SEED={seed}"))?;
        }
    }
    Ok(())
}

#[test]
fn a_full_table_refuses_new_connections_and_serves_the_established() -> Result<()> {
    for v6 in [false, true] {
        let mut datapath = datapath(v6, Sizes { connections: 64, ..Sizes::default() }, 3)?;
        let servers = (0..32).map(|number| establish(&datapath, v6, number)).collect::<Result<Vec<_>>>()?;
        let full = total(&datapath, 512)?;
        for number in 32..132 {
            let run = datapath.ingress(&segment(client(v6, number), vip(v6), flags::SYN))?;
            ensure!(run.verdict == DROPPED, "connection {number} beyond a full table: {run:?}");
        }
        ensure!(datapath.all_drops()? == [("table-full", 100)], "{:?}", datapath.all_drops()?);
        ensure!(datapath.drops(Drop::TableFull)? == 100);
        ensure!(total(&datapath, 512)? == full && datapath.connections()?.len() == 64, "a refusal left traces");
        for (number, &server) in (0..).zip(&servers) {
            exchange(&datapath, v6, number, server)?;
        }
        // One goes, one may come.
        datapath.egress(&segment(servers[5], client(v6, 5), flags::RST))?;
        datapath.age(Duration::from_secs(11))?;
        ensure!(datapath.sweep(true)?.expired == 1);
        establish(&datapath, v6, 200)?;
        ensure!(datapath.ingress(&segment(client(v6, 201), vip(v6), flags::SYN))?.verdict == DROPPED);
        ensure!(datapath.sweep(true)?.corrections == 0);
    }
    Ok(())
}
