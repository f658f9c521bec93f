//! Kubernetes policy as data: each file of `tests/data/plan` holds objects, and the virtual services that they come to,
//! one a line. How to write one: `tests/data/plan/README.md`.

mod case;
mod rules;
mod text;

use std::path::{Path, PathBuf};

fn data() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data")
}

fn files() -> Vec<PathBuf> {
    let folder = data().join("plan");
    let entries = std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "yaml"));
    files.sort();
    files
}

#[test]
fn every_file_comes_to_what_it_says() {
    let (mut failures, mut met) = (Vec::new(), 0);
    for path in files() {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{name}: {error}"));
        match case::run(&text) {
            Ok(expectations) => met += expectations,
            Err(error) => failures.push(format!("{name}: {error}")),
        }
    }
    assert!(failures.is_empty(), "\n{}\n", failures.join("\n"));
    // Guards against a folder that moved: there is more than one expectation a file.
    assert!(met > files().len() && files().len() >= 25, "{met} expectations in {} files", files().len());
}

/// The tests above must be able to fail.
mod of_the_test {
    use super::case::run;

    const SERVICE: &str = "---\napiVersion: v1\nkind: Service\nmetadata: {name: web, namespace: demo}\n\
                           spec: {clusterIP: 10.96.0.1, ports: [{name: p, port: 80}]}\n";

    fn expecting(lines: &str) -> Result<usize, String> {
        run(&format!("case: one\n{SERVICE}---\nexpect: |\n  {lines}\n"))
    }

    #[test]
    fn what_is_as_expected_is_counted() {
        assert_eq!(expecting("TCP 10.96.0.1:80 rr -> none"), Ok(1));
        assert_eq!(run("# only\ncase: a\n---\nexpect: nothing\n---\ncase: b\n---\nexpect: nothing\n"), Ok(2));
    }

    #[test]
    fn a_line_too_much_and_one_too_few_are_told_of_side_by_side() {
        let error = expecting("TCP 10.96.0.1:81 rr -> none").unwrap_err();
        let expected =
            "case one, expectation at line 8:\n  - TCP 10.96.0.1:81 rr -> none\n  + TCP 10.96.0.1:80 rr -> none";
        assert_eq!(error, expected);
        let error = expecting("nothing").unwrap_err();
        assert!(error.ends_with("line 8:\n  + TCP 10.96.0.1:80 rr -> none"), "{error}");
        let error = expecting("TCP 10.96.0.1:80 rr -> none\n  problem: ports").unwrap_err();
        assert!(error.ends_with("line 8:\n  - problem: ports"), "{error}");
    }

    #[test]
    fn what_expects_nothing_is_no_test() {
        for (text, told) in [
            ("", "no case"),
            ("common: {node: n1}\n", "no case"),
            ("case: one\n", "case one: no expectation"),
            ("case: one\n---\nexpect: ''\n", "without lines"),
            (&format!("case: one\n---\nexpect: nothing\n{SERVICE}"), "behind the last expectation"),
            ("case: one\n---\ncase: two\n---\nexpect: nothing\n", "case one: no expectation"),
            ("expect: nothing\n", "before the first case"),
            ("case: one\nnodes: n1\n---\nexpect: nothing\n", "nodes"),
            ("case: one\n---\nkind: Service\n---\nexpect: nothing\n", "no object that is known"),
            ("case: one\n---\ndelete: Service demo/web\n---\nexpect: nothing\n", "no Service demo/web"),
            ("case: one\n---\nfoo: 1\n---\nexpect: nothing\n", "line 3"),
            ("case: one\n---\nexpect: nothing\n---\ncase: one\n---\nexpect: nothing\n", "twice"),
        ] {
            let error = run(text).unwrap_err();
            assert!(error.contains(told), "{text}: {error}");
        }
    }
}
