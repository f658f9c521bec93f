//! Reading files now and after each change, for as long as anybody listens.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use tracing::error;

use super::file::Fingerprint;
use super::watch::Watch;
use super::{Sender, Update};
use crate::model::{Change, SourceId};

/// How often files are looked at when nothing is reported.
pub(crate) const POLL: Duration = Duration::from_secs(5);

/// What reads the files under a path.
pub(super) trait Reader: Send + 'static {
    /// Reads everything; what there is to tell, if anything.
    fn read(&mut self) -> Option<Change>;
    /// Tells without reading whether anything changed.
    fn fingerprint(&self) -> io::Result<Fingerprint>;
}

/// Sends what the reader has to tell.
pub(super) async fn follow(source: SourceId, path: PathBuf, poll: Duration, mut reader: impl Reader, sender: Sender) {
    let mut watch = Watch::new(&path);
    loop {
        watch.arm();
        let read = move || {
            // Before reading, so that a change meanwhile is seen.
            let seen = reader.fingerprint().ok();
            let change = reader.read();
            (reader, change, seen)
        };
        let (returned, change, seen) = match tokio::task::spawn_blocking(read).await {
            Ok(result) => result,
            Err(panic) => {
                error!("{}: reading failed: {panic}", path.display());
                return;
            }
        };
        reader = returned;
        if let Some(change) = change
            && sender.send(Update { source, change }).await.is_err()
        {
            return;
        }
        loop {
            tokio::select! {
                changed = watch.changed(poll) => if changed { break },
                () = sender.closed() => return,
            }
            watch.arm();
            if reader.fingerprint().ok() != seen {
                break;
            }
        }
    }
}
