//! What `bpvs-guest` says: which steps there are, and what became of each.

use std::time::Duration;

/// What became of a step.
struct Step {
    name: String,
    right: bool,
}

/// What was heard of the steps.
#[derive(Default)]
pub(crate) struct Steps {
    /// Names of the steps that there are.
    names: Vec<String>,
    /// Those that were done.
    done: Vec<Step>,
}

impl Steps {
    /// A line of the console; what it says of a step that was done, for who waits.
    pub(crate) fn hear(&mut self, after: Duration, line: &str) -> Option<String> {
        let mut words = line.splitn(4, ' ');
        match (words.next(), words.next(), words.next()) {
            (Some("steps"), ..) => self.names.extend(line.split(' ').skip(1).map(str::to_owned)),
            (Some("step"), Some(name), Some(result @ ("ok" | "wrong"))) => {
                self.done.push(Step { name: name.to_owned(), right: result == "ok" });
                let found = words.next().unwrap_or_default();
                return Some(format!("{:5.1} s  {result:5}  {name}: {found}", after.as_secs_f64()));
            }
            _ => {}
        }
        None
    }

    /// There were steps, every one was done, and right.
    pub(crate) fn are_right(&self) -> bool {
        !self.names.is_empty() && self.names.iter().all(|name| self.right(name) == Some(true))
    }

    /// The first step that was done and wrong.
    pub(crate) fn wrong(&self) -> Option<&str> {
        self.done.iter().find(|step| !step.right).map(|step| step.name.as_str())
    }

    /// Whether a step was right; none if it was not done.
    pub(crate) fn right(&self, name: &str) -> Option<bool> {
        self.done.iter().find(|step| step.name == name).map(|step| step.right)
    }

    /// Names of the steps that there are.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.names.iter().map(String::as_str)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn steps(lines: &[&str]) -> Steps {
        let mut steps = Steps::default();
        lines.iter().for_each(|line| drop(steps.hear(Duration::ZERO, line)));
        steps
    }

    #[test]
    fn steps_are_right_only_if_every_one_was_done_and_right() {
        let all = ["steps a b", "step a ok found", "noise", "step b ok"];
        assert!(steps(&all).are_right());
        assert!(!steps(&all[..3]).are_right());
        assert!(!steps(&all[1..]).are_right());
        let wrong = steps(&["steps a b", "step a wrong why"]);
        assert!(!wrong.are_right());
        assert_eq!((wrong.wrong(), wrong.right("a"), wrong.right("b")), (Some("a"), Some(false), None));
    }
}
