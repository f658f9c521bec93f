//! A file or a folder of manifests, watched.
//!
//! Any change leads to reading everything again and to a list that replaces the last one: no state is patched. What
//! a file held stays for as long as the file cannot be read whole.

mod folder;
mod parse;

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use tracing::{error, info};

use super::Sender;
use super::file::Fingerprint;
use super::follow::{self, POLL, follow};
use crate::model::{Change, List, SourceId};
use folder::Folder;

/// A source of manifests.
#[derive(Clone, Debug)]
pub struct Manifests {
    path: PathBuf,
    poll: Duration,
}

impl Manifests {
    /// A source for a file, or for the `*.yaml`, `*.yml` and `*.json` files directly in a folder.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), poll: POLL }
    }

    /// The same, looked at this often.
    pub fn poll_every(mut self, poll: Duration) -> Self {
        self.poll = poll;
        self
    }

    /// Checks that the path can be looked at, for a clear end at the start of the program.
    pub fn check(&self) -> io::Result<()> {
        let data = self.path.metadata()?;
        if data.is_dir() { self.path.read_dir().map(drop) } else { std::fs::File::open(&self.path).map(drop) }
    }

    /// Reads once, without watching.
    pub fn read_once(&self) -> io::Result<List> {
        Folder::new(self.path.clone()).read()
    }

    /// Sends a list now and after each change, until nobody listens. The first one comes as soon as the path can be
    /// looked at.
    pub async fn run(self, sender: Sender) {
        let reader = Reader { folder: Folder::new(self.path.clone()), delivered: false, failing: false };
        follow(SourceId::MANIFESTS, self.path, self.poll, reader, sender).await;
    }
}

struct Reader {
    folder: Folder,
    delivered: bool,
    failing: bool,
}

impl follow::Reader for Reader {
    fn read(&mut self) -> Option<Change> {
        match self.folder.read() {
            Ok(list) => {
                if self.failing {
                    info!("manifests: can be read again");
                }
                self.failing = false;
                self.delivered = true;
                Some(Change::Replace(list))
            }
            Err(error) => {
                let list = self.folder.keep_all(&error);
                if !std::mem::replace(&mut self.failing, true) && !self.delivered {
                    let problem = list.problems.first().map(ToString::to_string).unwrap_or_default();
                    error!("{problem}; nothing is programmed until it can be read");
                }
                self.delivered.then_some(Change::Replace(list))
            }
        }
    }

    fn fingerprint(&self) -> io::Result<Fingerprint> {
        self.folder.fingerprint()
    }
}

#[cfg(test)]
mod tests;
