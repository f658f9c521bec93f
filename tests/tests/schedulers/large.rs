//! Services with as many destinations as there can be.

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv4Addr, SocketAddr},
};

use anyhow::{Result, ensure};
use bpvs_tests::{
    datapath::{Datapath, NEXT, Sizes},
    packets::{flags, verify},
};
use lb_common::{
    address::{Address, Protocol},
    layout::{DestinationLoad, MAX_DESTINATIONS_PER_SERVICE},
    scheduler::{Scheduler, maglev},
};
use lb_userspace::datapath::MapStore;
use lb_userspace::plan::{DesiredDestination, DesiredService, Frontend, Plan};

use crate::{
    packets::segment,
    world::{PORT, SERVER_PORT},
};

const MOST: u32 = MAX_DESTINATIONS_PER_SERVICE;
const VIP: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 96, 0, 1));

/// Server n has the n-th address, and so the n-th last place in the list.
fn server(number: u32) -> IpAddr {
    Ipv4Addr::from(0x0a01_0000 + number).into()
}

fn plan(scheduler: Scheduler, servers: u32, weights: &[(u32, i32)]) -> Plan {
    let weights: BTreeMap<u32, i32> = weights.iter().copied().collect();
    let destination =
        |number| DesiredDestination::new(server(number), SERVER_PORT, weights.get(&number).copied().unwrap_or(1));
    let service = DesiredService::new("test/large", scheduler, (1..=servers).map(destination).collect());
    let frontend = Frontend::new(VIP, PORT, Protocol::Tcp);
    Plan { services: [(frontend, service)].into(), ..Plan::default() }
}

fn load(plan: &Plan) -> Result<Datapath> {
    let sizes = Sizes { slots: 2 * MOST + 64, destinations: MOST + 2, connections: 4 * MOST, ..Sizes::default() };
    let mut datapath = Datapath::load(sizes)?;
    let applied = datapath.apply(plan);
    ensure!(applied.is_ok(), "the plan was not applied: {applied:?}");
    Ok(datapath)
}

/// The server that the n-th client's new connection goes to.
fn pick(datapath: &Datapath, client: u32) -> Result<u32> {
    let from = SocketAddr::new(Ipv4Addr::from(0x0a32_0000 + client).into(), 40_000);
    let run = datapath.ingress(&segment(from, SocketAddr::new(VIP, PORT), flags::SYN))?;
    ensure!(run.verdict == NEXT, "client {client} was refused: {run:?}, {:?}", datapath.all_drops()?);
    let IpAddr::V4(chosen) = verify(&run.frame)?.to.ip() else { unreachable!("an IPv4 packet stays one") };
    Ok(u32::from(chosen) - 0x0a01_0000)
}

#[test]
fn rr_takes_each_of_the_most_destinations_once_in_a_turn() -> Result<()> {
    let datapath = load(&plan(Scheduler::RoundRobin, MOST, &[]))?;
    for (client, expected) in (0..).zip((1..=MOST).rev().chain([MOST, MOST - 1])) {
        let found = pick(&datapath, client)?;
        ensure!(found == expected, "pick {client}: server {found}, expected {expected}");
    }
    Ok(())
}

#[test]
fn wrr_makes_its_passes_over_the_most_destinations() -> Result<()> {
    let datapath = load(&plan(Scheduler::WeightedRoundRobin, MOST, &[(100, 3), (16_000, 2)]))?;
    // Servers that were added one by one leave `cw` at 1: the lowest pass comes first.
    let passes = (1..=MOST).rev().chain([100, 16_000, 100]).chain([MOST, MOST - 1, MOST - 2]);
    for (client, expected) in (0..).zip(passes) {
        let found = pick(&datapath, client)?;
        ensure!(found == expected, "pick {client}: server {found}, expected {expected}");
    }
    Ok(())
}

#[test]
fn lc_finds_the_one_idle_server_wherever_it_is() -> Result<()> {
    let mut datapath = load(&plan(Scheduler::LeastConnection, MOST, &[]))?;
    for id in 1..=MOST {
        let load = DestinationLoad { connections: DestinationLoad::ONE_ACTIVE, ..DestinationLoad::default() };
        datapath.set_destination_load(id, load)?;
    }
    for (client, idle) in (0..).step_by(2).zip([1, MOST, 9_999]) {
        let id = datapath.destination_of(server(idle), SERVER_PORT)?.expect("every server is programmed");
        datapath.set_destination_load(id, DestinationLoad::default())?;
        ensure!(pick(&datapath, client)? == idle, "server {idle} alone is idle");
        // Now all are equal: the head of the list is first.
        ensure!(pick(&datapath, client + 1)? == MOST, "the newest server is the first of equals");
        let head = datapath.destination_of(server(MOST), SERVER_PORT)?.expect("every server is programmed");
        let one = DestinationLoad { connections: DestinationLoad::ONE_ACTIVE, ..DestinationLoad::default() };
        datapath.set_destination_load(head, one)?;
    }
    Ok(())
}

#[test]
fn fo_and_ovf_find_the_one_heaviest_server_wherever_it_is() -> Result<()> {
    for scheduler in [Scheduler::Failover, Scheduler::Overflow] {
        for heaviest in [1, MOST, 9_999] {
            let datapath = load(&plan(scheduler, MOST, &[(heaviest, 2)]))?;
            ensure!(pick(&datapath, 0)? == heaviest, "{}: server {heaviest} alone has weight 2", scheduler.name());
        }
    }
    Ok(())
}

#[test]
fn mh_tries_every_cell_for_a_server_that_takes_connections() -> Result<()> {
    let servers = maglev::TABLE_LENGTH as u32;
    // All drained but one, which keeps its one cell.
    let full = plan(Scheduler::Maglev, servers, &[]);
    let drained: Vec<(u32, i32)> = (1..=servers).map(|server| (server, i32::from(server == 77))).collect();
    let mut drained = plan(Scheduler::Maglev, servers, &drained);
    drained.services.values_mut().for_each(|service| service.hash_fallback = true);
    let mut datapath = load(&full)?;
    let applied = datapath.apply(&drained);
    ensure!(applied.is_ok(), "the plan was not applied: {applied:?}");
    let frontend = Frontend::new(VIP, PORT, Protocol::Tcp);
    let service = datapath.service(&frontend)?.expect("the service is programmed");
    let cells = datapath.writer().store().slots(service.table_base, service.table_length)?;
    let (mut found, mut refused) = (0, 0);
    // Far from each other: the offsets of neighbours hash the same numbers.
    for client in (0..300).map(|client| client * 5_000) {
        let address = Address::from(IpAddr::from(Ipv4Addr::from(0x0a32_0000 + client)));
        let walk = maglev::MaglevWalk::new(&address, 40_000, service.flags);
        let cell = |attempt| cells[walk.cell(attempt) as usize];
        if (0..maglev::MaglevWalk::MAX_PROBES).any(|attempt| cell(attempt).weight > 0) {
            found += 1;
            ensure!(pick(&datapath, client)? == 77, "server 77 alone takes connections");
        } else {
            refused += 1;
            ensure!(pick(&datapath, client).is_err(), "no cell of client {client} takes connections");
        }
    }
    // As many hashes as cells hit a given cell with a chance of 63 in 100.
    ensure!(found > 100 && refused > 50, "{found} clients found the server, {refused} were refused");
    Ok(())
}

#[test]
fn one_destination_too_many_is_refused_by_name_and_the_old_set_stays() -> Result<()> {
    let sizes = Sizes { slots: 2 * MOST + 64, destinations: MOST + 64, ..Sizes::default() };
    let mut datapath = Datapath::load(sizes)?;
    datapath.apply(&plan(Scheduler::RoundRobin, 2, &[])).expect("two destinations fit");
    let errors = datapath.apply(&plan(Scheduler::RoundRobin, MOST + 1, &[])).expect_err("16385 are too many");
    let errors: Vec<String> = errors.iter().map(ToString::to_string).collect();
    let [error] = errors.as_slice() else { panic!("one service, one error: {errors:?}") };
    for part in ["test/large", "TCP 10.96.0.1:80", "16385 destinations, at most 16384 are allowed"] {
        assert!(error.contains(part), "{error}");
    }
    assert_eq!([pick(&datapath, 0)?, pick(&datapath, 1)?, pick(&datapath, 2)?], [2, 1, 2]);
    Ok(())
}
