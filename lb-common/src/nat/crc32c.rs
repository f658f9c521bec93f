//! CRC32c (RFC 9260, appendix A) as a linear function: how the checksum changes when a few bytes change.

/// The Castagnoli polynomial, bit-reflected.
const POLYNOMIAL: u32 = 0x82f6_3b78;

/// `x^(8 * 2^k)` modulo the polynomial, bit-reflected: what `2^k` zero bytes do to the register.
static ZERO_BYTES: [u32; 16] = {
    let mut powers = [0; 16];
    // x^8 in reflected form: bit 31 is x^0.
    powers[0] = 1 << (31 - 8);
    let mut k = 1;
    while k < 16 {
        powers[k] = multiply(powers[k - 1], powers[k - 1]);
        k += 1;
    }
    powers
};

/// Product of two reflected polynomials modulo the CRC polynomial.
#[inline(always)]
const fn multiply(a: u32, b: u32) -> u32 {
    let (mut product, mut b, mut bit) = (0, b, 0);
    while bit < 32 {
        // Branch-free: the verifier would otherwise follow both sides of each bit.
        product ^= b & 0u32.wrapping_sub((a >> (31 - bit)) & 1);
        b = (b >> 1) ^ (POLYNOMIAL & 0u32.wrapping_sub(b & 1));
        bit += 1;
    }
    product
}

/// What to XOR into a checksum when four bytes of the data are XORed with `changed` and `after` bytes follow them
/// (below 65,536).
#[inline(always)]
pub const fn change(changed: [u8; 4], after: u32) -> u32 {
    let mut register = u32::from_le_bytes(changed);
    let mut bit = 0;
    while bit < 32 {
        register = (register >> 1) ^ (POLYNOMIAL & 0u32.wrapping_sub(register & 1));
        bit += 1;
    }
    let mut k = 0;
    while k < 16 {
        if after >> k & 1 != 0 {
            register = multiply(register, ZERO_BYTES[k]);
        }
        k += 1;
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
            assert_eq!(
                before ^ change(changed, length as u32 - 4),
                whole(&data[..length]),
                "length {length}"
            );
        }
    }
}
