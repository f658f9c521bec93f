//! Links in the documents lead somewhere: a relative one to a file or folder, one with `#` to a heading.

use std::path::{Component, Path, PathBuf};

use super::files::Files;
use crate::workspace;

/// A link and where it stands.
#[derive(Debug, PartialEq, Eq)]
struct Link {
    line: usize,
    target: String,
}

/// Links that lead nowhere.
pub(crate) fn check(files: &Files) -> Vec<String> {
    check_with(files, |path| workspace::root().join(path).exists())
}

fn check_with(files: &Files, exists: impl Fn(&Path) -> bool) -> Vec<String> {
    let mut findings = Vec::new();
    for (path, text) in files.iter().filter(|(path, _)| is_document(path)) {
        for link in links(text) {
            if let Some(why) = broken(files, path, &link.target, &exists) {
                findings.push(format!("{}:{}: link to `{}`: {why}", path.display(), link.line, link.target));
            }
        }
    }
    findings
}

fn is_document(path: &Path) -> bool {
    path.extension().is_some_and(|kind| kind == "md")
}

/// Why a link leads nowhere, if it does. Links to other machines are not followed: a lint must not need the network.
fn broken(files: &Files, document: &Path, target: &str, exists: &impl Fn(&Path) -> bool) -> Option<&'static str> {
    if target.contains("://") || target.starts_with("mailto:") {
        return None;
    }
    let (file, heading) = target.split_once('#').map_or((target, None), |(file, heading)| (file, Some(heading)));
    if file.starts_with('/') {
        return Some("an absolute path means another place in every clone");
    }
    let path = match file {
        "" => document.to_path_buf(),
        file => match normal(&document.parent().unwrap_or(Path::new("")).join(file)) {
            Some(path) => path,
            None => return Some("leads out of the repository"),
        },
    };
    if !exists(&path) {
        return Some("no such file or folder");
    }
    match (heading, files.get(&path)) {
        (Some(heading), Some(text)) if is_document(&path) && !headings(text).iter().any(|known| known == heading) => {
            Some("no such heading")
        }
        _ => None,
    }
}

/// The path without `.` and `..`; none if it leaves the root.
fn normal(path: &Path) -> Option<PathBuf> {
    let mut normal = PathBuf::new();
    for component in path.components() {
        match component {
            Component::Normal(name) => normal.push(name),
            Component::ParentDir if !normal.pop() => return None,
            _ => {}
        }
    }
    Some(normal)
}

/// Inline links `[..](target)` and definitions `[..]: target`, outside of code.
fn links(text: &str) -> Vec<Link> {
    let mut found = Vec::new();
    for (line, prose) in prose(text) {
        let mut rest = prose.as_str();
        while let Some(at) = rest.find("](") {
            rest = &rest[at + 2..];
            // A title may follow the target: [text](target "title").
            let end = rest.find([')', ' ']).unwrap_or(rest.len());
            found.push(Link { line, target: rest[..end].to_owned() });
        }
        if let Some((_, target)) = prose.split_once("]: ").filter(|_| prose.starts_with('[')) {
            found.push(Link { line, target: target.split_whitespace().next().unwrap_or("").to_owned() });
        }
    }
    found
}

/// Numbered lines without fenced blocks and code spans: what looks like a link there is none.
fn prose(text: &str) -> Vec<(usize, String)> {
    let mut fenced = false;
    let mut lines = Vec::new();
    for (number, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        } else if !fenced {
            lines.push((number + 1, line.split('`').step_by(2).collect()));
        }
    }
    lines
}

/// The anchors of a document's headings, as the usual renderers make them.
fn headings(text: &str) -> Vec<String> {
    let mut fenced = false;
    let mut anchors: Vec<String> = Vec::new();
    for line in text.lines() {
        fenced ^= line.trim_start().starts_with("```");
        let title = line.trim_start_matches('#');
        if fenced || title.len() == line.len() || !title.starts_with(' ') {
            continue;
        }
        let kept = title.trim().chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
        let anchor: String = kept.flat_map(char::to_lowercase).map(|c| if c == ' ' { '-' } else { c }).collect();
        // The second heading of one name gets `-1`, the third `-2`.
        let same = |known: &&String| {
            known.strip_prefix(&anchor).is_some_and(|rest| {
                rest.is_empty() || rest.strip_prefix('-').is_some_and(|number| number.parse::<usize>().is_ok())
            })
        };
        let count = anchors.iter().filter(same).count();
        anchors.push(if count == 0 { anchor } else { format!("{anchor}-{count}") });
    }
    anchors
}

#[cfg(test)]
mod tests {
    use super::*;

    fn targets(text: &str) -> Vec<String> {
        links(text).into_iter().map(|link| link.target).collect()
    }

    #[test]
    fn links_are_found_in_prose_and_not_in_code() {
        assert_eq!(targets("[a](b.md) and [c](d.md \"e\")\n[f]: g.md\n"), ["b.md", "d.md", "g.md"]);
        assert!(targets("`[a](b.md)`\n```\n[c](d.md)\n```\n").is_empty());
        assert_eq!(targets("[`code`](b.md)"), ["b.md"]);
    }

    #[test]
    fn headings_become_anchors() {
        let text = "# The `bpvs` run: 1.0\n## a_b-c\n## Same\n## Same\n```\n# comment\n```\n#tag\n";
        assert_eq!(headings(text), ["the-bpvs-run-10", "a_b-c", "same", "same-1"]);
    }

    #[test]
    fn a_link_leads_to_a_file_of_the_repository_or_to_a_heading() {
        let file = |path: &str, text: &str| (PathBuf::from(path), text.to_owned());
        let links = "[1](b.md) [2](b.md#there) [3](../README.md) [4](#self) [5](https://x/y)\n# Self\n";
        let good = Files::from([file("docs/a.md", links), file("docs/b.md", "# There\n"), file("README.md", "")]);
        assert_eq!(check_with(&good, |path| good.contains_key(path)), [""; 0]);

        let links = "[1](c.md)\n[2](b.md#gone)\n[3](../../x.md)\n[4](/etc/passwd)\n";
        let bad = Files::from([file("docs/a.md", links), file("docs/b.md", "# There\n")]);
        assert_eq!(
            check_with(&bad, |path| bad.contains_key(path)),
            [
                "docs/a.md:1: link to `c.md`: no such file or folder",
                "docs/a.md:2: link to `b.md#gone`: no such heading",
                "docs/a.md:3: link to `../../x.md`: leads out of the repository",
                "docs/a.md:4: link to `/etc/passwd`: an absolute path means another place in every clone",
            ]
        );
    }
}
