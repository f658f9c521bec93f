//! Who is told of what the agent does: those that ask after its health, its metrics, and the cluster by Events. Nobody of
//! them is waited for.

use std::future::pending;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Error, Result};
use axum::Router;
use jiff::Timestamp;
use tokio::task::JoinSet;
use tracing::warn;

use super::Config;
use super::once::Once;
use super::pending::{Counts, Done, Pending};
use super::sync::{Outcome, Programmer};
use crate::health::{self, Checks, Health, Unheard};
use crate::metrics::{self, Metrics, Names, Scraper};
use crate::model::{Model, ObjectKey, SourceId};
use crate::notices::{Notice, Notices};
use crate::serving::Server;
use crate::source::api::Connection;

/// How long the end of the agent waits for the Event that says why.
const LAST_WORDS: Duration = Duration::from_secs(5);

/// All that are told.
#[derive(Debug)]
pub struct Observers {
    health: Health,
    metrics: Metrics,
    notices: Notices,
    checks: Checks,
    check_errors: Once,
    pending: Pending,
    /// Who this is at the API server; there, the node's object says whether the node is to get new load.
    node_name: String,
    api: bool,
    /// What is to be answered, and where.
    answers: Vec<(Server, Router)>,
    servers: JoinSet<Result<()>>,
}

impl Observers {
    /// Opens the maps that metrics are read from. Nobody is told anything yet.
    pub fn new(config: &Config, names: &Names) -> Result<Self> {
        let metrics = Metrics::new();
        let health = Health::new(config.api.is_none());
        let mut answers = Vec::new();
        if let Some(at) = config.healthz {
            let server = Server {
                flag: "--healthz-bind-address",
                at,
                paths: "/healthz, /livez, /readyz",
                clients: 64,
                notice: Notice::HealthzFails,
                hard_fail: config.bind_hard_fail,
            };
            answers.push((server, health::server::router(&health, &metrics.kube_proxy)));
        }
        if let Some(at) = config.metrics {
            let server = Server {
                flag: "--metrics-bind-address",
                at,
                paths: "/metrics, /metrics/slis, /healthz, /proxyMode, /configz",
                clients: 16,
                notice: Notice::MetricsFail,
                hard_fail: config.bind_hard_fail,
            };
            let scraper = Scraper::open(&config.pins, metrics.clone(), names.clone(), config.metrics_limit)?;
            answers.push((server, metrics::server::router(scraper, &config.configuration)));
        }
        Ok(Self {
            checks: Checks::new(health.clone()),
            health,
            notices: Notices::start(None, &config.node_name, metrics.own.lost_events.clone()),
            metrics,
            check_errors: Once::default(),
            pending: Pending::new(Timestamp::now()),
            node_name: config.node_name.clone(),
            api: config.api.is_some(),
            answers,
            servers: JoinSet::new(),
        })
    }

    /// Starts the servers, before any list is there, and tells the API server that the agent starts (IN-9).
    pub fn start(&mut self, model: &Model, connection: Option<Connection>) {
        self.tell_missing(model);
        self.notices = Notices::start(connection, &self.node_name, self.metrics.own.lost_events.clone());
        self.notices.tell(Notice::Starting);
        for (server, router) in self.answers.drain(..) {
            self.servers.spawn(server.serve(router, self.notices.clone()));
        }
    }

    /// Ends with the first server that cannot be, where that is to be the agent's end.
    pub async fn failed(&mut self) -> Error {
        while let Some(ended) = self.servers.join_next().await {
            if let Ok(Err(error)) = ended {
                return error;
            }
        }
        pending().await
    }

    /// Waits a moment for what the API server is being told.
    pub async fn flush(&self) {
        self.notices.flush(LAST_WORDS).await;
    }

    /// A source changed these objects of the model.
    pub fn changed(&mut self, model: &Model, source: SourceId, changed: Vec<ObjectKey>) {
        let Counts { services, slices } = self.pending.take(model, source, changed);
        self.metrics.kube_proxy.changed(services, slices);
    }

    /// What came is to be programmed, if all that there is has come.
    pub fn queued(&mut self, model: &Model, now: Instant) {
        self.tell_missing(model);
        self.tell_pending();
        // Before the first lists are whole nothing can be programmed, and nothing is late.
        if model.is_complete() {
            self.health.queued(now);
            self.pending.wait(now);
            self.metrics.kube_proxy.queued();
        }
    }

    /// The maps were brought to what the model says, or to what could be of it.
    pub fn synced(&mut self, model: &Model, programmer: &Programmer, outcome: &Outcome, took: Duration) {
        self.metrics.kube_proxy.synced(took, outcome.families, outcome.no_local);
        self.metrics.own.synced(outcome.complete(), outcome.problems);
        self.health.programmed(outcome.families);
        if outcome.complete() {
            let Done { since, triggers } = self.pending.done();
            if let Some(since) = since {
                self.metrics.own.programmed(since.elapsed());
            }
            let now = SystemTime::now();
            for trigger in triggers {
                // Clocks differ: what happened later than now happened just now.
                let delay = now.duration_since(trigger.at.into()).unwrap_or_default();
                self.metrics.kube_proxy.programmed(trigger.v4, delay);
            }
        }
        self.tell_pending();
        if self.api {
            self.health.set_eligible(model.node(&self.node_name).is_eligible());
        }
        self.listen_for_checks(programmer);
    }

    /// Listens on the `healthCheckNodePort`s of what is programmed.
    pub fn listen_for_checks(&mut self, programmer: &Programmer) {
        let unheard = self.checks.sync(programmer.health_checks(), programmer.health_check_addresses());
        let message = |Unheard { service: (namespace, name), why }: &Unheard| {
            format!("Service {namespace}/{name}: {why}; trying again")
        };
        let news = self.check_errors.news(unheard.iter().map(message));
        for error in &news {
            warn!("{error}");
        }
        for unheard in unheard.into_iter().filter(|unheard| news.contains(&message(unheard))) {
            let (namespace, name) = unheard.service;
            self.notices.tell(Notice::HealthCheckFails(namespace, name, unheard.why));
        }
    }

    /// So many interfaces have the programs.
    pub fn set_interfaces(&self, count: usize) {
        self.metrics.own.set_interfaces(count);
    }

    /// A sweep ended.
    pub fn swept(&self, took: Duration) {
        self.metrics.own.swept(took);
    }

    fn tell_missing(&self, model: &Model) {
        self.health.set_missing(model.missing().iter().map(ToString::to_string).collect());
    }

    fn tell_pending(&self) {
        let Counts { services, slices } = self.pending.counts();
        self.metrics.kube_proxy.set_pending(services, slices);
    }
}
