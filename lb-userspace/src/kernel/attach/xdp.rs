//! Keeps the XDP program on the uplinks: one pinned link each, whose program is replaced in place. Nobody else's program is
//! ever replaced, and an interface that cannot have ours is served at tc, which is always there.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use anyhow::{Context, Result, anyhow, bail};
use aya::Ebpf;
use aya::programs::{Program, loaded_programs};
use nix::libc;

use crate::kernel::bpf::{self, Kind, LinkTarget, XdpMode};
use crate::kernel::features;
use crate::kernel::interfaces::{AttachedXdp, Interface};
use crate::kernel::pins::{LinkName, Pins};

/// The program for a mode.
pub const fn program(mode: XdpMode) -> &'static str {
    match mode {
        XdpMode::Native => "bpvs_uplink",
        XdpMode::Generic => "bpvs_uplink_generic",
    }
}

/// Interfaces that refused the program, and why: they are not asked again before they go, since a driver may stop the link
/// for a moment when it is asked.
pub type Refused = BTreeMap<u32, String>;

/// What [`sync`] did, and what it could not do.
#[derive(Debug, Default)]
pub struct Report {
    /// Uplinks that have the program now.
    pub served: Vec<Interface>,
    /// Uplinks that got it.
    pub attached: usize,
    /// Uplinks whose older program was replaced.
    pub replaced: usize,
    /// Links of interfaces that are gone or no longer wanted.
    pub removed: usize,
    /// Uplinks that are served at tc, and why.
    pub refused: Vec<String>,
}

impl Report {
    /// True if anything was changed.
    pub fn has_changes(&self) -> bool {
        self.attached + self.replaced + self.removed > 0
    }
}

/// Makes the interfaces of `wanted` have the program in this mode, and releases the links of all others. Without a mode: of
/// all. Doing it again changes nothing.
///
/// # Errors
///
/// Only if the pins cannot be read or removed. What one interface refuses is in the report.
pub fn sync(
    ebpf: &Ebpf,
    pins: &Pins,
    mode: Option<XdpMode>,
    wanted: &[Interface],
    refused: &mut Refused,
) -> Result<Report> {
    let mut report = Report::default();
    refused.retain(|index, _| wanted.iter().any(|interface| interface.index == *index));
    if let Some(mode) = mode {
        let program = Uplink::of(ebpf, mode)?;
        for interface in wanted {
            match refused
                .get(&interface.index)
                .map_or_else(|| program.ensure(pins, interface, mode), |why| Err(anyhow!("{why}")))
            {
                Ok(Done::Kept) => {}
                Ok(Done::Attached) => report.attached += 1,
                Ok(Done::Replaced) => report.replaced += 1,
                Err(error) => {
                    if error.is::<Lasting>() {
                        refused.insert(interface.index, format!("{error:#}"));
                    }
                    report.refused.push(format!("{} is served at tc, not by XDP: {error:#}", interface.name));
                    continue;
                }
            }
            report.served.push(interface.clone());
        }
    }
    for name in pins.link_names().context("cannot read the pinned links")? {
        let LinkName::Uplink { index, .. } = name else { continue };
        if !report.served.iter().any(|interface| interface.index == index) {
            release(pins, &name)?;
            report.removed += 1;
        }
    }
    Ok(report)
}

/// A refusal that stands as long as the interface.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Lasting(String);

enum Done {
    Kept,
    Attached,
    Replaced,
}

/// The loaded program.
struct Uplink<'a> {
    program: BorrowedFd<'a>,
    id: u32,
}

impl<'a> Uplink<'a> {
    fn of(ebpf: &'a Ebpf, mode: XdpMode) -> Result<Self> {
        let name = program(mode);
        match ebpf.program(name) {
            Some(Program::Xdp(program)) => Ok(Self { program: program.fd()?.as_fd(), id: program.info()?.id() }),
            _ => bail!("the BPF object has no XDP program `{name}`"),
        }
    }

    fn ensure(&self, pins: &Pins, interface: &Interface, mode: XdpMode) -> Result<Done> {
        let name = LinkName::Uplink { index: interface.index, name: interface.name.clone() };
        if let Some(link) = open(pins, &name)? {
            let info =
                bpf::link_info(link.as_fd()).with_context(|| format!("cannot read the link {}", name.file_name()))?;
            let there = info.target == LinkTarget::Xdp { interface: interface.index }
                && interface.xdp == Some(AttachedXdp { program: info.program, mode: Some(mode) });
            if there && sends(interface, mode)? {
                if info.program == self.id {
                    return Ok(Done::Kept);
                }
                bpf::update_link(link.as_fd(), self.program)
                    .with_context(|| format!("cannot replace the program in the link {}", name.file_name()))?;
                return Ok(Done::Replaced);
            }
            // In another mode, or of an interface that is gone and whose index another one has; or nothing can be sent.
            release(pins, &name)?;
        } else if let Some(other) = interface.xdp {
            bail!("XDP of it has another program, {}, which stays", describe(other.program));
        }
        if interface.veth && !sends(interface, mode)? {
            bail!(
                "the other end of this veth takes no frames from XDP: it needs an XDP program or GRO \
                 (`ethtool -K <other end> gro on`) there, or bpvs --xdp generic"
            );
        }
        let link = bpf::attach_xdp(self.program, interface.index, mode).map_err(|error| refusal(&error, mode))?;
        if !sends(interface, mode)? {
            bail!(Lasting("its driver sends no frames from XDP (no ndo_xdp_xmit)".to_owned()));
        }
        let path = pins.link(&name);
        bpf::pin(link.as_fd(), &path).with_context(|| format!("cannot pin the link at {}", path.display()))?;
        Ok(Done::Attached)
    }
}

/// Why the kernel does not attach the program.
fn refusal(error: &io::Error, mode: XdpMode) -> anyhow::Error {
    match error.raw_os_error() {
        Some(libc::EBUSY | libc::EEXIST) => anyhow!("XDP of it has another program, which stays"),
        Some(libc::ENODEV) => anyhow!("it went away"),
        Some(libc::EOPNOTSUPP) if mode == XdpMode::Native => {
            Lasting("its driver has no native XDP; bpvs --xdp generic works with every driver".to_owned()).into()
        }
        _ => Lasting(format!(
            "the driver refuses the program: {error} (often the MTU or the number of queues; the kernel log says more)"
        ))
        .into(),
    }
}

/// True if frames can be sent from XDP out of the interface. Where the kernel does not say (before Linux 6.3), drivers with
/// native XDP are taken to, but for a veth, which drops them silently.
fn sends(interface: &Interface, mode: XdpMode) -> Result<bool> {
    if mode == XdpMode::Generic {
        return Ok(true);
    }
    let features = features::xdp(interface.index).context("cannot ask for the XDP features of it")?;
    Ok(features.map_or(!interface.veth, |features| features & features::XDP_TRANSMIT != 0))
}

fn open(pins: &Pins, name: &LinkName) -> Result<Option<OwnedFd>> {
    let path = pins.link(name);
    match bpf::open_pin(&path) {
        Ok((link, Kind::Link)) => Ok(Some(link)),
        Ok((_, kind)) => bail!("{} is a BPF {}, not a link: remove it", path.display(), kind.name()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| format!("cannot open {}", path.display())),
    }
}

/// Takes the program out of the hook and the pin away.
fn release(pins: &Pins, name: &LinkName) -> Result<()> {
    let path = pins.link(name);
    if let Some(link) = open(pins, name)? {
        // Of an interface that is gone it is detached already.
        let _gone = bpf::detach_link(link.as_fd());
    }
    std::fs::remove_file(&path).with_context(|| format!("cannot remove {}", path.display()))
}

/// A program by its name, where the kernel tells it.
fn describe(id: u32) -> String {
    let name = loaded_programs()
        .filter_map(Result::ok)
        .find(|program| program.id() == id)
        .and_then(|program| program.name_as_str().map(str::to_owned));
    match name {
        Some(name) if !name.is_empty() => format!("`{name}` (id {id})"),
        _ => format!("of id {id}"),
    }
}
