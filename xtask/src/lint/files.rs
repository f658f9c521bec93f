//! The clone's text files, and what holds for each of them on its own.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// A source file above this many lines has more than one idea, or its tests belong into a file of their own.
const LINES: usize = 400;

/// Source files that may be longer, and why.
const LONGER: [(&str, &str); 0] = [];

/// Kinds of files that people write by hand.
const TEXT: [&str; 7] = ["rs", "toml", "md", "yaml", "yml", "sh", "json"];

/// Text by path relative to the root of the clone. An ordered map, so that findings come in order.
pub(crate) type Files = BTreeMap<PathBuf, String>;

/// Every hand-written text file below `root`.
pub(crate) fn read(root: &Path) -> Result<Files> {
    let mut files = Files::new();
    let mut folders = vec![root.to_path_buf()];
    while let Some(folder) = folders.pop() {
        let entries = fs::read_dir(&folder).with_context(|| format!("cannot list {}", folder.display()))?;
        for entry in entries {
            let entry = entry.with_context(|| format!("cannot list {}", folder.display()))?;
            let (path, name) = (entry.path(), entry.file_name());
            let kind = entry.file_type().with_context(|| format!("cannot look at {}", path.display()))?;
            // Built things and git's own; everything else is ours.
            if kind.is_dir() && name != "target" && name != ".git" {
                folders.push(path);
            } else if kind.is_file() && is_text(&path) {
                let bytes = fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
                let text = String::from_utf8_lossy(&bytes).into_owned();
                files.insert(path.strip_prefix(root).unwrap_or(&path).to_path_buf(), text);
            }
        }
    }
    Ok(files)
}

fn is_text(path: &Path) -> bool {
    // The scripts of .ci have no extension.
    let ci = path.parent().and_then(Path::file_name).is_some_and(|folder| folder == ".ci");
    ci || path.extension().and_then(|kind| kind.to_str()).is_some_and(|kind| TEXT.contains(&kind))
}

/// Spaces at the end of a line, and files that do not end with exactly one line end.
pub(crate) fn whitespace(files: &Files) -> Vec<String> {
    let mut findings = Vec::new();
    // Test inputs are as bad as they are on purpose.
    let fixture = |path: &Path| path.components().any(|component| component.as_os_str() == "fixtures");
    for (path, text) in files.iter().filter(|(path, _)| !fixture(path)) {
        for (number, line) in text.lines().enumerate() {
            if line.ends_with([' ', '\t']) {
                findings.push(format!("{}:{}: white space at the end of the line", path.display(), number + 1));
            }
        }
        if !text.is_empty() && (!text.ends_with('\n') || text.ends_with("\n\n")) {
            findings.push(format!("{}: must end with exactly one line end", path.display()));
        }
    }
    findings
}

/// Source files that are too long, and exceptions that are needed no more.
pub(crate) fn sizes(files: &Files) -> Vec<String> {
    let mut findings = Vec::new();
    for (path, text) in files {
        let lines = text.lines().count();
        let is_source = path.extension().is_some_and(|kind| kind == "rs")
            && path.components().any(|component| component.as_os_str() == "src");
        let exception = LONGER.iter().any(|(longer, _why)| path == Path::new(longer));
        if is_source && lines > LINES && !exception {
            findings.push(format!(
                "{}: {lines} lines, more than {LINES}: split it, or except it with a reason in xtask/src/lint/files.rs",
                path.display()
            ));
        } else if exception && lines <= LINES {
            findings.push(format!("{}: is excepted from the limit of {LINES} lines and needs not be", path.display()));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(path: &str, text: &str) -> Files {
        Files::from([(PathBuf::from(path), text.to_owned())])
    }

    #[test]
    fn white_space_at_a_lines_end_is_found_with_its_place() {
        assert_eq!(whitespace(&one("a.md", "x\ny \n")), ["a.md:2: white space at the end of the line"]);
        assert_eq!(whitespace(&one("a.md", "x")), ["a.md: must end with exactly one line end"]);
        assert_eq!(whitespace(&one("a.md", "x\n\n")), ["a.md: must end with exactly one line end"]);
        assert!(whitespace(&one("a.md", "x\n")).is_empty());
        assert!(whitespace(&one("tests/fixtures/bad.yaml", "x ")).is_empty());
    }

    #[test]
    fn only_sources_are_limited_in_length() {
        let long = "x\n".repeat(LINES + 1);
        assert_eq!(sizes(&one("a/src/b.rs", &long)).len(), 1);
        assert!(sizes(&one("a/src/b.rs", &"x\n".repeat(LINES))).is_empty());
        assert!(sizes(&one("docs/b.md", &long)).is_empty());
    }
}
