//! The file of configuration, while the agent runs: what it said was read once, and another file is another agent.

use std::future::pending;
use std::path::PathBuf;

use crate::source::file::read_bytes;
use crate::source::follow::POLL;
use crate::source::watch::Watch;

/// A file, and what it held when it was read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ConfigFile {
    /// Where it is.
    pub path: PathBuf,
    /// What it held.
    pub bytes: Vec<u8>,
}

/// Ends when the file holds something else. A file that is written anew with what it held is no change, and one that is
/// gone may be on its way: volumes and editors replace files.
pub async fn changed(file: Option<ConfigFile>) {
    let Some(file) = file else { return pending().await };
    let mut watch = Watch::new(&file.path);
    loop {
        watch.arm();
        let path = file.path.clone();
        let read = tokio::task::spawn_blocking(move || read_bytes(&path)).await;
        if read.is_ok_and(|read| read.is_ok_and(|bytes| bytes != file.bytes)) {
            return;
        }
        watch.changed(POLL).await;
    }
}
