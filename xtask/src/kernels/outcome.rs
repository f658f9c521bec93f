//! What became of a kernel.

use crate::guest::machine::Ended;
use crate::guest::steps::Steps;

/// What became of a kernel's run.
pub(crate) struct Outcome {
    /// The kernel's version, as its package has it.
    pub(crate) release: String,
    /// What was heard.
    pub(crate) steps: Steps,
    /// How it ended.
    pub(crate) ended: Ended,
}

impl Outcome {
    /// Every step was done, and right, and so was the end.
    pub(crate) fn is_right(&self) -> bool {
        self.ended.code == Some(0) && self.steps.are_right()
    }

    /// What was wrong, in a few words.
    pub(crate) fn verdict(&self) -> String {
        self.steps.wrong().map_or_else(|| self.ended.how(), |name| format!("step `{name}` is wrong"))
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::time::Duration;

    use super::*;

    fn outcome(lines: &[&str], code: Option<i32>) -> Outcome {
        let mut steps = Steps::default();
        lines.iter().for_each(|line| drop(steps.hear(Duration::ZERO, line)));
        let ended = Ended { code, took: Duration::ZERO, console: PathBuf::new() };
        Outcome { release: "6.1.0-57".to_owned(), steps, ended }
    }

    #[test]
    fn a_run_is_right_only_if_every_step_was_right_and_the_program_ended_well() {
        let all = ["steps a b", "step a ok found", "noise", "step b ok"];
        assert!(outcome(&all, Some(0)).is_right());
        assert!(!outcome(&all, None).is_right());
        assert!(!outcome(&all[..3], Some(0)).is_right());
        assert!(!outcome(&all[1..], Some(0)).is_right());
        let wrong = outcome(&["steps a b", "step a wrong why"], Some(1));
        assert!(!wrong.is_right());
        assert_eq!(wrong.verdict(), "step `a` is wrong");
        assert_eq!(outcome(&[], Some(101)).verdict(), "its script ended with 101");
    }
}
