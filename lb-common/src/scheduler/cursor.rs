//! rr and wrr: a place in the list that moves on with each pick, and how it moves when the list changes.
//!
//! Picks are pure functions from a [`SchedulerWord`] to the next; the caller publishes the result by
//! compare-and-swap. Edits ([`rr_after_delete`], [`wrr_after_change`], ...) are run by the writer in user space when
//! it publishes a new version of the service.

use super::word::SchedulerWord;

/// rr's walk: the positions to try, in order (`ip_vs_rr_schedule`).
///
/// From the element after the cursor to the end, then from the head up to and including the cursor; usable is
/// weight > 0. A function of the attempt's number, so that a verifier sees the same state at every attempt.
#[derive(Clone, Copy, Debug)]
pub struct RoundRobinWalk {
    first: u32,
    length: u32,
}

impl RoundRobinWalk {
    /// A walk over `length` destinations from `word`'s cursor. A cursor beyond the set counts as the head's.
    #[inline(always)]
    pub const fn new(word: SchedulerWord, length: u32) -> Self {
        let cursor = word.cursor as u32;
        // The cursor is 1 + position, so it is also the position after it.
        Self { first: if cursor >= length { 0 } else { cursor }, length }
    }

    /// The position to try at this attempt, from 0 to the number of destinations - 1.
    #[inline(always)]
    pub const fn position(&self, attempt: u32) -> u32 {
        let position = self.first.wrapping_add(attempt);
        if position >= self.length { position.wrapping_sub(self.length) } else { position }
    }
}

/// What wrr derives from the weights of a set: IPVS's `mw` and `di` (`ip_vs_wrr.c`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WeightSteps {
    /// `mw`: highest weight - (`di` - 1).
    pub max_weight: i32,
    /// `di`: greatest common divisor of the positive weights, 1 if there are none.
    pub step: i32,
}

impl WeightSteps {
    /// From the weights of a set, in any order.
    pub fn of(weights: impl IntoIterator<Item = i32>) -> Self {
        let (mut divisor, mut highest) = (0, 0);
        for weight in weights {
            if weight > 0 {
                divisor = greatest_common_divisor(weight, divisor);
                highest = highest.max(weight);
            }
        }
        let step = if divisor == 0 { 1 } else { divisor };
        Self { max_weight: highest - (step - 1), step }
    }
}

fn greatest_common_divisor(mut a: i32, mut b: i32) -> i32 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

/// wrr's walk (`ip_vs_wrr_schedule`): passes over the list, each taking destinations of weight >= `cw`, with `cw`
/// falling by `di` from pass to pass.
#[derive(Clone, Copy, Debug)]
pub struct WeightedWalk {
    steps: WeightSteps,
    length: u32,
    /// Position to look at next.
    position: u32,
    /// 1 + position of the last pick; 0 for the sentinel.
    last: u32,
    /// 1 + position at which the last possible pass ends; 0 for none.
    stop: u32,
    current_weight: i32,
    last_pass: bool,
    restarted: bool,
}

/// What to do after one step of [`WeightedWalk`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WeightedStep {
    /// Look at this position's weight, and pass it to [`WeightedWalk::offer`].
    Look(u32),
    /// Nothing is usable; publish this word all the same, as IPVS keeps the changed `cw` and `cl`.
    Nothing(SchedulerWord),
}

impl WeightedWalk {
    /// A walk from `word` over `length` destinations.
    #[inline(always)]
    pub const fn new(word: SchedulerWord, steps: WeightSteps, length: u32) -> Self {
        let cursor = word.cursor as u32;
        let last = if cursor > length { 0 } else { cursor };
        Self {
            steps,
            length,
            position: last,
            last,
            stop: 0,
            current_weight: word.current_weight,
            last_pass: false,
            restarted: false,
        }
    }

    /// The next thing to do: skips ends of passes, at most one a call.
    #[inline(always)]
    pub const fn step(&mut self, version: u16) -> WeightedStep {
        if self.steps.max_weight <= 0 || self.length == 0 {
            // `mw == 0`: no destination has a weight. The word stays as it is.
            return WeightedStep::Nothing(SchedulerWord {
                version,
                cursor: self.last as u16,
                current_weight: self.current_weight,
            });
        }
        if self.position >= self.length {
            self.current_weight = self.current_weight.wrapping_sub(self.steps.step);
            if self.current_weight <= 0 {
                self.current_weight = self.steps.max_weight;
                if self.last_pass || self.last == 0 {
                    return WeightedStep::Nothing(SchedulerWord {
                        version,
                        cursor: 0,
                        current_weight: self.current_weight,
                    });
                }
                self.restarted = true;
            }
            self.last_pass = self.current_weight <= self.steps.step;
            if self.last_pass && self.restarted && self.last != 0 {
                self.stop = self.last;
            }
            self.position = 0;
        }
        WeightedStep::Look(self.position)
    }

    /// Tells the weight at the position that [`Self::step`] named. `Some` ends the walk: the word to publish, and
    /// whether that position is picked.
    #[inline(always)]
    pub const fn offer(&mut self, weight: i32, overloaded: bool, version: u16) -> Option<(SchedulerWord, bool)> {
        let cursor = self.position + 1;
        let word = SchedulerWord { version, cursor: cursor as u16, current_weight: self.current_weight };
        // IPVS needs no check for weight 0, as `cw` is at least 1 there. Here a word may still be that of a service
        // which was another scheduler's a moment ago.
        if !overloaded && weight > 0 && weight >= self.current_weight {
            return Some((word, true));
        }
        if cursor == self.stop {
            return Some((word, false));
        }
        self.position = cursor;
        None
    }
}

/// rr's word after the destination at `position` of the old list was deleted: a cursor on it falls back to its
/// predecessor, so that its successor comes next (`ip_vs_rr_del_dest`).
pub const fn rr_after_delete(word: SchedulerWord, position: u32) -> SchedulerWord {
    let cursor = word.cursor as u32;
    let cursor = if cursor > position { cursor - 1 } else { cursor };
    SchedulerWord { cursor: cursor as u16, ..word }
}

/// rr's word after a destination was added at the head: the cursor stays on its destination.
pub const fn rr_after_add(word: SchedulerWord) -> SchedulerWord {
    let cursor = if word.cursor == 0 { 0 } else { word.cursor + 1 };
    SchedulerWord { cursor, ..word }
}

/// wrr's word in a fresh scheduler: before the head, at the top weight (`ip_vs_wrr_init_svc`).
pub const fn wrr_initial(steps: WeightSteps) -> SchedulerWord {
    SchedulerWord { version: 0, cursor: 0, current_weight: steps.max_weight }
}

/// wrr's word after any add, delete or edit, even one that changes nothing (`ip_vs_wrr_dest_changed`): back before
/// the head, the current weight kept on a multiple of the new step.
pub const fn wrr_after_change(word: SchedulerWord, steps: WeightSteps) -> SchedulerWord {
    let cw = word.current_weight;
    let current_weight = if cw > steps.max_weight || cw == 0 {
        steps.max_weight
    } else if steps.step > 1 {
        (cw / steps.step) * steps.step + 1
    } else {
        cw
    };
    SchedulerWord { cursor: 0, current_weight, ..word }
}
