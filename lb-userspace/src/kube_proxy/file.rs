//! The file: one document, a KubeProxyConfiguration.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use super::{Settings, fields, settings};
use crate::model::Problem;
use crate::model::field::{Field, Report};
use crate::model::object::Origin;
use crate::model::tree::{Tree, Value};
use crate::source::{file, yaml};

/// The kind, with its group and version.
pub(super) const KIND: &str = "KubeProxyConfiguration";
pub(super) const API_VERSION: &str = "kubeproxy.config.k8s.io/v1alpha1";
const EXPECTED: &str = "must be a KubeProxyConfiguration (kubeproxy.config.k8s.io/v1alpha1) as YAML or JSON";
/// Largest file that is read, in bytes. One with every field has some 2,000.
const MAX_BYTES: usize = 1 << 20;

/// A file that can be used.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Read {
    /// What it says.
    pub settings: Settings,
    /// What it says that nobody knows.
    pub warnings: Vec<Problem>,
    /// Its bytes: other ones are another configuration.
    pub bytes: Vec<u8>,
}

/// Why a file cannot be used.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Unusable(pub Vec<Problem>);

impl fmt::Display for Unusable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let problems: Vec<String> = self.0.iter().map(Problem::to_string).collect();
        f.write_str(&problems.join("; "))
    }
}

impl std::error::Error for Unusable {}

/// Reads a file.
pub fn read(path: &Path) -> Result<Read, Unusable> {
    let name = file::shown(path);
    let bytes = file::read_bytes(path).map_err(|message| {
        let location = Some(name.to_string());
        Unusable(vec![problem(location, message)])
    })?;
    let (settings, warnings) = parse(&name, &bytes)?;
    Ok(Read { settings, warnings, bytes })
}

/// Reads the bytes of a file of this name: settings, and warnings.
pub fn parse(name: &Arc<str>, bytes: &[u8]) -> Result<(Settings, Vec<Problem>), Unusable> {
    let mut origin = Origin { file: Some(name.clone()), document: 1, first_line: 1, line: 1 };
    let tree = match document(bytes, &mut origin) {
        Ok(tree) => tree,
        Err((line, message)) => return Err(Unusable(vec![problem(origin.location(line), message)])),
    };
    let root = Field::root(&tree);
    let report = || Report::new(KIND.to_owned(), &origin);
    let (mut errors, mut warnings) = (report(), report());
    check_kind(&tree, &root, &mut errors);
    if errors.problems.is_empty() {
        fields::check_shapes(&root, &mut errors);
        let settings = settings::read(&tree, &mut errors);
        fields::unknown(&root, &mut warnings);
        if errors.problems.is_empty() {
            return Ok((settings, warnings.problems));
        }
    }
    Err(Unusable(errors.problems))
}

fn problem(location: Option<String>, message: String) -> Problem {
    Problem { object: KIND.to_owned(), location, field: String::new(), value: String::new(), message }
}

/// The one document, or the line of it that is wrong and why.
fn document(bytes: &[u8], origin: &mut Origin) -> Result<Tree, (u32, String)> {
    if bytes.len() > MAX_BYTES {
        return Err((0, format!("is larger than {} KiB: {EXPECTED}", MAX_BYTES >> 10)));
    }
    let text = std::str::from_utf8(bytes).map_err(|error| {
        let line = 1 + bytes[..error.valid_up_to()].iter().filter(|byte| **byte == b'\n').count();
        (line as u32, format!("is no UTF-8 text: {EXPECTED}"))
    })?;
    let mut documents = yaml::documents(text.strip_prefix('\u{feff}').unwrap_or(text));
    let Some((first_line, document)) = documents.next() else {
        return Err((0, format!("is empty: {EXPECTED}")));
    };
    if let Some((line, _)) = documents.next() {
        return Err((line, "a second document: leave the KubeProxyConfiguration alone in its file".to_owned()));
    }
    origin.first_line = first_line;
    serde_saphyr::from_str_with_options(document, yaml::options(document.len())).map_err(|error| {
        let line = error.location().map_or(0, |location| location.line() as u32);
        (line, format!("cannot be read: {}", yaml::sentence(&error)))
    })
}

fn check_kind(tree: &Tree, root: &Field<'_>, report: &mut Report<'_>) {
    if !matches!(tree.value, Value::Map(_)) {
        return report.wrong(root, EXPECTED);
    }
    for (key, expected) in [("apiVersion", API_VERSION), ("kind", KIND)] {
        if tree.text(key) != Some(expected) {
            report.wrong(&root.key(key), format!("must be {expected}"));
        }
    }
}
