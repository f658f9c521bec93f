//! The API server: Services, EndpointSlices, the own Node, and ServiceCIDRs where there are any, listed and watched.
//!
//! After any trouble the objects are listed anew and the list replaces what was there (cilium#48050): a watch that goes
//! on where it broke would miss an event that could not be decoded, and `kube` never recovers from a 410 at the
//! start of a watch. A list every now and then heals what no event will tell, such as a restored etcd whose versions
//! went backwards. While the API server is away nothing changes.

mod connection;
mod limit;
mod raw;
mod retry;

use std::path::{Path, PathBuf};
use std::time::Duration;

use axum::http::Uri;
use futures::StreamExt as _;
use kube::Api;
use kube::core::ApiResource;
use kube::runtime::watcher::{Config as Watching, Event, watcher};
use tokio::time::{Instant, sleep, sleep_until};
use tracing::warn;

use super::{Sender, Update};
use crate::model::{Change, Kind, List, Object, SourceId};
pub use connection::Connection;
pub use limit::RequestLimit;
use raw::Raw;
use retry::{Backoff, Health, Trouble, jittered};

/// So many objects of a list are told at a time: undecoded ones are many times as large as what is kept of them.
pub const PART: usize = 100;

/// How often what is stated is listed anew, and how soon trouble is met again.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// Time between lists, half to one and a half of it.
    pub relist: Duration,
    /// First delay after trouble.
    pub shortest_delay: Duration,
    /// Longest delay.
    pub longest_delay: Duration,
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            relist: Duration::from_secs(15 * 60),
            shortest_delay: Duration::from_millis(800),
            longest_delay: Duration::from_secs(30),
        }
    }
}

/// Why there is no connection to an API server.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The kubeconfig file cannot be used.
    #[error("kubeconfig {path}: {source}")]
    Kubeconfig {
        /// The file.
        path: PathBuf,
        /// Why.
        source: kube::config::KubeconfigError,
    },
    /// No file is given, and this is no pod.
    #[error("no kubeconfig is given and this is not a pod with a service account: {0}")]
    NotInCluster(#[from] kube::config::InClusterError),
    /// The configuration cannot be used, a certificate for example.
    #[error("client for the API server: {0}")]
    Client(#[from] kube::Error),
}

/// A source of the API server's objects.
#[derive(Clone)]
pub struct ApiSource {
    connection: Connection,
    node: String,
    pace: Pace,
}

impl ApiSource {
    /// The sources that [`Self::run`] sends for and that every API server has. Each delivers lists of its own.
    pub const SOURCES: [SourceId; 3] = [SourceId::API_SERVICES, SourceId::API_SLICES, SourceId::API_NODE];

    /// Prepares to ask the API server ([`Connection::new`]), as this node.
    pub async fn connect(
        kubeconfig: Option<&Path>,
        server: Option<&Uri>,
        node: &str,
        limit: RequestLimit,
    ) -> Result<Self, ConnectError> {
        let connection = Connection::new(kubeconfig, server, limit).await?;
        Ok(Self { connection, node: node.to_owned(), pace: Pace::default() })
    }

    /// How the server is asked, for whoever else asks it.
    pub fn connection(&self) -> Connection {
        self.connection.clone()
    }

    /// The same at another pace.
    pub fn with_pace(mut self, pace: Pace) -> Self {
        self.pace = pace;
        self
    }

    /// Lists and watches until nobody listens.
    pub async fn run(self, sender: Sender) {
        // IN-1, IN-2: an object that a selector stops matching arrives as deleted.
        let services = Watching::default()
            .labels(&format!("!{}", crate::model::service::SERVICE_PROXY_LABEL))
            .fields("spec.clusterIP!=None");
        let slices = Watching::default().labels(&format!("!{}", crate::model::slice::HEADLESS_LABEL));
        let node = Watching::default().fields(&format!("metadata.name={}", self.node));
        tokio::join!(
            self.follow(Kind::Service, "services", SourceId::API_SERVICES, services, &sender),
            self.follow(Kind::EndpointSlice, "endpointslices", SourceId::API_SLICES, slices, &sender),
            self.follow(Kind::Node, "nodes", SourceId::API_NODE, node, &sender),
            self.follow(Kind::ServiceCidr, "servicecidrs", SourceId::API_SERVICE_CIDRS, Watching::default(), &sender),
        );
    }

    async fn follow(&self, kind: Kind, plural: &'static str, source: SourceId, watching: Watching, sender: &Sender) {
        let (group, version) = kind.api_version().rsplit_once('/').unwrap_or(("", kind.api_version()));
        let resource = ApiResource {
            group: group.to_owned(),
            version: version.to_owned(),
            api_version: kind.api_version().to_owned(),
            kind: kind.name().to_owned(),
            plural: plural.to_owned(),
        };
        let mut health = Health::new(plural);
        // Parts were told of a list that is not whole.
        let mut unfinished = false;
        let mut backoff = Backoff::new(self.pace.shortest_delay, self.pace.longest_delay);
        loop {
            let (client, made) = self.connection.client();
            let api: Api<Raw> = Api::all_with(client, &resource);
            let mut events = std::pin::pin!(watcher(api, watching.clone()));
            let relist = Instant::now() + jittered(self.pace.relist);
            let mut listing: Option<Vec<Object>> = None;
            let trouble = loop {
                let event = tokio::select! {
                    () = sender.closed() => return,
                    () = sleep_until(relist), if listing.is_none() => break false,
                    event = events.next() => event,
                };
                let change = match event {
                    Some(Ok(Event::Init)) => {
                        listing = Some(Vec::new());
                        std::mem::take(&mut unfinished).then_some(Change::Begin)
                    }
                    Some(Ok(Event::InitApply(raw))) => {
                        let objects = listing.get_or_insert_default();
                        objects.extend(identified(raw, kind));
                        let full = objects.len() >= PART;
                        unfinished |= full;
                        full.then(|| Change::Part(std::mem::take(objects)))
                    }
                    Some(Ok(Event::InitDone)) => {
                        health.works();
                        unfinished = false;
                        let objects = listing.take().unwrap_or_default();
                        Some(Change::Replace(List { objects, ..List::default() }))
                    }
                    Some(Ok(Event::Apply(raw))) => identified(raw, kind).map(Change::Upsert),
                    Some(Ok(Event::Delete(raw))) => identified(raw, kind).map(|object| Change::Delete(object.key)),
                    Some(Err(error)) => {
                        match health.fails(&error, is_optional(kind)) {
                            // Nobody will allow or install it in the next seconds.
                            Trouble::Absent => backoff.rest(self.pace.relist),
                            Trouble::Unknown => self.connection.renew(made).await,
                            Trouble::Other => {}
                        }
                        break true;
                    }
                    None => break true,
                };
                if let Some(change) = change
                    && sender.send(Update { source, change }).await.is_err()
                {
                    return;
                }
            };
            if trouble {
                tokio::select! {
                    () = sender.closed() => return,
                    () = sleep(backoff.delay()) => {}
                }
            }
        }
    }
}

/// Whether a cluster may have none of these, and a role need not know them: ServiceCIDRs are of Kubernetes 1.33.
fn is_optional(kind: Kind) -> bool {
    kind == Kind::ServiceCidr
}

/// The API server does not send objects without a valid name; a double or a proxy might.
fn identified(raw: Raw, kind: Kind) -> Option<Object> {
    raw.identify(kind).map_err(|problem| warn!("API server: {problem}")).ok()
}
