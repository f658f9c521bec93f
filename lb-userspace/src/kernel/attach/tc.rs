//! Keeps the two tc programs on the interfaces that should have them, and nowhere else.

use anyhow::{Context, Result};
use aya::Ebpf;
use aya::programs::{Program, SchedClassifier};

use super::tcx::Outcome;
use super::{Direction, Forwarding, clsact, tcx};
use crate::kernel::interfaces::Interface;
use crate::kernel::pins::{LinkName, Pins};

/// How programs are attached to interfaces.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    /// Pinned TCX links.
    Tcx,
    /// clsact filters.
    Clsact,
}

/// What [`sync`] did, by number of hooks, and what it could not do.
#[derive(Debug, Default)]
pub struct Report {
    /// Hooks that got the program.
    pub attached: usize,
    /// Hooks whose older program was replaced.
    pub replaced: usize,
    /// Links of interfaces that are gone or no longer wanted.
    pub removed: usize,
    /// Interfaces that could not be served, and why.
    pub errors: Vec<anyhow::Error>,
}

impl Report {
    /// True if anything was changed.
    pub fn has_changes(&self) -> bool {
        self.attached + self.replaced + self.removed > 0
    }
}

/// Makes the hooks of `wanted` have the programs, and releases the links of all others. Doing it again changes nothing.
///
/// # Errors
///
/// Only if the pins cannot be read. One interface's error is in the report and keeps none of the others.
pub async fn sync(
    ebpf: &mut Ebpf,
    pins: &Pins,
    (mode, forwarding): (Mode, Forwarding),
    netlink: &rtnetlink::Handle,
    wanted: &[Interface],
) -> Result<Report> {
    let mut report = Report::default();
    for interface in wanted {
        for direction in Direction::ALL {
            let program = program_mut(ebpf, direction.program(forwarding))?;
            let outcome = match mode {
                Mode::Tcx => tcx::ensure(pins, interface, direction, program),
                Mode::Clsact => clsact::ensure(netlink, interface, direction, program).await,
            };
            match outcome {
                Ok(Outcome::Kept | Outcome::Vanished) => {}
                Ok(Outcome::Replaced) => report.replaced += 1,
                Ok(Outcome::Attached) => report.attached += 1,
                Err(error) => report.errors.push(error),
            }
        }
    }
    for name in pins.link_names().context("cannot read the pinned links")? {
        let LinkName::Interface { index, .. } = name else { continue };
        if mode == Mode::Clsact || !wanted.iter().any(|interface| interface.index == index) {
            let path = pins.link(&name);
            std::fs::remove_file(&path).with_context(|| format!("cannot remove {}", path.display()))?;
            report.removed += 1;
        }
    }
    Ok(report)
}

/// Removes the filters that an earlier agent left where they are not wanted: on interfaces that are not selected now,
/// or everywhere once links do their work. Filters go with their interfaces, so once per start is enough.
pub fn release_filters(mode: Mode, all: &[Interface], wanted: &[Interface], report: &mut Report) {
    for interface in all.iter().filter(|interface| mode == Mode::Tcx || !wanted.contains(interface)) {
        for direction in Direction::ALL {
            match clsact::remove(&interface.name, direction) {
                Ok(removed) => report.removed += usize::from(removed),
                Err(error) => report.errors.push(error),
            }
        }
    }
}

fn program_mut<'a>(ebpf: &'a mut Ebpf, name: &str) -> Result<&'a mut SchedClassifier> {
    match ebpf.program_mut(name) {
        Some(Program::SchedClassifier(program)) => Ok(program),
        _ => anyhow::bail!("the BPF object has no classifier `{name}`"),
    }
}
