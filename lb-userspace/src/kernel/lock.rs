//! One agent per pin directory; one writer of what several programs write.

use std::fs::{File, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};

/// Held while this process is the agent of a pin directory. The kernel lets go of it when the process ends, however
/// it ends.
#[derive(Debug)]
pub struct Lock {
    _directory: Flock<File>,
}

/// Why the lock was not to be had.
#[derive(Debug, thiserror::Error)]
#[error("{} is in use by another bpvs agent{}", path.display(), pid.map(|pid| format!(" (pid {pid})")).unwrap_or_default())]
pub struct Held {
    /// The pin directory.
    pub path: PathBuf,
    /// The holder, if it can be seen from here.
    pub pid: Option<u32>,
}

/// Takes the lock, or fails with [`Held`] at once.
pub fn acquire(directory: &Path) -> Result<Lock> {
    let file = File::open(directory).with_context(|| format!("cannot open {}", directory.display()))?;
    let metadata = file.metadata()?;
    match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
        Ok(file) if is_at(&metadata, directory) => Ok(Lock { _directory: file }),
        // A cleanup that held the lock: what is locked now would be a directory that nobody finds.
        Ok(_) => bail!("{} was removed meanwhile, by `bpvs cleanup` it seems: start again", directory.display()),
        Err((_, Errno::EWOULDBLOCK)) => {
            let locks = std::fs::read_to_string("/proc/locks").unwrap_or_default();
            let pid = holder(&locks, metadata.dev(), metadata.ino());
            Err(Held { path: directory.to_owned(), pid }.into())
        }
        Err((_, errno)) => bail!("cannot lock {}: {errno}", directory.display()),
    }
}

/// Takes the lock of a directory, waiting for whoever has it: for what takes no time.
pub fn wait(directory: &Path) -> Result<Lock> {
    let file =
        File::open(directory).with_context(|| format!("cannot open {} (this needs root)", directory.display()))?;
    match Flock::lock(file, FlockArg::LockExclusive) {
        Ok(file) => Ok(Lock { _directory: file }),
        Err((_, errno)) => bail!("cannot lock {}: {errno}", directory.display()),
    }
}

/// True if the path still leads to what this describes.
fn is_at(opened: &Metadata, path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|now| (now.dev(), now.ino()) == (opened.dev(), opened.ino()))
}

/// The process that holds a lock on an inode, from the text of `/proc/locks`.
fn holder(locks: &str, device: u64, inode: u64) -> Option<u32> {
    let wanted = format!("{:02x}:{:02x}:{inode}", nix::sys::stat::major(device), nix::sys::stat::minor(device));
    locks.lines().find_map(|line| {
        let mut fields = line.split_whitespace().skip_while(|field| *field != "FLOCK").skip(3);
        let pid = fields.next()?;
        (fields.next()? == wanted).then(|| pid.parse().ok()).flatten()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_agent_is_told_the_pid_of_the_first() {
        let directory = tempfile::tempdir().unwrap();
        let first = acquire(directory.path()).unwrap();
        let error = acquire(directory.path()).unwrap_err();
        let held = error.downcast_ref::<Held>().unwrap();
        assert_eq!(held.path, directory.path());
        // Another pid namespace may hide it, but never show a wrong one.
        assert!(held.pid.is_none_or(|pid| pid == std::process::id()));
        drop(first);
        acquire(directory.path()).unwrap();
    }

    #[test]
    fn a_directory_that_was_made_anew_is_another_one() {
        let parent = tempfile::tempdir().unwrap();
        let path = parent.path().join("bpvs");
        std::fs::create_dir(&path).unwrap();
        let file = File::open(&path).unwrap();
        let opened = file.metadata().unwrap();
        assert!(is_at(&opened, &path));
        std::fs::remove_dir(&path).unwrap();
        assert!(!is_at(&opened, &path));
        // `file` keeps the number of the old one from being used again.
        std::fs::create_dir(&path).unwrap();
        assert!(!is_at(&opened, &path));
    }

    #[test]
    fn the_holder_is_found_by_device_and_inode() {
        let text = "1: FLOCK  ADVISORY  WRITE 101 00:1f:77 0 EOF\n2: POSIX  ADVISORY  WRITE 102 00:20:78 0 EOF\n\
                    3: FLOCK  ADVISORY  WRITE 103 00:20:78 0 EOF\n";
        assert_eq!(holder(text, nix::sys::stat::makedev(0, 0x20), 78), Some(103));
        assert_eq!(holder(text, nix::sys::stat::makedev(0, 0x20), 79), None);
        assert_eq!(holder("garbage\n4: FLOCK", 1, 1), None);
    }
}
