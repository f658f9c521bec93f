//! The socket programs on the cgroup: pinned links whose programs are replaced in place.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use anyhow::{Context, Result, bail};
use aya::Ebpf;
use aya::programs::Program;
use aya::programs::links::{CgroupAttachMode, FdLink};

use crate::kernel::bpf::{self, Kind, LinkTarget};
use crate::kernel::object::SOCKET_PROGRAMS;
use crate::kernel::pins::{LinkName, Pins};

/// Makes every socket program be on the cgroup at `path`.
pub fn attach(ebpf: &mut Ebpf, pins: &Pins, path: &Path) -> Result<()> {
    let cgroup = File::open(path).with_context(|| format!("cannot open the cgroup {} (--cgroup)", path.display()))?;
    // The id of a cgroup is the inode number of its directory.
    let id = cgroup.metadata()?.ino();
    for name in SOCKET_PROGRAMS {
        let program = ebpf.program_mut(name).with_context(|| format!("the BPF object has no program `{name}`"))?;
        let pin = pins.link(&LinkName::Cgroup { program: name.to_owned() });
        ensure(program, &cgroup, id, &pin)
            .with_context(|| format!("cannot attach `{name}` to the cgroup {}", path.display()))?;
    }
    Ok(())
}

/// Takes the socket programs off the cgroup. Returns how many there were.
pub fn detach(pins: &Pins) -> Result<usize> {
    let mut removed = 0;
    for name in pins.link_names()? {
        if matches!(name, LinkName::Cgroup { .. }) {
            let path = pins.link(&name);
            std::fs::remove_file(&path).with_context(|| format!("cannot remove {}", path.display()))?;
            removed += 1;
        }
    }
    Ok(removed)
}

fn ensure(program: &mut Program, cgroup: &File, id: u64, pin: &Path) -> Result<()> {
    match bpf::open_pin(pin) {
        Ok((link, Kind::Link)) => {
            if bpf::link_info(link.as_fd())?.target == (LinkTarget::Cgroup { id }) {
                return bpf::update_link(link.as_fd(), program.fd()?.as_fd())
                    .with_context(|| format!("cannot replace the program in {}", pin.display()));
            }
            // On another cgroup, or on one that is gone.
            std::fs::remove_file(pin).with_context(|| format!("cannot remove {}", pin.display()))?;
        }
        Ok((_, kind)) => bail!("{} is a BPF {}, not a link: remove it", pin.display(), kind.name()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error).with_context(|| format!("cannot open {}", pin.display())),
    }
    // A link always stands beside the programs of others and of cgroups below; the flag that says so for the older
    // way of attaching is refused.
    let mode = CgroupAttachMode::Single;
    let link = match program {
        Program::CgroupSockAddr(program) => {
            let id = program.attach(cgroup, mode)?;
            FdLink::try_from(program.take_link(id)?)?
        }
        Program::CgroupSock(program) => {
            let id = program.attach(cgroup, mode)?;
            FdLink::try_from(program.take_link(id)?)?
        }
        other => bail!("it is a program of type {:?}", other.prog_type()),
    };
    link.pin(pin).with_context(|| format!("cannot pin the link at {}", pin.display()))?;
    Ok(())
}
