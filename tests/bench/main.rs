//! `bpvs-bench`: what a packet costs, and what the agent does. `cargo xtask bench` builds and runs it.
//!
//! Programs run on packets by `BPF_PROG_TEST_RUN`; nothing is attached, pinned or sent. With `control-plane`, objects become
//! map entries, in this process and by the real agent in a namespace. It fails when something cannot be measured, never
//! because of a figure: machines differ and are noisy. With `traffic`, real clients ask real servers in namespaces.

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
mod traffic;

use std::{fs, path::PathBuf, process::ExitCode};

use anyhow::{Context, Result, bail};
use bpvs_tests::arguments;

const USAGE: &str = "\
usage: bpvs-bench [tables|control-plane] [--json FILE] [--quick]
       bpvs-bench traffic [--rounds N] [--seconds S] [--services N,...] [--rows NAME,...] [--json FILE]

Measures nanoseconds per packet and verified instructions of the tc programs, net of an empty program. Needs root.

  tables        measures candidates for the connection table instead
  control-plane measures the agent: from objects to maps, a change, a restart, memory
  --json FILE   also writes the figures to FILE, as an array of objects
  --quick       a tenth of the runs: to see that it works, not to compare

  traffic       measures real traffic in namespaces: beside no proxy at all, and beside the rules of kube-proxy
  --rounds N    how often each row is measured (5); a figure is the median of its ratios to no proxy in each round
  --seconds S   how long each time (0.3)
  --services N,...  numbers of Services (1,1000,10000)
  --rows NAME,...   of tc, direct, socket, iptables-nft, iptables-legacy, nftables (all); no proxy is always there
";

#[derive(Clone, Copy, PartialEq, Eq)]
enum What {
    Packets,
    Tables,
    ControlPlane,
    Traffic,
}

struct Options {
    what: What,
    json: Option<PathBuf>,
    quick: bool,
    traffic: traffic::options::Options,
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
    let traffic = traffic::options::Options::default();
    let mut options = Options { what: What::Packets, json: None, quick: false, traffic };
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "tables" => options.what = What::Tables,
            "control-plane" => options.what = What::ControlPlane,
            "traffic" => {
                let Some(traffic) = traffic::options::Options::read(arguments)? else { return Ok(None) };
                let json = traffic.json.clone().or(options.json);
                return Ok(Some(Options { what: What::Traffic, json, quick: false, traffic }));
            }
            "--quick" => options.quick = true,
            "--json" => options.json = Some(arguments.next().context("--json needs a file name")?.into()),
            "--help" | "-h" => return Ok(None),
            other => {
                bail!("unknown argument {other:?}; allowed are tables, control-plane, traffic, --json FILE and --quick")
            }
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
        What::Traffic => traffic::run(&options.traffic)?,
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
