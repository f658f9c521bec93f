//! What is measured, and the server that shows it: kube-proxy's metrics, and bpvs's own. `docs/metrics.md` has them all.
//!
//! | module | idea |
//! |---|---|
//! | [`kube_proxy`] | kube-proxy's, under its names, where they mean here what they mean there |
//! | [`own`] | what the agent knows of itself |
//! | [`services`] | connections, packets and bytes of each service and destination, read when they are asked for |
//! | [`tables`] | how full the maps are, what was dropped, what sweeps did; likewise |
//! | [`scrape`] | all of it together, as text |
//! | [`server`] | who may ask |
//! | `define`, `family` | making metrics that are kept, and such that are read |

mod define;
mod family;
pub mod kube_proxy;
pub mod own;
pub mod scrape;
pub mod server;
pub mod services;
pub mod tables;

use prometheus::Registry;
use prometheus::process_collector::ProcessCollector;

pub use kube_proxy::KubeProxy;
pub use own::Own;
pub use scrape::{Names, Scraper};

/// What is counted as it happens. Clones count together.
#[derive(Clone, Debug)]
pub struct Metrics {
    registry: Registry,
    /// kube-proxy's.
    pub kube_proxy: KubeProxy,
    /// bpvs's own.
    pub own: Own,
}

impl Metrics {
    /// Nothing happened yet.
    pub fn new() -> Self {
        let registry = Registry::new();
        let (kube_proxy, own) = (KubeProxy::new(&registry), Own::new(&registry));
        registry.register(Box::new(ProcessCollector::for_self())).expect("nobody else has its names");
        Self { registry, kube_proxy, own }
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}
