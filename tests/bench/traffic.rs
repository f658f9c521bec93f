//! Real traffic through bpvs, beside no proxy at all and beside the rules of kube-proxy, interleaved in one run.
//!
//! Each row has a network of its own in namespaces: a node, a client pod, server pods and a host outside. In every round
//! each row is measured right after the others, so what disturbs a moment disturbs all of them; a figure is the median over
//! the rounds of its ratio to no proxy in the same round. Client, servers and the kernel's work for both are on one CPU, so
//! a rate says what CPU time the way takes, and no wait for another CPU is in it. They go before other work of the machine,
//! and a rate is the median of parts of 5 ms ([`figures::rate`]).
//!
//! | module | what |
//! |---|---|
//! | [`options`] | what can be chosen |
//! | [`network`] | the network of a row: addresses, servers, where clients are |
//! | [`rows`] | the rows: who translates. **A new row is an item of [`rows::Row`]** |
//! | [`servers`], [`clients`] | what talks |
//! | [`figures`] | medians, percentiles, ratios |
//! | [`tables`] | figures as text and as JSON |

mod clients;
mod figures;
mod network;
pub(crate) mod options;
mod rows;
mod servers;
mod tables;

use std::time::Duration;

use anyhow::{Context, Result};
use bpvs_tests::cleanup;
use serde_json::Value;

use crate::machine;
use clients::Measure;
use figures::Samples;
use network::{Direction, Network};
use options::Options;
use rows::{Row, Running};

/// Endpoints of each Service besides the one that is asked.
const ENDPOINTS: u32 = 4;

/// Measures, prints, and returns the figures.
pub(crate) fn run(options: &Options) -> Result<Value> {
    cleanup::on_signals()?;
    rows::require_programs(&options.rows)?;
    println!("{}\n{}\n", tables::heading(options)?, machine::describe()?);
    let mut samples = Samples::default();
    let done = options.services.iter().try_for_each(|&services| {
        one_size(options, services, &mut samples).with_context(|| format!("with {services} Services"))
    });
    // A signal may be removing what we stand on; that is no failure.
    cleanup::wait_if_closing();
    done?;
    print!("{}", tables::behind(&samples));
    Ok(tables::json(&samples))
}

fn one_size(options: &Options, services: u32, samples: &mut Samples) -> Result<()> {
    let cluster = network::cluster(services, ENDPOINTS);
    eprintln!("{services} Services: building {} networks", options.rows.len());
    let networks: Vec<Network> = options.rows.iter().map(|row| Network::new(*row)).collect::<Result<_>>()?;
    let mut running = Vec::new();
    for network in &networks {
        let row = network.row;
        let (started, took) = Running::start(network, &cluster).with_context(|| format!("row `{}`", row.name()))?;
        eprintln!("  {:16} {:6.2} s", row.name(), took.as_secs_f64());
        running.push(started);
    }
    for started in &running {
        let at_work = started.resume()?;
        for &direction in started.network.row.directions() {
            clients::prove(started.network, direction)
                .with_context(|| format!("row `{}`, {}", started.network.row.name(), direction.name()))?;
            started.prove(direction)?;
        }
        drop(at_work);
    }
    for round in 0..options.rounds {
        eprintln!("  round {} of {}", round + 1, options.rounds);
        for direction in Direction::ALL {
            for measure in Measure::ALL {
                one_round(options, services, &running, (direction, measure, round), samples)?;
            }
        }
    }
    println!("{}", tables::of_size(samples, services));
    Ok(())
}

/// Every row once, in another order in each round.
fn one_round(
    options: &Options,
    services: u32,
    running: &[Running<'_>],
    (direction, measure, round): (Direction, Measure, u32),
    samples: &mut Samples,
) -> Result<()> {
    let mut here: Vec<_> =
        running.iter().filter(|started| started.network.row.directions().contains(&direction)).collect();
    let first = round as usize % here.len().max(1);
    here.rotate_left(first);
    for started in here {
        let row: Row = started.network.row;
        // Agents of other rows do not run meanwhile.
        let at_work = started.resume()?;
        let length = Duration::from_secs_f64(options.seconds);
        let found = clients::measure(started.network, direction, measure, length)
            .with_context(|| format!("row `{}`, {}, {measure:?}", row.name(), direction.name()))?;
        drop(at_work);
        for (figure, value) in found {
            samples.add(services, direction, row, figure, value);
        }
    }
    Ok(())
}
