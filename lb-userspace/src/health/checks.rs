//! `healthCheckNodePort`: a listener for each Service that has one, and for each family that it has, on the
//! addresses that serve node ports.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::Router;
use tokio::task::AbortHandle;

use super::answers;
use super::status::Health;
use crate::plan::HealthCheck;
use crate::serving::{Families, answer, listen};

/// Load balancers that ask at one time.
const CLIENTS: usize = 64;

/// Namespace and name of a Service.
type Name = (String, String);

/// The listeners there are.
#[derive(Debug)]
pub struct Checks {
    health: Health,
    running: BTreeMap<(Name, IpAddr), Running>,
}

/// A check that nobody can ask.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Unheard {
    /// Namespace and name of the Service.
    pub service: (String, String),
    /// Why.
    pub why: String,
}

#[derive(Debug)]
struct Running {
    port: u16,
    endpoints: Arc<AtomicUsize>,
    task: AbortHandle,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Checks {
    /// None yet.
    pub fn new(health: Health) -> Self {
        Self { health, running: BTreeMap::new() }
    }

    /// Brings the listeners to what is wanted, and their counts: to be called when that is programmed (HC-10). They listen on
    /// these addresses, of which unspecified ones stand for all of their family. What cannot listen is said, and tried again
    /// with the next call (HC-9). Needs a runtime.
    pub fn sync(&mut self, wanted: &BTreeMap<Name, HealthCheck>, addresses: &BTreeSet<IpAddr>) -> Vec<Unheard> {
        let mut errors = Vec::new();
        // First those that go: another Service may have the port now.
        self.running.retain(|(name, address), running| {
            let check = wanted.get(name).filter(|check| check.port == running.port);
            addresses.contains(address) && check.and_then(|check| endpoints(check, *address)).is_some()
        });
        for (name, check) in wanted {
            for &address in addresses {
                let Some(endpoints) = endpoints(check, address) else { continue };
                if let Some(running) = self.running.get(&(name.clone(), address)) {
                    running.endpoints.store(endpoints, Ordering::Relaxed);
                    continue;
                }
                let at = SocketAddr::new(address, check.port);
                match self.start(name, at, endpoints) {
                    Ok(running) => drop(self.running.insert((name.clone(), address), running)),
                    Err(error) => {
                        let why = format!("spec.healthCheckNodePort {}: cannot listen on {at}: {error}", check.port);
                        errors.push(Unheard { service: name.clone(), why });
                    }
                }
            }
        }
        errors
    }

    fn start(&self, name: &Name, at: SocketAddr, count: usize) -> std::io::Result<Running> {
        let listener = listen(at, Families::Own)?;
        let endpoints = Arc::new(AtomicUsize::new(count));
        let (health, name, counted) = (self.health.clone(), name.clone(), endpoints.clone());
        // Any method, any path (HC-1).
        let check = move || {
            let answer = answers::check(&health, (&name.0, &name.1), counted.load(Ordering::Relaxed));
            async move { answer }
        };
        let serve = answer(listener, Router::new().fallback(check), CLIENTS);
        Ok(Running { port: at.port(), endpoints, task: tokio::spawn(serve).abort_handle() })
    }
}

/// How many endpoints load balancers are told of that ask at this address; `None` without a check in its family.
fn endpoints(check: &HealthCheck, at: IpAddr) -> Option<usize> {
    if at.is_ipv4() { check.v4 } else { check.v6 }
}
