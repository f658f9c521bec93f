//! Where packets go straight to with `--forwarding direct`: interfaces that have the programs, as what leaves by others must
//! leave by the stack.

use anyhow::Result;
use aya::Ebpf;
use lb_common::layout::{DIRECT_NEIGHBOUR, DIRECT_PEER};

use crate::kernel::attach::Forwarding;
use crate::kernel::by_interface;
use crate::kernel::interfaces::Interface;

/// Tells the programs of the interfaces that they are attached to; of none, if packets go by the stack.
///
/// # Errors
/// If the map cannot be changed.
pub fn write(ebpf: &mut Ebpf, forwarding: Forwarding, attached: &[Interface]) -> Result<()> {
    let attached = if forwarding == Forwarding::Direct { attached } else { &[] };
    let entries = attached.iter().map(|interface| (interface.index, how(interface))).collect();
    by_interface::write(ebpf, "direct", &entries)
}

/// A veth into another network namespace, as pods have, is left at its other end.
fn how(interface: &Interface) -> u32 {
    if interface.veth && interface.leads_elsewhere { DIRECT_PEER } else { DIRECT_NEIGHBOUR }
}
