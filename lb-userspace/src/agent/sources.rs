//! Which sources there are, and that they run.

use anyhow::{Context, Result};
use tokio::sync::mpsc;
use tracing::info;

use super::Config;
use crate::model::SourceId;
use crate::source::{self, Update};

/// Running sources.
#[derive(Debug)]
pub struct Sources {
    /// Which, so that the model can wait for each one's first list.
    pub ids: Vec<SourceId>,
    /// What they tell.
    pub updates: mpsc::Receiver<Update>,
}

/// Starts every source that the configuration names.
pub async fn start(config: &Config) -> Result<Sources> {
    let (sender, updates) = source::channel();
    let mut ids = Vec::new();
    if let Some(path) = &config.manifests {
        let manifests = source::manifests::Manifests::new(path);
        manifests.check().with_context(|| format!("cannot read --manifests {}", path.display()))?;
        info!("source: manifests at {}", path.display());
        tokio::spawn(manifests.run(sender.clone()));
        ids.push(SourceId::MANIFESTS);
    }
    Ok(Sources { ids, updates })
}
