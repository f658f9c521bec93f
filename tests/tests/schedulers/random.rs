//! Numbers from a seed. `BPVS_SEED` repeats one case; `BPVS_CASES` sets how many cases each test runs.

use std::{
    env,
    time::{SystemTime, UNIX_EPOCH},
};

/// SplitMix64.
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// 0 to `limit` - 1.
    pub(crate) fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }

    /// True in so many of a hundred cases.
    pub(crate) fn percent(&mut self, chance: usize) -> bool {
        self.below(100) < chance
    }

    pub(crate) fn pick<T: Copy>(&mut self, among: &[T]) -> T {
        among[self.below(among.len())]
    }
}

/// The seeds to run: the one that `BPVS_SEED` names, or new ones.
pub(crate) fn seeds(cases: u64) -> Vec<u64> {
    if let Some(seed) = number("BPVS_SEED") {
        return vec![seed];
    }
    let nanoseconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_nanos() as u64);
    let mut random = Random::new(nanoseconds);
    (0..number("BPVS_CASES").unwrap_or(cases)).map(|_| random.next() >> 32).collect()
}

fn number(variable: &str) -> Option<u64> {
    let text = env::var(variable).ok().filter(|text| !text.is_empty())?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable}={text} is no number from 0 to {}", u64::MAX)))
}
