//! `bpvs-guest cost WAY [SERVICES,...]`: what a packet costs in instructions, from `send()` to the socket that it is for.
//!
//! In a guest whose clock counts instructions (`-icount shift=0`) the time stamp counter counts them too, one for one: the
//! emulator derives it from the same clock. With one CPU, all that the kernel does for a packet is done before `send()`
//! returns. So the counter around `send()` is the whole way: both ends' stacks, both links, the node between.
//!
//! A figure is the median of several packets; timers and the like, which hit some, are not in it. Every packet has to
//! arrive, and each kind is measured beside plain routing, which the same guest does before anybody translates: its hooks
//! would stay (a table that was once there costs plain routing too). What passes by, for a server's own address while
//! services are there, is a kind of its own.
//!
//! Each figure is a line, `cost <JSON>`; the last says `cost end`.
//!
//! | module | what |
//! |---|---|
//! | [`network`] | a client, servers, and what a packet between them costs |
//! | [`ways`] | who translates. **A new way is an item of [`ways::Way`]** |

mod network;
mod ways;

use anyhow::{Context, Result, bail};
use lb_common::scheduler::Scheduler;
use serde_json::json;

use network::{Cost, Network};
use ways::{Case, Setup, Way};

/// Servers behind each service, if nothing else is said.
const SERVERS: u32 = 5;
/// Numbers of servers that schedulers choose among.
const CHOICES: [u32; 3] = [SERVERS, 100, 1_000];

/// Measures one way.
pub(crate) fn run(way: &str, services: &str) -> Result<()> {
    let way = Way::ALL.into_iter().find(|known| known.name() == way);
    let way = way.with_context(|| format!("the way is none of {}", Way::ALL.map(Way::name).join(", ")))?;
    let services: Vec<u32> = services
        .split(',')
        .map(|number| number.parse().with_context(|| format!("`{number}` is no number of services")))
        .collect::<Result<_>>()?;
    let mut network = Network::new()?;
    tell(way, "plain", &Case { services: 0, servers: 1, scheduler: None }, &network.plain()?);
    for &services in &services {
        let case = Case { services, servers: SERVERS, scheduler: Some(Scheduler::RoundRobin) };
        let setup = Setup::start(way, &mut network, &[case]).with_context(|| format!("with {services} services"))?;
        let cost = network.cost(setup.frontend(0)).with_context(|| format!("with {services} services"))?;
        let case = if way.has_schedulers() { case } else { Case { scheduler: None, ..case } };
        tell(way, "services", &case, &cost);
        let case = Case { scheduler: None, servers: 1, ..case };
        tell(way, "passing", &case, &network.plain().context("beside the services")?);
    }
    if way.has_schedulers() {
        schedulers(way, &mut network)?;
    }
    println!("cost end");
    Ok(())
}

/// Every scheduler with every number of servers, all services at a time.
fn schedulers(way: Way, network: &mut Network) -> Result<()> {
    let mut cases = Vec::new();
    for servers in CHOICES {
        for scheduler in Scheduler::ALL {
            cases.push(Case { services: 1, servers, scheduler: Some(scheduler) });
        }
    }
    let setup = Setup::start(way, network, &cases)?;
    for (number, case) in cases.iter().enumerate() {
        let cost = network.new_flows(setup.frontend(number));
        let cost = cost.with_context(|| format!("{} of {} servers", name(case), case.servers))?;
        tell(way, "schedulers", case, &Cost { request: None, reply: None, new: cost });
    }
    Ok(())
}

fn name(case: &Case) -> &'static str {
    case.scheduler.map_or("none", Scheduler::name)
}

fn tell(way: Way, what: &str, case: &Case, cost: &Cost) {
    let line = json!({
        "way": way.name(), "case": what, "services": case.services, "servers": case.servers, "scheduler": name(case),
        "request": cost.request, "reply": cost.reply, "new": cost.new,
    });
    println!("cost {line}");
}

/// Fails where the counter does not count instructions: it advances by the same number each time that the same few
/// instructions are done.
pub(crate) fn require_counter() -> Result<()> {
    let work = || {
        let begin = network::counter();
        let mut sum = 0_u64;
        for number in 0..1_000_u64 {
            sum = std::hint::black_box(sum.wrapping_mul(31).wrapping_add(number));
        }
        std::hint::black_box(sum);
        network::counter() - begin
    };
    let mut found: Vec<u64> = (0..101).map(|_| work()).collect();
    found.sort_unstable();
    // A timer may hit some, none of the quiet half.
    if found[0] != found[50] {
        bail!(
            "the time stamp counter counts time and not instructions ({} and {} for the same work): these figures are of a \
             guest with `-icount shift=0`, as `cargo xtask bench guest` boots it",
            found[0],
            found[50]
        );
    }
    Ok(())
}
