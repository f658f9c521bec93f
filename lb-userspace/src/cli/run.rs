//! Arguments of `bpvs run` and `bpvs check`, checked and turned into the agent's configuration.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};
use lb_common::layout::{SETTING_EXPIRE_NODEST, SETTING_EXPIRE_QUIESCENT, SETTING_SLOPPY_SCTP, SETTING_SLOPPY_TCP};
use lb_common::scheduler::Scheduler;
use tracing::info;

use super::kube_proxy::{KubeProxyArgs, Stated};
use super::values::{duration, pattern, scheduler, timeout};
use super::{Output, PinArgs};
use crate::agent::{self, Config, SocketScope, TcHook, TimeoutChange};
use crate::kernel::attach::Forwarding;
use crate::kernel::bpf::XdpMode;
use crate::kernel::{interfaces::Selection, pins::Pins, probe, sizes::Sizes};
use crate::kube_proxy::Settings;
use crate::kube_proxy::document::document;
use crate::source::rules::RulesFile;

/// Arguments of `bpvs run`.
#[derive(Debug, Args)]
pub struct RunArgs {
    #[command(flatten)]
    pub(super) kube_proxy: KubeProxyArgs,
    /// File or folder of Service and EndpointSlice manifests, watched for changes
    #[arg(long, value_name = "PATH")]
    manifests: Option<PathBuf>,
    /// File of rules as `ipvsadm -S -n` writes it, watched for changes
    #[arg(long, value_name = "FILE")]
    ipvs_rules: Option<PathBuf>,
    /// Scheduler of services that name none [default: rr]
    #[arg(long, value_name = "NAME", value_parser = scheduler)]
    scheduler: Option<Scheduler>,
    /// Interfaces to attach to, as comma-separated patterns [default: all but loopback and bridges]
    #[arg(long, value_name = "GLOB,...", value_delimiter = ',', value_parser = pattern)]
    interfaces: Vec<String>,
    /// Interfaces to leave alone, likewise
    #[arg(long, value_name = "GLOB,...", value_delimiter = ',', value_parser = pattern)]
    exclude_interfaces: Vec<String>,
    /// How to attach to interfaces
    #[arg(long, value_enum, default_value_t = TcArg::Auto)]
    tc: TcArg,
    /// How a translated packet gets to the interface of its receiver: by the host's stack, or straight, past netfilter
    #[arg(long, value_enum, default_value_t = ForwardingArg::Stack)]
    forwarding: ForwardingArg,
    /// Where packets of uplinks are served that leave the node again: in the driver, or in the stack like all others. What
    /// leaves from there does not pass netfilter
    #[arg(long, value_enum, default_value_t = XdpArg::Off)]
    xdp: XdpArg,
    /// Uplinks, as comma-separated patterns [default: interfaces with a default route]
    #[arg(long, value_name = "GLOB,...", value_delimiter = ',', value_parser = pattern, requires = "xdp")]
    uplinks: Vec<String>,
    #[command(flatten)]
    sockets: SocketArgs,
    /// How often expired connections are removed
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = duration)]
    sweep_interval: Duration,
    /// How often the connection counts are checked against the connections, and corrected
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = duration)]
    recount_interval: Duration,
    /// How often the maps are compared with what was written there, and repaired if somebody else has changed them
    #[arg(long, value_name = "TIME", default_value = "5m", value_parser = duration)]
    check_interval: Duration,
    /// How long an established TCP connection lives after its last packet; 0: as it was, at first as IPVS, 15m
    #[arg(long, value_name = "TIME", default_value = "0", value_parser = timeout)]
    tcp_timeout: u32,
    /// How long a TCP connection lives that the server has closed; 0: as it was, at first as IPVS, 2m
    #[arg(long, value_name = "TIME", default_value = "0", value_parser = timeout)]
    tcp_fin_timeout: u32,
    /// How long a UDP flow lives after its last packet; 0: as it was, at first as IPVS, 5m
    #[arg(long, value_name = "TIME", default_value = "0", value_parser = timeout)]
    udp_timeout: u32,
    #[command(flatten)]
    switches: SwitchArgs,
    /// How many services and destinations together have metrics of their own
    #[arg(long, value_name = "N", default_value_t = 5000)]
    metrics_limit: usize,
    /// Most virtual services
    #[arg(long, value_name = "N", default_value_t = Sizes::default().services)]
    max_services: u32,
    /// Most real servers, of all services together
    #[arg(long, value_name = "N", default_value_t = Sizes::default().destinations)]
    max_destinations: u32,
    /// Most places in destination sets and scheduler tables
    #[arg(long, value_name = "N", default_value_t = Sizes::default().slots)]
    max_slots: u32,
    /// Most connections at one time
    #[arg(long, value_name = "N", default_value_t = Sizes::default().connections)]
    max_connections: u32,
    /// Most real servers of one service; can only be lowered
    #[arg(long, value_name = "N", default_value_t = Sizes::default().destinations_per_service)]
    max_destinations_per_service: u32,
    #[command(flatten)]
    pins: PinArgs,
}

/// IPVS has them in /proc/sys/net/ipv4/vs.
#[derive(Debug, Args)]
struct SwitchArgs {
    /// End connections with their server: what a removed one still gets is scheduled anew
    #[arg(long)]
    expire_nodest_conn: bool,
    /// Let clients that keep their server (persistence) leave one of weight 0
    #[arg(long)]
    expire_quiescent_template: bool,
    /// Let TCP connections begin with any segment, not with SYN alone
    #[arg(long)]
    sloppy_tcp: bool,
    /// Let SCTP associations begin with any chunk, not with INIT alone
    #[arg(long)]
    sloppy_sctp: bool,
}

impl SwitchArgs {
    fn bits(&self) -> u32 {
        let switches = [
            (self.expire_nodest_conn, SETTING_EXPIRE_NODEST),
            (self.expire_quiescent_template, SETTING_EXPIRE_QUIESCENT),
            (self.sloppy_tcp, SETTING_SLOPPY_TCP),
            (self.sloppy_sctp, SETTING_SLOPPY_SCTP),
        ];
        switches.into_iter().filter(|(on, _)| *on).fold(0, |bits, (_, bit)| bits | bit)
    }
}

#[derive(Debug, Args)]
struct SocketArgs {
    /// Which sockets are balanced when they connect
    #[arg(long, value_enum, default_value_t = SocketArg::HostOnly)]
    socket_lb: SocketArg,
    /// Cgroup v2 whose sockets are not, with all below it; may be given several times
    #[arg(long, value_name = "PATH")]
    socket_lb_exclude_cgroup: Vec<PathBuf>,
    /// Cgroup v2 whose sockets those are [default: where cgroup2 is mounted]
    #[arg(long, value_name = "PATH")]
    cgroup: Option<PathBuf>,
}

/// Arguments of `bpvs check`.
#[derive(Debug, Args)]
pub(super) struct CheckArgs {
    /// Check this file of rules too, as `bpvs run --ipvs-rules` would read it
    #[arg(long, value_name = "FILE")]
    ipvs_rules: Option<PathBuf>,
    /// Format
    #[arg(short, long, value_enum, default_value_t = Output::Text)]
    output: Output,
    #[command(flatten)]
    sockets: SocketArgs,
    #[command(flatten)]
    pins: PinArgs,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum SocketArg {
    /// Those of every network namespace, of pods too
    On,
    /// Those of this network namespace
    HostOnly,
    /// None: local processes reach services only by way of other hosts
    Off,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum TcArg {
    /// TCX links where the kernel has them, else clsact filters
    Auto,
    /// TCX links
    Tcx,
    /// clsact filters
    Clsact,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum ForwardingArg {
    /// By the stack: routing, netfilter and traffic control of the host see it
    Stack,
    /// Straight, by tc: for hosts without such policies
    Direct,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum XdpArg {
    /// Nowhere
    Off,
    /// By XDP in drivers that have it, else at tc
    Native,
    /// By generic XDP, which every interface has: for tests, and where tc is slower
    Generic,
}

impl XdpArg {
    const fn mode(self) -> Option<XdpMode> {
        match self {
            Self::Off => None,
            Self::Native => Some(XdpMode::Native),
            Self::Generic => Some(XdpMode::Generic),
        }
    }
}

/// `bpvs run`.
pub(super) fn run(args: RunArgs) -> Result<ExitCode> {
    if args.kube_proxy.init_only {
        info!("--init-only: nothing has to be prepared; `bpvs run` itself needs the privileges");
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(path) = args.kube_proxy.write_config_to.clone() {
        args.kube_proxy.stated(true)?.write(&path)?;
        return Ok(ExitCode::SUCCESS);
    }
    let config = config(args)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(agent::run(config))?;
    // Blocking file reads of a source may still be going on; they hold nothing that must be finished.
    runtime.shutdown_background();
    Ok(ExitCode::SUCCESS)
}

/// `bpvs check`: 0 if nothing that is required is missing, and no rule is wrong.
pub(super) fn check(args: &CheckArgs) -> Result<ExitCode> {
    let rules = match &args.ipvs_rules {
        Some(path) => {
            let read = RulesFile::new(path).read_once();
            Some(read.with_context(|| format!("cannot read --ipvs-rules {}", path.display()))?)
        }
        None => None,
    };
    let places = probe::Places {
        pin_path: args.pins.pin_path.clone(),
        cgroup: args.sockets.cgroup.clone(),
        sockets: args.sockets.socket_lb != SocketArg::Off,
    };
    let probes = probe::probe(&places);
    super::observe::print(&match args.output {
        Output::Text => crate::render::text::check(&probes, rules.as_ref()),
        Output::Json => crate::render::json::check(&probes, rules.as_ref()),
    })?;
    let wrong = probe::missing(&probes).is_some() || rules.is_some_and(|rules| !rules.problems.is_empty());
    Ok(if wrong { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn config(args: RunArgs) -> Result<Config> {
    let sizes = Sizes {
        services: args.max_services,
        destinations: args.max_destinations,
        slots: args.max_slots,
        connections: args.max_connections,
        destinations_per_service: args.max_destinations_per_service,
    };
    sizes.validate()?;
    let stated = args.kube_proxy.stated(args.manifests.is_some() || args.ipvs_rules.is_some())?;
    // bpvs's own flags come before what is stated for kube-proxy.
    let own = |given: u32, stated: u32| if given == 0 { stated } else { given };
    let timeouts = TimeoutChange {
        tcp: own(args.tcp_timeout, stated.timeouts.tcp),
        tcp_fin: own(args.tcp_fin_timeout, stated.timeouts.tcp_fin),
        udp: own(args.udp_timeout, stated.timeouts.udp),
    };
    let configuration = configuration(&stated, args.scheduler, timeouts);
    Ok(Config {
        pins: Pins::new(args.pins.pin_path),
        sizes,
        manifests: args.manifests,
        rules: args.ipvs_rules,
        api: stated.api,
        api_limit: stated.api_limit,
        node_name: node_name(stated.node_name)?,
        scheduler: args.scheduler.or(stated.scheduler).unwrap_or(Scheduler::RoundRobin),
        // kube-proxy states the flag mh-port with mh, and none with the others.
        hash_port: args.scheduler.is_none() && stated.scheduler == Some(Scheduler::Maglev),
        services: stated.services,
        healthz: stated.healthz,
        metrics: stated.metrics,
        metrics_limit: args.metrics_limit,
        bind_hard_fail: stated.bind_hard_fail,
        selection: Selection { include: args.interfaces, exclude: args.exclude_interfaces },
        tc: match args.tc {
            TcArg::Auto => TcHook::Auto,
            TcArg::Tcx => TcHook::Tcx,
            TcArg::Clsact => TcHook::Clsact,
        },
        forwarding: match args.forwarding {
            ForwardingArg::Stack => Forwarding::Stack,
            ForwardingArg::Direct => Forwarding::Direct,
        },
        xdp: args.xdp.mode(),
        uplinks: args.uplinks,
        sockets: match args.sockets.socket_lb {
            SocketArg::On => SocketScope::All,
            SocketArg::HostOnly => SocketScope::HostOnly,
            SocketArg::Off => SocketScope::Off,
        },
        excluded_cgroups: args.sockets.socket_lb_exclude_cgroup,
        cgroup: args.sockets.cgroup,
        sweep_interval: args.sweep_interval,
        check_interval: args.check_interval,
        recount_interval: args.recount_interval,
        timeouts,
        switches: args.switches.bits(),
        oom_score_adjust: stated.oom_score_adjust,
        config_file: stated.config_file,
        configuration,
    })
}

/// What is in force, as kube-proxy's configuration says it; empty where something is answered nowhere.
fn configuration(stated: &Stated, scheduler: Option<Scheduler>, timeouts: TimeoutChange) -> serde_json::Value {
    let settings = stated.settings();
    let mut document = document(&Settings { scheduler: scheduler.or(settings.scheduler), timeouts, ..settings });
    for (field, at) in [("healthzBindAddress", stated.healthz), ("metricsBindAddress", stated.metrics)] {
        if at.is_none() {
            document[field] = "".into();
        }
    }
    document
}

/// The node's name as kube-proxy finds it: what was given, else the host name; trimmed, in lower case.
fn node_name(given: Option<String>) -> Result<String> {
    let name = match given {
        Some(name) => name,
        None => nix::sys::utsname::uname()?.nodename().to_string_lossy().into_owned(),
    };
    let name = name.trim().to_lowercase();
    if name.is_empty() {
        bail!("the node has no name: give --node-name");
    }
    Ok(name)
}

#[cfg(test)]
mod tests;
