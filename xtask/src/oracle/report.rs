//! The result: a row for each scheduler on each kernel.

use lb_common::scheduler::Scheduler;

use super::console::Row;

/// What there is to say of a scheduler on a kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It was compared.
    Compared(Row),
    /// The guest ended without a word of it.
    NoAnswer,
    /// This kernel has no module of it.
    Absent,
}

/// A row of the table.
pub(crate) struct Line {
    /// The kernel's version.
    pub(crate) kernel: String,
    /// The scheduler.
    pub(crate) scheduler: Scheduler,
    /// What became of it.
    pub(crate) verdict: Verdict,
}

impl Line {
    /// Whether it is as it should be: compared and the same, or, if nobody asked for it by name, not there.
    pub(crate) fn is_right(&self, named: bool) -> bool {
        match &self.verdict {
            Verdict::Compared(row) => row.differences == 0 && row.decisions > 0,
            Verdict::NoAnswer => false,
            Verdict::Absent => !named,
        }
    }
}

/// The table.
pub(crate) fn table(lines: &[Line]) -> String {
    let mut text =
        format!("{:22}{:9}{:>10}{:>12}{:>13}\n", "kernel", "scheduler", "scripts", "decisions", "differences");
    for line in lines {
        text += &format!("{:22}{:9}", line.kernel, line.scheduler.name());
        text += &match &line.verdict {
            Verdict::Compared(row) => format!("{:>10}{:>12}{:>13}\n", row.scripts, row.decisions, row.differences),
            Verdict::NoAnswer => "  no answer\n".to_owned(),
            Verdict::Absent => format!("  not compared: this kernel has no ip_vs_{}\n", line.scheduler.name()),
        };
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(verdict: Verdict) -> Line {
        Line { kernel: "6.12.1".to_owned(), scheduler: Scheduler::TwoChoices, verdict }
    }

    fn compared(decisions: u64, differences: u64) -> Line {
        line(Verdict::Compared(Row { scripts: 1, decisions, differences }))
    }

    #[test]
    fn only_what_was_compared_and_is_the_same_is_right() {
        assert!(compared(5, 0).is_right(true));
        assert!(!compared(5, 1).is_right(false));
        assert!(!compared(0, 0).is_right(false));
        assert!(!line(Verdict::NoAnswer).is_right(false));
        assert!(!line(Verdict::Absent).is_right(true));
        assert!(line(Verdict::Absent).is_right(false));
    }

    #[test]
    fn every_row_names_kernel_and_scheduler() {
        let table = table(&[compared(5, 0), line(Verdict::NoAnswer), line(Verdict::Absent)]);
        let rows: Vec<_> = table.lines().skip(1).collect();
        assert_eq!(rows[0].split_whitespace().collect::<Vec<_>>(), ["6.12.1", "twos", "1", "5", "0"]);
        assert!(rows[1].ends_with("no answer") && rows[2].ends_with("this kernel has no ip_vs_twos"), "{table}");
    }
}
