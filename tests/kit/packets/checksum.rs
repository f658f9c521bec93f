//! The two checksums, straight from their definitions.

/// The Internet checksum of RFC 1071 over several pieces, as if they were one after the other; every piece but the
/// last has an even length. A packet whose checksum is in place sums to 0.
pub fn ones_complement(pieces: &[&[u8]]) -> u16 {
    let mut sum: u64 = 0;
    for piece in pieces {
        for word in piece.chunks(2) {
            sum += u64::from(word[0]) << 8 | u64::from(word.get(1).copied().unwrap_or(0));
        }
    }
    while sum > 0xffff {
        sum = (sum >> 16) + (sum & 0xffff);
    }
    !(sum as u16)
}

/// CRC32c (RFC 9260, appendix A) over several pieces, bit by bit.
pub fn crc32c(pieces: &[&[u8]]) -> u32 {
    const REVERSED_POLYNOMIAL: u32 = 0x82f6_3b78;
    let mut crc = u32::MAX;
    for byte in pieces.iter().flat_map(|piece| piece.iter()) {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            let carry = crc & 1;
            crc >>= 1;
            if carry == 1 {
                crc ^= REVERSED_POLYNOMIAL;
            }
        }
    }
    !crc
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_published_values_hold() {
        // RFC 1071, section 3: the sum of this example is 0xddf2.
        assert_eq!(ones_complement(&[&[0, 1, 0xf2, 3, 0xf4, 0xf5, 0xf6, 0xf7]]), !0xddf2);
        // RFC 3720, appendix B.4.
        assert_eq!(crc32c(&[&[0; 32]]), 0x8a91_36aa);
        assert_eq!(crc32c(&[&[0xff; 32]]), 0x62a8_ab43);
        assert_eq!(crc32c(&[b"1234", b"56789"]), 0xe306_9283);
    }
}
