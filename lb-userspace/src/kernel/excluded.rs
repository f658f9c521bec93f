//! Cgroups whose sockets are not balanced: found by their paths, told to the programs by their ids.

use std::collections::BTreeSet;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use aya::Ebpf;
use aya::maps::{HashMap, MapError};
use nix::sys::statfs::{CGROUP2_SUPER_MAGIC, statfs};

const MAP: &str = "excluded_cgroups";

/// Makes the map hold the cgroups at these paths, those of them that are there. Returns those that are not.
///
/// # Errors
/// A path that is no cgroup v2, or a map that cannot be changed.
pub fn sync(ebpf: &mut Ebpf, paths: &[PathBuf]) -> Result<Vec<PathBuf>> {
    let mut wanted = BTreeSet::new();
    let mut absent = Vec::new();
    for path in paths {
        match id(path)? {
            Some(id) => drop(wanted.insert(id)),
            None => absent.push(path.clone()),
        }
    }
    let map = ebpf.map_mut(MAP).with_context(|| format!("the BPF object has no map `{MAP}`"))?;
    let mut map =
        HashMap::<_, u64, u32>::try_from(map).with_context(|| format!("the map `{MAP}` has another layout"))?;
    let known: BTreeSet<u64> = map.keys().collect::<Result<_, _>>().with_context(|| format!("cannot read `{MAP}`"))?;
    for id in wanted.difference(&known) {
        map.insert(id, 1, 0).with_context(|| format!("cannot add cgroup {id} to `{MAP}`"))?;
    }
    for id in known.difference(&wanted) {
        match map.remove(id) {
            Ok(()) | Err(MapError::KeyNotFound) => {}
            Err(error) => return Err(error).with_context(|| format!("cannot remove cgroup {id} from `{MAP}`")),
        }
    }
    Ok(absent)
}

/// The id of the cgroup at a path, which is the inode number of its directory; none if there is nothing yet.
fn id(path: &Path) -> Result<Option<u64>> {
    let metadata = match path.metadata() {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error).with_context(|| format!("cannot read {}", path.display())),
    };
    check(path)?;
    Ok(Some(metadata.ino()))
}

/// Refuses a path that is there and no cgroup v2.
///
/// # Errors
/// Names the option and the path.
pub fn check(path: &Path) -> Result<()> {
    let on_cgroup2 = statfs(path).is_ok_and(|stat| stat.filesystem_type() == CGROUP2_SUPER_MAGIC);
    if path.exists() && !(on_cgroup2 && path.is_dir()) {
        bail!(
            "--socket-lb-exclude-cgroup {}: no cgroup v2: name a directory of the cgroup2 file system",
            path.display()
        );
    }
    Ok(())
}
