//! Model -> plan -> writer, and what is logged of it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Instant;

use anyhow::{Context, Result};
use aya::Ebpf;
use tracing::{info, warn};

use super::Config;
use super::once::Once;
use super::programming::Programming;
use super::restored::{self, Restored};
use crate::datapath::store::kernel::{KernelMaps, KernelStore};
use crate::datapath::{ApplyError, Finding, Limits, MapStore, Summary, Writer};
use crate::kernel::pins::Pins;
use crate::metrics::scrape::Names;
use crate::model::{Model, ProblemLog};
use crate::plan::{Defaults, HealthCheck, NoLocal, Plan, Planner, can_serve_node_ports};
use crate::view::pinned::Pinned;

/// Brings the maps to what the model says.
#[derive(Debug)]
pub struct Programmer {
    programming: Programming<KernelStore>,
    restored: Restored,
    node_name: String,
    pins: Pins,
    names: Names,
    problems: ProblemLog,
    errors: Once,
}

/// What a sync came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Outcome {
    /// Service ports that have no endpoint on this node, where they need one.
    pub no_local: NoLocal,
    /// What is wrong in what is stated, or cannot be done.
    pub problems: usize,
    /// Whether everything of IPv4, and of IPv6, is as wanted.
    pub families: [bool; 2],
}

impl Outcome {
    /// Whether everything is as wanted. If not, trying again soon makes sense.
    pub fn complete(&self) -> bool {
        self.families == [true, true]
    }
}

impl Programmer {
    /// Reads what is programmed. Writes nothing.
    pub fn restore(config: &Config, ebpf: &Ebpf) -> Result<Self> {
        let store = KernelStore::new(KernelMaps::of(ebpf)?)?;
        let held = Limits::of(store.capacity());
        // An adopted map may be smaller than what was asked for, which was warned of.
        let limits = Limits {
            services: held.services.min(config.sizes.services),
            destinations: held.destinations.min(config.sizes.destinations),
            destinations_per_service: config.sizes.destinations_per_service,
        };
        let defaults = Defaults {
            scheduler: config.scheduler,
            hash_port: config.hash_port,
            max_services: limits.services as usize,
            max_destinations_per_service: limits.destinations_per_service as usize,
            options: config.services.clone(),
        };
        let tables = Pinned::open(&config.pins)?;
        let restored = Restored::read(&tables)?;
        let mut writer = Writer::restore(store, limits).context("cannot go on from what is programmed")?;
        if writer.has_unnamed() {
            // Reads all connections, but only when it may help.
            writer.name_removed(restored::names(&tables)?);
        }
        Ok(Self {
            programming: Programming::new(Planner::new(defaults), writer),
            restored,
            node_name: config.node_name.clone(),
            pins: config.pins.clone(),
            names: Names::default(),
            problems: ProblemLog::new(),
            errors: Once::default(),
        })
    }

    /// The `healthCheckNodePort`s of what was programmed last.
    pub fn health_checks(&self) -> &BTreeMap<(String, String), HealthCheck> {
        &self.programming.planner.plan().health_checks
    }

    /// Addresses that load balancers may ask them at.
    pub fn health_check_addresses(&self) -> &BTreeSet<IpAddr> {
        &self.programming.planner.plan().health_check_addresses
    }

    /// What states each service of the last plan, for scrapes.
    pub fn names(&self) -> &Names {
        &self.names
    }

    /// Takes the node's addresses as they are now. True if the plan may be another with them.
    pub fn set_addresses(&mut self, addresses: &[IpAddr]) -> bool {
        self.programming.planner.set_addresses(that_matter(addresses))
    }

    /// What is inconsistent in the maps; the next sync heals it.
    pub fn findings(&self) -> &[Finding] {
        self.programming.writer.findings()
    }

    /// Programs what the model says, which must be complete. Costs what has changed since the last time, or everything
    /// after an error.
    pub fn sync(&mut self, model: &mut Model, now: Instant) -> Outcome {
        let node = model.node(&self.node_name);
        if let Err(error) = self.read() {
            for error in self.errors.news([format!("{error:#}")]) {
                warn!("{error}; trying again");
            }
            let planner = &self.programming.planner;
            return Outcome {
                no_local: planner.no_local(),
                problems: planner.plan().problems.len(),
                families: [false, false],
            };
        }
        let result = self.programming.follow(model, &node, &mut self.restored, now);
        self.names.update(&self.programming.planner.plan().services, &self.programming.touched);
        let problems = model.problems();
        for problem in self.problems.update(problems.iter().chain(&self.programming.planner.plan().problems)) {
            warn!("{problem}");
        }
        let mut families = [true, true];
        match result {
            Ok(summary) => {
                tell(&summary);
                self.errors.news([]);
            }
            Err(errors) => {
                for failed in errors.iter().map(ApplyError::families) {
                    families = [families[0] && !failed[0], families[1] && !failed[1]];
                }
                for error in self.errors.news(errors.iter().map(with_causes)) {
                    warn!("{error}");
                }
            }
        }
        let planner = &self.programming.planner;
        let problems = problems.len() + planner.plan().problems.len();
        Outcome { no_local: planner.no_local(), problems, families }
    }

    /// Looks whether the maps still hold what was written. True if the next sync has something to repair.
    pub fn compare(&mut self) -> Result<bool> {
        let found = self.programming.compare().context("cannot compare the maps with what was written")?;
        if found.count > 0 {
            let (count, first) = (found.count, found.first.join("; "));
            warn!(
                "{count} entries of the maps are not as they were written, somebody else has changed them: {first}; repairing"
            );
        }
        Ok(found.count > 0)
    }

    /// After that: reads what the maps hold now.
    fn read(&mut self) -> Result<()> {
        if self.programming.read().context("cannot read the maps that somebody else has changed")? {
            let writer = &mut self.programming.writer;
            for finding in writer.findings() {
                warn!("{finding}");
            }
            if writer.has_unnamed() {
                writer.name_removed(restored::names(&Pinned::open(&self.pins)?)?);
            }
        }
        Ok(())
    }

    /// What is to be programmed, but for what an earlier agent has programmed and nobody can read.
    pub fn plan(&self) -> &Plan {
        self.programming.planner.plan()
    }

    /// Frees the ids of removed destinations that no connection refers to any more.
    pub fn collect(&mut self, now: Instant) {
        if let Err(errors) = self.programming.writer.collect(now) {
            for error in errors {
                warn!("cannot free removed destinations: {}; trying again", with_causes(&error));
            }
        }
    }
}

/// Each address once, in order, without those that no plan depends on: a pod that comes or goes, whose interface has
/// link-local ones and the gateway's that all have, is no reason for another plan.
fn that_matter(addresses: &[IpAddr]) -> Vec<IpAddr> {
    let mut seen = BTreeSet::new();
    let once = addresses.iter().filter(|address| can_serve_node_ports(address) && seen.insert(**address));
    once.copied().collect()
}

fn tell(summary: &Summary) {
    if summary.created + summary.changed + summary.removed > 0 {
        info!(
            "programmed: {} services created, {} changed, {} removed, {} as they were ({} map writes)",
            summary.created, summary.changed, summary.removed, summary.unchanged, summary.writes
        );
    }
}

/// An error with its causes, on one line.
fn with_causes(error: &impl std::error::Error) -> String {
    let mut line = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        line.push_str(": ");
        line.push_str(&cause.to_string());
        source = cause.source();
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interface_that_adds_nothing_but_link_local_and_known_addresses_changes_no_plan() {
        let parse = |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect::<Vec<IpAddr>>();
        let node = parse(&["192.0.2.10", "2001:db8::10", "169.254.1.1", "127.0.0.1", "::1", "fe80::1"]);
        let matter = parse(&["192.0.2.10", "2001:db8::10", "169.254.1.1"]);
        assert_eq!(that_matter(&node), matter);
        let with_pod = [node, parse(&["169.254.1.1", "fe80::2", "192.0.2.10"])].concat();
        assert_eq!(that_matter(&with_pod), matter);
        let with_address = [with_pod, parse(&["192.0.2.77"])].concat();
        assert_eq!(that_matter(&with_address), [matter, parse(&["192.0.2.77"])].concat());
    }
}
