//! How the API server is reached, and by what a client is made anew.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use axum::http::{HeaderValue, Uri, header};
use kube::client::ClientBuilder;
use kube::config::{Kubeconfig, KubeconfigError};
use kube::{Client, Config};
use tokio::time::Instant;
use tracing::debug;

use super::{ConnectError, RequestLimit};

/// By this the API server's audit log names who asks.
const USER_AGENT: &str = concat!("bpvs/", env!("CARGO_PKG_VERSION"));

/// A client of the API server that is replaced when its credentials are not taken any more. Clones share it.
#[derive(Clone)]
pub struct Connection {
    from: Arc<From>,
    client: Arc<Mutex<(Client, Instant)>>,
}

/// What a client is made of.
struct From {
    kubeconfig: Option<PathBuf>,
    server: Option<Uri>,
    limit: RequestLimit,
}

impl Connection {
    /// Prepares a client from a kubeconfig file, or from the service account of the pod. A server that is given is asked
    /// instead of the file's; without a file it is asked without credentials. Nothing is asked of the server yet, so
    /// that it may be away. Each client, also one made anew, asks no more often than the limit says.
    pub async fn new(
        kubeconfig: Option<&Path>,
        server: Option<&Uri>,
        limit: RequestLimit,
    ) -> Result<Self, ConnectError> {
        let from = From { kubeconfig: kubeconfig.map(Path::to_owned), server: server.cloned(), limit };
        let client = from.client().await?;
        Ok(Self { from: Arc::new(from), client: Arc::new(Mutex::new((client, Instant::now()))) })
    }

    /// The client of now, and when it was made.
    pub fn client(&self) -> (Client, Instant) {
        self.client.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The credentials of the client that was made then are not taken (401): another one is made of what the files say now,
    /// unless that was done since. `kube` looks at a token's file once in a minute, and at a certificate's never.
    pub async fn renew(&self, made: Instant) {
        if self.client().1 != made {
            return;
        }
        match self.from.client().await {
            Ok(client) => {
                let mut current = self.client.lock().unwrap_or_else(PoisonError::into_inner);
                if current.1 == made {
                    *current = (client, Instant::now());
                }
            }
            // What the server says of the old ones is told by whoever asked.
            Err(error) => debug!("API server: no other client: {error}"),
        }
    }
}

impl From {
    async fn client(&self) -> Result<Client, ConnectError> {
        let mut config = match (&self.kubeconfig, &self.server) {
            (Some(path), _) => {
                let named = |source| ConnectError::Kubeconfig { path: path.clone(), source };
                configuration(path).await.map_err(named)?
            }
            (None, Some(server)) => Config::new(server.clone()),
            (None, None) => Config::incluster()?,
        };
        if let Some(server) = &self.server {
            config.cluster_url = server.clone();
        }
        // Whoever asks tries again at a pace of its own, and is limited; the client's own tries, from 5 ms on, would not be.
        config.default_retry = false;
        config.headers.push((header::USER_AGENT, HeaderValue::from_static(USER_AGENT)));
        Ok(ClientBuilder::try_from(config)?.with_layer(&self.limit).build())
    }
}

/// What a kubeconfig file says. A file with the authority's certificates is looked at again and again, as the authority may
/// change.
async fn configuration(path: &Path) -> Result<Config, KubeconfigError> {
    let kubeconfig = Kubeconfig::read_from(path)?;
    let context = kubeconfig.contexts.iter().find(|context| Some(&context.name) == kubeconfig.current_context.as_ref());
    let cluster = context.and_then(|context| context.context.as_ref()).map(|context| context.cluster.clone());
    let cluster = kubeconfig.clusters.iter().find(|known| Some(&known.name) == cluster.as_ref());
    let cluster = cluster.and_then(|known| known.cluster.as_ref());
    // What stands in the kubeconfig itself comes before the file.
    let authority = cluster.filter(|cluster| cluster.certificate_authority_data.is_none());
    let authority = authority.and_then(|cluster| cluster.certificate_authority.as_ref()).map(PathBuf::from);
    let mut config = Config::from_custom_kubeconfig(kubeconfig, &Default::default()).await?;
    config.root_cert_file = authority;
    Ok(config)
}
