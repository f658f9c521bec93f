//! Pin folders of tests, `/sys/fs/bpf/bpvs-test-<pid>-<n>`, and the BPF file system under them.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, Result};
use nix::fcntl::{Flock, FlockArg};
use nix::mount::{MsFlags, mount as mount_file_system};
use nix::sys::statfs::{BPF_FS_MAGIC, statfs};

use crate::{
    cleanup::{self, Guard},
    namespace::is_alive,
};

const PARENT: &str = "/sys/fs";
const ROOT: &str = "/sys/fs/bpf";
const PREFIX: &str = "bpvs-test-";

static NUMBER: AtomicU32 = AtomicU32::new(0);

/// A folder name that nobody uses.
pub(super) fn new_path() -> PathBuf {
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    Path::new(ROOT).join(format!("{PREFIX}{}-{number}", std::process::id()))
}

/// Mounts the BPF file system unless it is there. Under a lock: a second mount would hide the first one's pins.
pub(super) fn mount() -> Result<()> {
    // Any directory that every run can see and that a mount does not replace.
    let parent = File::open(PARENT).with_context(|| format!("opening {PARENT}"))?;
    let _locked = Flock::lock(parent, FlockArg::LockExclusive)
        .map_err(|(_, error)| error)
        .with_context(|| format!("locking {PARENT}"))?;
    let kind = statfs(ROOT).with_context(|| format!("looking at {ROOT}"))?.filesystem_type();
    if kind != BPF_FS_MAGIC {
        mount_file_system(Some("bpffs"), ROOT, Some("bpf"), MsFlags::empty(), None::<&str>)
            .with_context(|| format!("mounting the BPF file system on {ROOT}; this needs root"))?;
    }
    Ok(())
}

/// Removes a pin folder with all in it: with the last pin and process, links detach and programs go.
pub(super) fn unpin(path: &Path) -> Result<()> {
    if !path.exists() {
        return Ok(());
    }
    fs::remove_dir_all(path).with_context(|| format!("removing {}", path.display()))
}

/// A pin folder of a test, removed with all in it when dropped.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    _guard: Guard,
}

impl Folder {
    /// A new, empty folder.
    pub fn new() -> Result<Self> {
        mount()?;
        let path = new_path();
        let gone = path.clone();
        let make = || fs::create_dir(&path).with_context(|| format!("making {}", path.display()));
        let undo = move || {
            if let Err(error) = unpin(&gone) {
                eprintln!("{error:#}");
            }
        };
        let ((), guard) = cleanup::create(format!("pin folder {}", path.display()), make, undo)?;
        Ok(Self { path, _guard: guard })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// Removes the pin folders of tests whose process is dead. Returns them.
pub fn reap_leftovers() -> Result<Vec<PathBuf>> {
    let Ok(directory) = fs::read_dir(ROOT) else {
        return Ok(Vec::new());
    };
    let mut reaped = Vec::new();
    for entry in directory {
        let entry = entry?;
        let name = entry.file_name();
        let owner = name.to_str().and_then(|name| name.strip_prefix(PREFIX)?.split_once('-')?.0.parse().ok());
        // Another run may reap it at the same time.
        if owner.is_some_and(|owner| !is_alive(owner)) && unpin(&entry.path()).is_ok() {
            reaped.push(entry.path());
        }
    }
    Ok(reaped)
}
