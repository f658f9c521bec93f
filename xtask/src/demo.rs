//! `cargo xtask demo`: bpvs on real packets, in namespaces that are gone afterwards.

use anyhow::Result;

use crate::host;

/// Handed to the demo as they are.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Arguments of the demo; `--help` after `--` lists them
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<String>,
}

/// The task.
pub(crate) fn run(options: &Options) -> Result<()> {
    host::become_program("demo", "bpvs-demo", host::Profile::Tests, &options.arguments)
}
