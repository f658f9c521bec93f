//! `/healthz`, `/livez` and `/readyz`.

use axum::Router;
use axum::http::StatusCode;
use axum::response::Response;
use axum::routing::{MethodRouter, any};

use super::answers;
use super::status::Health;
use crate::metrics::KubeProxy;

/// Its paths: any method, as kube-proxy has it (HZ-1). Answers of the first two are counted (HZ-8).
pub fn router(health: &Health, metrics: &KubeProxy) -> Router {
    let of = |answer: fn(&Health) -> Response, count: fn(&KubeProxy, u16)| -> MethodRouter {
        let (health, metrics) = (health.clone(), metrics.clone());
        any(move || async move {
            let answer = answer(&health);
            count(&metrics, answer.status().as_u16());
            answer
        })
    };
    Router::new()
        .route("/healthz", of(|health| answers::healthz(health, true), KubeProxy::healthz))
        .route("/livez", of(|health| answers::healthz(health, false), KubeProxy::livez))
        .route("/readyz", of(answers::readyz, |_, _| ()))
        .fallback(|| async { StatusCode::NOT_FOUND })
}
