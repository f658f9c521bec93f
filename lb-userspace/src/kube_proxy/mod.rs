//! kube-proxy's configuration, so that bpvs starts in its place: the file that `--config` names, and what the flags say
//! that have kube-proxy's names.
//!
//! | module | idea |
//! |---|---|
//! | [`values`] | single values, the same in the file and behind flags |
//! | [`document`] | settings -> the file that says them |
//! | [`duration`] | Go's durations |
//! | [`fields`] | every field of the file: its shape, and what becomes of it |
//! | [`file`] | bytes -> settings, or what is wrong with them |
//! | [`settings`] | the fields that count -> settings |
//!
//! `docs/configuration.md` says of every field what becomes of it; a test compares it with [`fields::FIELDS`].

pub mod document;
pub mod duration;
pub mod fields;
pub mod file;
mod settings;
pub mod values;

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use lb_common::scheduler::Scheduler;

use crate::agent::TimeoutChange;
use crate::plan::Options;
use crate::source::api::RequestLimit;

/// Where kube-proxy answers health checks, of all addresses.
pub const HEALTHZ_PORT: u16 = 10256;
/// Where kube-proxy has its metrics, of loopback.
pub const METRICS_PORT: u16 = 10249;
/// What kube-proxy asks of the kernel that is out of memory, where nothing is stated.
pub const OOM_SCORE_ADJUST: i32 = -999;

/// What kube-proxy is told, as far as it counts here.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Settings {
    /// Name of this node, as it is written.
    pub node_name: Option<String>,
    /// How to reach the API server; none: as a pod of the cluster.
    pub kubeconfig: Option<PathBuf>,
    /// How often the API server is asked.
    pub api_limit: RequestLimit,
    /// Scheduler of services that name none; none: bpvs's own default.
    pub scheduler: Option<Scheduler>,
    /// How long connections live, where that is stated.
    pub timeouts: TimeoutChange,
    /// How Services are served.
    pub services: Options,
    /// Where `/healthz` and `/livez` are answered.
    pub healthz: SocketAddr,
    /// Where metrics are answered.
    pub metrics: SocketAddr,
    /// One of these addresses that is taken ends the agent.
    pub bind_hard_fail: bool,
    /// How soon the kernel ends this process when it is out of memory.
    pub oom_score_adjust: i32,
    /// Fields that ask for something and have no effect, for the log.
    pub without_effect: Vec<String>,
}

/// The address that stands for the node, if one is stated: unspecified ones say "any", and nothing of the node.
pub fn node_address(bind_address: IpAddr) -> Option<IpAddr> {
    (!bind_address.is_unspecified()).then_some(bind_address)
}

#[cfg(test)]
mod tests;
