//! Telling when to look at the files again: at once by inotify, and slowly by polling where inotify sees nothing
//! (network file systems, targets of symbolic links, a folder that is taken away and put back).

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use notify::event::{AccessKind, AccessMode, EventKind};
use notify::{RecommendedWatcher, RecursiveMode, Watcher as _};
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout_at};
use tracing::warn;

/// Changes come in bursts: how long none may come before the files are read, and how long at most to wait for that.
const QUIET: Duration = Duration::from_millis(50);
const PATIENCE: Duration = Duration::from_secs(1);

pub(crate) struct Watch {
    folder: PathBuf,
    events: mpsc::Receiver<()>,
    sender: mpsc::Sender<()>,
    /// The watcher and the folder (device, inode) that it watches.
    armed: Option<(RecommendedWatcher, (u64, u64))>,
    warned: bool,
}

impl Watch {
    /// A watch for a folder, or for the folder that a file is in: editors and volumes replace files by renaming.
    pub(crate) fn new(path: &Path) -> Self {
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let folder = if path.is_dir() || path.parent().is_none() { path } else { parent };
        let (sender, events) = mpsc::channel(1);
        Self { folder: folder.to_owned(), events, sender, armed: None, warned: false }
    }

    /// Makes sure that the folder that has the name now is being watched. To be called before reading, so that no
    /// change falls in between.
    pub(crate) fn arm(&mut self) {
        let identity = self.folder.metadata().map(|data| (data.dev(), data.ino())).ok();
        if self.armed.as_ref().map(|(_, watched)| *watched) == identity {
            return;
        }
        self.armed = None;
        let Some(identity) = identity else { return };
        let sender = self.sender.clone();
        let on_event = move |event: notify::Result<notify::Event>| {
            if event.map_or(true, |event| event.need_rescan() || concerns_content(event.kind)) {
                // A full channel already says what this event would.
                let _ = sender.try_send(());
            }
        };
        let watcher = notify::recommended_watcher(on_event).and_then(|mut watcher| {
            watcher.watch(&self.folder, RecursiveMode::NonRecursive)?;
            Ok(watcher)
        });
        match watcher {
            Ok(watcher) => self.armed = Some((watcher, identity)),
            Err(error) if !self.warned => {
                self.warned = true;
                warn!("{}: cannot be watched ({error}); it is looked at regularly instead", self.folder.display());
            }
            Err(_) => {}
        }
    }

    /// Waits for a change that inotify reports, and then until the burst it belongs to is over. False if none came
    /// in that time.
    pub(crate) async fn changed(&mut self, within: Duration) -> bool {
        if timeout_at(Instant::now() + within, self.events.recv()).await.is_err() {
            return false;
        }
        let end = Instant::now() + PATIENCE;
        while timeout_at(end.min(Instant::now() + QUIET), self.events.recv()).await.is_ok() && Instant::now() < end {}
        true
    }
}

/// Reading a file is an event too: answering it by reading would never end.
fn concerns_content(kind: EventKind) -> bool {
    match kind {
        EventKind::Access(AccessKind::Close(AccessMode::Write)) => true,
        EventKind::Access(_) => false,
        _ => true,
    }
}
