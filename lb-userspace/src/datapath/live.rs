//! How many services are published, and of which kinds.

use lb_common::layout::{LOOKUP_PREFIXES, Service};

use super::frontend::Key;

/// Counts of published services.
#[derive(Debug, Default)]
pub(super) struct Live {
    count: u32,
    /// By bit of [`Key::lookups_with`].
    kinds: [u32; 32],
}

impl Live {
    /// Services of all kinds.
    pub(super) fn count(&self) -> u32 {
        self.count
    }

    /// Services in `service_prefixes`.
    pub(super) fn prefixes(&self) -> u32 {
        self.kinds[LOOKUP_PREFIXES.trailing_zeros() as usize]
    }

    /// The kinds of lookup that find them all.
    pub(super) fn lookups(&self) -> u32 {
        self.kinds.iter().zip(0..).filter(|(count, _)| **count > 0).fold(0, |all, (_, bit)| all | 1 << bit)
    }

    pub(super) fn add(&mut self, key: &Key, value: &Service) {
        self.count += 1;
        self.of(key, value).for_each(|count| *count += 1);
    }

    pub(super) fn remove(&mut self, key: &Key, value: &Service) {
        self.count -= 1;
        self.of(key, value).for_each(|count| *count -= 1);
    }

    fn of(&mut self, key: &Key, value: &Service) -> impl Iterator<Item = &mut u32> {
        let lookups = key.lookups_with(value);
        self.kinds.iter_mut().zip(0..).filter(move |(_, bit)| lookups & 1 << bit != 0).map(|(count, _)| count)
    }
}
