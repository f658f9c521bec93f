//! `bpvs-demo`: bpvs on real packets, for a person to watch. `cargo xtask demo` builds and runs it.
//!
//! It makes a node, five servers and clients of network namespaces, runs the real `bpvs` (`BPVS_BIN`) with the
//! manifests of `examples/`, and says of each line whether it is right. It ends 0 only if every line is, and removes
//! all that it made, also when interrupted.

mod expected;
mod listing;
mod load;
mod schedulers;
mod screen;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use bpvs_tests::agent::{Agent, Manifests, binary, check_clean};
use bpvs_tests::topology::Topology;
use bpvs_tests::traffic::Servers;
use bpvs_tests::{arguments, cleanup};

use screen::Screen;

const USAGE: &str = "\
usage: bpvs-demo [--manifests FOLDER] [--log]

Runs bpvs in network namespaces and sends real traffic through every scheduler. Needs root.

  --manifests FOLDER   Services and EndpointSlices instead of examples/manifests (same names and addresses)
  --log                prints the agent's log at the end
  BPVS_BIN             the bpvs binary (default: beside this program)
";

/// Ports of the servers in `examples/manifests`.
const SERVER_TCP: u16 = 8080;
const SERVER_UDP: u16 = 5353;

struct Options {
    manifests: PathBuf,
    log: bool,
}

fn main() -> ExitCode {
    let options = match arguments::parse(options, USAGE) {
        Ok(options) => options,
        Err(code) => return code,
    };
    let mut screen = Screen::new();
    let result = cleanup::on_signals().and_then(|()| run(&options, &mut screen));
    cleanup::wait_if_closing();
    let left = cleanup::pending();
    screen.check(left.is_empty(), &format!("everything made is removed {}", left.join(", ")));
    match result {
        Ok(()) if screen.finish() => ExitCode::SUCCESS,
        Ok(()) => ExitCode::FAILURE,
        Err(error) => {
            screen.finish();
            eprintln!("the demo could not go on: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn options(arguments: impl Iterator<Item = String>) -> Result<Option<Options>> {
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/manifests");
    let mut options = Options { manifests: examples, log: false };
    let mut arguments = arguments;
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--manifests" => options.manifests = arguments.next().context("--manifests needs a folder")?.into(),
            "--log" => options.log = true,
            "--help" | "-h" => return Ok(None),
            other => bail!("unknown argument `{other}`"),
        }
    }
    Ok(Some(options))
}

fn run(options: &Options, screen: &mut Screen) -> Result<()> {
    ensure!(
        nix::unistd::geteuid().is_root(),
        "the demo makes network namespaces and loads BPF programs: run it as root"
    );
    let binary = binary()?;
    screen
        .note(&format!("building a network: 5 servers, a client pod, a node, a client outside ({})", binary.display()));
    let topology = Topology::builder().servers(5).clients(1).build()?;
    schedulers::add_recorded_clients(&topology)?;
    let servers = Servers::everywhere(&topology, SERVER_TCP, SERVER_UDP)?;

    let manifests = Manifests::copy_of(&options.manifests)?;
    screen.note("starting bpvs run: loading programs, attaching, reading manifests");
    let begin = Instant::now();
    let agent = Agent::builder(&topology.node.namespace).manifests(&manifests).start()?;
    screen.note(&format!("bpvs is ready after {:.1} s", begin.elapsed().as_secs_f64()));

    let result = (|| {
        let held = schedulers::run(&topology, &agent, screen)?;
        load::run(&topology, &agent, &manifests, screen)?;
        listing::show(&agent, &held, screen)
    })();
    if options.log || result.is_err() {
        println!("\nthe agent's log:\n{}", agent.log().text(0));
    }
    result?;

    agent.stop()?;
    let footprint = agent.footprint()?;
    let (programs, maps, links) = (footprint.programs.len(), footprint.maps.len(), footprint.links.len());
    agent.command(&["cleanup"])?;
    let clean = check_clean(agent.pin_path(), &topology.node.namespace, &footprint);
    let detail = clean.as_ref().err().map(|error| format!(": {error:#}")).unwrap_or_default();
    let what = format!("bpvs cleanup removed its {programs} programs, {maps} maps and {links} links{detail}");
    screen.check(clean.is_ok() && programs > 0 && maps > 0 && links > 0, &what);
    drop(servers);
    Ok(())
}
