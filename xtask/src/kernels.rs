//! `cargo xtask kernels`: does bpvs work on the kernels that it promises? Boots Debian's in a virtual machine each, all at
//! a time, and runs `bpvs-guest` in them.
//!
//! | module | what |
//! |---|---|
//! | [`outcome`] | what became of a kernel |
//! | [`report`] | the table |

mod outcome;
mod report;

use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::guest::machine::{Clock, Guest};
use crate::guest::steps::Steps;
use crate::guest::{image, machine, packages};
use crate::host;
use crate::progress::Progress;
use crate::setup::{self, Need};
use crate::{build_ebpf, workspace};
use outcome::Outcome;

/// Network pairs, filters where there is no TCX, the end of UDP sockets, and what uplinks are made of.
const MODULES: [&str; 7] = ["veth", "sch_ingress", "cls_bpf", "udp_diag", "bridge", "bonding", "8021q"];
/// What a guest runs.
const SCRIPT: &str = "bpvs-guest && bpvs-guest uplinks\n";

/// What can be chosen.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Kernel series, as Debian packages them: the newest of each is taken
    #[arg(long, value_delimiter = ',', default_value = "6.1,6.12", value_name = "SERIES,...")]
    kernels: Vec<packages::Series>,
    /// Look for newer kernels than those that were fetched before
    #[arg(long)]
    refresh: bool,
    /// Longest time for a guest, in seconds: one that takes longer is ended, and is wrong
    #[arg(long, default_value_t = 900, value_name = "SECONDS")]
    timeout: u64,
    /// What a guest's clock counts: with `instructions`, no deadline in it depends on how busy this machine is
    #[arg(long, value_enum, default_value_t = Clock::Instructions)]
    clock: Clock,
}

/// The task.
pub(crate) fn run(options: &Options) -> Result<()> {
    let mut progress = Progress::new(6);
    let chain = setup::prepare(&mut progress, Need::Everything)?;
    progress.step("preparing the virtual machine");
    packages::require_programs(&[])?;
    build_ebpf::build(&mut progress, &chain, "release")?;
    progress.step("building bpvs");
    let made = host::build(&["-p", "lb-userspace", "--bin", "bpvs", "-p", "bpvs-tests", "--bin", "bpvs-guest"])?;
    let program = |name: &str| made.get(name).with_context(|| format!("cargo built no program called {name}"));
    let (bpvs, guest) = (program("bpvs")?, program("bpvs-guest")?);

    progress.step("fetching kernels");
    let mut kernels: Vec<packages::Kernel> = Vec::new();
    for series in &options.kernels {
        let kernel = packages::kernel(*series, options.refresh)?;
        progress.note(&format!("Linux {series}: {}", kernel.release));
        kernels.push(kernel);
    }
    let folder = workspace::root().join("target/kernels");
    fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
    let programs = image::programs(&[("bpvs", bpvs), ("bpvs-guest", guest)], &[], &folder)?;

    progress.step(&format!("running bpvs-guest on {} kernels", kernels.len()));
    let (clock, limit) = (options.clock, Duration::from_secs(options.timeout));
    let results: Vec<Outcome> = thread::scope(|scope| {
        let runs: Vec<_> = kernels
            .iter()
            .map(|kernel| {
                let (programs, folder) = (&programs, &folder);
                scope.spawn(move || boot(kernel, programs, folder, clock, limit))
            })
            .collect();
        runs.into_iter()
            .map(|run| run.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect::<Result<_>>()
    })?;
    progress.close();
    print!("{}", report::table(&results));
    let wrong: Vec<_> = results.iter().filter(|outcome| !outcome.is_right()).collect();
    for outcome in &wrong {
        eprintln!("\n{}: {}; its console: {}", outcome.release, outcome.verdict(), outcome.ended.console.display());
        eprintln!("{}", outcome.ended.tail());
    }
    if !wrong.is_empty() {
        bail!("bpvs does not work on {} of {} kernels", wrong.len(), results.len());
    }
    Ok(())
}

/// One kernel's run.
fn boot(
    kernel: &packages::Kernel,
    programs: &image::Programs,
    folder: &Path,
    clock: Clock,
    limit: Duration,
) -> Result<Outcome> {
    let named = |suffix: &str| -> PathBuf { folder.join(format!("{}.{suffix}", kernel.release)) };
    let (initramfs, console) = (named("cpio"), named("console"));
    let bytes = image::initramfs(programs, &kernel.modules()?.in_order(&MODULES)?, SCRIPT)?;
    fs::write(&initramfs, bytes).with_context(|| format!("cannot write {}", initramfs.display()))?;
    let guest = Guest { kernel: &kernel.image(), initramfs: &initramfs, console, clock, limit };
    let mut steps = Steps::default();
    let ended = machine::run(guest, |after, line| {
        if let Some(done) = steps.hear(after, line) {
            eprintln!("      {}  {done}", kernel.release);
        }
    })?;
    Ok(Outcome { release: kernel.release.clone(), steps, ended })
}
