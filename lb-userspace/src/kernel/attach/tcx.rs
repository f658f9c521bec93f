//! TCX links (Linux 6.6): one pinned link per interface and direction, whose program is replaced in place.

use std::io;
use std::os::fd::AsFd;

use anyhow::{Context, Result, bail};
use aya::programs::links::FdLink;
use aya::programs::tc::TcAttachOptions;
use aya::programs::{LinkOrder, SchedClassifier};
use nix::libc;

use super::Direction;
use crate::kernel::bpf::{self, Kind, LinkTarget};
use crate::kernel::interfaces::Interface;
use crate::kernel::pins::{LinkName, Pins};

/// What was done to a hook.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// The program was there.
    Kept,
    /// An older program was replaced in place.
    Replaced,
    /// The program was attached.
    Attached,
    /// The interface went away meanwhile.
    Vanished,
}

/// True if this kernel has TCX.
pub fn is_supported() -> bool {
    // Interface 1 is the loopback device of every network namespace.
    !matches!(bpf::tcx_links(1, bpf::TCX_INGRESS), Err(error) if error.raw_os_error() == Some(libc::EINVAL))
}

const fn hook(direction: Direction) -> u32 {
    match direction {
        Direction::Ingress => bpf::TCX_INGRESS,
        Direction::Egress => bpf::TCX_EGRESS,
    }
}

/// Makes `program` be at the hook, through the pinned link if there is one that is still attached there.
pub fn ensure(
    pins: &Pins,
    interface: &Interface,
    direction: Direction,
    program: &mut SchedClassifier,
) -> Result<Outcome> {
    let name = LinkName::Interface { index: interface.index, name: interface.name.clone(), direction };
    let path = pins.link(&name);
    match bpf::open_pin(&path) {
        Ok((link, Kind::Link)) => {
            let info = bpf::link_info(link.as_fd()).with_context(|| format!("cannot read {}", path.display()))?;
            if is_at(&info, interface.index, direction) {
                if info.program == program.info()?.id() {
                    return Ok(Outcome::Kept);
                }
                bpf::update_link(link.as_fd(), program.fd()?.as_fd())
                    .with_context(|| format!("cannot replace the program in {}", path.display()))?;
                return Ok(Outcome::Replaced);
            }
            // Its interface is gone, and another one has the index.
            std::fs::remove_file(&path).with_context(|| format!("cannot remove {}", path.display()))?;
        }
        Ok((_, kind)) => bail!("{} is a BPF {}, not a link: remove it", path.display(), kind.name()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error).with_context(|| format!("cannot open {}", path.display())),
    }
    let options = TcAttachOptions::TcxOrder(LinkOrder::last());
    let id = match program.attach_with_options(&interface.name, direction.attach_type(), options) {
        Ok(id) => id,
        Err(_) if nix::net::if_::if_nametoindex(interface.name.as_str()) != Ok(interface.index) => {
            return Ok(Outcome::Vanished);
        }
        Err(error) => {
            return Err(error)
                .with_context(|| format!("cannot attach the program of {} to {}", direction.name(), interface.name));
        }
    };
    let link = FdLink::try_from(program.take_link(id)?)?;
    link.pin(&path).with_context(|| format!("cannot pin the link at {}", path.display()))?;
    Ok(Outcome::Attached)
}

/// True if a link is attached to the hook of the interface that has this index in this network namespace. An
/// interface that moved to another namespace takes its links along, and may have the same index there.
fn is_at(info: &bpf::LinkInfo, index: u32, direction: Direction) -> bool {
    info.target == LinkTarget::Tcx { interface: index, attach_type: hook(direction) }
        && bpf::tcx_links(index, hook(direction)).is_ok_and(|links| links.contains(&info.id))
}
