//! Virtual services as `ipvsadm` states them: no objects, but rules, each in a line of a file.

use std::net::IpAddr;
use std::sync::Arc;

use lb_common::scheduler::Scheduler;

use super::frontend::{Frontend, Method, Persistence, Thresholds};
use super::problem::Problem;

/// Everything that a file of rules comes to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rules {
    /// The virtual services, in the order in which the file adds them; no frontend twice.
    pub services: Vec<RuleService>,
    /// What is wrong in the file.
    pub problems: Vec<Problem>,
    /// True if some of the file is wrong and there is no earlier version of it to fall back to.
    pub gaps: bool,
}

/// A virtual service (`ipvsadm -A`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleService {
    /// What packets must match.
    pub frontend: Frontend,
    /// Where it is added.
    pub origin: RuleOrigin,
    /// Its options.
    pub options: RuleOptions,
    /// Its real servers in the order of adding; none twice.
    pub servers: Vec<RuleServer>,
}

/// The file and line of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleOrigin {
    /// The file.
    pub file: Arc<str>,
    /// The line, from 1.
    pub line: u32,
}

impl std::fmt::Display for RuleOrigin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.file, self.line)
    }
}

/// What `-A` and `-E` say of a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RuleOptions {
    /// Scheduler (`-s`).
    pub scheduler: Scheduler,
    /// `sh-port`, `mh-port` (`-b`).
    pub hash_port: bool,
    /// `sh-fallback`, `mh-fallback` (`-b`).
    pub hash_fallback: bool,
    /// `-p`, `-M`.
    pub persistence: Option<Persistence>,
    /// `-o`.
    pub one_packet: bool,
}

/// A real server (`ipvsadm -a`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RuleServer {
    /// Address, of the service's family; any in a tunnel.
    pub address: IpAddr,
    /// Port. 0: the port that the client asked for.
    pub port: u16,
    /// Weight (`-w`), from 0 to 2147483647.
    pub weight: i32,
    /// `-x`, `-y`.
    pub thresholds: Thresholds,
    /// `-m`, `-g`, `-i`.
    pub method: Method,
}
