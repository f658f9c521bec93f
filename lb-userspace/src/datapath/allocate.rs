//! Ids and runs of slots: what is free, what is taken, what must rest before it is taken again.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    time::{Duration, Instant},
};

/// How long a freed run of slots rests before it is written again.
///
/// A packet reads `services`, then the slots that the entry names, within one run of a BPF program: microseconds, and
/// under RCU. Were it delayed beyond this time, it would read another set's slots; the programs therefore also compare
/// the destination's service id with their own.
pub const GRACE: Duration = Duration::from_secs(1);

/// Neighbouring slots of `destination_slots`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Run {
    /// First slot.
    pub base: u32,
    /// Number of slots, from 1.
    pub length: u32,
}

/// The slots of `destination_slots`: best fit, with neighbours joined as they become free.
#[derive(Debug)]
pub struct Arena {
    by_base: BTreeMap<u32, u32>,
    by_length: BTreeSet<(u32, u32)>,
    free: u32,
    resting: VecDeque<(Instant, Run)>,
}

impl Arena {
    /// An arena of `slots` free slots.
    pub fn new(slots: u32) -> Self {
        let mut arena =
            Self { by_base: BTreeMap::new(), by_length: BTreeSet::new(), free: 0, resting: VecDeque::new() };
        if slots > 0 {
            arena.insert(Run { base: 0, length: slots });
        }
        arena
    }

    /// Slots free now.
    pub fn free(&self) -> u32 {
        self.free
    }

    /// Slots that become free within [`GRACE`].
    pub fn resting(&self) -> u32 {
        self.resting.iter().map(|(_, run)| run.length).sum()
    }

    /// The longest run that [`Self::allocate`] can give now.
    pub fn longest(&self) -> u32 {
        self.by_length.last().map_or(0, |&(length, _)| length)
    }

    /// Takes a run of `length` slots (from 1), or `None` if no free run is that long.
    pub fn allocate(&mut self, length: u32) -> Option<Run> {
        let &(found, base) = self.by_length.range((length, 0)..).next()?;
        self.remove(Run { base, length: found });
        if found > length {
            self.insert(Run { base: base + length, length: found - length });
        }
        Some(Run { base, length })
    }

    /// Takes those slots of `run` that are free: the pieces taken, ascending.
    pub fn claim(&mut self, run: Run) -> Vec<Run> {
        let end = run.base.saturating_add(run.length);
        let first = self.by_base.range(..=run.base).next_back().map_or(run.base, |(&base, _)| base);
        let touched: Vec<Run> = self.by_base.range(first..end).map(|(&base, &length)| Run { base, length }).collect();
        let mut taken = Vec::new();
        for free in touched {
            let (from, to) = (free.base.max(run.base), (free.base + free.length).min(end));
            if from >= to {
                continue;
            }
            self.remove(free);
            if free.base < from {
                self.insert(Run { base: free.base, length: from - free.base });
            }
            if to < free.base + free.length {
                self.insert(Run { base: to, length: free.base + free.length - to });
            }
            taken.push(Run { base: from, length: to - from });
        }
        taken
    }

    /// Gives back a run that no published service ever named: free at once.
    pub fn give_back(&mut self, run: Run) {
        let (mut base, mut length) = (run.base, run.length);
        if let Some((&before, &before_length)) = self.by_base.range(..base).next_back()
            && before + before_length == base
        {
            self.remove(Run { base: before, length: before_length });
            (base, length) = (before, length + before_length);
        }
        if let Some(&after_length) = self.by_base.get(&(base + length)) {
            self.remove(Run { base: base + length, length: after_length });
            length += after_length;
        }
        self.insert(Run { base, length });
    }

    /// Lets a run that was published rest until `now` + [`GRACE`].
    pub fn retire(&mut self, run: Run, now: Instant) {
        self.resting.push_back((now, run));
    }

    /// Frees the runs that have rested.
    pub fn settle(&mut self, now: Instant) {
        while let Some(&(since, run)) = self.resting.front()
            && now.saturating_duration_since(since) >= GRACE
        {
            self.resting.pop_front();
            self.give_back(run);
        }
    }

    fn insert(&mut self, run: Run) {
        self.by_base.insert(run.base, run.length);
        self.by_length.insert((run.length, run.base));
        self.free += run.length;
    }

    fn remove(&mut self, run: Run) {
        self.by_base.remove(&run.base);
        self.by_length.remove(&(run.length, run.base));
        self.free -= run.length;
    }
}

/// Ids from 1 to a limit. A freed id goes to the end of the queue, so that it rests as long as it can.
#[derive(Debug)]
pub struct IdPool {
    limit: u32,
    next: u32,
    freed: VecDeque<u32>,
}

impl IdPool {
    /// The ids 1 to `limit`, without those `in_use`; ids beyond the limit are ignored.
    pub fn new(limit: u32, in_use: &BTreeSet<u32>) -> Self {
        let next = in_use.range(..=limit).next_back().map_or(1, |&highest| highest + 1);
        let freed = (1..next).filter(|id| !in_use.contains(id)).collect();
        Self { limit, next, freed }
    }

    /// Takes an id.
    pub fn allocate(&mut self) -> Option<u32> {
        self.freed.pop_front().or_else(|| {
            let id = (self.next <= self.limit).then_some(self.next)?;
            self.next += 1;
            Some(id)
        })
    }

    /// Gives an id back.
    pub fn free(&mut self, id: u32) {
        // An id of a larger map than the limit allows may drain, but is not given out again.
        if id <= self.limit {
            self.freed.push_back(id);
        }
    }

    /// Ids that can be taken now.
    pub fn available(&self) -> u32 {
        self.freed.len() as u32 + (self.limit + 1).saturating_sub(self.next)
    }

    /// The highest id.
    pub fn limit(&self) -> u32 {
        self.limit
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn neighbours_join_when_they_become_free() {
        let mut arena = Arena::new(10);
        let runs: Vec<Run> = (0..5).filter_map(|_| arena.allocate(2)).collect();
        assert_eq!((arena.free(), arena.allocate(1)), (0, None));
        for index in [1, 3, 2, 0, 4] {
            arena.give_back(runs[index]);
        }
        assert_eq!((arena.free(), arena.longest()), (10, 10));
    }

    #[test]
    fn a_published_run_rests_before_it_is_taken_again() {
        let start = Instant::now();
        let mut arena = Arena::new(4);
        let run = arena.allocate(4).unwrap();
        arena.retire(run, start);
        arena.settle(start + GRACE / 2);
        assert_eq!((arena.allocate(1), arena.resting()), (None, 4));
        arena.settle(start + GRACE);
        assert_eq!(arena.allocate(4), Some(run));
    }

    #[test]
    fn claiming_takes_only_what_is_free() {
        let mut arena = Arena::new(10);
        assert_eq!(arena.claim(Run { base: 2, length: 3 }), [Run { base: 2, length: 3 }]);
        assert_eq!(arena.claim(Run { base: 0, length: 8 }), [Run { base: 0, length: 2 }, Run { base: 5, length: 3 }]);
        assert_eq!(arena.claim(Run { base: 4, length: u32::MAX }), [Run { base: 8, length: 2 }]);
        assert_eq!(arena.free(), 0);
    }

    #[test]
    fn ids_start_at_one_and_freed_ones_queue_up() {
        let mut pool = IdPool::new(4, &BTreeSet::from([2, 9]));
        assert_eq!(pool.available(), 3);
        assert_eq!([pool.allocate(), pool.allocate()], [Some(1), Some(3)]);
        pool.free(2);
        pool.free(9);
        assert_eq!([pool.allocate(), pool.allocate(), pool.allocate()], [Some(2), Some(4), None]);
        assert_eq!(IdPool::new(0, &BTreeSet::new()).allocate(), None);
    }

    proptest! {
        #[test]
        fn runs_never_overlap_and_all_come_back(steps in prop::collection::vec((any::<bool>(), 1u32..20), 1..200)) {
            let mut arena = Arena::new(256);
            let mut taken: Vec<Run> = Vec::new();
            for (take, number) in steps {
                if take {
                    let longest = arena.longest();
                    match arena.allocate(number) {
                        Some(run) => {
                            prop_assert!(taken.iter().all(|other| run.base + run.length <= other.base
                                || other.base + other.length <= run.base));
                            taken.push(run);
                        }
                        None => prop_assert!(longest < number),
                    }
                } else if !taken.is_empty() {
                    let run = taken.swap_remove(number as usize % taken.len());
                    arena.give_back(run);
                }
                prop_assert_eq!(arena.free() + taken.iter().map(|run| run.length).sum::<u32>(), 256);
            }
            taken.into_iter().for_each(|run| arena.give_back(run));
            prop_assert_eq!(arena.longest(), 256);
        }
    }
}
