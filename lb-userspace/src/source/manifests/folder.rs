//! The files of a manifest path, and what each of them held when it was last readable.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::parse::{Parsed, parse};
use crate::model::{List, ObjectKey, Origin};
use crate::source::file::{Fingerprint, read_bytes, shown};

const EXTENSIONS: [&str; 3] = ["yaml", "yml", "json"];

/// A file of no bytes is one that is about to be written, or that a full disk ate.
const EMPTIED: &str = "is empty; what it held last stays: delete the file to take its objects away";

/// A file or folder of manifests.
pub(super) struct Folder {
    path: PathBuf,
    /// Per file, the objects of its last versions: since it was last readable as a whole.
    held: BTreeMap<PathBuf, Held>,
}

#[derive(Default)]
struct Held {
    keys: BTreeSet<ObjectKey>,
    /// True once the file was readable as a whole.
    known: bool,
}

impl Folder {
    pub(super) fn new(path: PathBuf) -> Self {
        Self { path, held: BTreeMap::new() }
    }

    /// Reads all files. An error means that the path itself cannot be looked at.
    pub(super) fn read(&mut self) -> io::Result<List> {
        let files = files(&self.path)?;
        self.held.retain(|file, _| files.contains(file));
        let mut list = List::default();
        for file in files {
            let name = shown(&file);
            let mut parsed = read_file(&file, name.clone());
            let held = self.held.entry(file).or_default();
            if parsed.empty && !held.keys.is_empty() {
                parsed = broken(name, EMPTIED.to_owned());
            }
            let now = parsed.objects.iter().map(|object| object.key.clone());
            if parsed.broken {
                list.gaps |= !held.known;
                list.kept.extend(held.keys.iter().cloned());
                held.keys.extend(now);
            } else {
                held.keys = now.collect();
                held.known = true;
            }
            list.objects.extend(parsed.objects);
            list.problems.extend(parsed.problems);
        }
        Ok(list)
    }

    /// A list that keeps everything: the path is gone, or cannot be looked at, and that takes nothing away.
    pub(super) fn keep_all(&self, error: &io::Error) -> List {
        let parsed = broken(shown(&self.path), format!("cannot be read: {error}; what it held last stays"));
        let kept = self.held.values().flat_map(|held| held.keys.iter().cloned()).collect();
        List { kept, problems: parsed.problems, ..List::default() }
    }

    /// Compares equal as long as no file changed, as far as can be told without reading.
    pub(super) fn fingerprint(&self) -> io::Result<Fingerprint> {
        Ok(Fingerprint::of(files(&self.path)?))
    }
}

/// The file itself, or the manifests directly in a folder, by name. Names that begin with a dot are none: editors
/// and ConfigMap volumes keep their own things there.
fn files(path: &Path) -> io::Result<Vec<PathBuf>> {
    if !path.metadata()?.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let mut files = Vec::new();
    for entry in path.read_dir()? {
        let file = entry?.path();
        let hidden = file.file_name().is_none_or(|name| name.as_encoded_bytes().starts_with(b"."));
        let extension = file.extension().and_then(|extension| extension.to_str());
        let manifest = extension.is_some_and(|extension| EXTENSIONS.contains(&extension));
        if manifest && !hidden && !file.is_dir() {
            files.push(file);
        }
    }
    files.sort();
    Ok(files)
}

fn read_file(path: &Path, file: Arc<str>) -> Parsed {
    match read_bytes(path) {
        Ok(bytes) if bytes.is_empty() => Parsed { empty: true, ..Parsed::default() },
        // The parser is not ours: should it ever panic, that is one broken file and not the end of the agent.
        Ok(bytes) => std::panic::catch_unwind(|| parse(&file, &bytes))
            .unwrap_or_else(|_| broken(file, "cannot be read: the parser failed".to_owned())),
        Err(problem) => broken(file, problem),
    }
}

fn broken(file: Arc<str>, problem: String) -> Parsed {
    let mut parsed = Parsed::default();
    parsed.broken(&Origin { file: Some(file), document: 0, first_line: 1, line: 0 }, problem);
    parsed
}
