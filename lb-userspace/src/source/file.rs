//! Reading a file that anybody may write: never hanging, never more than a limit; and telling whether it has changed.

use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, Read as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nix::libc::O_NONBLOCK;

/// Largest file that is read, in bytes: a List of some 100,000 endpoints as kubectl prints it.
pub(super) const MAX_FILE_BYTES: u64 = 64 << 20;

/// The bytes of a regular file, or what is wrong with it.
pub(crate) fn read_bytes(path: &Path) -> Result<Vec<u8>, String> {
    let unreadable = |error: io::Error| format!("cannot be read: {error}");
    // Not blocking, or opening a pipe that nobody writes to would hang.
    let file = OpenOptions::new().read(true).custom_flags(O_NONBLOCK).open(path).map_err(unreadable)?;
    let data: Metadata = file.metadata().map_err(unreadable)?;
    if !data.is_file() {
        return Err("must be a regular file".to_owned());
    }
    let too_large =
        || format!("is larger than {} MiB, the most that is read: split it into several files", MAX_FILE_BYTES >> 20);
    if data.len() > MAX_FILE_BYTES {
        return Err(too_large());
    }
    let mut bytes = Vec::with_capacity(data.len() as usize);
    File::take(file, MAX_FILE_BYTES + 1).read_to_end(&mut bytes).map_err(unreadable)?;
    if bytes.len() as u64 > MAX_FILE_BYTES { Err(too_large()) } else { Ok(bytes) }
}

/// What can be told about files without reading them. Equal as long as none of them changed.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Fingerprint(Vec<(PathBuf, [i64; 6])>);

impl Fingerprint {
    pub(super) fn of(files: impl IntoIterator<Item = PathBuf>) -> Self {
        let mut entries = Vec::new();
        for file in files {
            if let Ok(data) = file.metadata() {
                let facts = [
                    data.dev() as i64,
                    data.ino() as i64,
                    data.len() as i64,
                    data.mtime(),
                    data.mtime_nsec(),
                    data.ctime_nsec(),
                ];
                entries.push((file, facts));
            }
        }
        Self(entries)
    }
}

/// A path as messages name it.
pub(crate) fn shown(path: &Path) -> Arc<str> {
    path.display().to_string().into()
}
