//! `bpvs run`: sources -> model -> plan -> writer, on one task that owns all state; and what keeps it true.
//!
//! | module | idea |
//! |---|---|
//! | [`start`] | from a bare node to attached programs, in order |
//! | [`events`] | the loop: what happens, and what is done about it |
//! | [`programming`] | model -> plan -> maps |
//! | [`sync`] | the same with the kernel's maps, and what is logged of it |
//! | [`restored`] | what an earlier agent programmed, while its origin cannot be read |
//! | [`sources`] | which sources there are |
//! | [`node`] | interfaces and addresses that come and go |
//! | [`direct`] | where packets go straight to |
//! | [`uplinks`] | those of them that XDP serves |
//! | [`watch`] | when to look at them |
//! | [`config_file`] | whether the file of configuration is still the one that was read |
//! | [`lost`] | connected UDP sockets of the node whose server is gone |
//! | [`sweep`] | expired connections and wrong counts |
//! | [`observers`] | who is told of all that: health, metrics, Events |
//! | [`pending`] | what waits to be programmed |
//! | [`once`] | says each thing once |

pub mod config_file;
pub mod direct;
pub mod events;
pub mod lost;
pub mod node;
pub mod observers;
pub mod once;
pub mod pending;
mod pods;
pub mod programming;
pub mod restored;
pub mod sources;
pub mod start;
pub mod sweep;
pub mod sync;
pub mod uplinks;
pub mod watch;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use axum::http::Uri;
use lb_common::layout::SETTING_ALL_SOCKETS;
use lb_common::scheduler::Scheduler;
use lb_common::timeouts::Timeouts;
use tracing::{info, warn};

pub use self::config_file::ConfigFile;
use self::sources::Prepared;
use crate::kernel::attach::Forwarding;
use crate::kernel::bpf::XdpMode;
use crate::kernel::interfaces::Selection;
use crate::kernel::object::Loaded;
use crate::kernel::pins::Pins;
use crate::kernel::sizes::Sizes;
use crate::plan::Options;
use crate::source::api::RequestLimit;

/// Everything that `bpvs run` is told, checked.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Config {
    /// Where maps and links are pinned.
    pub pins: Pins,
    /// Sizes of the maps.
    pub sizes: Sizes,
    /// File or folder of manifests.
    pub manifests: Option<PathBuf>,
    /// File of rules as `ipvsadm -S -n` writes it.
    pub rules: Option<PathBuf>,
    /// API server.
    pub api: Option<Api>,
    /// Name of this node.
    pub node_name: String,
    /// Scheduler of services that name none.
    pub scheduler: Scheduler,
    /// Whether it hashes the source port too, for services that state no flags.
    pub hash_port: bool,
    /// Where `/healthz` and `/livez` are answered; none: nowhere.
    pub healthz: Option<SocketAddr>,
    /// Where `/metrics` is answered; none: nowhere.
    pub metrics: Option<SocketAddr>,
    /// How many services and destinations have metrics of their own.
    pub metrics_limit: usize,
    /// An address of the two that cannot be listened on ends the agent.
    pub bind_hard_fail: bool,
    /// How often the API server is asked.
    pub api_limit: RequestLimit,
    /// How Services are served; the node's addresses are found out.
    pub services: Options,
    /// Interfaces to attach to.
    pub selection: Selection,
    /// How.
    pub tc: TcHook,
    /// How translated packets get on.
    pub forwarding: Forwarding,
    /// How uplinks are served before the stack; none: not at all.
    pub xdp: Option<XdpMode>,
    /// Patterns of the names of uplinks; none: interfaces with a default route.
    pub uplinks: Vec<String>,
    /// Which sockets are balanced when they connect.
    pub sockets: SocketScope,
    /// Cgroups whose sockets are not.
    pub excluded_cgroups: Vec<PathBuf>,
    /// Cgroup of those sockets; none: where cgroup2 is mounted.
    pub cgroup: Option<PathBuf>,
    /// Time between sweeps.
    pub sweep_interval: Duration,
    /// Time between two looks whether the maps hold what was written.
    pub check_interval: Duration,
    /// Time between recounts.
    pub recount_interval: Duration,
    /// How long connections live, where that is given.
    pub timeouts: TimeoutChange,
    /// [`SETTING_EXPIRE_NODEST`](lb_common::layout::SETTING_EXPIRE_NODEST) and its kind.
    pub switches: u32,
    /// How soon the kernel is to end this process when it is out of memory; none: as it is.
    pub oom_score_adjust: Option<i32>,
    /// The file that said so. When it changes the agent ends, to be started anew with what it says then.
    pub config_file: Option<ConfigFile>,
    /// What is in force, as kube-proxy's configuration says it.
    pub configuration: serde_json::Value,
}

/// What `ipvsadm --set` sets, in milliseconds; 0 keeps what there is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TimeoutChange {
    /// Established TCP connections.
    pub tcp: u32,
    /// TCP connections that are being closed.
    pub tcp_fin: u32,
    /// UDP.
    pub udp: u32,
}

impl TimeoutChange {
    /// The timeouts after it.
    pub fn of(&self, timeouts: Timeouts) -> Timeouts {
        timeouts.set(self.tcp, self.tcp_fin, self.udp)
    }
}

/// How to reach the API server.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Api {
    /// As this file says, but for the server's URL if there is one.
    Kubeconfig {
        /// The file.
        path: PathBuf,
        /// The URL.
        server: Option<Uri>,
    },
    /// At this URL, without credentials.
    Server(Uri),
    /// As a pod of the cluster.
    InCluster,
}

/// Which sockets are balanced when they connect.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SocketScope {
    /// None.
    Off,
    /// Those of the node's network namespace.
    HostOnly,
    /// Those of every network namespace.
    All,
}

impl SocketScope {
    /// True if there are any.
    pub fn is_on(self) -> bool {
        self != Self::Off
    }

    /// [`SETTING_ALL_SOCKETS`] or nothing.
    pub fn switches(self) -> u32 {
        if self == Self::All { SETTING_ALL_SOCKETS } else { 0 }
    }
}

/// Which tc hook to use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TcHook {
    /// TCX where there is one, else clsact.
    Auto,
    /// TCX.
    Tcx,
    /// clsact.
    Clsact,
}

/// Runs the agent until SIGTERM or SIGINT. What it attached and programmed stays, and packets keep flowing.
pub async fn run(config: Config) -> Result<()> {
    start::check(&config)?;
    let sources = sources::prepare(&config).await?;
    let lock = start::lock(&config)?;
    start::adjust_oom_score(&config);
    let kernel = start::load(&config)?;
    let is_first = kernel.adopted == 0;
    let result = match serve(&config, kernel, sources).await {
        // Nobody has used what was made, so nothing is lost with it.
        Err(error) if is_first && error.is::<start::Failed>() => {
            start::undo(&config);
            Err(error)
        }
        result => result,
    };
    // Last, so that a next agent never meets a loop that still runs.
    drop(lock);
    result
}

async fn serve(config: &Config, kernel: Loaded, sources: Prepared) -> Result<()> {
    let node = start::attach(config, kernel).await.context(start::Failed)?;
    if config.api.is_some() {
        for (odd, message) in crate::plan::node_port_oddities(&config.services, node.addresses()) {
            if odd { warn!("{message}") } else { info!("{message}") }
        }
    }
    let programmer = start::restore(config, &node).context(start::Failed)?;
    let observers = observers::Observers::new(config, programmer.names()).context(start::Failed)?;
    events::Agent::new(config, node, programmer, sources.start(), observers).run().await
}
