//! An object that came from a source: which one it is, where it stands, and its unread content.

use std::fmt;
use std::sync::Arc;

use super::field::{Field, Report};
use super::problem::Problem;
use super::tree::Tree;

/// The kinds of objects that matter here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// `v1` Service.
    Service,
    /// `discovery.k8s.io/v1` EndpointSlice.
    EndpointSlice,
    /// `v1` Node.
    Node,
    /// `networking.k8s.io/v1` ServiceCIDR.
    ServiceCidr,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Self; 4] = [Self::Service, Self::EndpointSlice, Self::Node, Self::ServiceCidr];

    /// The name as objects state it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Service => "Service",
            Self::EndpointSlice => "EndpointSlice",
            Self::Node => "Node",
            Self::ServiceCidr => "ServiceCIDR",
        }
    }

    /// The API version that is understood.
    pub const fn api_version(self) -> &'static str {
        match self {
            Self::Service | Self::Node => "v1",
            Self::EndpointSlice => "discovery.k8s.io/v1",
            Self::ServiceCidr => "networking.k8s.io/v1",
        }
    }

    /// Whether its objects are in no namespace.
    pub const fn is_of_cluster(self) -> bool {
        matches!(self, Self::Node | Self::ServiceCidr)
    }

    /// The kind that an object's `apiVersion` and `kind` state. The same kind of another group is another kind.
    pub fn of(api_version: &str, kind: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|known| known.name() == kind && known.api_version() == api_version)
    }
}

/// Which object.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectKey {
    /// Kind.
    pub kind: Kind,
    /// Namespace; empty for what is in none.
    pub namespace: Arc<str>,
    /// Name.
    pub name: Arc<str>,
}

impl fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            kind if kind.is_of_cluster() => write!(f, "{} {}", kind.name(), self.name),
            kind => write!(f, "{} {}/{}", kind.name(), self.namespace, self.name),
        }
    }
}

/// Namespace and name of a Service.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServiceName {
    /// Namespace.
    pub namespace: Arc<str>,
    /// Name.
    pub name: Arc<str>,
}

impl ServiceName {
    /// The Service of this name.
    pub fn key(&self) -> ObjectKey {
        ObjectKey { kind: Kind::Service, namespace: self.namespace.clone(), name: self.name.clone() }
    }
}

/// Where an object was written. The default is the API server, where there are no lines.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Origin {
    /// The file.
    pub file: Option<Arc<str>>,
    /// Number of the document in the file, from 1; 0 for the file as a whole.
    pub document: u32,
    /// Line of the file that the document's first line is, from 1.
    pub first_line: u32,
    /// Line of the document that the object begins on, from 1.
    pub line: u32,
}

impl Origin {
    /// The place of a line of the document, as messages name it; of the object itself for line 0.
    pub fn location(&self, line: u32) -> Option<String> {
        let line = if line == 0 { self.line.max(1) } else { line };
        let number = self.first_line.max(1).saturating_add(line - 1);
        let file = self.file.as_ref()?;
        // Document 0 is the file as a whole.
        Some(if self.document == 0 {
            file.to_string()
        } else {
            format!("{file}:{number} (document {})", self.document)
        })
    }

    /// The place of the object, for sentences: the file and line, or the API server.
    pub fn describe(&self) -> String {
        self.location(0).unwrap_or_else(|| "the API server".to_owned())
    }
}

/// An object with a name, its content not yet judged.
#[derive(Clone, Debug, PartialEq)]
pub struct Object {
    /// Which object.
    pub key: ObjectKey,
    /// Where it was written.
    pub origin: Origin,
    /// What was written.
    pub tree: Tree,
}

impl Object {
    /// Finds out which object of this kind a tree is. A missing namespace is `default`, as for `kubectl apply`.
    pub fn identify(kind: Kind, tree: Tree, mut origin: Origin) -> Result<Self, Problem> {
        origin.line = tree.line;
        let mut report = Report::new(kind.name().to_owned(), &origin);
        let identity = identity(kind, &tree, &mut report);
        let problem = report.problems.pop();
        match (identity, problem) {
            (Some((namespace, name)), _) => Ok(Self { key: ObjectKey { kind, namespace, name }, origin, tree }),
            (None, Some(problem)) => Err(problem),
            (None, None) => unreachable!("identity() reports why there is none"),
        }
    }
}

fn identity(kind: Kind, tree: &Tree, report: &mut Report<'_>) -> Option<(Arc<str>, Arc<str>)> {
    const NAME: &str = "must be a name of 1 to 253 lower-case letters, digits, '-' and '.'";
    let root = Field::root(tree);
    let metadata = root.key("metadata");
    if !metadata.is_map(report) {
        return None;
    }
    let mut read = |key, missing: Option<&str>| {
        let field = metadata.key(key);
        let text = field.text(report, NAME).ok()?.or(missing).filter(|text| !text.is_empty());
        let valid = text.filter(|text| {
            text.len() <= 253 && text.bytes().all(|b| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.'))
        });
        if valid.is_none() {
            report.wrong(&field, NAME);
        }
        valid.map(Arc::from)
    };
    let name = read("name", None)?;
    let namespace = if kind.is_of_cluster() { Arc::default() } else { read("namespace", Some("default"))? };
    Some((namespace, name))
}
