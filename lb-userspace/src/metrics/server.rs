//! What kube-proxy's metrics server answers: `/metrics`, `/metrics/slis`, `/healthz`, `/proxyMode`, `/configz`.

use std::sync::Arc;

use anyhow::{Context, Result};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::any;
use axum::{Json, Router};
use prometheus::{IntCounter, IntGauge, Opts, Registry, TextEncoder};
use serde_json::{Value, json};
use tokio::sync::Mutex;
use tracing::warn;

use super::define;
use super::scrape::Scraper;

/// What those that ask kube-proxy for its mode know: iptables, ipvs, nftables. Of these bpvs does what ipvs does: its
/// schedulers, its timeouts, its counts.
const MODE: &str = "ipvs";
/// Prometheus' text format, which every reader knows.
const TEXT_FORMAT: &str = "text/plain; version=0.0.4; charset=utf-8";
const NOT_SNIFFED: (header::HeaderName, &str) = (header::X_CONTENT_TYPE_OPTIONS, "nosniff");
const PLAIN: (header::HeaderName, &str) = (header::CONTENT_TYPE, "text/plain; charset=utf-8");

/// Its paths. One scrape is made at a time, on a thread that nothing else waits for.
pub fn router(scraper: Scraper, configuration: &Value) -> Router {
    let scraper = Arc::new(Mutex::new(scraper));
    let metrics = move || {
        let scraper = scraper.clone();
        async move { metrics(scraper).await }
    };
    let slis = Slis::new();
    let asked = slis.clone();
    let healthz = any(move || {
        asked.pings.inc();
        async { ([PLAIN, NOT_SNIFFED], "ok") }
    });
    let configuration = Json(json!({"kubeproxy.config.k8s.io": configuration}));
    let text = |text| any(move || async move { ([PLAIN, NOT_SNIFFED], text) });
    Router::new()
        .route("/metrics", any(metrics))
        .route("/metrics/slis", any(move || async move { slis.answer() }))
        .route("/healthz", healthz)
        .route("/proxyMode", text(MODE))
        .route("/configz", any(move || async move { ([NOT_SNIFFED], configuration) }))
        .fallback(|| async { StatusCode::NOT_FOUND })
}

/// Whether `/healthz` here was well each time that it was asked, as Kubernetes' components tell it (KEP-3466). Its one check,
/// that there is an answer, cannot fail and be told of.
#[derive(Clone)]
struct Slis {
    registry: Registry,
    pings: IntCounter,
}

impl Slis {
    fn new() -> Self {
        let registry = Registry::new();
        let labels = [("name", "ping"), ("type", "healthz")];
        let told = Opts::new(
            "kubernetes_healthcheck",
            "Whether a check of the component's health was well the last time, 1 or 0.",
        );
        let count =
            Opts::new("kubernetes_healthchecks_total", "Checks of the component's health, by what came of them.");
        let label = |opts: Opts| labels.iter().fold(opts, |opts, (name, value)| opts.const_label(*name, *value));
        define::keep(&registry, IntGauge::with_opts(label(told))).set(1);
        let pings = define::keep(&registry, IntCounter::with_opts(label(count).const_label("status", "success")));
        Self { registry, pings }
    }

    fn answer(&self) -> Response {
        // Nothing is told of a check that nobody has asked for.
        let families = if self.pings.get() == 0 { Vec::new() } else { self.registry.gather() };
        match TextEncoder::new().encode_to_string(&families) {
            Ok(text) => ([(header::CONTENT_TYPE, TEXT_FORMAT)], text).into_response(),
            Err(error) => {
                warn!("metrics: {error}");
                StatusCode::INTERNAL_SERVER_ERROR.into_response()
            }
        }
    }
}

async fn metrics(scraper: Arc<Mutex<Scraper>>) -> Response {
    let mut scraper = scraper.lock_owned().await;
    let text: Result<String> = match tokio::task::spawn_blocking(move || scraper.text()).await {
        Ok(text) => text,
        Err(error) => Err(error).context("the scrape ended"),
    };
    match text {
        Ok(text) => ([(header::CONTENT_TYPE, TEXT_FORMAT)], text).into_response(),
        Err(error) => {
            warn!("metrics: {error:#}");
            (StatusCode::INTERNAL_SERVER_ERROR, [PLAIN, NOT_SNIFFED], "the log says why\n").into_response()
        }
    }
}
