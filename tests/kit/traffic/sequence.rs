//! A byte sequence that nothing can be lost from, added to or swapped in unnoticed.

use std::fmt;

/// Produces the sequence: byte `n` depends on `n` alone, and eight bytes in a row name their place.
#[derive(Debug, Clone, Copy, Default)]
pub struct Sequence {
    offset: u64,
}

impl Sequence {
    /// Fills `buffer` with the next bytes.
    pub fn fill(&mut self, buffer: &mut [u8]) {
        for byte in buffer {
            *byte = byte_at(self.offset);
            self.offset += 1;
        }
    }

    /// Takes back the last `bytes`: they were produced and not sent.
    pub fn rewind(&mut self, bytes: usize) {
        self.offset -= bytes as u64;
    }

    /// Bytes produced.
    pub fn offset(&self) -> u64 {
        self.offset
    }
}

/// Reads the sequence and stops at the first byte that is not its next.
#[derive(Debug, Clone, Copy, Default)]
pub struct SequenceCheck {
    offset: u64,
}

impl SequenceCheck {
    /// Takes the next bytes received.
    pub fn take(&mut self, bytes: &[u8]) -> Result<(), OutOfOrder> {
        for &found in bytes {
            let expected = byte_at(self.offset);
            if found != expected {
                return Err(OutOfOrder { offset: self.offset, expected, found });
            }
            self.offset += 1;
        }
        Ok(())
    }

    /// Bytes that were right.
    pub fn offset(&self) -> u64 {
        self.offset
    }
}

/// A byte was lost, added, changed or came in another order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OutOfOrder {
    /// Place of the first wrong byte.
    pub offset: u64,
    /// What belongs there.
    pub expected: u8,
    /// What came.
    pub found: u8,
}

impl fmt::Display for OutOfOrder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { offset, expected, found } = self;
        write!(f, "stream broken at byte {offset}: expected {expected:#04x}, got {found:#04x}")
    }
}

impl std::error::Error for OutOfOrder {}

/// Byte `offset` of a word that is a mixed count of words (the finalizer of SplitMix64): neighbours differ, and so do
/// words that are a power of two apart.
fn byte_at(offset: u64) -> u8 {
    let mut word = (offset / 8).wrapping_add(0x9e37_79b9_7f4a_7c15);
    word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^= word >> 31;
    word.to_be_bytes()[(offset % 8) as usize]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(count: usize) -> Vec<u8> {
        let mut bytes = vec![0; count];
        Sequence::default().fill(&mut bytes);
        bytes
    }

    #[test]
    fn the_sequence_passes_in_pieces_of_any_size() {
        let sent = bytes(10_000);
        let mut check = SequenceCheck::default();
        for piece in sent.chunks(77) {
            check.take(piece).unwrap();
        }
        assert_eq!(check.offset(), 10_000);
    }

    #[test]
    fn a_lost_a_doubled_and_a_moved_segment_are_found() {
        let sent = bytes(64 * 1024);
        for (from, length) in [(0, 1), (8, 8), (1448, 1448), (32_768, 16_384)] {
            let mut lost = sent.clone();
            lost.drain(from..from + length);
            let error = SequenceCheck::default().take(&lost).unwrap_err();
            assert!((from as u64..from as u64 + 8).contains(&error.offset), "{error}");

            let mut doubled = sent.clone();
            doubled.splice(from..from, sent[from..from + length].iter().copied());
            SequenceCheck::default().take(&doubled).unwrap_err();

            let mut moved = sent.clone();
            moved[from..].rotate_left(length);
            SequenceCheck::default().take(&moved).unwrap_err();
        }
    }

    #[test]
    fn rewinding_produces_the_same_bytes_again() {
        let mut sequence = Sequence::default();
        let mut first = [0; 20];
        sequence.fill(&mut first);
        sequence.rewind(12);
        let mut again = [0; 12];
        sequence.fill(&mut again);
        assert_eq!(first[8..], again);
    }
}
