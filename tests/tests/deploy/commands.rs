//! Commands that documents name are read by bpvs's own parser.

use super::{parse, read};

/// Documents whose commands somebody will type on a node.
const DOCUMENTS: [&str; 2] = ["docs/migration.md", "deploy/README.md"];

/// The arguments of `bpvs` in each line that runs it, without what a shell does with its output.
pub(super) fn of(text: &str) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    for line in text.lines() {
        let line = line.split(" # ").next().unwrap_or("");
        let words: Vec<&str> = line.split_whitespace().collect();
        let runs = |place: usize| place == 0 || ["--", "exec", "&&", "|", "sudo"].contains(&words[place - 1]);
        for place in (0..words.len()).filter(|place| words[*place] == "bpvs" && runs(*place)) {
            let arguments = words[place + 1..].iter().take_while(|word| !["|", "&&", ">", ";"].contains(*word));
            found.push(arguments.map(|word| word.trim_matches(['\'', '"']).to_owned()).collect());
        }
    }
    found
}

/// The text of a document's fenced blocks.
fn blocks(document: &str) -> String {
    document.split("```").skip(1).step_by(2).collect()
}

#[track_caller]
pub(super) fn accepted(whose: &str, commands: &[Vec<String>]) {
    for command in commands {
        let arguments: Vec<&str> = command.iter().map(String::as_str).collect();
        if let Err(error) = parse(&arguments) {
            panic!("{whose}: `bpvs {}`: {error}", command.join(" "));
        }
    }
}

#[test]
fn commands_of_documents_are_found() {
    let text = "bpvs list --stats | head\nkubectl exec ds/bpvs -- bpvs check # look\nabout bpvs itself\n";
    assert_eq!(of(text), [vec!["list", "--stats"], vec!["check"]]);
}

#[test]
fn commands_of_documents_exist() {
    for document in DOCUMENTS {
        let commands = of(&blocks(&read(document)));
        assert!(!commands.is_empty(), "{document} names no command of bpvs");
        accepted(document, &commands);
    }
}

#[test]
fn a_command_that_does_not_exist_is_refused() {
    for arguments in [&["lists"][..], &["list", "--stat"], &["run", "--cgroups=/x"], &["run", "--tc=fast"]] {
        assert!(parse(arguments).is_err(), "{arguments:?}");
    }
}
