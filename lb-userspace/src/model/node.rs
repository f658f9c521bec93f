//! Nodes.

use super::field::{Field, Report};
use super::object::Object;
use super::problem::Problem;

/// Label that names the zone of a node.
pub const ZONE_LABEL: &str = "topology.kubernetes.io/zone";

/// A node, as far as it matters to the services on it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Node {
    /// Name. Endpoints whose `nodeName` is this are local.
    pub name: String,
    /// Zone, if it is in one.
    pub zone: Option<String>,
}

impl Node {
    /// A node of which only the name is known.
    pub fn named(name: impl Into<String>) -> Self {
        Self { name: name.into(), zone: None }
    }

    pub(crate) fn read(object: &Object, previous: Option<&Self>) -> (Option<Self>, Vec<Problem>) {
        let mut report = Report::new(object.key.to_string(), &object.origin);
        let root = Field::root(&object.tree);
        let (metadata, allowed) = (root.key("metadata"), "must be text");
        let zone = match metadata.key("labels").key(ZONE_LABEL).text(&mut report, allowed) {
            Ok(zone) => zone.filter(|zone| !zone.is_empty()).map(str::to_owned),
            Err(_) => previous.and_then(|node| node.zone.clone()),
        };
        (Some(Self { name: object.key.name.clone(), zone }), report.problems)
    }
}
