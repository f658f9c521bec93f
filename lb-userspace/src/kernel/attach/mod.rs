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

/// How a translated packet gets to the interface of its receiver.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Forwarding {
    /// By the kernel's stack: routing and netfilter see it.
    Stack,
    /// Straight from where it came in.
    Direct,
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
    pub const fn program(self, forwarding: Forwarding) -> &'static str {
        match (self, forwarding) {
            (Self::Ingress, Forwarding::Stack) => "bpvs_ingress",
            (Self::Ingress, Forwarding::Direct) => "bpvs_direct",
            (Self::Egress, _) => "bpvs_egress",
        }
    }

    /// The programs that this hook may have from an agent of either forwarding.
    pub fn programs(self) -> impl Iterator<Item = &'static str> {
        let [stack, direct] = [Forwarding::Stack, Forwarding::Direct].map(|forwarding| self.program(forwarding));
        [stack].into_iter().chain((direct != stack).then_some(direct))
    }

    /// aya's name for it.
    pub(super) const fn attach_type(self) -> aya::programs::TcAttachType {
        match self {
            Self::Ingress => aya::programs::TcAttachType::Ingress,
            Self::Egress => aya::programs::TcAttachType::Egress,
        }
    }
}
