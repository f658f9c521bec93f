//! `cargo xtask bench`: what a packet costs, in nanoseconds and verified instructions; `control-plane`: what the agent costs.

use std::path::{Path, absolute};

use anyhow::{Context, Result};

use crate::host;

/// Handed to the benchmark, which alone knows its cases.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Also write the figures to this file, as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<String>,
    /// Arguments of the benchmark; `--help` after `--` lists them
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<String>,
}

/// The task.
pub(crate) fn run(options: &Options) -> Result<()> {
    let mut arguments = Vec::new();
    if let Some(file) = &options.json {
        // The benchmark runs at the root of the clone; the caller's file is relative to the caller.
        let file = absolute(Path::new(file)).with_context(|| format!("--json {file}: no such place"))?;
        arguments.extend(["--json".to_owned(), file.to_string_lossy().into_owned()]);
    }
    arguments.extend(options.arguments.iter().cloned());
    let is_of_agent = options.arguments.first().is_some_and(|first| first == "control-plane");
    let profile = if is_of_agent { host::Profile::Release } else { host::Profile::Tests };
    host::become_program("bench", "bpvs-bench", profile, &arguments)
}
