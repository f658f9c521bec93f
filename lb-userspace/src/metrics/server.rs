//! What kube-proxy's metrics server answers: `/metrics`, `/healthz`, `/proxyMode`.

use std::sync::Arc;

use anyhow::{Context, Result};
use axum::Router;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::any;
use tokio::sync::Mutex;
use tracing::warn;

use super::scrape::Scraper;

/// What those that ask kube-proxy for its mode know: iptables, ipvs, nftables. Of these bpvs does what ipvs does: its
/// schedulers, its timeouts, its counts.
const MODE: &str = "ipvs";
/// Prometheus' text format, which every reader knows.
const TEXT_FORMAT: &str = "text/plain; version=0.0.4; charset=utf-8";
const NOT_SNIFFED: (header::HeaderName, &str) = (header::X_CONTENT_TYPE_OPTIONS, "nosniff");
const PLAIN: (header::HeaderName, &str) = (header::CONTENT_TYPE, "text/plain; charset=utf-8");

/// Its paths. One scrape is made at a time, on a thread that nothing else waits for.
pub fn router(scraper: Scraper) -> Router {
    let scraper = Arc::new(Mutex::new(scraper));
    let metrics = move || {
        let scraper = scraper.clone();
        async move { metrics(scraper).await }
    };
    let text = |text| any(move || async move { ([PLAIN, NOT_SNIFFED], text) });
    Router::new()
        .route("/metrics", any(metrics))
        .route("/healthz", text("ok"))
        .route("/proxyMode", text(MODE))
        .fallback(|| async { StatusCode::NOT_FOUND })
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
