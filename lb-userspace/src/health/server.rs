//! `/healthz` and `/livez`.

use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use axum::http::StatusCode;
use axum::routing::any;
use tracing::{info, warn};

use super::answers;
use super::listen::listen;
use super::status::Health;

/// How soon an address that is taken is tried again (HZ-7).
const RETRY: Duration = Duration::from_secs(5);

/// Answers at an address as long as the runtime lasts. While it cannot be listened on, that is said once and tried again.
pub async fn serve(at: SocketAddr, health: Health) {
    let mut told = false;
    let listener = loop {
        match listen(at) {
            Ok(listener) => break listener,
            Err(error) => {
                if !std::mem::replace(&mut told, true) {
                    warn!("--healthz-bind-address {at}: cannot listen: {error}; trying again every {RETRY:?}");
                }
                tokio::time::sleep(RETRY).await;
            }
        }
    };
    info!("health: http://{at}/healthz and /livez");
    let of = |asks_for_node| {
        let health = health.clone();
        any(move || async move { answers::healthz(&health, asks_for_node) })
    };
    let router = Router::new()
        .route("/healthz", of(true))
        .route("/livez", of(false))
        .fallback(|| async { StatusCode::NOT_FOUND });
    if let Err(error) = axum::serve(listener, router).await {
        warn!("--healthz-bind-address {at}: {error}: nobody is told of this node's health any more");
    }
}
