//! The real agent that follows an API server (the kit's double, on the node's loopback), judged by real connections.
//! Needs root and the bpvs binary: `BPVS_BIN`, or built beside this test.

mod addresses;
mod affinity;
mod bootstrap;
mod changes;
mod configuration;
mod datagrams;
mod follow;
mod in_place;
mod late;
mod node;
mod objects;
mod policy;
mod rights;
mod start;
mod told;
mod trouble;

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use bpvs_tests::agent::{Agent, Builder};
use bpvs_tests::api_server::ApiServer;
use bpvs_tests::namespace::Namespace;
use bpvs_tests::topology::Topology;
use bpvs_tests::traffic::{Dial, Hammer, Servers};

/// Longest time until a change of the cluster, or the end of a trouble, is seen by packets: backoff goes up to 30 s.
const DEADLINE: Duration = Duration::from_secs(60);
/// All collections that an agent follows.
const COLLECTIONS: [&str; 3] = ["services", "endpointslices", "nodes"];

/// A node with servers, a client, and an API server that listens on the node's loopback.
struct World {
    topology: Topology,
    api: Mutex<ApiServer>,
    _servers: Servers,
}

impl World {
    fn new(servers: u16) -> Self {
        let topology = Topology::builder().servers(servers).build().unwrap();
        let running = Servers::everywhere(&topology, 8080, 5353).unwrap();
        let api = topology.node.namespace.block_on(ApiServer::start).unwrap();
        Self { topology, api: Mutex::new(api), _servers: running }
    }

    fn node(&self) -> &Namespace {
        &self.topology.node.namespace
    }

    fn api(&self) -> MutexGuard<'_, ApiServer> {
        self.api.lock().unwrap()
    }

    fn agent(&self) -> Builder<'_> {
        Agent::builder(self.node()).kubeconfig(&self.api().kubeconfig()).argument("--node-name").argument("n0")
    }

    /// Objects stay, and may change.
    fn stop_api(&self) {
        let api = &mut *self.api();
        self.node().block_on(|| api.stop());
    }

    fn start_api(&self) {
        let api = &mut *self.api();
        self.node().block_on(|| api.restart()).unwrap();
    }

    #[track_caller]
    fn wait(&self, what: &str, condition: impl Fn(&ApiServer) -> bool + Send) {
        let api = &*self.api();
        self.node().block_on(|| api.wait(what, DEADLINE, condition)).unwrap();
    }

    /// Waits until all three collections are watched: what happens from now on comes as an event.
    fn wait_for_watches(&self) {
        self.wait("three watches are open", |api| COLLECTIONS.iter().all(|collection| api.watching(collection) == 1));
    }

    /// The server that a new connection reaches; `None` if it is refused.
    fn dial(&self, to: SocketAddr) -> Option<u16> {
        match Dial::new(&self.topology.clients[0].namespace, to).open() {
            Ok(held) => Some(held.server),
            Err(error) if error.is_refused() => None,
            Err(error) => panic!("{to}: {error}"),
        }
    }

    /// Waits until connections to a service with rr reach exactly these servers.
    #[track_caller]
    fn expect(&self, to: SocketAddr, servers: &[u16]) {
        let wanted: BTreeSet<Option<u16>> = match servers {
            [] => [None].into(),
            servers => servers.iter().copied().map(Some).collect(),
        };
        let mut seen = BTreeSet::new();
        until(&format!("{to} is served by {servers:?}"), || {
            // Twice round the list of the most servers that a test has.
            seen = (0..8).map(|_| self.dial(to)).collect();
            seen == wanted
        });
    }

    fn hammer(&self, to: SocketAddr) -> Hammer {
        Hammer::start(&self.topology.clients[0].namespace, to, 50, Duration::from_secs(600)).unwrap()
    }
}

/// Ends a hammer: every connection must have gone well, some among them now.
#[track_caller]
fn unhurt(hammer: Hammer) {
    hammer.advance(10, DEADLINE).unwrap();
    let report = hammer.stop().unwrap();
    assert_eq!(report.failed, 0, "of {}: {:?}", report.attempts, report.failures);
}

#[track_caller]
fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let end = Instant::now() + DEADLINE;
    while !condition() {
        assert!(Instant::now() < end, "not within {DEADLINE:?}: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn address(text: &str) -> SocketAddr {
    text.parse().unwrap()
}
