//! Random histories of two services that share their servers, for each scheduler and family.

use anyhow::{Context, Result};
use bpvs_tests::{model::SCHEDULERS, oracle::states::State, packets::flags};
use lb_common::{address::Protocol, scheduler::Scheduler};

use crate::{
    event::{Choice, Event},
    random::{Random, seeds},
    world::{Name, World},
};

const EVENTS: usize = 1_500;
const SERVERS: u32 = 7;
const CLIENTS: usize = 5;
const PORTS: [u16; 6] = [1024, 33_333, 40_000, 40_001, 61_500, 65_535];
const WEIGHTS: [i32; 14] = [0, 0, 1, 1, 1, 2, 2, 3, 4, 6, 9, 100, 300, i32::MAX];

fn weight(random: &mut Random) -> i32 {
    random.pick(&WEIGHTS)
}

fn choice(random: &mut Random, scheduler: Scheduler) -> Choice {
    Choice { scheduler, port: random.percent(40), fallback: random.percent(40) }
}

/// A scheduler to switch to: often the one under test.
fn next_scheduler(random: &mut Random, tested: Scheduler) -> Scheduler {
    // twos is random by design: the model does not have it.
    if random.percent(50) { tested } else { Scheduler::from_name(random.pick(&SCHEDULERS)).expect("bpvs has all") }
}

/// Moves on from the world as it is.
fn next(world: &World, random: &mut Random, tested: Scheduler) -> Event {
    let service = if random.percent(75) { 0 } else { 1 };
    let listed: Vec<u32> = world.services[service].servers.keys().copied().collect();
    let absent: Vec<u32> = (1..=SERVERS).filter(|server| !listed.contains(server)).collect();
    match random.below(100) {
        0..8 if !listed.is_empty() => Event::Weight { service, server: random.pick(&listed), weight: weight(random) },
        8..14 if !absent.is_empty() => Event::Add { service, server: random.pick(&absent), weight: weight(random) },
        14..18 if listed.len() > 2 || random.percent(20) && !listed.is_empty() => {
            Event::Delete { service, server: random.pick(&listed) }
        }
        18..20 => {
            let scheduler = next_scheduler(random, tested);
            Event::Switch { service, choice: choice(random, scheduler) }
        }
        20..21 => {
            let scheduler = next_scheduler(random, tested);
            let chosen: Vec<u32> = (1..=SERVERS).filter(|_| random.percent(60)).collect();
            let servers = chosen.into_iter().map(|server| (server, weight(random))).collect();
            Event::Replace { service, choice: choice(random, scheduler), servers }
        }
        21..22 => Event::Recreate { service },
        22..26 => Event::Wait { seconds: safe_wait(world, random), recount: random.percent(50) },
        26..28 => Event::Forget { seconds: random.pick(&[601, 43_201, 50_001]) },
        28..60 => {
            let connections: Vec<&Name> = world.connections.keys().collect();
            if connections.is_empty() {
                return open(world, random, service);
            }
            let (client, port, service, address) = *random.pick(&connections);
            // What ends a connection, or brings it to life; now and then nonsense.
            let flags = random.pick(&[
                flags::ACK,
                flags::ACK | flags::SYN,
                flags::FIN | flags::ACK,
                flags::FIN | flags::ACK,
                flags::RST,
                flags::RST | flags::ACK,
                flags::SYN,
                0,
                flags::SYN | flags::RST,
            ]);
            if random.percent(50) {
                Event::Reply { service, address, client, port, flags }
            } else {
                Event::Request { service, address, client, port, flags }
            }
        }
        _ => open(world, random, service),
    }
}

fn open(world: &World, random: &mut Random, service: usize) -> Event {
    let address = random.below(world.services[service].addresses.len());
    let port = if random.percent(30) { 2000 + random.below(2000) as u16 } else { random.pick(&PORTS) };
    let flags = if random.percent(3) { flags::ACK } else { flags::SYN };
    Event::Request { service, address, client: random.below(CLIENTS), port, flags }
}

/// A time after which every connection has clearly timed out or clearly not: the tests' own time passes too.
fn safe_wait(world: &World, random: &mut Random) -> u64 {
    let mut seconds = random.pick(&[4, 13, 66, 125, 905]);
    let life = |state: State| u64::from(state.seconds(Protocol::Tcp));
    while world.connections.values().any(|c| (c.idle + seconds).abs_diff(life(c.state)) < 4) {
        seconds += 5;
    }
    seconds
}

/// The handshake that follows most SYNs.
fn handshake(world: &mut World, name: Name) -> Result<()> {
    let (client, port, service, address) = name;
    world.step(&Event::Reply { service, address, client, port, flags: flags::SYN | flags::ACK })?;
    world.step(&Event::Request { service, address, client, port, flags: flags::ACK })
}

fn play(scheduler: Scheduler, v6: bool, seed: u64) -> Result<()> {
    let mut random = Random::new(seed);
    let first = choice(&mut random, scheduler);
    let second = choice(&mut random, scheduler);
    let mut world = World::new(v6, &[first, second])?;
    for service in 0..2 {
        for server in 1..=SERVERS - 2 {
            world.step(&Event::Add { service, server, weight: weight(&mut random) })?;
        }
    }
    for _ in 0..EVENTS {
        let event = next(&world, &mut random, scheduler);
        let known = world.connections.len();
        world.step(&event)?;
        if let Event::Request { service, address, client, port, .. } = event
            && world.connections.len() > known
            && random.percent(70)
        {
            handshake(&mut world, (client, port, service, address))?;
        }
    }
    world.step(&Event::Wait { seconds: 2000, recount: true })?;
    anyhow::ensure!(world.connections.is_empty(), "connections outlive every timeout: {:?}", world.connections);
    Ok(())
}

fn all(scheduler: Scheduler) -> Result<()> {
    for seed in seeds(2) {
        for v6 in [false, true] {
            play(scheduler, v6, seed).with_context(|| {
                let family = if v6 { "IPv6" } else { "IPv4" };
                format!("{}, {family}; to repeat: BPVS_SEED={seed}", scheduler.name())
            })?;
        }
    }
    Ok(())
}

macro_rules! tests {
    ($($name:ident: $scheduler:ident,)*) => {
        $(
            #[test]
            fn $name() -> Result<()> {
                all(Scheduler::$scheduler)
            }
        )*
    };
}

tests! {
    rr_decides_alike_three_times: RoundRobin,
    wrr_decides_alike_three_times: WeightedRoundRobin,
    lc_decides_alike_three_times: LeastConnection,
    wlc_decides_alike_three_times: WeightedLeastConnection,
    lblc_decides_alike_three_times: LocalityLeastConnection,
    lblcr_decides_alike_three_times: LocalityReplicated,
    dh_decides_alike_three_times: DestinationHash,
    sh_decides_alike_three_times: SourceHash,
    sed_decides_alike_three_times: ShortestExpectedDelay,
    nq_decides_alike_three_times: NeverQueue,
    fo_decides_alike_three_times: Failover,
    ovf_decides_alike_three_times: Overflow,
    mh_decides_alike_three_times: Maglev,
}
