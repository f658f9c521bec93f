//! CRC32c (RFC 9260, appendix A) as a linear function: how the checksum changes when a few bytes change.

/// The Castagnoli polynomial, bit-reflected.
const POLYNOMIAL: u32 = 0x82f6_3b78;

/// Powers of two of zero bytes that a register can be advanced by: up to 65,535 bytes in all.
const LEVELS: usize = 16;
const NIBBLES: usize = 8;

/// What `2^level` zero bytes make of a register, by nibble: the advance is linear, so the register's nibbles are
/// looked up one by one and added. Tables, not bit loops: the BPF verifier would follow both sides of each bit.
static ADVANCE: [[[u32; 16]; NIBBLES]; LEVELS] = {
    let mut advance = [[[0; 16]; NIBBLES]; LEVELS];
    let (mut level, mut bytes) = (0, zero_byte_power());
    while level < LEVELS {
        let mut nibble = 0;
        while nibble < NIBBLES {
            let mut value = 0;
            while value < 16 {
                advance[level][nibble][value] = multiply((value as u32) << (4 * nibble), bytes);
                value += 1;
            }
            nibble += 1;
        }
        bytes = multiply(bytes, bytes);
        level += 1;
    }
    advance
};

/// `x^8` in reflected form, where bit 31 is `x^0`: what one zero byte multiplies a register by.
const fn zero_byte_power() -> u32 {
    1 << (31 - 8)
}

/// Product of two reflected polynomials modulo the CRC polynomial.
const fn multiply(a: u32, mut b: u32) -> u32 {
    let (mut product, mut bit) = (0, 0);
    while bit < 32 {
        if a >> (31 - bit) & 1 != 0 {
            product ^= b;
        }
        b = if b & 1 != 0 { (b >> 1) ^ POLYNOMIAL } else { b >> 1 };
        bit += 1;
    }
    product
}

/// What to XOR into a checksum when four bytes of the data are XORed with `changed` and `after` bytes follow them
/// (at most 65,531).
#[inline(always)]
pub fn change(changed: [u8; 4], after: u32) -> u32 {
    // Feeding four bytes is the same as advancing over four zero bytes a register that they were added to.
    let bytes = after.wrapping_add(4);
    let mut register = u32::from_le_bytes(changed);
    for (level, tables) in ADVANCE.iter().enumerate() {
        if bytes >> level & 1 != 0 {
            let mut advanced = 0;
            for (nibble, table) in tables.iter().enumerate() {
                advanced ^= table[(register >> (4 * nibble) & 15) as usize];
            }
            register = advanced;
        }
    }
    register
}

#[cfg(test)]
mod tests {
    use super::*;

    /// CRC32c the plain way.
    fn whole(data: &[u8]) -> u32 {
        let mut register = !0u32;
        for &byte in data {
            register ^= u32::from(byte);
            for _ in 0..8 {
                register = (register >> 1) ^ (POLYNOMIAL & 0u32.wrapping_sub(register & 1));
            }
        }
        !register
    }

    #[test]
    fn the_plain_form_gives_the_published_check_value() {
        assert_eq!(whole(b"123456789"), 0xe306_9283);
    }

    #[test]
    fn a_change_of_four_bytes_is_followed_at_every_length() {
        // The checksum covers at least the common header, and at most what an IP packet holds.
        for length in (4..2000).chain([8191, 40_000, 65_515]) {
            let mut data = [0u8; 65_536];
            for (index, byte) in data.iter_mut().enumerate() {
                *byte = (index * 7 + length) as u8;
            }
            let before = whole(&data[..length]);
            let changed = [0x12, 0xff, 0x00, 0x9b];
            for (byte, change) in data.iter_mut().zip(changed) {
                *byte ^= change;
            }
            assert_eq!(before ^ change(changed, length as u32 - 4), whole(&data[..length]), "length {length}");
        }
    }
}
