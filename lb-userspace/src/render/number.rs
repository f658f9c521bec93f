//! Large numbers as `ipvsadm` shortens them.

/// Nine columns: the number, or thousands (K), millions (M), billions (G) or trillions (T) of it, rounded down.
pub fn large(number: u64) -> String {
    match number {
        0..100_000_000 => format!("{number:>9}"),
        100_000_000..1_000_000_000 => format!("{:>8}K", number / 1_000),
        1_000_000_000..100_000_000_000 => format!("{:>8}M", number / 1_000_000),
        100_000_000_000..100_000_000_000_000 => format!("{:>8}G", number / 1_000_000_000),
        _ => format!("{:>8}T", number / 1_000_000_000_000),
    }
}

/// The number in full: nine columns, or more, with one blank before it.
pub fn exact(number: u64) -> String {
    format!(" {number:>8}")
}

/// Bytes in binary units with one decimal, for people.
pub fn bytes(number: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = number as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{number} B") } else { format!("{value:.1} {}", UNITS[unit]) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_shortened_where_ipvsadm_shortens_them() {
        for (number, expected) in [
            (0, "        0"),
            (99_999_999, " 99999999"),
            (100_000_000, "  100000K"),
            (999_999_999, "  999999K"),
            (1_000_000_000, "    1000M"),
            (99_999_999_999, "   99999M"),
            (100_000_000_000, "     100G"),
            (99_999_999_999_999, "   99999G"),
            (100_000_000_000_000, "     100T"),
            (u64::MAX, "18446744T"),
        ] {
            assert_eq!(large(number), expected);
        }
    }

    #[test]
    fn exact_numbers_have_a_blank_before_them() {
        assert_eq!(exact(7), "        7");
        assert_eq!(exact(u64::MAX), " 18446744073709551615");
    }

    #[test]
    fn bytes_have_one_decimal_from_a_kibibyte_on() {
        assert_eq!(bytes(1023), "1023 B");
        assert_eq!(bytes(1536), "1.5 KiB");
        assert_eq!(bytes(32 << 20), "32.0 MiB");
    }
}
