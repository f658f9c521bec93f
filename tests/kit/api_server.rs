//! A double of the API server: what a watching client can see of it, with faults on demand.
//!
//! Versioned history, lists with selectors and pages, watches with enter and leave events and bookmarks, writes with
//! conflicts. It listens on loopback, or on an address of a namespace, without TLS, and counts what it is asked.

mod handlers;
mod history;
mod rights;
mod selector;
mod watches;

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use anyhow::{Context as _, bail};
use k8s_openapi::api::rbac::v1::PolicyRule;
use serde_json::Value;
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::sync::watch;

use history::{History, Key};

/// A running, or stopped, API server.
pub struct ApiServer {
    shared: Arc<Shared>,
    address: SocketAddr,
    runtime: Option<Runtime>,
    folder: TempDir,
}

/// A request that was answered, or is being answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// `list`, `watch`, `get`, `create`, `update`, `patch`, `delete`.
    pub verb: &'static str,
    /// `services`, `endpointslices`, `nodes`, `events`.
    pub collection: String,
    /// HTTP status of the answer.
    pub status: u16,
    /// What the client calls itself.
    pub agent: String,
}

/// What the handlers and the test share. It outlives the server: objects change while it is down.
pub(crate) struct Shared {
    state: Mutex<State>,
    /// Moves with every change of the state: watches and waiting tests look again.
    changed: watch::Sender<u64>,
}

#[derive(Default)]
pub(crate) struct State {
    history: History,
    requests: Vec<Request>,
    /// Status for the next requests.
    failing: Vec<u16>,
    /// Status for every request for a collection.
    refused: BTreeMap<String, u16>,
    /// What is allowed, if not everything is.
    role: Option<Vec<PolicyRule>>,
    /// The token that a client must have, if any.
    token: Option<String>,
    /// Watches of an older generation are cut.
    generation: u64,
    /// Watches of an older round end in good order.
    round: u64,
    /// Counts the bookmarks that were asked for.
    bookmarks: u64,
    /// A version that is too old is told inside of the stream and not by the status.
    gone_in_stream: bool,
    /// Open watches, per collection.
    watching: Vec<String>,
}

impl ApiServer {
    /// Starts an empty server on a free port of loopback.
    pub async fn start() -> anyhow::Result<Self> {
        Self::start_at(Ipv4Addr::LOCALHOST.into()).await
    }

    /// Starts an empty server on a free port of an address: one of a namespace's own.
    pub async fn start_at(address: IpAddr) -> anyhow::Result<Self> {
        let shared = Arc::new(Shared { state: Mutex::default(), changed: watch::Sender::new(0) });
        let folder = TempDir::new().context("folder for the kubeconfig")?;
        let address = SocketAddr::new(address, 0);
        let mut server = Self { shared, address, runtime: None, folder };
        server.restart().await?;
        write_kubeconfig(&server.kubeconfig(), &format!("http://{}", server.address)).context("kubeconfig")?;
        Ok(server)
    }

    /// Path of a kubeconfig file for this server.
    pub fn kubeconfig(&self) -> PathBuf {
        self.folder.path().join("kubeconfig")
    }

    /// Where the server listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Stops listening and cuts all connections, as a crash would. Objects stay, and may change.
    pub async fn stop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            let ended = tokio::task::spawn_blocking(move || runtime.shutdown_timeout(Duration::from_secs(10))).await;
            ended.expect("stopping does not panic");
        }
        self.shared.change(|state| state.watching.clear());
    }

    /// Listens again, on the same port. Does nothing if the server runs.
    pub async fn restart(&mut self) -> anyhow::Result<()> {
        if self.runtime.is_some() {
            return Ok(());
        }
        // A runtime of its own: when it ends, so do all its connections.
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let (address, shared) = (self.address, self.shared.clone());
        let listening = runtime.spawn(async move { TcpListener::bind(address).await }).await?;
        let listener = listening.with_context(|| format!("listening on {address}"))?;
        self.address = listener.local_addr()?;
        runtime.spawn(async move { axum::serve(listener, handlers::router(shared)).await });
        self.runtime = Some(runtime);
        Ok(())
    }

    /// Creates or changes an object, as `kubectl apply` does with a whole one.
    pub fn apply(&self, object: Value) {
        let key = key_of(&object);
        self.shared.change(|state| state.history.put(key, object));
    }

    /// Deletes an object. Panics if there is none: a test that deletes nothing tests nothing.
    pub fn delete(&self, kind: &str, namespace: &str, name: &str) {
        let key = (collection_of(kind), namespace.to_owned(), name.to_owned());
        let deleted = self.shared.change(|state| state.history.delete(&key));
        assert!(deleted.is_some(), "there is no {kind} {namespace}/{name}");
    }

    /// All objects of a collection, as they are stored.
    pub fn objects(&self, collection: &str) -> Vec<Value> {
        self.shared.lock().history.objects(collection)
    }

    /// Forgets the history: watches that begin at an older version are answered with 410.
    pub fn compact(&self) {
        self.shared.change(|state| state.history.compact());
    }

    /// Tells that a version is gone by an event inside of the stream (true) or by the status (false, at first).
    pub fn tell_gone_in_stream(&self, in_stream: bool) {
        self.shared.change(|state| state.gone_in_stream = in_stream);
    }

    /// Sets the versions back, as after restoring a backup.
    pub fn rewind_version(&self, version: u64) {
        self.shared.change(|state| state.history.rewind_version(version));
    }

    /// Cuts all watches.
    pub fn drop_watches(&self) {
        self.shared.change(|state| state.generation += 1);
    }

    /// Ends all watches in good order, as the server does every few minutes.
    pub fn end_watches(&self) {
        self.shared.change(|state| state.round += 1);
    }

    /// Sends a bookmark to each watch that takes them.
    pub fn bookmark(&self) {
        self.shared.change(|state| state.bookmarks += 1);
    }

    /// Answers the next `count` requests with this status.
    pub fn fail_next(&self, count: usize, status: u16) {
        self.shared.change(|state| state.failing.extend(std::iter::repeat_n(status, count)));
    }

    /// Answers every request for a collection with this status, until that is taken back with `None`.
    pub fn refuse(&self, collection: &str, status: Option<u16>) {
        self.shared.change(|state| match status {
            Some(status) => drop(state.refused.insert(collection.to_owned(), status)),
            None => drop(state.refused.remove(collection)),
        });
    }

    /// Answers 403 to whatever these rules of a role do not allow. Of such requests, as of those for what there is not, the
    /// resource or the path is recorded as their collection.
    pub fn allow_only(&self, rules: Vec<PolicyRule>) {
        self.shared.change(|state| state.role = Some(rules));
    }

    /// Answers 401 to whoever has another token than this, from their next request on.
    pub fn know_only(&self, token: &str) {
        self.shared.change(|state| state.token = Some(token.to_owned()));
    }

    /// All requests so far.
    pub fn requests(&self) -> Vec<Request> {
        self.shared.lock().requests.clone()
    }

    /// How many requests of this verb for this collection were answered with success.
    pub fn count(&self, verb: &str, collection: &str) -> usize {
        let matches =
            |request: &&Request| request.verb == verb && request.collection == collection && request.status < 300;
        self.shared.lock().requests.iter().filter(matches).count()
    }

    /// How many watches of this collection are open.
    pub fn watching(&self, collection: &str) -> usize {
        self.shared.lock().watching.iter().filter(|other| *other == collection).count()
    }

    /// Waits until something about the server is true.
    pub async fn wait(&self, what: &str, within: Duration, condition: impl Fn(&Self) -> bool) -> anyhow::Result<()> {
        let mut changed = self.shared.changed.subscribe();
        let reached = async {
            while !condition(self) {
                changed.changed().await.expect("the sender is in self");
            }
        };
        if tokio::time::timeout(within, reached).await.is_err() {
            bail!("not within {within:?}: {what}; requests so far: {:?}", self.requests());
        }
        Ok(())
    }
}

impl Drop for ApiServer {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            // Dropping a runtime inside of another one blocks, which tokio forbids.
            runtime.shutdown_background();
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Changes the state and wakes who waits for that.
    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let result = change(&mut self.lock());
        self.changed.send_modify(|count| *count += 1);
        result
    }
}

/// `Service` -> `services`.
fn collection_of(kind: &str) -> String {
    format!("{}s", kind.to_lowercase())
}

fn key_of(object: &Value) -> Key {
    let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str);
    let kind = text("/kind").expect("an object has a kind");
    let name = text("/metadata/name").expect("an object has a name");
    let namespace =
        if matches!(kind, "Node" | "ServiceCIDR") { "" } else { text("/metadata/namespace").unwrap_or("default") };
    (collection_of(kind), namespace.to_owned(), name.to_owned())
}

/// Writes a kubeconfig file for a server at this URL, without credentials.
pub fn write_kubeconfig(path: &Path, server: &str) -> std::io::Result<()> {
    let text = format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: double\n\
         clusters: [{{name: double, cluster: {{server: \"{server}\"}}}}]\n\
         contexts: [{{name: double, context: {{cluster: double, user: nobody}}}}]\n\
         users: [{{name: nobody, user: {{}}}}]\n"
    );
    std::fs::write(path, text)
}

#[cfg(test)]
mod tests;
