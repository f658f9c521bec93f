//! HTTP: paths and queries to the history and back.

use std::collections::HashMap;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Query, Request as HttpRequest, State as Extracted};
use axum::http::{Method, StatusCode, header};
use axum::response::Response;
use axum::{Router, body};
use serde_json::{Value, json};

use super::history::{Key, VersionError};
use super::rights::Attributes;
use super::selector::Selector;
use super::{Request, Shared, watches};

/// Largest object that is taken, in bytes.
const MAX_BODY: usize = 3 << 20;

const COLLECTIONS: [(&str, &str, &str); 5] = [
    ("api/v1", "services", "Service"),
    ("api/v1", "nodes", "Node"),
    ("apis/discovery.k8s.io/v1", "endpointslices", "EndpointSlice"),
    ("apis/events.k8s.io/v1", "events", "Event"),
    ("apis/networking.k8s.io/v1", "servicecidrs", "ServiceCIDR"),
];

/// What a path names.
pub(super) struct Target {
    pub(super) collection: &'static str,
    kind: &'static str,
    api_version: &'static str,
    pub(super) namespace: Option<String>,
    name: Option<String>,
}

type Parameters = HashMap<String, String>;

pub(super) fn router(shared: Arc<Shared>) -> Router {
    Router::new().fallback(answer).with_state(shared)
}

async fn answer(
    Extracted(shared): Extracted<Arc<Shared>>,
    Query(parameters): Query<Parameters>,
    request: HttpRequest,
) -> Response {
    let (parts, content) = request.into_parts();
    let watching = parameters.get("watch").is_some_and(|watch| watch == "true" || watch == "1");
    let asked = Attributes::of(&parts.method, parts.uri.path(), watching);
    let said = |name| parts.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default().to_owned();
    let (agent, authorization) = (said(header::USER_AGENT), said(header::AUTHORIZATION));
    let turned_away = |status: StatusCode, reason: &str, message: &str| {
        let (collection, agent) = (asked.resource.clone(), agent.clone());
        let request = Request { verb: asked.verb, collection, status: status.as_u16(), agent };
        shared.change(|state| state.requests.push(request));
        failure(status, reason, message)
    };
    if shared.lock().token.as_ref().is_some_and(|token| authorization != format!("Bearer {token}")) {
        return turned_away(StatusCode::UNAUTHORIZED, "Unauthorized", "Unauthorized");
    }
    if shared.lock().role.as_ref().is_some_and(|rules| !asked.are_allowed(rules)) {
        return turned_away(StatusCode::FORBIDDEN, "Forbidden", &asked.forbidden());
    }
    let Some(target) = Target::parse(parts.uri.path()) else {
        let message = "the server could not find the requested resource";
        return turned_away(StatusCode::NOT_FOUND, "NotFound", message);
    };
    let verb = match (&parts.method, &target.name) {
        (&Method::GET, None) if watching => "watch",
        (&Method::GET, None) => "list",
        (&Method::GET, Some(_)) => "get",
        (&Method::POST, None) => "create",
        (&Method::PUT, Some(_)) => "update",
        (&Method::PATCH, Some(_)) => "patch",
        (&Method::DELETE, Some(_)) => "delete",
        _ => return failure(StatusCode::METHOD_NOT_ALLOWED, "MethodNotAllowed", "not something this double does"),
    };
    let collection = target.collection.to_owned();
    let failing = shared.change(|state| match state.failing.is_empty() {
        true => state.refused.get(&collection).copied(),
        false => Some(state.failing.remove(0)),
    });
    let response = if let Some(status) = failing {
        let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        failure(status, status.canonical_reason().unwrap_or("Unknown"), "failing on demand")
    } else {
        match verb {
            "list" => list(&shared, &target, &parameters),
            "watch" => watches::start(&shared, target, &parameters),
            _ => match body::to_bytes(content, MAX_BODY).await {
                Ok(content) => single(&shared, &target, verb, &content),
                Err(_) => failure(StatusCode::PAYLOAD_TOO_LARGE, "RequestEntityTooLarge", "the object is too large"),
            },
        }
    };
    let status = response.status().as_u16();
    shared.change(|state| state.requests.push(Request { verb, collection, status, agent }));
    response
}

impl Target {
    fn parse(path: &str) -> Option<Self> {
        let path = path.trim_matches('/');
        for (root, collection, kind) in COLLECTIONS {
            let Some(rest) = path.strip_prefix(root).and_then(|rest| rest.strip_prefix('/')) else { continue };
            let parts: Vec<&str> = rest.split('/').collect();
            let (namespace, parts) = match &parts[..] {
                ["namespaces", namespace, rest @ ..] if !rest.is_empty() => (Some((*namespace).to_owned()), rest),
                rest => (None, rest),
            };
            let api_version = root.split_once('/').map_or(root, |(_, version)| version);
            let target = |name| Self { collection, kind, api_version, namespace: namespace.clone(), name };
            match parts {
                [found] if *found == collection => return Some(target(None)),
                [found, name] if *found == collection => return Some(target(Some((*name).to_owned()))),
                _ => {}
            }
        }
        None
    }

    /// A bookmark of a watch of this collection.
    pub(super) fn bookmark(&self, version: u64, annotations: Value) -> Value {
        let metadata =
            json!({"resourceVersion": version.to_string(), "creationTimestamp": null, "annotations": annotations});
        json!({"type": "BOOKMARK",
               "object": {"kind": self.kind, "apiVersion": self.api_version, "metadata": metadata}})
    }

    fn key(&self, name: &str) -> Key {
        (self.collection.to_owned(), self.namespace.clone().unwrap_or_default(), name.to_owned())
    }
}

/// Both selectors of a query.
pub(super) fn selector(parameters: &Parameters) -> Result<Selector, Box<Response>> {
    let text = |name: &str| parameters.get(name).map_or("", String::as_str);
    let selector = Selector::parse(text("labelSelector"), text("fieldSelector"));
    selector.map_err(|message| Box::new(failure(StatusCode::BAD_REQUEST, "BadRequest", &message)))
}

/// A version in a query; `None` for "whatever is newest", which is what an empty one and 0 may be answered with.
pub(super) fn version(parameters: &Parameters) -> Result<Option<u64>, Box<Response>> {
    match parameters.get("resourceVersion").map(String::as_str) {
        None | Some("" | "0") => Ok(None),
        Some(text) => text.parse().map(Some).map_err(|_| {
            Box::new(failure(StatusCode::BAD_REQUEST, "BadRequest", &format!("invalid resource version {text:?}")))
        }),
    }
}

pub(super) fn version_failure(error: &VersionError) -> Response {
    match error {
        VersionError::Gone => failure(StatusCode::GONE, "Expired", "too old resource version"),
        VersionError::Future => failure(StatusCode::GATEWAY_TIMEOUT, "Timeout", "Too large resource version"),
    }
}

fn list(shared: &Shared, target: &Target, parameters: &Parameters) -> Response {
    let (selector, asked) = match (selector(parameters), version(parameters)) {
        (Ok(selector), Ok(version)) => (selector, version),
        (Err(response), _) | (_, Err(response)) => return *response,
    };
    let limit = parameters.get("limit").and_then(|limit| limit.parse().ok()).unwrap_or(0);
    let token = parameters.get("continue").filter(|token| !token.is_empty());
    let state = shared.lock();
    let (version, after) = match token {
        None => {
            let exact = parameters.get("resourceVersionMatch").is_some_and(|rule| rule == "Exact");
            if let Some(Err(error)) = asked
                .map(|version| state.history.check(version))
                .filter(|result| exact || *result == Err(VersionError::Future))
            {
                return version_failure(&error);
            }
            (asked.filter(|_| exact).unwrap_or(state.history.version), None)
        }
        Some(token) => match serde_json::from_str::<(u64, String, String)>(token) {
            Ok((version, namespace, name)) => (version, Some((namespace, name))),
            Err(_) => return failure(StatusCode::BAD_REQUEST, "BadRequest", "continue key is not valid"),
        },
    };
    if let Err(error) = state.history.check(version) {
        return version_failure(&error);
    }
    let namespace = target.namespace.as_deref();
    let page = state.history.list(target.collection, namespace, &selector, version, after.as_ref(), limit);
    let mut metadata = json!({"resourceVersion": page.version.to_string()});
    if let Some((namespace, name)) = &page.last {
        metadata["continue"] = json!(json!([page.version, namespace, name]).to_string());
        metadata["remainingItemCount"] = json!(page.remaining);
    }
    // Items of a list do not state their kind, as at the real server.
    let strip = |mut item: Value| {
        if let Some(fields) = item.as_object_mut() {
            fields.remove("kind");
            fields.remove("apiVersion");
        }
        item
    };
    let items: Vec<Value> = page.items.into_iter().map(strip).collect();
    let kind = format!("{}List", target.kind);
    json_response(
        StatusCode::OK,
        &json!({"kind": kind, "apiVersion": target.api_version, "metadata": metadata, "items": items}),
    )
}

/// get, create, update, patch, delete.
fn single(shared: &Shared, target: &Target, verb: &str, content: &[u8]) -> Response {
    let object: Value = match verb {
        "create" | "update" | "patch" => match serde_json::from_slice(content) {
            Ok(object) => object,
            Err(error) => return failure(StatusCode::BAD_REQUEST, "BadRequest", &error.to_string()),
        },
        _ => Value::Null,
    };
    let named = object.pointer("/metadata/name").and_then(Value::as_str);
    let Some(name) = target.name.as_deref().or(named) else {
        return failure(StatusCode::UNPROCESSABLE_ENTITY, "Invalid", "metadata.name: Required value");
    };
    let key = target.key(name);
    shared.change(|state| {
        let stored = state.history.get(&key).cloned();
        let asked = object.pointer("/metadata/resourceVersion").and_then(Value::as_str).filter(|text| !text.is_empty());
        match (verb, stored) {
            ("create", Some(_)) => failure(StatusCode::CONFLICT, "AlreadyExists", "the object already exists"),
            ("create", None) => json_response(StatusCode::CREATED, &state.history.put(key.clone(), object.clone())),
            (_, None) => failure(StatusCode::NOT_FOUND, "NotFound", "there is no such object"),
            ("get", Some(stored)) => json_response(StatusCode::OK, &stored),
            ("delete", Some(_)) => json_response(StatusCode::OK, &state.history.delete(&key).unwrap_or_default()),
            ("patch", Some(mut stored)) => {
                merge(&mut stored, object.clone());
                json_response(StatusCode::OK, &state.history.put(key.clone(), stored))
            }
            (_, Some(stored)) if asked.is_some_and(|asked| stored["metadata"]["resourceVersion"] != asked) => failure(
                StatusCode::CONFLICT,
                "Conflict",
                "the object has been modified; apply your changes to the latest version",
            ),
            (_, Some(_)) => json_response(StatusCode::OK, &state.history.put(key.clone(), object.clone())),
        }
    })
}

/// RFC 7386: fields that are named are replaced, null takes one away.
fn merge(into: &mut Value, patch: Value) {
    let Value::Object(changes) = patch else {
        *into = patch;
        return;
    };
    if !into.is_object() {
        *into = json!({});
    }
    let Some(fields) = into.as_object_mut() else { return };
    for (name, change) in changes {
        if change.is_null() {
            fields.remove(&name);
        } else {
            merge(fields.entry(name).or_insert(Value::Null), change);
        }
    }
}

/// The body of a failure.
pub(super) fn status_object(code: u16, reason: &str, message: &str) -> Value {
    json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "code": code, "reason": reason,
           "message": message})
}

pub(super) fn failure(status: StatusCode, reason: &str, message: &str) -> Response {
    json_response(status, &status_object(status.as_u16(), reason, message))
}

fn json_response(status: StatusCode, body: &Value) -> Response {
    let mut response = Response::new(Body::from(body.to_string()));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static("application/json"));
    response
}
