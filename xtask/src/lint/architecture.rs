//! ARCHITECTURE.md is the map of the code: it and the README name every crate, and what it lists exists.
//!
//! A section headed with a crate's folder (`## lb-userspace`) lists modules in the first column of its tables, as
//! `source::manifests`; further names in the same cell may leave out the parent of the first.

use std::path::{Path, PathBuf};

use super::files::Files;

/// Crates that a document forgets, and modules that only a document knows.
pub(crate) fn check(files: &Files) -> Vec<String> {
    let mut findings = Vec::new();
    let crates: Vec<String> = files.keys().filter_map(|path| crate_folder(path)).collect();
    for document in ["README.md", "ARCHITECTURE.md"] {
        match files.get(Path::new(document)) {
            None => findings.push(format!("{document} is missing")),
            Some(text) => {
                let forgotten = crates.iter().filter(|name| !text.contains(&format!("`{name}`")));
                findings.extend(forgotten.map(|name| format!("{document}: does not mention the crate `{name}`")));
            }
        }
    }
    let map = files.get(Path::new("ARCHITECTURE.md")).map_or("", String::as_str);
    for (line, folder, modules) in cells(map, &crates) {
        let first = modules.first().cloned().unwrap_or_default();
        let parent = first.rsplit_once("::").map(|(parent, _)| parent);
        for module in &modules {
            let sibling = parent.map(|parent| format!("{parent}::{module}"));
            let known = std::iter::once(module).chain(&sibling).any(|path| exists(files, &folder, path));
            if !known {
                findings.push(format!("ARCHITECTURE.md:{line}: `{folder}` has no module `{module}`"));
            }
        }
    }
    findings
}

/// `lb-common` for `lb-common/Cargo.toml`.
fn crate_folder(manifest: &Path) -> Option<String> {
    let folder = manifest.parent().filter(|_| manifest.ends_with("Cargo.toml"))?;
    (folder.components().count() == 1).then(|| folder.to_string_lossy().into_owned())
}

/// (line, crate's folder, modules) of each first cell with code in it, in the sections of crates.
fn cells(map: &str, crates: &[String]) -> Vec<(usize, String, Vec<String>)> {
    let mut found = Vec::new();
    let mut folder: Option<&String> = None;
    for (number, line) in map.lines().enumerate() {
        if let Some(title) = line.strip_prefix("## ") {
            folder = crates.iter().find(|name| title.trim().trim_matches('`') == name.as_str());
        }
        let Some((folder, row)) = folder.zip(line.strip_prefix('|')) else { continue };
        let cell = row.split('|').next().unwrap_or("");
        let modules: Vec<String> = cell.split('`').skip(1).step_by(2).map(str::to_owned).collect();
        if !modules.is_empty() {
            found.push((number + 1, folder.clone(), modules));
        }
    }
    found
}

fn exists(files: &Files, folder: &str, module: &str) -> bool {
    let base: PathBuf = Path::new(folder).join("src").join(module.replace("::", "/"));
    // Also by its file name (`src/main.rs`), which is how a program or a test is called.
    [base.with_extension("rs"), base.join("mod.rs"), Path::new(folder).join(module)]
        .iter()
        .any(|path| files.contains_key(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(map: &str, sources: &[&str]) -> Files {
        let mut files: Files = sources.iter().map(|path| (PathBuf::from(path), String::new())).collect();
        files.insert("a/Cargo.toml".into(), String::new());
        files.insert("README.md".into(), "`a`".to_owned());
        files.insert("ARCHITECTURE.md".into(), format!("`a`\n{map}"));
        files
    }

    #[test]
    fn a_listed_module_exists_by_path_or_as_a_sibling_of_the_first() {
        let map = "## a\n| module | idea |\n|---|---|\n| `b::c`, `d`, `e` | `not::this` |\n## other\n| `x` | |\n";
        let sources = ["a/src/b/c.rs", "a/src/b/d/mod.rs", "a/src/e.rs"];
        assert_eq!(check(&files(map, &sources)), [""; 0]);
        let missing = check(&files(map, &sources[..2]));
        assert_eq!(missing, ["ARCHITECTURE.md:5: `a` has no module `e`"]);
    }

    #[test]
    fn both_documents_mention_every_crate() {
        let mut files = files("", &[]);
        files.insert("b/Cargo.toml".into(), String::new());
        files.remove(Path::new("README.md"));
        assert_eq!(check(&files), ["README.md is missing", "ARCHITECTURE.md: does not mention the crate `b`"]);
    }
}
