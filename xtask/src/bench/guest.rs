//! `cargo xtask bench guest`: instructions per packet, counted in virtual machines whose clock counts instructions.
//!
//! Each way that packets are translated has a guest of its own, which measures plain routing first: hooks that were once
//! registered cost plain routing too. Runs repeat to the instruction, however busy this machine is.
//!
//! | module | what |
//! |---|---|
//! | [`figures`] | what `bpvs-guest cost` says, and the tables |

mod figures;

use std::fs;
use std::path::Path;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use clap::ValueEnum;
use lb_common::scheduler::Scheduler;

use crate::guest::machine::{Clock, Ended, Guest};
use crate::guest::packages::{self, Kernel, Series};
use crate::guest::{image, machine};
use crate::progress::Progress;
use crate::setup::{self, Need};
use crate::{build_ebpf, host, workspace};
use figures::Heard;

/// Programs besides those of every guest, and Debian's packages of them.
const PROGRAMS: [(&str, &str); 3] =
    [("ipvsadm", "ipvsadm"), ("iptables-legacy-restore", "iptables"), ("nft", "nftables")];
/// Where iptables keeps what it knows of matches and targets, on Debian and elsewhere.
const EXTENSIONS: [&str; 3] = ["/usr/lib/x86_64-linux-gnu/xtables", "/usr/lib64/xtables", "/usr/lib/xtables"];

/// Network pairs, and filters where there is no TCX.
const NETWORK: [&str; 3] = ["veth", "sch_ingress", "cls_bpf"];
/// What kube-proxy's iptables rules use.
const IPTABLES: [&str; 9] = [
    "iptable_nat",
    "iptable_filter",
    "xt_comment",
    "xt_conntrack",
    "xt_mark",
    "xt_statistic",
    "xt_addrtype",
    "xt_MASQUERADE",
    "xt_nat",
];
/// For matches of ports.
const PORTS: &str = "xt_tcpudp";
/// What its nftables rules use.
const NFTABLES: [&str; 8] =
    ["nf_tables", "nft_chain_nat", "nft_ct", "nft_nat", "nft_masq", "nft_numgen", "nft_fib_ipv4", "nft_reject_ipv4"];

/// Who translates. **A new way is an item here and one of `bpvs-guest`** (`tests/guest/cost/ways.rs`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Way {
    /// bpvs at tc; the kernel routes
    Bpvs,
    /// bpvs at tc, straight to the receiver's interface
    BpvsDirect,
    /// Linux IPVS by NAT, without connection tracking
    Ipvs,
    /// The rules of kube-proxy's iptables mode
    Iptables,
    /// The rules of kube-proxy's nftables mode
    Nftables,
}

impl Way {
    /// As `bpvs-guest` has it.
    fn name(self) -> &'static str {
        match self {
            Self::Bpvs => "bpvs",
            Self::BpvsDirect => "bpvs-direct",
            Self::Ipvs => "ipvs",
            Self::Iptables => "iptables",
            Self::Nftables => "nftables",
        }
    }

    /// Modules of its guest, with those that the network takes.
    fn modules(self) -> Vec<String> {
        let own: Vec<String> = match self {
            Self::Bpvs | Self::BpvsDirect => Vec::new(),
            Self::Ipvs => {
                let schedulers = Scheduler::ALL.map(|scheduler| format!("ip_vs_{}", scheduler.name()));
                ["ip_vs".to_owned()].into_iter().chain(schedulers).collect()
            }
            Self::Iptables => IPTABLES.into_iter().chain([PORTS]).map(str::to_owned).collect(),
            Self::Nftables => NFTABLES.map(str::to_owned).into(),
        };
        NETWORK.map(str::to_owned).into_iter().chain(own).collect()
    }
}

/// What can be chosen.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Kernel series, as Debian packages it: the newest of it is taken
    #[arg(long, default_value = "6.12", value_name = "SERIES")]
    kernel: Series,
    /// Ways that packets are translated
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "bpvs,bpvs-direct,ipvs,iptables,nftables",
        value_name = "WAY,..."
    )]
    ways: Vec<Way>,
    /// Numbers of services
    #[arg(long, value_delimiter = ',', default_value = "1,100,1000", value_name = "N,...",
          value_parser = clap::value_parser!(u32).range(1..=10_000))]
    services: Vec<u32>,
    /// Longest time for a guest, in seconds: one that takes longer is ended, and is wrong
    #[arg(long, default_value_t = 1800, value_name = "SECONDS")]
    timeout: u64,
    /// Look for a newer kernel than the one that was fetched before
    #[arg(long)]
    refresh: bool,
    /// Also write the figures to this file, as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<String>,
}

/// The task.
pub(super) fn run(options: &Options) -> Result<()> {
    let mut progress = Progress::new(6);
    let chain = setup::prepare(&mut progress, Need::Everything)?;
    progress.step("preparing the virtual machine");
    packages::require_programs(&PROGRAMS)?;
    build_ebpf::build(&mut progress, &chain, "release")?;
    progress.step("building bpvs and bpvs-guest");
    let made = host::build(&[
        // What it makes for its rows is long, and the guest is emulated.
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
    ])?;
    let program = |name: &str| made.get(name).with_context(|| format!("cargo built no program called {name}"));
    let (bpvs, guest) = (program("bpvs")?, program("bpvs-guest")?);

    progress.step("fetching a kernel");
    let kernel = packages::kernel(options.kernel, options.refresh)?;
    progress.note(&format!("Linux {}: {}", options.kernel, kernel.release));
    let folder = workspace::root().join("target/bench-guest");
    fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
    let called = PROGRAMS.map(|(program, _)| program);
    let mut programs = image::programs(&[("bpvs", bpvs), ("bpvs-guest", guest)], &called, &folder)?;
    let extensions = EXTENSIONS.iter().map(Path::new).find(|folder| folder.is_dir());
    programs.add_folder(extensions.context("iptables has no folder of extensions where distributions have it")?)?;

    progress.step(&format!("running bpvs-guest in {} guests", options.ways.len()));
    let outcomes = boot_all(options, &kernel, &programs, &folder)?;
    progress.close();
    let all = finish(options, &kernel, outcomes)?;
    if let Some(file) = &options.json {
        let text = serde_json::to_string_pretty(&all).context("writing the figures as JSON")?;
        fs::write(file, text + "\n").with_context(|| format!("cannot write {file}"))?;
    }
    Ok(())
}

/// What became of a guest.
type Outcome = (Way, Heard, Ended);

/// As many guests at a time as there are processors for.
fn boot_all(options: &Options, kernel: &Kernel, programs: &image::Programs, folder: &Path) -> Result<Vec<Outcome>> {
    let processors = thread::available_parallelism().map_or(1, usize::from);
    let mut outcomes = Vec::new();
    for some in options.ways.chunks(processors) {
        let of_some: Vec<Outcome> = thread::scope(|scope| {
            let start = |way: &Way| {
                let way = *way;
                scope.spawn(move || boot(options, way, kernel, programs, folder))
            };
            let runs: Vec<_> = some.iter().map(start).collect();
            let end = |run: thread::ScopedJoinHandle<'_, _>| {
                run.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            };
            runs.into_iter().map(end).collect::<Result<_>>()
        })?;
        outcomes.extend(of_some);
    }
    Ok(outcomes)
}

fn boot(options: &Options, way: Way, kernel: &Kernel, programs: &image::Programs, folder: &Path) -> Result<Outcome> {
    let name = way.name();
    let (initramfs, console) = (folder.join(format!("{name}.cpio")), folder.join(format!("{name}.console")));
    let modules = way.modules();
    let modules: Vec<&str> = modules.iter().map(String::as_str).collect();
    let services: Vec<String> = options.services.iter().map(u32::to_string).collect();
    let script = format!("bpvs-guest cost {name} {}\n", services.join(","));
    let bytes = image::initramfs(programs, &kernel.modules()?.in_order(&modules)?, &script)?;
    fs::write(&initramfs, bytes).with_context(|| format!("cannot write {}", initramfs.display()))?;
    let limit = Duration::from_secs(options.timeout);
    let guest = Guest { kernel: &kernel.image(), initramfs: &initramfs, console, clock: Clock::Instructions, limit };
    let mut heard = Heard::default();
    let ended = machine::run(guest, |after, line| {
        if let Some(told) = heard.hear(line) {
            eprintln!("      {:6.1} s  {name}: {told}", after.as_secs_f64());
        }
    })?;
    Ok((way, heard, ended))
}

/// Prints the tables, and returns all figures; fails if a guest did not say all that it had to.
fn finish(options: &Options, kernel: &Kernel, outcomes: Vec<Outcome>) -> Result<Vec<serde_json::Value>> {
    let mut wrong = 0;
    let mut all = Vec::new();
    let mut figures = Vec::new();
    for (way, heard, ended) in outcomes {
        if !heard.is_complete || ended.code != Some(0) {
            wrong += 1;
            let console = ended.console.display();
            eprintln!("\n{}: {}; its console: {console}\n{}", way.name(), ended.how(), ended.tail());
        }
        all.extend(heard.lines);
        figures.extend(heard.figures);
    }
    ensure!(!figures.is_empty(), "no guest said what a packet costs");
    let services: Vec<String> = options.services.iter().map(u32::to_string).collect();
    println!("cargo xtask bench guest --services {}; Linux {}, emulated\n", services.join(","), kernel.release);
    print!("{}", figures::tables(&figures)?);
    if wrong > 0 {
        bail!("{wrong} of {} guests ended badly", options.ways.len());
    }
    Ok(all)
}
