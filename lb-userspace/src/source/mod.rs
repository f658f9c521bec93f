//! Where objects come from. Sources turn the outside into model changes and know nothing of maps or plans.

pub mod api;
pub(crate) mod file;
pub(crate) mod follow;
pub mod manifests;
pub mod rules;
pub(crate) mod watch;
pub(crate) mod yaml;

use tokio::sync::mpsc;

use crate::model::{Change, SourceId};

/// A change and the source that tells it.
#[derive(Clone, Debug, PartialEq)]
pub struct Update {
    /// The source.
    pub source: SourceId,
    /// What it tells.
    pub change: Change,
}

/// Where sources send to. Bounded, so that a source that is faster than the agent waits.
pub type Sender = mpsc::Sender<Update>;

/// A channel from all sources to the agent.
pub fn channel() -> (Sender, mpsc::Receiver<Update>) {
    mpsc::channel(1024)
}
