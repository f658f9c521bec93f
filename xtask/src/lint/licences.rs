//! Every package states its licence, and every licence it states is there to read.

use std::path::Path;

use super::files::Files;
use crate::workspace;

/// Licence texts, and the identifier in `license` fields that calls for each.
const TEXTS: [(&str, &str); 3] =
    [("MIT", "LICENSE-MIT"), ("Apache-2.0", "LICENSE-APACHE"), ("GPL-2.0-only", "lb-ebpf/LICENSE-GPL-2.0")];

/// Packages without a `license`, licences without a text.
pub(crate) fn check(files: &Files) -> Vec<String> {
    check_with(files, |file| workspace::root().join(file).is_file())
}

fn check_with(files: &Files, exists: impl Fn(&str) -> bool) -> Vec<String> {
    let mut findings = Vec::new();
    let workspace = files.get(Path::new("Cargo.toml")).and_then(|text| licence(text, "[workspace.package]"));
    for (path, text) in files.iter().filter(|(path, _)| path.file_name().is_some_and(|name| name == "Cargo.toml")) {
        if !text.lines().any(|line| line.trim() == "[package]") {
            continue;
        }
        let Some(expression) = licence(text, "[package]").or_else(|| inherits(text).then(|| workspace.clone())?) else {
            findings.push(format!("{}: no `license` in [package]", path.display()));
            continue;
        };
        for word in expression.split([' ', '(', ')']).filter(|word| !matches!(*word, "" | "OR" | "AND")) {
            match TEXTS.iter().find(|(identifier, _)| *identifier == word) {
                None => findings.push(format!("{}: licence `{word}` is none of this project's", path.display())),
                Some((_, file)) if !exists(file) => {
                    findings.push(format!("{}: licence `{word}`, but {file} is missing", path.display()));
                }
                Some(_) => {}
            }
        }
    }
    findings
}

/// The value of `license = "..."` in the section called `header`.
fn licence(manifest: &str, header: &str) -> Option<String> {
    let value = section(manifest, header).find_map(|line| line.strip_prefix("license = "))?;
    Some(value.trim().trim_matches('"').to_owned())
}

fn inherits(manifest: &str) -> bool {
    section(manifest, "[package]").any(|line| line == "license.workspace = true")
}

fn section<'a>(manifest: &'a str, header: &'a str) -> impl Iterator<Item = &'a str> {
    let lines = manifest.lines().map(str::trim).skip_while(move |line| *line != header).skip(1);
    lines.take_while(|line| !line.starts_with('['))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(root: &str, package: &str) -> Vec<String> {
        let files = [("Cargo.toml", root), ("a/Cargo.toml", package)];
        let files = files.map(|(path, text)| (path.into(), text.to_owned()));
        check_with(&Files::from(files), |file| file == "LICENSE-MIT")
    }

    #[test]
    fn a_package_states_its_licence_or_inherits_the_workspaces() {
        let root = "[workspace.package]\nlicense = \"MIT\"\n";
        assert!(findings(root, "[package]\nlicense.workspace = true\n").is_empty());
        assert!(findings("", "[package]\nlicense = \"MIT\"\n").is_empty());
        assert_eq!(findings(root, "[package]\nname = \"a\"\n"), ["a/Cargo.toml: no `license` in [package]"]);
        assert_eq!(findings("", "[package]\nlicense.workspace = true\n"), ["a/Cargo.toml: no `license` in [package]"]);
    }

    #[test]
    fn a_stated_licence_is_there_to_read() {
        let missing = findings("", "[package]\nlicense = \"MIT OR Apache-2.0\"\n");
        assert_eq!(missing, ["a/Cargo.toml: licence `Apache-2.0`, but LICENSE-APACHE is missing"]);
        let foreign = findings("", "[package]\nlicense = \"MIT AND Zlib\"\n");
        assert_eq!(foreign, ["a/Cargo.toml: licence `Zlib` is none of this project's"]);
    }
}
