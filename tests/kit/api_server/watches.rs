//! Watches: streams of events, one JSON object per line.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::Response;
use futures::stream;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::Instant;

use super::Shared;
use super::handlers::{Target, failure, selector, status_object, version, version_failure};
use super::history::VersionError;
use super::selector::Selector;

/// A watch, from its request to its end.
struct Watch {
    shared: Arc<Shared>,
    target: Target,
    selector: Selector,
    /// Everything up to this version was sent.
    version: u64,
    generation: u64,
    round: u64,
    /// Bookmarks sent, if the client takes any.
    bookmarks: Option<u64>,
    ends: Option<Instant>,
    pending: VecDeque<Value>,
    ending: bool,
    changed: watch::Receiver<u64>,
}

pub(super) fn start(shared: &Arc<Shared>, target: Target, parameters: &HashMap<String, String>) -> Response {
    let (selector, asked) = match (selector(parameters), version(parameters)) {
        (Ok(selector), Ok(version)) => (selector, version),
        (Err(response), _) | (_, Err(response)) => return *response,
    };
    let truth = |name: &str| parameters.get(name).is_some_and(|value| value == "true");
    let initial = truth("sendInitialEvents");
    if initial && parameters.get("resourceVersionMatch").is_none_or(|rule| rule != "NotOlderThan") {
        return failure(
            StatusCode::UNPROCESSABLE_ENTITY,
            "Invalid",
            "sendInitialEvents needs resourceVersionMatch=NotOlderThan",
        );
    }
    let mut pending = VecDeque::new();
    let mut ending = false;
    let changed = shared.changed.subscribe();
    let mut state = shared.lock();
    let version = match asked {
        Some(version) if !initial => {
            match state.history.check(version) {
                Err(VersionError::Gone) if state.gone_in_stream => {
                    pending.push_back(
                        json!({"type": "ERROR", "object": status_object(410, "Expired", "too old resource version")}),
                    );
                    ending = true;
                }
                Err(error) => return version_failure(&error),
                Ok(()) => {}
            }
            version
        }
        _ => {
            let now = state.history.version;
            let page = state.history.list(target.collection, target.namespace.as_deref(), &selector, now, None, 0);
            pending.extend(page.items.into_iter().map(|object| json!({"type": "ADDED", "object": object})));
            if initial {
                pending.push_back(target.bookmark(now, json!({"k8s.io/initial-events-end": "true"})));
            }
            now
        }
    };
    let seconds = parameters.get("timeoutSeconds").and_then(|seconds| seconds.parse().ok());
    let (generation, round) = (state.generation, state.round);
    let bookmarks = truth("allowWatchBookmarks").then_some(state.bookmarks);
    state.watching.push(target.collection.to_owned());
    drop(state);
    let ends = seconds.map(|seconds| Instant::now() + Duration::from_secs(seconds));
    let shared = shared.clone();
    let watch =
        Watch { shared, target, selector, version, generation, round, bookmarks, ends, pending, ending, changed };
    let lines = stream::unfold(watch, |mut watch| async { watch.next().await.map(|line| (line, watch)) });
    let mut response = Response::new(Body::from_stream(lines));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

impl Watch {
    /// The next line. An error cuts the connection, nothing ends the answer in good order.
    async fn next(&mut self) -> Option<io::Result<String>> {
        loop {
            if let Some(event) = self.pending.pop_front() {
                return Some(Ok(format!("{event}\n")));
            }
            if self.ending {
                return None;
            }
            self.changed.mark_unchanged();
            if self.look() {
                return Some(Err(io::Error::other("cut on demand")));
            }
            if self.ending || !self.pending.is_empty() {
                continue;
            }
            let changed = self.changed.changed();
            match self.ends {
                Some(ends) => match tokio::time::timeout_at(ends, changed).await {
                    Ok(Ok(())) => {}
                    _ => return None,
                },
                None => changed.await.ok()?,
            }
        }
    }

    /// Takes what is new; true if this watch is to be cut.
    fn look(&mut self) -> bool {
        let state = self.shared.lock();
        if state.generation != self.generation {
            return true;
        }
        self.ending = state.round != self.round;
        // After a rewind the count is lower than what was sent: as at the real server, nothing comes any more.
        if state.history.version > self.version {
            let namespace = self.target.namespace.as_deref();
            self.pending.extend(state.history.events(self.target.collection, namespace, &self.selector, self.version));
            self.version = state.history.version;
        }
        if self.bookmarks.is_some_and(|sent| sent < state.bookmarks) {
            self.bookmarks = Some(state.bookmarks);
            self.pending.push_back(self.target.bookmark(self.version, json!({})));
        }
        false
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let collection = self.target.collection;
        self.shared.change(|state| {
            if let Some(index) = state.watching.iter().position(|other| other == collection) {
                state.watching.swap_remove(index);
            }
        });
    }
}
