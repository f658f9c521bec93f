//! What `bpvs-oracle` says in a guest, line by line.
//!
//! | line | what |
//! |---|---|
//! | `at <scheduler> <scripts done>` | how far it is |
//! | `row <scheduler> <scripts> <decisions> <differences>` | a scheduler is done |
//! | `\| <text>` | the history that led to a difference |
//! | `record <text>`, `fixed <text>` | an answer of IPVS to keep, of a random script or of a fixed one |
//!
//! Answers belong to the scheduler whose row comes next.

use std::collections::BTreeMap;
use std::mem;
use std::time::Duration;

use lb_common::scheduler::Scheduler;

use crate::guest::steps::Steps;

/// What became of a scheduler.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Row {
    /// Scripts that were run.
    pub(crate) scripts: u64,
    /// Decisions that were compared.
    pub(crate) decisions: u64,
    /// Decisions, or other facts, that differed.
    pub(crate) differences: u64,
}

impl Row {
    fn add(&mut self, more: &Self) {
        self.scripts += more.scripts;
        self.decisions += more.decisions;
        self.differences += more.differences;
    }
}

/// Answers of IPVS to keep.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Answers {
    /// To random scripts.
    pub(crate) random: Vec<String>,
    /// To fixed ones.
    pub(crate) fixed: Vec<String>,
}

impl Answers {
    fn add(&mut self, more: Self) {
        self.random.extend(more.random);
        self.fixed.extend(more.fixed);
    }
}

/// What was heard.
#[derive(Default)]
pub(crate) struct Heard {
    /// The steps that show that IPVS can be told and asked.
    pub(crate) steps: Steps,
    /// Rows.
    pub(crate) rows: BTreeMap<Scheduler, Row>,
    /// Answers.
    pub(crate) answers: BTreeMap<Scheduler, Answers>,
    /// Histories of differences.
    pub(crate) histories: Vec<String>,
    pending: Answers,
}

impl Heard {
    /// A line of the console; what of it is for who waits.
    pub(crate) fn hear(&mut self, after: Duration, line: &str) -> Option<String> {
        if let Some(done) = self.steps.hear(after, line) {
            return Some(done);
        }
        if let Some(text) = line.strip_prefix("record ") {
            self.pending.random.push(text.to_owned());
            return None;
        }
        if let Some(text) = line.strip_prefix("fixed ") {
            self.pending.fixed.push(text.to_owned());
            return None;
        }
        if line.starts_with("| ") {
            self.histories.push(line.to_owned());
        } else if let Some((scheduler, row)) = row(line) {
            self.rows.entry(scheduler).or_default().add(&row);
            self.answers.entry(scheduler).or_default().add(mem::take(&mut self.pending));
        }
        (!line.is_empty()).then(|| format!("{:5.1} s  {line}", after.as_secs_f64()))
    }

    /// Answers after the last row: the program ended before it said whose they are.
    pub(crate) fn has_loose_answers(&self) -> bool {
        self.pending != Answers::default()
    }
}

/// `row <scheduler> <scripts> <decisions> <differences>`.
fn row(line: &str) -> Option<(Scheduler, Row)> {
    let mut words = line.strip_prefix("row ")?.split(' ');
    let scheduler = Scheduler::from_name(words.next()?)?;
    let mut number = || words.next()?.parse().ok();
    let row = Row { scripts: number()?, decisions: number()?, differences: number()? };
    words.next().is_none().then_some((scheduler, row))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn heard(lines: &[&str]) -> (Heard, Vec<String>) {
        let mut heard = Heard::default();
        let told = lines.iter().filter_map(|line| heard.hear(Duration::from_secs(1), line)).collect();
        (heard, told)
    }

    #[test]
    fn a_row_is_a_scheduler_and_three_numbers() {
        let (heard, told) = heard(&["at rr 10", "row rr 20 300 0", "row rr 20 300", "row x 1 2 3", "row lc 1 2 3 4"]);
        assert_eq!(heard.rows, [(Scheduler::RoundRobin, Row { scripts: 20, decisions: 300, differences: 0 })].into());
        assert_eq!(told.len(), 5);
    }

    #[test]
    fn answers_belong_to_the_row_after_them() {
        let lines = ["fixed a", "record b", "record c", "row rr 2 2 0", "record d"];
        let (heard, told) = heard(&lines);
        let answers = &heard.answers[&Scheduler::RoundRobin];
        assert_eq!(
            (answers.random.as_slice(), answers.fixed.as_slice()),
            (&["b".into(), "c".into()][..], &["a".into()][..])
        );
        assert!(heard.has_loose_answers());
        assert_eq!(told, ["  1.0 s  row rr 2 2 0"]);
    }

    #[test]
    fn a_history_is_kept_and_told() {
        let (heard, told) = heard(&["| add rr", "", "| connect: 3, not 4"]);
        assert_eq!(heard.histories, ["| add rr", "| connect: 3, not 4"]);
        assert_eq!(told.len(), 2);
    }
}
