//! What is wrong with the input, said so that its author can mend it.

use std::collections::HashSet;
use std::fmt;

/// One thing that is wrong: where, what, and what is allowed instead.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Problem {
    /// `Service namespace/name`, or the file when the object has no name yet.
    pub object: String,
    /// `file:line (document n)` when the object came from a file.
    pub location: Option<String>,
    /// Path of the field, as in `spec.ports[0].port`; empty when the whole is meant.
    pub field: String,
    /// The value as it was written, shortened; empty when the field is missing.
    pub value: String,
    /// What is allowed, or what was done about it.
    pub message: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(location) = &self.location {
            write!(f, "{location}: ")?;
        }
        write!(f, "{}: ", self.object)?;
        if !self.field.is_empty() {
            write!(f, "{}: ", self.field)?;
        }
        if !self.value.is_empty() {
            write!(f, "{}: ", self.value)?;
        }
        f.write_str(&self.message)
    }
}

/// Longest part of a wrong value that is repeated in a message, in characters.
const SHOWN: usize = 80;

/// A value as messages show it: quoted, on one line, never longer than a line.
pub(crate) fn shown(text: &str) -> String {
    let mut quoted: String = text.chars().take(SHOWN).flat_map(char::escape_debug).collect();
    if text.chars().nth(SHOWN).is_some() {
        quoted.push_str("...");
    }
    format!("\"{quoted}\"")
}

/// Tells new problems from those that were told before, so that a standing problem is logged once and not on each
/// sync. A problem that goes away and comes back is new again. Lines that merely move are not news.
#[derive(Debug, Default)]
pub struct ProblemLog {
    told: HashSet<(String, String, String, String)>,
}

impl ProblemLog {
    /// An empty log: every problem is new.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes all problems that stand now, returns those that did not stand the last time, in order.
    pub fn update<'a>(&mut self, current: impl IntoIterator<Item = &'a Problem>) -> Vec<&'a Problem> {
        let mut standing = HashSet::new();
        let mut new = Vec::new();
        for problem in current {
            let key = (problem.object.clone(), problem.field.clone(), problem.value.clone(), problem.message.clone());
            if !self.told.contains(&key) && !standing.contains(&key) {
                new.push(problem);
            }
            standing.insert(key);
        }
        self.told = standing;
        new
    }
}

#[cfg(test)]
mod tests {
    use super::{Problem, ProblemLog, shown};

    fn problem(object: &str, line: u32) -> Problem {
        Problem {
            object: object.to_owned(),
            location: Some(format!("a.yaml:{line} (document 1)")),
            field: "spec.ports[0].port".to_owned(),
            value: "70000".to_owned(),
            message: "must be a number from 1 to 65535".to_owned(),
        }
    }

    #[test]
    fn a_problem_is_one_line_that_names_place_object_field_value_and_rule() {
        assert_eq!(
            problem("Service demo/web", 7).to_string(),
            "a.yaml:7 (document 1): Service demo/web: spec.ports[0].port: 70000: must be a number from 1 to 65535"
        );
    }

    #[test]
    fn a_standing_problem_is_new_once_even_when_its_line_moves() {
        let mut log = ProblemLog::new();
        assert_eq!(log.update([&problem("a", 1), &problem("a", 9)]).len(), 1);
        assert!(log.update([&problem("a", 2)]).is_empty());
        assert_eq!(log.update([&problem("a", 2), &problem("b", 2)]).len(), 1);
        assert!(log.update([]).is_empty());
        assert_eq!(log.update([&problem("a", 2)]).len(), 1);
    }

    #[test]
    fn shown_values_stay_on_one_short_line() {
        assert_eq!(shown("a\nb\u{1b}"), "\"a\\nb\\u{1b}\"");
        assert!(shown(&"x".repeat(10_000_000)).len() < 100);
    }
}
