//! `cargo xtask bench`: what a packet costs, in nanoseconds and verified instructions; `control-plane`: what the agent costs;
//! `traffic`: real traffic beside no proxy and beside kube-proxy's rules; `guest`: instructions of a packet, counted.

mod guest;
mod traffic;

use std::path::{Path, absolute};

use anyhow::{Context, Result};

use crate::host;

/// Handed to the benchmark, which alone knows its cases.
#[derive(clap::Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_precedence_over_arg = true)]
pub(crate) struct Options {
    #[command(subcommand)]
    what: Option<What>,
    /// Also write the figures to this file, as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<String>,
    /// Arguments of the benchmark: `tables`, `control-plane`; `--help` after `--` lists them
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<String>,
}

/// Benchmarks with options of their own.
#[derive(clap::Subcommand)]
enum What {
    /// Measure real traffic in network namespaces: bpvs, no proxy at all, and the rules of kube-proxy (as root)
    Traffic(traffic::Options),
    /// Count the instructions of a packet in virtual machines: bpvs, plain routing, IPVS, the rules of kube-proxy
    Guest(guest::Options),
}

/// The task.
pub(crate) fn run(options: &Options) -> Result<()> {
    match &options.what {
        Some(What::Traffic(options)) => return traffic::run(options),
        Some(What::Guest(options)) => return guest::run(options),
        None => {}
    }
    let mut arguments = Vec::new();
    arguments.extend(json(options.json.as_deref())?);
    arguments.extend(options.arguments.iter().cloned());
    let is_of_agent = options.arguments.first().is_some_and(|first| first == "control-plane");
    let profile = if is_of_agent { host::Profile::Release } else { host::Profile::Tests };
    host::become_program("bench", "bpvs-bench", profile, &arguments)
}

/// `--json` for the benchmark, which runs at the root of the clone; the caller's file is relative to the caller.
fn json(file: Option<&str>) -> Result<Vec<String>> {
    let Some(file) = file else { return Ok(Vec::new()) };
    let file = absolute(Path::new(file)).with_context(|| format!("--json {file}: no such place"))?;
    Ok(vec!["--json".to_owned(), file.to_string_lossy().into_owned()])
}
