//! `bpvs cleanup`: takes away exactly what bpvs has made.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use aya::maps::MapInfo;

use super::attach::{Direction, clsact};
use super::bpf::{self, Kind};
use super::interfaces::Interface;
use super::pins::{LinkName, Pins};

/// What was done.
#[derive(Debug, Default)]
pub struct Report {
    /// What was removed, in words.
    pub removed: Vec<String>,
    /// What was found under the pin directory and is not ours.
    pub foreign: Vec<PathBuf>,
}

/// Removes links, maps, filters and directories. With nothing there, does nothing.
///
/// Links go first: the programs stop, then what they worked on goes. They are detached and not only unpinned, so that
/// no packet is translated any more when this returns.
pub fn cleanup(pins: &Pins, known_maps: &[&str], interfaces: &[Interface]) -> Result<Report> {
    let mut report = Report::default();
    let unreadable = || format!("cannot read {} (bpvs cleanup needs root)", pins.root().display());
    for file_name in pins.link_file_names().with_context(unreadable)? {
        let path = pins.links().join(&file_name);
        let link = open(&path)?.filter(|(_, kind)| LinkName::parse(&file_name).is_some() && *kind == Kind::Link);
        if let Some((link, _)) = &link {
            bpf::detach_link(link.as_fd()).with_context(|| format!("cannot detach link {}", path.display()))?;
        }
        remove_if(link.is_some(), "link", &path, &mut report)?;
    }
    for interface in interfaces {
        for direction in Direction::ALL {
            if clsact::remove(&interface.name, direction)? {
                report.removed.push(format!("tc filter of {} ({})", interface.name, direction.name()));
            }
        }
    }
    for name in pins.map_names().with_context(unreadable)? {
        let path = pins.map(&name);
        let ours = known_maps.contains(&name.as_str())
            && open(&path)?.is_some_and(|(_, kind)| kind == Kind::Map)
            && has_kernel_name(&path, &name);
        remove_if(ours, "map", &path, &mut report)?;
    }
    for directory in [pins.links(), pins.root().to_owned()] {
        match std::fs::remove_dir(&directory) {
            Ok(()) => report.removed.push(format!("directory {}", directory.display())),
            // With something foreign in it; that was named above.
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::DirectoryNotEmpty) => {}
            Err(error) => return Err(error).with_context(|| format!("cannot remove {}", directory.display())),
        }
    }
    Ok(report)
}

fn remove_if(ours: bool, what: &str, path: &Path, report: &mut Report) -> Result<()> {
    if ours {
        std::fs::remove_file(path).with_context(|| format!("cannot remove {}", path.display()))?;
        report.removed.push(format!("{what} {}", path.display()));
    } else {
        report.foreign.push(path.to_owned());
    }
    Ok(())
}

/// A pinned object and what it is, if it is one of BPF at all.
fn open(path: &Path) -> Result<Option<(OwnedFd, Kind)>> {
    match bpf::open_pin(path) {
        Ok(object) => Ok(Some(object)),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            Err(error).with_context(|| format!("cannot open {} (bpvs cleanup needs root)", path.display()))
        }
        Err(_) => Ok(None),
    }
}

/// True if the map was made under this name; the kernel keeps its first fifteen bytes.
fn has_kernel_name(path: &Path, name: &str) -> bool {
    MapInfo::from_pin(path).is_ok_and(|info| name.as_bytes().get(..15).unwrap_or(name.as_bytes()) == info.name())
}
