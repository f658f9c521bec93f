//! What the API server was asked, by its own audit log.

use std::path::Path;

use anyhow::{Context, Result};
use serde_json::Value;

/// Every request, once it is answered; a watch also when it begins.
pub(super) const POLICY: &str = "\
apiVersion: audit.k8s.io/v1
kind: Policy
rules:
- level: Metadata
";

/// A request, and what came of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked {
    /// `list`, `watch`, `create` and so on.
    pub verb: String,
    /// `services`; empty for a path that is no resource.
    pub resource: String,
    /// The path with its query.
    pub uri: String,
    /// HTTP status; 0 if the server ended before it answered.
    pub status: u64,
    /// What the client calls itself.
    pub agent: String,
}

/// Requests of a user, those that are complete and watches that have begun.
pub(super) fn read(path: &Path, user: &str) -> Result<Vec<Asked>> {
    let text = std::fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
    let mut found = Vec::new();
    for line in text.lines() {
        // A server that was killed may have left half a line.
        let Ok(event) = serde_json::from_str::<Value>(line) else { continue };
        if event["user"]["username"] != user || event["stage"] == "RequestReceived" {
            continue;
        }
        let field = |pointer: &str| event.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
        found.push(Asked {
            verb: field("/verb"),
            resource: field("/objectRef/resource"),
            uri: field("/requestURI"),
            status: event["responseStatus"]["code"].as_u64().unwrap_or(0),
            agent: field("/userAgent"),
        });
    }
    Ok(found)
}
