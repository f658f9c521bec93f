//! `cargo xtask test`: every test there is, in one run whose last line is the runner's own summary.

use std::env;

use anyhow::{Context, Result};

use crate::progress::Progress;
use crate::setup::{self, Need};
use crate::{build_ebpf, host, lint, process, workspace};

/// Set to run more or fewer tests at a time; network namespaces and BPF maps take memory and cores.
const THREADS: &str = "BPVS_TEST_THREADS";

/// What can be chosen about the run.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Arguments of the runner: names of tests, mostly. With any, documentation tests and document checks are left out
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<String>,
}

/// The task.
pub(crate) fn run(options: &Options) -> Result<()> {
    host::require_root(
        &std::iter::once("test").chain(options.arguments.iter().map(String::as_str)).collect::<Vec<_>>().join(" "),
        "integration tests load BPF programs and make network namespaces, which takes root; none is skipped",
    )?;
    let everything = options.arguments.is_empty();
    let mut progress = Progress::new(if everything { 6 } else { 4 });
    if everything {
        progress.step("checking formatting, licences and documents");
        lint::check_files()?;
        lint::check_formatting()?;
    }
    let chain = setup::prepare(&mut progress, Need::Everything)?;
    build_ebpf::build(&mut progress, &chain, "release")?;
    progress.step("building bpvs and the tests");
    // Bins and tests of the whole workspace at once: with fewer packages cargo would choose other features for shared
    // dependencies, and the runner would build them a second time.
    let made = host::build(&["--workspace", "--bins", "--tests"])?;
    let bpvs = made.get("bpvs").context("cargo built no program called bpvs")?;
    if everything {
        progress.step("running the documentation tests");
        let mut command = host::cargo();
        process::run(command.args(["test", "--workspace", "--doc", "--locked", "--quiet"]))?;
    }
    let mut runner = runner(&options.arguments);
    progress.step(&format!("running the tests: {}", process::line(&runner)));
    runner.env("BPVS_BIN", bpvs);
    host::replace_by(runner)
}

/// nextest if it is here, for its time limits and its report; else cargo's own runner, which needs no installation.
fn runner(arguments: &[String]) -> std::process::Command {
    let threads = env::var(THREADS).ok().filter(|threads| !threads.is_empty());
    let mut command = host::cargo();
    if workspace::find_program("cargo-nextest").is_some() {
        command.args(["nextest", "run", "--workspace", "--locked", "--no-fail-fast"]);
        if let Some(threads) = threads {
            command.args(["--test-threads", &threads]);
        }
        command.args(arguments);
    } else {
        command.args(["test", "--workspace", "--locked", "--no-fail-fast", "--lib", "--bins", "--tests"]);
        command.args(arguments.iter().take_while(|argument| *argument != "--"));
        command.args(["--", "--test-threads", threads.as_deref().unwrap_or("2")]);
        command.args(arguments.iter().skip_while(|argument| *argument != "--").skip(1));
    }
    command
}
