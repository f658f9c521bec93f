//! Wrong input and wrong surroundings, met by the real agent: each is named, costs only itself, and damages nothing.
//! Needs root and the bpvs binary: `BPVS_BIN`, or built beside this test.

mod arguments;
mod manifests;
mod pins;
mod rules;

use std::net::SocketAddr;
use std::time::Duration;

use bpvs_tests::agent::{Agent, Manifests, ServiceManifest};
use bpvs_tests::topology::Topology;
use bpvs_tests::traffic::{Dial, Servers};

/// Longest time until something wrong is told of, or mended: the agent looks at its files every 5 s at the latest.
const DEADLINE: Duration = Duration::from_secs(30);

/// A node with two servers, and a service that is right: `demo/web` at 10.96.0.1:80, served by server 1.
struct World {
    topology: Topology,
    manifests: Manifests,
    _servers: Servers,
}

impl World {
    fn new() -> Self {
        let topology = Topology::builder().servers(2).build().unwrap();
        let servers = Servers::everywhere(&topology, 8080, 5353).unwrap();
        let manifests = Manifests::new().unwrap();
        manifests.write("a-web.yaml", &web("wlc", 1)).unwrap();
        Self { topology, manifests, _servers: servers }
    }

    fn start(&self) -> Agent<'_> {
        Agent::builder(&self.topology.node.namespace).manifests(&self.manifests).start().unwrap()
    }

    /// The server that a new connection to the right service reaches.
    #[track_caller]
    fn dial(&self) -> u16 {
        self.dial_at("10.96.0.1:80")
    }

    #[track_caller]
    fn dial_at(&self, to: &str) -> u16 {
        let to: SocketAddr = to.parse().unwrap();
        Dial::new(&self.topology.clients[0].namespace, to).open().unwrap_or_else(|error| panic!("{to}: {error}")).server
    }
}

/// The right service, with this scheduler and served by this server.
fn web(scheduler: &str, server: u16) -> String {
    ServiceManifest::new("web", &["10.96.0.1".parse().unwrap()])
        .port("TCP", 80, 8080)
        .scheduler(scheduler)
        .server(server, &[format!("10.1.1.{server}").parse().unwrap()], 1)
        .yaml()
}
