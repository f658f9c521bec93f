//! From a bare node to attached programs. Each step leaves the node as it was if it fails.

use anyhow::{Context, Result, bail};
use tracing::{debug, info, warn};

use super::node::Node;
use super::sync::Programmer;
use super::{Config, SocketScope, TcHook};
use crate::kernel::attach::tc::Mode;
use crate::kernel::attach::{cgroup, tcx};
use crate::kernel::cleanup;
use crate::kernel::excluded;
use crate::kernel::lock::{self, Lock};
use crate::kernel::object::{self, Loaded};
use crate::kernel::probe::{self, Places};

/// The context of errors that come before the agent serves anything.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("cannot start")]
pub struct Failed;

/// Step 1: what the node must have.
pub fn check(config: &Config) -> Result<()> {
    let places = Places {
        pin_path: config.pins.root().to_owned(),
        cgroup: config.cgroup.clone(),
        sockets: config.sockets.is_on(),
    };
    let probes = probe::probe(&places);
    for probe in &probes {
        debug!("{}: {}", probe.feature, probe.detail);
    }
    if let Some(missing) = probe::missing(&probes) {
        bail!("{missing}");
    }
    config.excluded_cgroups.iter().try_for_each(|path| excluded::check(path))?;
    if config.tc == TcHook::Tcx && !tcx::is_supported() {
        bail!("--tc tcx: this kernel has no TCX (Linux 6.6): give --tc auto");
    }
    Ok(())
}

/// Step 2: one agent per pin directory.
pub fn lock(config: &Config) -> Result<Lock> {
    config.pins.create()?;
    lock::acquire(config.pins.root())
        .context("one node needs one agent: stop the other one, or give another --pin-path")
}

/// How soon the kernel ends this process when it is out of memory. To be spared takes a privilege that a container may lack.
pub fn adjust_oom_score(config: &Config) {
    const FILE: &str = "/proc/self/oom_score_adj";
    if let Some(score) = config.oom_score_adjust
        && let Err(error) = std::fs::write(FILE, score.to_string())
    {
        warn!("oomScoreAdj {score}: cannot write {FILE}: {error}; it stays as it is (CAP_SYS_RESOURCE would allow it)");
    }
}

/// Step 3: maps and programs.
pub fn load(config: &Config) -> Result<Loaded> {
    let wanted = object::Wanted { forwarding: config.forwarding, sockets: config.sockets.is_on(), uplinks: config.xdp };
    let loaded = object::load(&config.pins, &config.sizes, wanted)?;
    match loaded.adopted {
        0 => info!("maps made under {}", config.pins.root().display()),
        count => info!("{count} maps adopted from {}", config.pins.root().display()),
    }
    Ok(loaded)
}

/// Steps 4 and 5: settings first, for the programs read them from their first packet on; then the programs.
pub async fn attach(config: &Config, loaded: Loaded) -> Result<Node> {
    let mode = match config.tc {
        TcHook::Tcx => Mode::Tcx,
        TcHook::Clsact => Mode::Clsact,
        TcHook::Auto if tcx::is_supported() => Mode::Tcx,
        TcHook::Auto => Mode::Clsact,
    };
    let mut node = Node::new(config, loaded, mode)?;
    node.refresh_excluded()?;
    node.refresh_settings().await?;
    node.attach_first().await?;
    if config.sockets.is_on() {
        let path = config.cgroup.clone().or_else(probe::find_cgroup2).context("no cgroup v2 is mounted")?;
        cgroup::attach(&mut node.ebpf, &config.pins, &path)?;
        let whose = if config.sockets == SocketScope::All { "all" } else { "local" };
        info!("{whose} sockets are balanced in the cgroup {}", path.display());
    } else {
        if cgroup::detach(&config.pins)? > 0 {
            info!("local sockets are no longer balanced (--socket-lb off)");
        }
        let forgotten = node.forget_sockets()?;
        if forgotten > 0 {
            info!("{forgotten} connected sockets are no longer counted");
        }
    }
    Ok(node)
}

/// Step 6: what is programmed already.
pub fn restore(config: &Config, node: &Node) -> Result<Programmer> {
    let programmer = Programmer::restore(config, &node.ebpf)?;
    for finding in programmer.findings() {
        warn!("{finding}");
    }
    Ok(programmer)
}

/// Takes back what a start has made that was the first and failed.
pub fn undo(config: &Config) {
    let result = object::expected_maps(&config.sizes).and_then(|maps| {
        let names: Vec<&str> = maps.keys().map(String::as_str).collect();
        // Filters go by name: `bpvs cleanup` finds those of a start that failed in between.
        cleanup::cleanup(&config.pins, &names, &[])
    });
    if let Err(error) = result {
        warn!("{error:#}: `bpvs cleanup` removes the rest");
    }
}
