//! The Internet checksum (RFC 1071) and its incremental update (RFC 1624), as differences.

use crate::address::Address;

/// What has to be added to a one's complement sum: `new - old` of every changed half word, in memory byte order (the
/// sum does not depend on byte order as long as all parts share it).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Difference(pub u32);

impl Difference {
    /// Nothing changed.
    pub const ZERO: Self = Self(0);

    /// True if nothing changed.
    #[inline(always)]
    pub const fn is_zero(self) -> bool {
        self.0 == 0
    }

    /// Adds the change of a half word, given as native loads of its bytes.
    #[inline(always)]
    pub const fn half(self, old: u16, new: u16) -> Self {
        if old == new { self } else { self.add(!(old as u32)).add(new as u32) }
    }

    /// Adds the change of a word, given as native loads of its bytes.
    #[inline(always)]
    pub const fn word(self, old: u32, new: u32) -> Self {
        if old == new { self } else { self.add(!old).add(new) }
    }

    /// Adds the change of an address.
    #[inline(always)]
    pub const fn address(self, old: &Address, new: &Address) -> Self {
        self.word(old.words[0], new.words[0])
            .word(old.words[1], new.words[1])
            .word(old.words[2], new.words[2])
            .word(old.words[3], new.words[3])
    }

    /// The same change undone.
    #[inline(always)]
    pub const fn negated(self) -> Self {
        if self.0 == 0 { self } else { Self(!self.0) }
    }

    /// Both changes.
    #[inline(always)]
    pub const fn and(self, other: Self) -> Self {
        self.add(other.0)
    }

    /// One's complement addition: the carry comes back in at the low end.
    #[inline(always)]
    const fn add(self, value: u32) -> Self {
        let sum = self.0 as u64 + value as u64;
        Self((sum as u32).wrapping_add((sum >> 32) as u32))
    }

    /// A checksum field (native load) after this change: RFC 1624, equation 3. Complemented as a whole word, as the
    /// kernel does: the result is never 0xffff, which no sender computes either.
    #[inline(always)]
    pub const fn update(self, field: u16) -> u16 {
        !fold(Self(!(field as u32)).add(self.0).0)
    }
}

/// Folds a 32-bit one's complement sum to 16 bits.
#[inline(always)]
pub const fn fold(sum: u32) -> u16 {
    let sum = (sum & 0xffff) + (sum >> 16);
    (sum + (sum >> 16)) as u16
}
