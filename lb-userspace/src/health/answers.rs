//! What is said, as kube-proxy says it: status codes, headers and JSON (HC-2 to HC-4, HZ-1 to HZ-5).

use std::collections::BTreeMap;
use std::time::{Instant, SystemTime};

use axum::Json;
use axum::http::{HeaderName, StatusCode, header};
use axum::response::{IntoResponse, Response};
use jiff::Timestamp;
use serde::Serialize;

use super::status::{FamilyNow, Health};

const FAMILIES: [&str; 2] = ["IPv4", "IPv6"];
/// How many endpoints there are, for load balancers that weigh nodes by it.
const WEIGHT: HeaderName = HeaderName::from_static("x-load-balancing-endpoint-weight");

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Healthz {
    last_updated: String,
    current_time: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    node_eligible: Option<bool>,
    healthy: bool,
    status: BTreeMap<&'static str, Family>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Family {
    last_updated: String,
    healthy: bool,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Check<'a> {
    service: Name<'a>,
    local_endpoints: usize,
    service_proxy_healthy: bool,
}

#[derive(Serialize)]
struct Name<'a> {
    namespace: &'a str,
    name: &'a str,
}

/// `/healthz`: well, and to get new load. `/livez`: well, so that a node that is to go is not restarted.
pub(super) fn healthz(health: &Health, asks_for_node: bool) -> Response {
    let told = health.at(Instant::now());
    let (healthy, eligible, updated) = (told.healthy(), told.eligible, told.updated());
    let well = healthy && (eligible || !asks_for_node);
    let (now, last) = (SystemTime::now(), updated.unwrap_or(SystemTime::UNIX_EPOCH));
    // Nothing is told of one that was never programmed whole.
    let of_family = |(name, family): (_, FamilyNow)| {
        family.updated.map(|at| (name, Family { last_updated: text(at), healthy: family.healthy }))
    };
    let body = Healthz {
        // Older readers take it for the time of the answer.
        last_updated: text(if well { now } else { last }),
        current_time: text(now),
        node_eligible: asks_for_node.then_some(eligible),
        healthy,
        status: FAMILIES.into_iter().zip(told.families).filter_map(of_family).collect(),
    };
    (status(well), [(header::X_CONTENT_TYPE_OPTIONS, "nosniff")], Json(body)).into_response()
}

/// Ready once everything that the sources state first is programmed; before that, what is missing.
pub(super) fn readyz(health: &Health) -> Response {
    let (code, text) = match health.waits_for() {
        None => (StatusCode::OK, "ok".to_owned()),
        Some(reason) => (StatusCode::SERVICE_UNAVAILABLE, reason + "\n"),
    };
    (code, [(header::X_CONTENT_TYPE_OPTIONS, "nosniff")], text).into_response()
}

/// A Service's health check: 200 while this node has an endpoint for new connections, and the agent is well.
pub(super) fn check(health: &Health, (namespace, name): (&str, &str), endpoints: usize) -> Response {
    let healthy = health.at(Instant::now()).healthy();
    let body = Check { service: Name { namespace, name }, local_endpoints: endpoints, service_proxy_healthy: healthy };
    let headers = [(header::X_CONTENT_TYPE_OPTIONS, "nosniff".to_owned()), (WEIGHT, endpoints.to_string())];
    (status(healthy && endpoints > 0), headers, Json(body)).into_response()
}

fn status(well: bool) -> StatusCode {
    if well { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }
}

/// RFC 3339.
fn text(time: SystemTime) -> String {
    Timestamp::try_from(time).unwrap_or(Timestamp::UNIX_EPOCH).to_string()
}
