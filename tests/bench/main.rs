//! `bpvs-bench`: what a packet costs, and what the agent does. `cargo xtask bench` builds and runs it.
//!
//! Programs run on packets by `BPF_PROG_TEST_RUN`; nothing is attached, pinned or sent. With `control-plane`, objects become
//! map entries, in this process and by the real agent in a namespace. It fails when something cannot be measured, never
//! because of a figure: machines differ and are noisy.

mod cases;
#[allow(dead_code, reason = "each side uses a part of what both share")]
#[path = "../../lb-ebpf/src/bench/control.rs"]
mod control;
mod driver;
mod machine;
mod packets;
mod plane;
mod report;
mod rig;
mod tables;

use std::{fs, path::PathBuf, process::ExitCode};

use anyhow::{Context, Result, bail};
use bpvs_tests::arguments;

const USAGE: &str = "\
usage: bpvs-bench [tables|control-plane] [--json FILE] [--quick]

Measures nanoseconds per packet and verified instructions of the tc programs, net of an empty program. Needs root.

  tables        measures candidates for the connection table instead
  control-plane measures the agent: from objects to maps, a change, a restart, memory
  --json FILE   also writes the figures to FILE, as an array of objects
  --quick       a tenth of the runs: to see that it works, not to compare
";

#[derive(Clone, Copy, PartialEq, Eq)]
enum What {
    Packets,
    Tables,
    ControlPlane,
}

struct Options {
    what: What,
    json: Option<PathBuf>,
    quick: bool,
}

fn main() -> ExitCode {
    let options = match arguments::parse(options, USAGE) {
        Ok(options) => options,
        Err(code) => return code,
    };
    match run(&options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bpvs-bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn options(mut arguments: impl Iterator<Item = String>) -> Result<Option<Options>> {
    let mut options = Options { what: What::Packets, json: None, quick: false };
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "tables" => options.what = What::Tables,
            "control-plane" => options.what = What::ControlPlane,
            "--quick" => options.quick = true,
            "--json" => options.json = Some(arguments.next().context("--json needs a file name")?.into()),
            "--help" | "-h" => return Ok(None),
            other => bail!("unknown argument {other:?}; allowed are tables, control-plane, --json FILE and --quick"),
        }
    }
    Ok(Some(options))
}

fn run(options: &Options) -> Result<()> {
    let figures = match options.what {
        What::ControlPlane => {
            println!("{}", machine::describe()?);
            plane::run(options.quick)?
        }
        what => {
            machine::stay_on_one_cpu()?;
            println!("{}", machine::describe()?);
            let figures = if what == What::Tables { tables::run(options.quick)? } else { cases::run(options.quick)? };
            report::json(&figures)
        }
    };
    if let Some(file) = &options.json {
        let text = serde_json::to_string_pretty(&figures).context("writing the figures as JSON")?;
        fs::write(file, text + "\n").with_context(|| format!("cannot write {}", file.display()))?;
    }
    Ok(())
}
