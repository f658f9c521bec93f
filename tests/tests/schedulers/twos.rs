//! twos is random by design. What can be asked of it: that it picks as often as its rule says, and never otherwise.
//!
//! The expectation is exact: the rule over every pair of draws. The bound is so wide that a right program fails once in
//! a hundred thousand million runs, and a wrong one (one draw instead of two, draws without their upper end) always.

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv4Addr, SocketAddr},
};

use anyhow::{Context, Result, ensure};
use bpvs_tests::{
    datapath::{Datapath, NEXT, REDIRECTED, Sizes},
    packets::{flags, verify},
};
use lb_common::{
    address::Protocol,
    layout::{DestinationLoad, DestinationSlot},
    scheduler::{
        Scheduler,
        scan::{Candidate, Flow},
        twos::{Total, TwoChoices, better},
    },
};
use lb_userspace::plan::{DesiredDestination, DesiredService, Frontend, Plan};

use crate::{
    packets::segment,
    world::{PORT, SERVER_PORT},
};

const VIP: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 96, 0, 1));
const PICKS: u32 = 8_000;
/// Of chi-square, for up to 4 degrees of freedom.
const BOUND: f64 = 60.0;

/// A server: weight, active and inactive connections.
type Server = (i32, u64, u64);

fn server(number: u32) -> IpAddr {
    Ipv4Addr::from(0x0a01_0000 + number).into()
}

fn load((_, active, inactive): Server) -> DestinationLoad {
    let connections = active * DestinationLoad::ONE_ACTIVE + inactive * DestinationLoad::ONE_INACTIVE;
    DestinationLoad { connections, ..DestinationLoad::default() }
}

/// The programs with one service. Server 1 is the first of the list.
struct Played {
    datapath: Datapath,
    servers: BTreeMap<IpAddr, (u32, u32, Server)>,
}

impl Played {
    fn new(servers: &[Server]) -> Result<Self> {
        let count = servers.len() as u32;
        let mut datapath = Datapath::load(Sizes { connections: 4 * PICKS, ..Sizes::default() })?;
        // The list is newest first, and addresses are added ascending.
        let address = |number: u32| server(100 - number);
        let service = DesiredService::new(
            "test/twos",
            Scheduler::TwoChoices,
            (1..=count)
                .rev()
                .map(|number| DesiredDestination::new(address(number), SERVER_PORT, servers[number as usize - 1].0))
                .collect(),
        );
        let frontend = Frontend::new(VIP, PORT, Protocol::Tcp);
        let applied = datapath.apply(&Plan { services: [(frontend, service)].into(), ..Plan::default() });
        ensure!(applied.is_ok(), "the plan was not applied: {applied:?}");
        let mut played = Self { datapath, servers: BTreeMap::new() };
        for (number, &server) in (1..).zip(servers) {
            let id = played.datapath.destination_of(address(number), SERVER_PORT)?.context("a server is missing")?;
            played.datapath.set_destination_load(id, load(server))?;
            played.servers.insert(address(number), (number, id, server));
        }
        Ok(played)
    }

    /// The server of the n-th client, whose connection does not count.
    fn pick(&mut self, client: u32) -> Result<Option<u32>> {
        let from = SocketAddr::new(Ipv4Addr::from(0x0a32_0000 + client).into(), 40_000);
        let run = self.datapath.ingress(&segment(from, SocketAddr::new(VIP, PORT), flags::SYN))?;
        if run.verdict == REDIRECTED {
            return Ok(None);
        }
        ensure!(run.verdict == NEXT, "client {client}: {run:?}");
        let (number, id, server) = self.servers[&verify(&run.frame)?.to.ip()];
        self.datapath.set_destination_load(id, load(server))?;
        Ok(Some(number))
    }
}

/// How many pairs of draws lead to each server, by the rule.
fn expected(servers: &[Server]) -> Vec<u64> {
    let slots = || (1..).zip(servers).map(|(destination, server)| DestinationSlot { destination, weight: server.0 });
    let mut total = Total::new(0);
    slots().for_each(|slot| total.step(slot, false));
    let draws = 1 + servers.iter().map(|server| server.0 as u64).sum::<u64>();
    let mut ways = vec![0; servers.len()];
    for first in 0..draws {
        for second in 0..draws {
            let mut choices = TwoChoices::new(total.get(), [first, second]);
            let _ = slots().find(|slot| choices.step(*slot, false) == Flow::Stop);
            let candidate = |slot: DestinationSlot| {
                Candidate::new(slot.destination, slot.weight, &load(servers[slot.destination as usize - 1]))
            };
            let [first, second] = choices.chosen().map(candidate);
            ways[better(&first, &second) as usize - 1] += 1;
        }
    }
    ways
}

#[test]
fn two_draws_by_weight_and_the_less_loaded_of_them() -> Result<()> {
    let cases: &[&[Server]] = &[
        // Nobody has anything to do: the first draw counts, and the first server has one chance more.
        &[(1, 0, 0), (2, 0, 0), (4, 0, 0)],
        // By weight all are loaded alike.
        &[(1, 1, 0), (2, 2, 0), (3, 3, 0), (5, 5, 0)],
        // Better and better down the list, and up.
        &[(3, 9, 0), (3, 6, 0), (3, 3, 0), (3, 1, 0), (3, 0, 0)],
        &[(3, 0, 0), (3, 1, 0), (3, 3, 0), (3, 6, 0), (3, 9, 0)],
        // Inactive connections count too; a drained server is never drawn.
        &[(2, 0, 7), (0, 0, 0), (2, 0, 3), (2, 0, 200), (1, 1, 0)],
        &[(9, 0, 0)],
    ];
    for servers in cases {
        let ways = expected(servers);
        let all: u64 = ways.iter().sum();
        let mut played = Played::new(servers)?;
        let mut found = vec![0u32; servers.len()];
        for client in 0..PICKS {
            let server = played.pick(client)?.with_context(|| format!("{servers:?}: client {client} was refused"))?;
            found[server as usize - 1] += 1;
        }
        let mut distance = 0.0;
        for (&ways, &found) in ways.iter().zip(&found) {
            let expected = f64::from(PICKS) * ways as f64 / all as f64;
            ensure!(ways > 0 || found == 0, "{servers:?}: a server that the rule never takes was taken {found} times");
            if ways > 0 {
                distance += (f64::from(found) - expected).powi(2) / expected;
            }
        }
        ensure!(distance < BOUND, "{servers:?}: {found:?} of {PICKS}, by the rule {ways:?} of {all}: {distance}");
    }
    Ok(())
}

#[test]
fn without_a_usable_server_clients_are_refused() -> Result<()> {
    for servers in [&[][..], &[(0, 0, 0)], &[(0, 0, 0), (0, 3, 3)]] {
        assert_eq!(Played::new(servers)?.pick(1)?, None, "{servers:?}");
    }
    Ok(())
}

#[test]
fn the_highest_weights_do_not_overflow() -> Result<()> {
    let mut played = Played::new(&[(i32::MAX, 0, 0); 64])?;
    let mut seen = std::collections::BTreeSet::new();
    for client in 0..1_000 {
        seen.insert(played.pick(client)?.context("refused")?);
    }
    // A thousand draws miss a given one of 64 once in seven million times.
    ensure!(seen.len() >= 62, "only {seen:?} of 64 were ever drawn");
    Ok(())
}
