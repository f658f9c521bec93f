//! The one word of state that a cursor scheduler keeps per service, in `scheduler_state`.

/// rr's or wrr's place in the list.
///
/// Packed into 64 bits so that a pick is one compare-and-swap, from BPF and (through the mapped array) from user
/// space: `version` (16) | `cursor` (16) | `current_weight` (32).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SchedulerWord {
    /// [`Service::version`](crate::layout::Service::version) of the set that `cursor` points into.
    pub version: u16,
    /// 0: before the head (IPVS's list-head sentinel); otherwise 1 + position in the set.
    pub cursor: u16,
    /// wrr: IPVS's `cw`.
    pub current_weight: i32,
}

impl SchedulerWord {
    /// From its packed form.
    #[inline(always)]
    pub const fn unpack(word: u64) -> Self {
        Self { version: (word >> 48) as u16, cursor: (word >> 32) as u16, current_weight: word as u32 as i32 }
    }

    /// To its packed form.
    #[inline(always)]
    pub const fn pack(self) -> u64 {
        ((self.version as u64) << 48) | ((self.cursor as u64) << 32) | self.current_weight as u32 as u64
    }
}
