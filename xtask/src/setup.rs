//! `cargo xtask setup`: bring what building, testing and showing bpvs needs, and do nothing when it is all there.

use anyhow::{Result, bail};

use crate::progress::Progress;
use crate::toolchain::choice::{Step, next_step};
use crate::toolchain::facts::Packages;
use crate::toolchain::{Chain, apt, linker, probe};

/// What a task needs from the machine.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Need {
    /// A compiler and a linker.
    Build,
    /// Also the programs that tests and demo call (ip, tc, bpftool, ethtool, nsenter, nft, iptables).
    Everything,
}

/// More rounds than any machine takes; one that needs more is going round in circles.
const ROUNDS: usize = 12;

/// The task.
pub(crate) fn run() -> Result<()> {
    let mut progress = Progress::new(1);
    prepare(&mut progress, Need::Everything)?;
    progress.finish("this machine is ready");
    Ok(())
}

/// One step of a task: look, do the next thing that is missing, look again.
pub(crate) fn prepare(progress: &mut Progress, need: Need) -> Result<Chain> {
    progress.step("preparing the tools");
    let mut packages = Packages::NotAsked;
    let mut refreshed = false;
    let mut last = None;
    for _ in 0..ROUNDS {
        let facts = probe::look(need == Need::Everything, packages.clone())?;
        let step = next_step(&facts);
        if last.as_ref() == Some(&step) {
            bail!("the last step ended well, and yet it is needed again: {step:?}");
        }
        match &step {
            Step::Ready(chain) => {
                progress.note(&chain.describe());
                return Ok(chain.clone());
            }
            Step::BuildLinker { llvm, prefix } => linker::build(*llvm, prefix)?,
            Step::AskPackages => packages = apt::offers(refreshed)?,
            Step::RefreshLists => {
                apt::refresh()?;
                refreshed = true;
                packages = apt::offers(refreshed)?;
            }
            Step::Install(list) => apt::install(list)?,
            Step::Stuck(why) => bail!("{} on {}", why, apt::distribution()),
        }
        last = Some(step);
    }
    bail!("setup did not come to an end in {ROUNDS} rounds; the last step was {last:?}")
}
