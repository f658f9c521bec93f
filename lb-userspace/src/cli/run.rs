//! Arguments of `bpvs run` and `bpvs check`, checked and turned into the agent's configuration.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};
use lb_common::layout::{SETTING_EXPIRE_NODEST, SETTING_EXPIRE_QUIESCENT, SETTING_SLOPPY_SCTP, SETTING_SLOPPY_TCP};
use lb_common::scheduler::Scheduler;

use super::cluster::ClusterArgs;
use super::servers::ServerArgs;
use super::values::{duration, pattern, scheduler, timeout};
use super::{Output, PinArgs};
use crate::agent::{self, Api, Config, TcHook, TimeoutChange};
use crate::kernel::{interfaces::Selection, pins::Pins, probe, sizes::Sizes};
use crate::source::rules::RulesFile;

/// Arguments of `bpvs run`.
#[derive(Debug, Args)]
pub struct RunArgs {
    /// File or folder of Service and EndpointSlice manifests, watched for changes
    #[arg(long, value_name = "PATH")]
    manifests: Option<PathBuf>,
    /// File of rules as `ipvsadm -S -n` writes it, watched for changes
    #[arg(long, value_name = "FILE")]
    ipvs_rules: Option<PathBuf>,
    /// Follow the API server that this file names (without any source: the one of this pod's cluster)
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Name of this node at the API server [default: the host name, trimmed, in lower case]
    #[arg(long, value_name = "NAME", visible_alias = "hostname-override")]
    node_name: Option<String>,
    /// Scheduler of services that name none
    #[arg(long, value_name = "NAME", default_value = "rr", value_parser = scheduler)]
    scheduler: Scheduler,
    /// Interfaces to attach to, as comma-separated patterns [default: all but loopback and bridges]
    #[arg(long, value_name = "GLOB,...", value_delimiter = ',', value_parser = pattern)]
    interfaces: Vec<String>,
    /// Interfaces to leave alone, likewise
    #[arg(long, value_name = "GLOB,...", value_delimiter = ',', value_parser = pattern)]
    exclude_interfaces: Vec<String>,
    /// How to attach to interfaces
    #[arg(long, value_enum, default_value_t = TcArg::Auto)]
    tc: TcArg,
    #[command(flatten)]
    sockets: SocketArgs,
    /// How often expired connections are removed
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = duration)]
    sweep_interval: Duration,
    /// How often the connection counts are checked against the connections, and corrected
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = duration)]
    recount_interval: Duration,
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
    #[command(flatten)]
    cluster: ClusterArgs,
    #[command(flatten)]
    servers: ServerArgs,
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

/// `bpvs run`.
pub(super) fn run(args: RunArgs) -> Result<ExitCode> {
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
        sockets: args.sockets.socket_lb == SocketArg::HostOnly,
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
    let api = match args.kubeconfig {
        Some(path) => Some(Api::Kubeconfig(path)),
        None if args.manifests.is_some() || args.ipvs_rules.is_some() => None,
        None if std::env::var_os("KUBERNETES_SERVICE_HOST").is_some() => Some(Api::InCluster),
        None => bail!(
            "no source: give --manifests PATH, --ipvs-rules FILE or --kubeconfig FILE (this is no pod of a cluster)"
        ),
    };
    let (healthz, metrics) = (args.servers.healthz(api.is_some())?, args.servers.metrics(api.is_some())?);
    Ok(Config {
        pins: Pins::new(args.pins.pin_path),
        sizes,
        manifests: args.manifests,
        rules: args.ipvs_rules,
        api,
        node_name: node_name(args.node_name)?,
        scheduler: args.scheduler,
        services: args.cluster.options()?,
        healthz,
        metrics,
        metrics_limit: args.servers.metrics_limit,
        bind_hard_fail: args.servers.bind_address_hard_fail,
        selection: Selection { include: args.interfaces, exclude: args.exclude_interfaces },
        tc: match args.tc {
            TcArg::Auto => TcHook::Auto,
            TcArg::Tcx => TcHook::Tcx,
            TcArg::Clsact => TcHook::Clsact,
        },
        sockets: args.sockets.socket_lb == SocketArg::HostOnly,
        cgroup: args.sockets.cgroup,
        sweep_interval: args.sweep_interval,
        recount_interval: args.recount_interval,
        timeouts: TimeoutChange { tcp: args.tcp_timeout, tcp_fin: args.tcp_fin_timeout, udp: args.udp_timeout },
        switches: args.switches.bits(),
    })
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
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Wrapper {
        #[command(flatten)]
        args: RunArgs,
    }

    fn parse(arguments: &[&str]) -> Result<Config, String> {
        let arguments = ["run"].iter().chain(arguments);
        let wrapper = Wrapper::try_parse_from(arguments).map_err(|error| error.to_string())?;
        config(wrapper.args).map_err(|error| error.to_string())
    }

    #[test]
    fn manifests_alone_need_no_api_server() {
        let config = parse(&["--manifests", "x", "--node-name", " Node-A "]).unwrap();
        assert_eq!(config.api, None);
        assert_eq!(config.node_name, "node-a");
        assert_eq!(config.scheduler, Scheduler::RoundRobin);
        assert!(config.sockets);
    }

    #[test]
    fn both_sources_may_be_given() {
        let config = parse(&["--manifests", "x", "--kubeconfig", "y", "--scheduler", "wlc"]).unwrap();
        assert_eq!(config.api, Some(Api::Kubeconfig("y".into())));
        assert_eq!(config.manifests, Some("x".into()));
        assert_eq!(config.scheduler, Scheduler::WeightedLeastConnection);
    }

    #[test]
    fn lists_of_interfaces_are_separated_by_commas() {
        let config =
            parse(&["--manifests", "x", "--interfaces", "eth*,veth?", "--exclude-interfaces", "eth9"]).unwrap();
        assert_eq!(config.selection.include, ["eth*", "veth?"]);
        assert_eq!(config.selection.exclude, ["eth9"]);
    }

    #[test]
    fn timeouts_are_changed_if_given() {
        assert_eq!(parse(&["--manifests", "x"]).unwrap().timeouts, TimeoutChange::default());
        let zero = ["--manifests", "x", "--tcp-timeout", "0s", "--tcp-fin-timeout", "0", "--udp-timeout", "0m"];
        assert_eq!(parse(&zero).unwrap().timeouts, TimeoutChange::default());
        let given =
            ["--manifests", "x", "--tcp-timeout", "1h30m", "--tcp-fin-timeout", "500ms", "--udp-timeout", "1000h"];
        let expected = TimeoutChange { tcp: 5_400_000, tcp_fin: 500, udp: 3_600_000_000 };
        assert_eq!(parse(&given).unwrap().timeouts, expected);
    }

    #[test]
    fn switches_are_off_unless_given() {
        assert_eq!(parse(&["--manifests", "x"]).unwrap().switches, 0);
        for (flag, bit) in [
            ("--expire-nodest-conn", SETTING_EXPIRE_NODEST),
            ("--expire-quiescent-template", SETTING_EXPIRE_QUIESCENT),
            ("--sloppy-tcp", SETTING_SLOPPY_TCP),
            ("--sloppy-sctp", SETTING_SLOPPY_SCTP),
        ] {
            assert_eq!(parse(&["--manifests", "x", flag]).unwrap().switches, bit, "{flag}");
        }
    }

    #[test]
    fn rules_alone_need_no_api_server_and_go_with_other_sources() {
        let config = parse(&["--ipvs-rules", "x"]).unwrap();
        assert_eq!((config.api, config.manifests, config.rules), (None, None, Some("x".into())));
        let config = parse(&["--ipvs-rules", "x", "--kubeconfig", "y", "--manifests", "z"]).unwrap();
        assert_eq!((config.api, config.manifests), (Some(Api::Kubeconfig("y".into())), Some("z".into())));
    }

    #[test]
    fn the_node_is_named_by_either_flag() {
        let config = parse(&["--manifests", "x", "--hostname-override", " N1"]).unwrap();
        assert_eq!(config.node_name, "n1");
    }

    #[test]
    fn servers_are_where_there_is_a_cluster_or_where_they_are_asked_for() {
        let at = |arguments: &[&str]| parse(arguments).map(|config| [config.healthz, config.metrics]);
        let parsed = |text: &str| Some(text.parse().unwrap());
        assert_eq!(at(&["--manifests", "x"]), Ok([None, None]));
        assert_eq!(at(&["--kubeconfig", "x"]), Ok([parsed("0.0.0.0:10256"), parsed("127.0.0.1:10249")]));
        let given = ["--manifests", "x", "--healthz-bind-address", "[::1]:9", "--metrics-bind-address", "[::1]:8"];
        assert_eq!(at(&given), Ok([parsed("[::1]:9"), parsed("[::1]:8")]));
    }

    #[test]
    fn wrong_values_are_refused_with_what_is_allowed() {
        for (arguments, expected) in [
            (["--scheduler", "fastest"], "rr, wrr, lc, wlc, lblc, lblcr, dh, sh, sed, nq, fo, ovf, mh, twos"),
            (["--sweep-interval", "1d"], "ms, s, m or h"),
            (["--sweep-interval", "5"], "ms, s, m or h"),
            (["--sweep-interval", ""], "value"),
            (["--sweep-interval", "s"], "ms, s, m or h"),
            (["--sweep-interval", "1h1s"], "10ms to 60m"),
            (["--tcp-timeout", "15"], "ms, s, m or h"),
            (["--tcp-timeout", "9ms"], "10ms to 1000h"),
            (["--tcp-fin-timeout", "1000h1ms"], "10ms to 1000h"),
            (["--udp-timeout", "99999999999999999999s"], "10ms to 1000h"),
            (["--udp-timeout", "9999999999999999h9999999999999999h"], "10ms to 1000h"),
            (["--udp-timeout", "-1s"], "unexpected"),
            (["--sweep-interval", "0s"], "10ms to 60m"),
            (["--max-services", "0"], "--max-services 0"),
            (["--max-destinations-per-service", "20000"], "16384"),
            (["--node-name", " "], "--node-name"),
            (["--healthz-bind-address", "10256"], "must be an address and a port"),
            (["--metrics-bind-address", "127.0.0.1"], "must be an address and a port"),
            (["--metrics-limit", "all"], "--metrics-limit"),
        ] {
            let error = parse(&["--manifests", "x", arguments[0], arguments[1]]).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }
}
