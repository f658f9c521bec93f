//! Which sources there are, and that they run.

use anyhow::{Context, Result};
use tokio::sync::mpsc;
use tracing::info;

use super::{Api, Config};
use crate::model::SourceId;
use crate::source::api::{ApiSource, Connection};
use crate::source::manifests::Manifests;
use crate::source::rules::RulesFile;
use crate::source::{self, Update};

/// Sources that can be started.
pub struct Prepared {
    manifests: Option<Manifests>,
    rules: Option<RulesFile>,
    api: Option<ApiSource>,
}

/// Checks what the sources need, before anything on the node is changed. The API server may be away.
pub async fn prepare(config: &Config) -> Result<Prepared> {
    let manifests = match &config.manifests {
        Some(path) => {
            let manifests = Manifests::new(path);
            manifests.check().with_context(|| format!("cannot read --manifests {}", path.display()))?;
            info!("source: manifests at {}", path.display());
            Some(manifests)
        }
        None => None,
    };
    let rules = match &config.rules {
        Some(path) => {
            let rules = RulesFile::new(path);
            rules.check().with_context(|| format!("cannot read --ipvs-rules {}", path.display()))?;
            info!("source: rules in {}", path.display());
            Some(rules)
        }
        None => None,
    };
    let api = match &config.api {
        Some(api) => {
            let (kubeconfig, server) = match api {
                Api::Kubeconfig { path, server } => (Some(path.as_path()), server.as_ref()),
                Api::Server(server) => (None, Some(server)),
                Api::InCluster => (None, None),
            };
            let source = ApiSource::connect(kubeconfig, server, &config.node_name, config.api_limit).await?;
            let place = match (kubeconfig, server) {
                (_, Some(server)) => server.to_string(),
                (Some(path), None) => path.display().to_string(),
                (None, None) => "this pod's cluster".to_owned(),
            };
            info!("source: API server of {place}, as node {}", config.node_name);
            Some(source)
        }
        None => None,
    };
    Ok(Prepared { manifests, rules, api })
}

/// Running sources.
pub struct Sources {
    /// Which, so that the model can wait for each one's first list.
    pub ids: Vec<SourceId>,
    /// What they tell.
    pub updates: mpsc::Receiver<Update>,
    /// The API server, if there is one.
    pub connection: Option<Connection>,
}

impl Prepared {
    /// Starts every source.
    pub fn start(self) -> Sources {
        let (sender, updates) = source::channel();
        let mut ids = Vec::new();
        if let Some(manifests) = self.manifests {
            tokio::spawn(manifests.run(sender.clone()));
            ids.push(SourceId::MANIFESTS);
        }
        if let Some(rules) = self.rules {
            tokio::spawn(rules.run(sender.clone()));
            ids.push(SourceId::RULES);
        }
        let connection = self.api.as_ref().map(ApiSource::connection);
        if let Some(api) = self.api {
            tokio::spawn(api.run(sender));
            ids.extend(ApiSource::SOURCES);
        }
        Sources { ids, updates, connection }
    }
}
