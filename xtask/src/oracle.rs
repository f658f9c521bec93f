//! `cargo xtask oracle`: does bpvs choose as Linux IPVS does? Boots Debian's kernels in virtual machines, which have IPVS
//! with all its schedulers, and runs `bpvs-oracle` in them: the same events for both, compared decision by decision.
//!
//! | module | what |
//! |---|---|
//! | [`schedulers`] | which are asked, and in which guest |
//! | [`console`] | what `bpvs-oracle` says |
//! | [`record`] | answers of IPVS, kept as data |
//! | [`report`] | the table |

mod console;
mod record;
mod report;
mod schedulers;

use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use lb_common::scheduler::Scheduler;

use crate::guest::machine::{Clock, Ended, Guest};
use crate::guest::packages::{Kernel, Series};
use crate::guest::{image, machine, packages};
use crate::progress::Progress;
use crate::setup::{self, Need};
use crate::{build_ebpf, host, workspace};
use console::Heard;
use report::{Line, Verdict};
use schedulers::Asked;

/// Network pairs, filters where there is no TCX and those that set marks, and IPVS; its schedulers are added to these.
const MODULES: [&str; 6] = ["veth", "sch_ingress", "cls_bpf", "cls_flower", "act_skbedit", "ip_vs"];
/// Programs besides those of every guest, and Debian's packages of them.
const PROGRAMS: [(&str, &str); 1] = [("ipvsadm", "ipvsadm")];
/// More guests than this for a kernel find no processors.
const GUESTS: usize = 4;

/// Lines of histories that are shown again at the end.
const HISTORY: usize = 100;

/// What can be chosen.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Kernel series, as Debian packages them: the newest of each is taken
    #[arg(long, value_delimiter = ',', default_value = "6.12", value_name = "SERIES,...")]
    kernels: Vec<Series>,
    /// Schedulers, or `all` that a kernel has
    #[arg(long, default_value = "all", value_name = "NAME,...")]
    schedulers: Asked,
    /// Random scripts for each scheduler
    #[arg(long, default_value_t = 200, value_name = "N")]
    cases: u32,
    /// Where random scripts begin: the same seed gives the same scripts
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Longest time for a guest, in seconds: one that takes longer is ended, and is wrong
    #[arg(long, default_value_t = 3600, value_name = "SECONDS")]
    timeout: u64,
    /// What a guest's clock counts
    #[arg(long, value_enum, default_value_t = Clock::Instructions)]
    clock: Clock,
    /// Look for newer kernels than those that were fetched before
    #[arg(long)]
    refresh: bool,
    /// Keep the answers of IPVS in tests/data (with one kernel)
    #[arg(long)]
    record: bool,
    /// Further arguments of bpvs-oracle: `-- --fixed`
    #[arg(last = true, value_name = "ARGUMENT")]
    more: Vec<String>,
}

/// What a guest is to do.
struct Share<'a> {
    kernel: &'a Kernel,
    number: usize,
    schedulers: Vec<Scheduler>,
}

/// What became of it.
struct Outcome<'a> {
    share: Share<'a>,
    heard: Heard,
    ended: Ended,
}

/// The task.
pub(crate) fn run(options: &Options) -> Result<()> {
    if options.record && options.kernels.len() != 1 {
        bail!("the answers of one kernel are kept, and --kernels names {}", options.kernels.len());
    }
    let mut progress = Progress::new(6);
    let chain = setup::prepare(&mut progress, Need::Everything)?;
    progress.step("preparing the virtual machine");
    packages::require_programs(&PROGRAMS)?;
    build_ebpf::build(&mut progress, &chain, "release")?;
    progress.step("building bpvs and bpvs-oracle");
    let built = ["bpvs", "bpvs-guest", "bpvs-oracle"];
    let made = host::build(&[
        // Most of the time goes into the test kit's own code.
        "--config",
        "profile.dev.package.bpvs-tests.opt-level=2",
        "-p",
        "lb-userspace",
        "--bin",
        "bpvs",
        "-p",
        "bpvs-tests",
        "--bin",
        "bpvs-guest",
        "--bin",
        "bpvs-oracle",
    ])?;
    let program =
        |name| Ok((name, made.get(name).with_context(|| format!("cargo built no program `{name}`"))?.as_path()));
    let built: Vec<(&str, &Path)> = built.into_iter().map(program).collect::<Result<_>>()?;

    progress.step("fetching kernels");
    let mut kernels: Vec<Kernel> = Vec::new();
    for series in &options.kernels {
        let kernel = packages::kernel(*series, options.refresh)?;
        progress.note(&format!("Linux {series}: {}", kernel.release));
        kernels.push(kernel);
    }
    let folder = workspace::root().join("target/oracle");
    fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
    let programs = image::programs(&built, &PROGRAMS.map(|(program, _)| program), &folder)?;

    let shares = shares(options, &kernels)?;
    progress.step(&format!("running bpvs-oracle in {} guests", shares.len()));
    let outcomes: Vec<Outcome<'_>> = thread::scope(|scope| {
        let (programs, folder) = (&programs, &folder);
        let start = |share| scope.spawn(move || boot(options, share, programs, folder));
        let runs: Vec<_> = shares.into_iter().map(start).collect();
        let end =
            |run: thread::ScopedJoinHandle<'_, _>| run.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        runs.into_iter().map(end).collect::<Result<_>>()
    })?;
    progress.close();
    finish(options, &kernels, &outcomes)
}

/// Who asks what: every kernel for its schedulers, in as many guests as there are processors for.
fn shares<'a>(options: &Options, kernels: &'a [Kernel]) -> Result<Vec<Share<'a>>> {
    let processors = thread::available_parallelism().map_or(1, usize::from);
    let guests = (processors / kernels.len().max(1)).clamp(1, GUESTS);
    let mut shares = Vec::new();
    for kernel in kernels {
        let present = present(&options.schedulers, kernel)?;
        if present.is_empty() {
            bail!("Linux {} has none of the schedulers asked for", kernel.release);
        }
        let dealt = schedulers::deal(&present, guests).into_iter().enumerate();
        shares.extend(dealt.map(|(number, schedulers)| Share { kernel, number, schedulers }));
    }
    Ok(shares)
}

/// The schedulers asked for that a kernel has.
fn present(asked: &Asked, kernel: &Kernel) -> Result<Vec<Scheduler>> {
    let modules = kernel.modules()?;
    let mut present = Vec::new();
    for scheduler in asked.schedulers() {
        if modules.has(&schedulers::module(scheduler))? {
            present.push(scheduler);
        }
    }
    Ok(present)
}

/// One guest's run.
fn boot<'a>(options: &Options, share: Share<'a>, programs: &image::Programs, folder: &Path) -> Result<Outcome<'a>> {
    let kernel = share.kernel;
    let label = format!("{}.{}", kernel.release, share.number);
    let named = |suffix: &str| -> PathBuf { folder.join(format!("{label}.{suffix}")) };
    let (initramfs, console) = (named("cpio"), named("console"));
    // All that this kernel has: whether it can be told and asked is tried with each.
    let all = present(&Asked::All, kernel)?;
    let of_schedulers: Vec<String> = all.iter().map(|scheduler| schedulers::module(*scheduler)).collect();
    let names: Vec<&str> = MODULES.into_iter().chain(of_schedulers.iter().map(String::as_str)).collect();
    let modules = kernel.modules()?.in_order(&names)?;
    let bytes = image::initramfs(programs, &modules, &script(options, &all, &share))?;
    fs::write(&initramfs, bytes).with_context(|| format!("cannot write {}", initramfs.display()))?;
    let limit = Duration::from_secs(options.timeout);
    let guest = Guest { kernel: &kernel.image(), initramfs: &initramfs, console, clock: options.clock, limit };
    let mut heard = Heard::default();
    let ended = machine::run(guest, |after, line| {
        if let Some(told) = heard.hear(after, line) {
            eprintln!("      {label}  {told}");
        }
    })?;
    Ok(Outcome { share, heard, ended })
}

/// What a guest does: it shows that IPVS can be told and asked, compares what `ipvsadm` and `bpvs` print, which in further
/// guests of the kernel would be the same, and then what IPVS and bpvs decide.
fn script(options: &Options, all: &[Scheduler], share: &Share<'_>) -> String {
    let (all, asked) = (schedulers::names(all), schedulers::names(&share.schedulers));
    let printed = if share.number == 0 { format!("bpvs-guest ipvsadm {all} || exit\n") } else { String::new() };
    let record = if options.record { " --record" } else { "" };
    let more: String = options.more.iter().map(|argument| format!(" {}", quoted(argument))).collect();
    let (cases, seed) = (options.cases, options.seed);
    format!(
        "bpvs-guest ipvs {all} || exit\n{printed}\
         bpvs-oracle --schedulers {asked} --cases {cases} --seed {seed}{record}{more}\n"
    )
}

/// A word of a shell's line.
fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// Prints the table, keeps the answers, and says whether all is as it should be.
fn finish(options: &Options, kernels: &[Kernel], outcomes: &[Outcome<'_>]) -> Result<()> {
    let mut lines = Vec::new();
    for kernel in kernels {
        let present = present(&options.schedulers, kernel)?;
        for scheduler in options.schedulers.schedulers() {
            let of_kernel = outcomes.iter().filter(|outcome| outcome.share.kernel.release == kernel.release);
            let row = of_kernel.into_iter().find_map(|outcome| outcome.heard.rows.get(&scheduler));
            let verdict = match row {
                Some(row) => Verdict::Compared(row.clone()),
                None if present.contains(&scheduler) => Verdict::NoAnswer,
                None => Verdict::Absent,
            };
            lines.push(Line { kernel: kernel.release.clone(), scheduler, verdict });
        }
    }
    print!("{}", report::table(&lines));
    let mut wrong = 0;
    for outcome in outcomes {
        if outcome.is_right() {
            continue;
        }
        wrong += 1;
        let (release, console) = (&outcome.share.kernel.release, outcome.ended.console.display());
        eprintln!("\n{release}, guest {}: {}; its console: {console}", outcome.share.number, outcome.ended.how());
        match outcome.heard.histories.as_slice() {
            [] => eprintln!("{}", outcome.ended.tail()),
            histories => eprintln!("{}", histories[..histories.len().min(HISTORY)].join("\n")),
        }
    }
    let named = options.schedulers != Asked::All;
    let different = lines.iter().filter(|line| !line.is_right(named)).count();
    if wrong + different > 0 {
        bail!("{different} of {} rows are not as they should be, and {wrong} guests ended badly", lines.len());
    }
    if options.record {
        keep(options, outcomes)?;
    }
    Ok(())
}

/// Keeps the answers of a run in which nothing was wrong.
fn keep(options: &Options, outcomes: &[Outcome<'_>]) -> Result<()> {
    let mut answers: Vec<_> = outcomes.iter().flat_map(|outcome| &outcome.heard.answers).collect();
    answers.sort_by_key(|(scheduler, _)| **scheduler);
    let answers: Vec<_> = answers.into_iter().map(|(scheduler, answers)| (*scheduler, answers)).collect();
    let kernel = outcomes.first().map_or("", |outcome| outcome.share.kernel.release.as_str());
    let head = format!(
        "Answers of IPVS, Linux {kernel}: cargo xtask oracle --record --seed {} --cases {}",
        options.seed, options.cases
    );
    for written in record::write(workspace::root(), &head, &answers)? {
        eprintln!("{written}");
    }
    Ok(())
}

impl Outcome<'_> {
    /// IPVS could be told and asked, and the program ended well and said all that it had to.
    fn is_right(&self) -> bool {
        self.ended.code == Some(0) && self.heard.steps.are_right() && !self.heard.has_loose_answers()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_reach_the_program_as_they_were_given() {
        assert_eq!(quoted("open 1; close"), "'open 1; close'");
        assert_eq!(quoted("it's"), r"'it'\''s'");
    }
}
