//! How a service's edits move rr's and wrr's place in the list.

use lb_common::scheduler::{
    cursor::{WeightSteps, rr_after_add, rr_after_delete, wrr_after_change},
    word::SchedulerWord,
};

/// What one edit does to the scheduler word.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum WordEdit {
    /// A scheduler starts: whatever was there is gone.
    Start {
        /// wrr's `cw`; 0 for rr.
        current_weight: i32,
    },
    /// rr: the destination at this position was deleted.
    RoundRobinDelete {
        /// Its position when it was deleted.
        position: u32,
    },
    /// rr: a destination was added at the head.
    RoundRobinAdd,
    /// wrr: a destination was added, deleted or edited, and these are the steps since.
    WeightedChange(WeightSteps),
}

impl WordEdit {
    fn run(self, word: SchedulerWord) -> SchedulerWord {
        match self {
            Self::Start { current_weight } => SchedulerWord { cursor: 0, current_weight, ..word },
            Self::RoundRobinDelete { position } => rr_after_delete(word, position),
            Self::RoundRobinAdd => rr_after_add(word),
            Self::WeightedChange(steps) => wrr_after_change(word, steps),
        }
    }
}

/// What is done to a scheduler word, as a function of what is in it when the compare-and-swap succeeds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum WordChange {
    /// A new service: nobody reads the word yet.
    Create(SchedulerWord),
    /// Makes the word fit for a scheduler that is about to start, while the old one may still run.
    Prepare {
        /// wrr's `cw`, in place of one below 1 or of another scheduler's.
        current_weight: i32,
        /// Only a `cw` below 1 is replaced: wrr is running.
        only_unset: bool,
        /// The cursor goes before the head, at this version, the published one: no scheduler that has a cursor is
        /// running, and the word may be so old that its version compares as newer.
        restart_at: Option<u16>,
    },
    /// Follows versions that were published.
    Publish(WordLog),
}

impl WordChange {
    /// The word to put in place of `current`; `None` if it is right already.
    pub(super) fn next(&self, current: SchedulerWord) -> Option<SchedulerWord> {
        let next = match self {
            Self::Create(word) => *word,
            &Self::Prepare { current_weight, only_unset, restart_at } => SchedulerWord {
                version: restart_at.unwrap_or(current.version),
                cursor: if restart_at.is_some() { 0 } else { current.cursor },
                current_weight: if only_unset && current.current_weight > 0 {
                    current.current_weight
                } else {
                    current_weight
                },
            },
            Self::Publish(log) => log.run(current)?,
        };
        (next != current).then_some(next)
    }
}

/// Edits of versions that were published but may not have reached the word yet, oldest first.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct WordLog(Vec<(u16, Vec<WordEdit>)>);

impl WordLog {
    /// Adds the edits that led to `version`.
    pub(super) fn push(&mut self, version: u16, edits: Vec<WordEdit>) {
        // What came before a start cannot matter any more.
        if matches!(edits.first(), Some(WordEdit::Start { .. })) {
            self.0.clear();
        }
        self.0.push((version, edits));
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    /// The word after the edits of versions newer than its own; `None` if a pick on the newest came first.
    fn run(&self, mut word: SchedulerWord) -> Option<SchedulerWord> {
        let &(newest, _) = self.0.last()?;
        if !newer(newest, word.version) {
            return None;
        }
        for (version, edits) in &self.0 {
            if newer(*version, word.version) {
                word = edits.iter().fold(word, |word, edit| edit.run(word));
                word.version = *version;
            }
        }
        Some(word)
    }
}

/// True if version `a` came after `b`, less than 2^15 versions apart.
pub(super) const fn newer(a: u16, b: u16) -> bool {
    a.wrapping_sub(b) as i16 > 0
}

/// The word of a new service after its first edits.
pub(super) fn created(version: u16, edits: &[WordEdit]) -> SchedulerWord {
    let word = SchedulerWord { version, cursor: 0, current_weight: 0 };
    edits.iter().fold(word, |word, edit| edit.run(word))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn word(version: u16, cursor: u16, current_weight: i32) -> SchedulerWord {
        SchedulerWord { version, cursor, current_weight }
    }

    #[test]
    fn a_pick_on_the_new_version_is_left_alone() {
        let mut log = WordLog::default();
        log.push(8, vec![WordEdit::RoundRobinAdd]);
        assert_eq!(log.run(word(7, 3, 0)), Some(word(8, 4, 0)));
        assert_eq!(log.run(word(8, 3, 0)), None);
    }

    #[test]
    fn only_edits_of_versions_that_the_word_has_not_seen_are_run() {
        let mut log = WordLog::default();
        log.push(u16::MAX, vec![WordEdit::RoundRobinAdd]);
        log.push(0, vec![WordEdit::RoundRobinDelete { position: 0 }, WordEdit::RoundRobinAdd]);
        assert_eq!(log.run(word(u16::MAX - 1, 1, 0)), Some(word(0, 2, 0)));
        assert_eq!(log.run(word(u16::MAX, 3, 0)), Some(word(0, 3, 0)));
        assert_eq!(log.run(word(1, 1, 0)), None);
    }

    #[test]
    fn a_start_forgets_what_came_before() {
        let mut log = WordLog::default();
        log.push(2, vec![WordEdit::RoundRobinAdd]);
        log.push(3, vec![WordEdit::Start { current_weight: 4 }]);
        assert_eq!(log.0.len(), 1);
        assert_eq!(log.run(word(1, 9, 0)), Some(word(3, 0, 4)));
    }

    #[test]
    fn preparing_keeps_what_the_running_scheduler_needs() {
        let prepare = |only_unset, restart_at| WordChange::Prepare { current_weight: 4, only_unset, restart_at };
        assert_eq!(prepare(false, None).next(word(1, 2, 0)), Some(word(1, 2, 4)));
        assert_eq!(prepare(false, Some(7)).next(word(1, 2, 0)), Some(word(7, 0, 4)));
        assert_eq!(prepare(true, None).next(word(1, 2, 3)), None);
        assert_eq!(prepare(true, None).next(word(1, 2, 0)), Some(word(1, 2, 4)));
    }
}
