//! The list of rules that a replacement of kube-proxy is asked for, and that of what packets have to show, against the
//! tables of `docs/kubernetes.md`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::data;

/// What is said of a rule.
#[derive(Debug)]
struct Row<'a> {
    state: &'a str,
    text: &'a str,
}

/// How many points packets have to show.
const POINTS: u8 = 30;

/// The lines of the tables: `| SV-3 | done | ... |`, and `| 7 | what packets have to show | done | ... |`.
fn rows<'a>(document: &'a str) -> Vec<(&'a str, Row<'a>)> {
    let lines = document.lines().map(str::trim).filter(|line| line.starts_with('|'));
    let cells = |line: &'a str| line.trim_matches('|').split('|').map(str::trim).collect::<Vec<_>>();
    let rows = lines.filter_map(|line| match cells(line)[..] {
        [rule, state, text] if is_rule(rule) => Some((rule, Row { state, text })),
        [point, _, state, text] if is_point(point) => Some((point, Row { state, text })),
        _ => None,
    });
    rows.collect()
}

fn is_point(text: &str) -> bool {
    text.parse::<u8>().is_ok()
}

fn is_rule(text: &str) -> bool {
    let Some((letters, number)) = text.split_once('-') else { return false };
    (2..=3).contains(&letters.len())
        && letters.bytes().all(|byte| byte.is_ascii_uppercase())
        && number.parse::<u8>().is_ok()
}

/// What is wrong with the table: rules that are missing, unknown or stated twice, and rows that claim what nobody shows.
fn judge(rules: &str, document: &str, read: impl Fn(&str) -> Option<String>) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut table: BTreeMap<&str, Row<'_>> = BTreeMap::new();
    for (rule, row) in rows(document) {
        if table.insert(rule, row).is_some() {
            wrong.push(format!("{rule}: stands twice in the table"));
        }
    }
    let listed: Vec<&str> =
        rules.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')).collect();
    let is_number = |rule: &&&str| is_rule(rule) || is_point(rule);
    wrong.extend(listed.iter().filter(|rule| !is_number(rule)).map(|rule| format!("{rule}: not the number of a rule")));
    wrong.extend(listed.iter().filter(|rule| !table.contains_key(*rule)).map(|rule| format!("{rule}: missing")));
    wrong.extend(table.keys().filter(|rule| !listed.contains(rule)).map(|rule| format!("{rule}: no such rule")));
    for (rule, Row { state, text }) in &table {
        let files: Vec<&str> = text.split('`').skip(1).step_by(2).filter(|word| is_file(word)).collect();
        let words = text.split('`').step_by(2).collect::<String>();
        let says_something = words.chars().filter(|letter| letter.is_alphabetic()).count() > 10;
        match *state {
            "done" if files.is_empty() => wrong.push(format!("{rule}: done, but no test is named")),
            "part" if files.is_empty() => wrong.push(format!("{rule}: done in part, but no test is named")),
            "part" | "not yet" | "no" if !says_something => {
                wrong.push(format!("{rule}: {state}, but not what is missing, or why"));
            }
            "done" | "part" | "not yet" | "no" => {}
            _ => wrong.push(format!("{rule}: `{state}` is not done, part, not yet or no")),
        }
        let texts: Vec<(&str, Option<String>)> = files.iter().map(|file| (*file, read(file))).collect();
        for (file, found) in &texts {
            match found {
                None => wrong.push(format!("{rule}: there is no {file}")),
                // Cases of the plan say which rules they are about; points are for packets.
                Some(text) if file.ends_with(".yaml") && is_rule(rule) && !names(text, rule) => {
                    wrong.push(format!("{rule}: {file} does not name it"));
                }
                Some(_) => {}
            }
        }
        for test in text.split('`').skip(1).step_by(2).filter(|word| is_test(word)) {
            let has_it = |text: &String| text.contains(&format!("fn {test}("));
            if !texts.iter().filter_map(|(_, text)| text.as_ref()).any(has_it) {
                wrong.push(format!("{rule}: no file that it names has {test}"));
            }
        }
    }
    wrong
}

/// A test's name: a sentence, with its words joined.
fn is_test(word: &str) -> bool {
    word.contains('_') && word.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_')
}

fn is_file(word: &str) -> bool {
    word.ends_with(".yaml") || word.ends_with(".rs")
}

/// True if a text has a rule's number, and not as the beginning of a longer one.
fn names(text: &str, rule: &str) -> bool {
    text.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '-').any(|word| word == rule)
}

/// A file as the table names it: a case of the plan, or a path in the repository.
fn path(file: &str) -> PathBuf {
    match file.contains('/') {
        true => Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(file),
        false => data().join("plan").join(file),
    }
}

#[test]
fn every_rule_and_every_point_has_a_row_and_every_row_is_shown() {
    let mut rules = std::fs::read_to_string(data().join("kube-proxy-rules.txt")).unwrap();
    (1..=POINTS).for_each(|point| rules.push_str(&format!("\n{point}")));
    let document = std::fs::read_to_string(path("docs/kubernetes.md")).unwrap();
    let wrong = judge(&rules, &document, |file| std::fs::read_to_string(path(file)).ok());
    assert!(wrong.is_empty(), "docs/kubernetes.md:\n{}", wrong.join("\n"));
    assert!(rows(&document).len() > 150);
}

#[test]
fn every_case_that_names_a_rule_names_one_that_there_is() {
    let rules = std::fs::read_to_string(data().join("kube-proxy-rules.txt")).unwrap();
    for file in crate::files() {
        let text = std::fs::read_to_string(&file).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix("# Rules: "));
        let stated = line.unwrap_or_else(|| panic!("{}: no line `# Rules: `", file.display()));
        for rule in stated.split_whitespace() {
            assert!(names(&rules, rule), "{}: there is no rule {rule}", file.display());
        }
    }
}

/// The tests above must be able to fail.
#[test]
fn a_table_that_lacks_or_claims_something_is_told_of() {
    let read = |file: &str| match file {
        "a.yaml" => Some("# Rules: SV-1 SV-10".to_owned()),
        "src/x.rs" => Some("fn it_works() {".to_owned()),
        _ => None,
    };
    let told = |rules: &str, rows: &str| judge(rules, rows, read).join("; ");
    let right = "| rule | state | test |\n|---|---|---|\n| SV-1 | done | `a.yaml`, `src/x.rs` |\n\
                 | SV-2 | not yet | nobody opens the port |\n";
    assert_eq!(told("# list\nSV-1\nSV-2\n", right), "");
    assert_eq!(told("SV-1\nSV-2\nSV-3\n", right), "SV-3: missing");
    assert_eq!(told("SV-1\n", right), "SV-2: no such rule");
    for (row, expected) in [
        ("| SV-1 | done | |", "no test is named"),
        ("| SV-1 | done | by hand |", "no test is named"),
        ("| SV-1 | part | `a.yaml` |", "not what is missing"),
        ("| SV-1 | part | the port is missing |", "no test is named"),
        ("| SV-1 | not yet | |", "not what is missing"),
        ("| SV-1 | maybe | `a.yaml` |", "`maybe` is not"),
        ("| SV-1 | done | `b.yaml` |", "there is no b.yaml"),
        ("| SV-1 | done | `a.yaml` |\n| SV-1 | done | `a.yaml` |", "stands twice"),
    ] {
        let told = told("SV-1\n", row);
        assert!(told.contains(expected), "{row}: {told}");
    }
    // Points have what they are about in their rows, and may name tests.
    let point = |text: &str| told("7\n", &format!("| 7 | a datagram | done | {text} |"));
    assert_eq!(point("`a.yaml`, `src/x.rs`: `it_works`"), "");
    assert_eq!(point("`src/x.rs`: `it_fails`"), "7: no file that it names has it_fails");
    assert_eq!(point("`it_works`"), "7: done, but no test is named; 7: no file that it names has it_works");
    assert_eq!(told("7\n8\n", "| 7 | a datagram | done | `src/x.rs` |"), "8: missing");
    assert_eq!(told("SV-2\n", "| SV-2 | done | `a.yaml` |"), "SV-2: a.yaml does not name it");
    // SV-1 is not named by SV-10 alone.
    assert!(!names("SV-10 XSV-1", "SV-1"));
}
