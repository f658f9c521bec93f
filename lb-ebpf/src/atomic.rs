//! Atomic operations on words of map values.
//!
//! `core::sync::atomic` has no read-modify-write for this target, although the instruction set does (v3, Linux 5.12):
//! the intrinsics below compile to `lock` instructions. Atomic loads and stores would need v4 (Linux 6.6); a volatile access
//! of an aligned word is one plain instruction, which is all that a relaxed one asks for.

use core::intrinsics::{AtomicOrdering, atomic_cxchg, atomic_xadd};

/// A 32- or 64-bit word that several CPUs, and user space through a mapping, change at once.
#[derive(Clone, Copy)]
pub struct Word<T: Copy>(*mut T);

impl<T: Copy> Word<T> {
    /// A word of a map value.
    ///
    /// # Safety
    /// `word` must be aligned, stay mapped while the program runs, and be an integer of 32 or 64 bits.
    #[inline(always)]
    pub unsafe fn new(word: *mut T) -> Self {
        Self(word)
    }

    /// Its value.
    #[inline(always)]
    pub fn load(self) -> T {
        // SAFETY: `new` demands a valid word.
        unsafe { self.0.read_volatile() }
    }

    /// Stores a value.
    #[inline(always)]
    pub fn store(self, value: T) {
        // SAFETY: as in `load`.
        unsafe { self.0.write_volatile(value) }
    }

    /// Adds, wrapping. No result, so that it compiles to the instruction that fetches none.
    #[inline(always)]
    pub fn add(self, value: T) {
        // SAFETY: as in `load`.
        unsafe { atomic_xadd::<T, T, { AtomicOrdering::Relaxed }>(self.0, value) };
    }

    /// Stores `new` if the value is `old`; else says what it is.
    #[inline(always)]
    pub fn replace(self, old: T, new: T) -> Result<(), T> {
        // SAFETY: as in `load`.
        let (found, done) =
            unsafe { atomic_cxchg::<T, { AtomicOrdering::Relaxed }, { AtomicOrdering::Relaxed }>(self.0, old, new) };
        if done { Ok(()) } else { Err(found) }
    }
}
