//! Programs attached so that they stay when this process goes, and are replaced without a gap when the next one comes.
//!
//! | module | where |
//! |---|---|
//! | [`tcx`] | interfaces of kernels from 6.6 on: pinned links |
//! | [`clsact`] | interfaces of older kernels: filters, known by their name |
//! | [`xdp`] | uplinks, before the stack: pinned links |
//! | [`cgroup`] | sockets of this node: pinned links |
//! | [`tc`] | interfaces: which of the first two, and what goes with an interface |

pub mod cgroup;
pub mod clsact;
pub mod tc;
pub mod tcx;
pub mod xdp;

use anyhow::{Context, Result};

use crate::kernel::interfaces::Interface;
use crate::kernel::pins::Pins;

/// Gives the pins of renamed interfaces their new names.
pub fn follow_renames(pins: &Pins, interfaces: &[Interface]) -> Result<()> {
    for old in pins.link_names().context("cannot read the pinned links")? {
        let Some((index, name)) = old.interface() else { continue };
        let Some(interface) = interfaces.iter().find(|interface| interface.index == index) else { continue };
        if interface.name != name {
            let (from, to) = (pins.link(&old), pins.link(&old.renamed(&interface.name)));
            std::fs::rename(&from, &to)
                .with_context(|| format!("cannot rename {} to {}", from.display(), to.display()))?;
        }
    }
    Ok(())
}

/// Which of an interface's two tc hooks.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Direction {
    /// Packets that arrive.
    Ingress,
    /// Packets that leave.
    Egress,
}

impl Direction {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Ingress, Self::Egress];

    /// Its name in pins and messages.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ingress => "ingress",
            Self::Egress => "egress",
        }
    }

    /// The program for this hook.
    pub const fn program(self) -> &'static str {
        match self {
            Self::Ingress => "bpvs_ingress",
            Self::Egress => "bpvs_egress",
        }
    }

    /// aya's name for it.
    pub(super) const fn attach_type(self) -> aya::programs::TcAttachType {
        match self {
            Self::Ingress => aya::programs::TcAttachType::Ingress,
            Self::Egress => aya::programs::TcAttachType::Egress,
        }
    }
}
