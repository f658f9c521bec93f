//! `healthCheckNodePort`: a listener for each Service that has one, and for each family that it has, on all addresses.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
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
    running: BTreeMap<(Name, bool), Running>,
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

    /// Brings the listeners to what is wanted, and their counts: to be called when that is programmed (HC-10). What cannot
    /// listen is said, and tried again with the next call (HC-9). Needs a runtime.
    pub fn sync(&mut self, wanted: &BTreeMap<Name, HealthCheck>) -> Vec<Unheard> {
        let mut errors = Vec::new();
        let counts = |check: &HealthCheck| [(true, check.v4), (false, check.v6)];
        // First those that go: another Service may have the port now.
        self.running.retain(|(name, v4), running| {
            wanted.get(name).is_some_and(|check| {
                check.port == running.port && counts(check).iter().any(|(of, count)| of == v4 && count.is_some())
            })
        });
        for (name, check) in wanted {
            for (v4, endpoints) in counts(check) {
                let Some(endpoints) = endpoints else { continue };
                if let Some(running) = self.running.get(&(name.clone(), v4)) {
                    running.endpoints.store(endpoints, Ordering::Relaxed);
                    continue;
                }
                match self.start(name, check.port, v4, endpoints) {
                    Ok(running) => drop(self.running.insert((name.clone(), v4), running)),
                    Err(error) => {
                        let (port, at) = (check.port, everywhere(v4, check.port));
                        let why = format!("spec.healthCheckNodePort {port}: cannot listen on {at}: {error}");
                        errors.push(Unheard { service: name.clone(), why });
                    }
                }
            }
        }
        errors
    }

    fn start(&self, name: &Name, port: u16, v4: bool, count: usize) -> std::io::Result<Running> {
        let listener = listen(everywhere(v4, port), Families::Own)?;
        let endpoints = Arc::new(AtomicUsize::new(count));
        let (health, name, counted) = (self.health.clone(), name.clone(), endpoints.clone());
        // Any method, any path (HC-1).
        let check = move || {
            let answer = answers::check(&health, (&name.0, &name.1), counted.load(Ordering::Relaxed));
            async move { answer }
        };
        let serve = answer(listener, Router::new().fallback(check), CLIENTS);
        Ok(Running { port, endpoints, task: tokio::spawn(serve).abort_handle() })
    }
}

fn everywhere(v4: bool, port: u16) -> SocketAddr {
    let any: IpAddr = if v4 { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    SocketAddr::new(any, port)
}
