//! Durations as Go writes and reads them: `1m0s`, `1.5h`, `100ms`, `0`.

/// What [`parse`] accepts, for messages.
pub const ALLOWED: &str = "must be a duration, such as 30s, 1m0s, 1.5h or 0s";

/// Nanoseconds of each unit. A unit that another one begins with comes after it.
const UNITS: [(&str, u64); 8] = [
    ("ns", 1),
    ("us", 1_000),
    ("\u{b5}s", 1_000),
    ("\u{3bc}s", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("m", 60_000_000_000),
    ("h", 3_600_000_000_000),
];

/// Digits behind the point that count: a nanosecond is less than 4e-13 of an hour.
const FRACTION_DIGITS: usize = 18;

/// A duration in nanoseconds. `None` if it is not one, or more than Go's 64 bits hold (some 292 years).
pub fn parse(text: &str) -> Option<i64> {
    let (negative, mut rest) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    if rest == "0" {
        return Some(0);
    }
    if rest.is_empty() {
        return None;
    }
    let mut sum = 0_i128;
    while !rest.is_empty() {
        let (whole, tail) = digits(rest);
        let (fraction, tail) = tail.strip_prefix('.').map_or(("", tail), digits);
        if whole.is_empty() && fraction.is_empty() {
            return None;
        }
        // `1.5m` is minutes, but `1.5ms` is not.
        let unit = &tail[..tail.find(|c: char| c == '.' || c.is_ascii_digit()).unwrap_or(tail.len())];
        let (_, scale) = UNITS.iter().find(|(name, _)| *name == unit)?;
        sum += part(whole, fraction, *scale)?;
        i64::try_from(sum).ok()?;
        rest = &tail[unit.len()..];
    }
    i64::try_from(if negative { -sum } else { sum }).ok()
}

/// Milliseconds as Go writes them: `15m0s`, `1.5s`, `10ms`, `0s`.
pub fn text(milliseconds: u32) -> String {
    let (seconds, rest) = (milliseconds / 1000, milliseconds % 1000);
    if seconds == 0 && rest > 0 {
        return format!("{rest}ms");
    }
    let (hours, minutes) = (seconds / 3600, seconds / 60 % 60);
    let fraction = match rest {
        0 => String::new(),
        rest => format!(".{rest:03}").trim_end_matches('0').to_owned(),
    };
    let whole = format!("{}{fraction}s", seconds % 60);
    match (hours, minutes) {
        (0, 0) => whole,
        (0, minutes) => format!("{minutes}m{whole}"),
        (hours, minutes) => format!("{hours}h{minutes}m{whole}"),
    }
}

/// Splits behind the digits that a text begins with.
fn digits(text: &str) -> (&str, &str) {
    text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()))
}

/// Nanoseconds of one number, rounded towards zero.
fn part(whole: &str, fraction: &str, scale: u64) -> Option<i128> {
    let whole: u64 = if whole.is_empty() { 0 } else { whole.parse().ok()? };
    let fraction = &fraction[..fraction.len().min(FRACTION_DIGITS)];
    let numerator: u64 = if fraction.is_empty() { 0 } else { fraction.parse().ok()? };
    let denominator = 10_u128.pow(fraction.len() as u32);
    let behind = u128::from(numerator) * u128::from(scale) / denominator;
    i128::try_from(u128::from(whole) * u128::from(scale) + behind).ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn milliseconds_are_written_as_go_writes_them() {
        for (milliseconds, expected) in [
            (0, "0s"),
            (10, "10ms"),
            (1500, "1.5s"),
            (1010, "1.01s"),
            (60_000, "1m0s"),
            (900_000, "15m0s"),
            (3_600_000, "1h0m0s"),
            (86_400_001, "24h0m0.001s"),
        ] {
            assert_eq!(text(milliseconds), expected);
            assert_eq!(parse(expected), Some(i64::from(milliseconds) * 1_000_000));
        }
    }

    #[test]
    fn what_go_writes_and_reads_is_read() {
        const SECOND: i64 = 1_000_000_000;
        for (text, expected) in [
            ("0", 0),
            ("+0", 0),
            ("-0", 0),
            ("0s", 0),
            ("0h0m0s", 0),
            ("1m0s", 60 * SECOND),
            ("24h0m0s", 86_400 * SECOND),
            ("15m", 900 * SECOND),
            ("1.5h", 5_400 * SECOND),
            (".5s", SECOND / 2),
            ("5.s", 5 * SECOND),
            ("100ms", SECOND / 10),
            ("1h1m1s1ms1us1ns", 3_661_001_001_001),
            ("2\u{b5}s3\u{3bc}s", 5_000),
            ("0.000000000000001h", 0),
            ("1s1s", 2 * SECOND),
            ("-1m", -60 * SECOND),
            ("9223372036854775807ns", i64::MAX),
            ("0.3333333333333333333333333h", 1_199_999_999_999),
        ] {
            assert_eq!(parse(text), Some(expected), "{text}");
        }
    }

    #[test]
    fn what_go_refuses_is_refused() {
        let long = format!("{}s", "9".repeat(1_000_000));
        for text in [
            "",
            "-",
            "+",
            "1",
            "00",
            "s",
            ".s",
            "1.",
            ".",
            "-.s",
            "1 s",
            " 1s",
            "1s ",
            "1d",
            "1S",
            "1m s",
            "1..5s",
            "1.2.3s",
            "--1s",
            "1s-1s",
            "1e3s",
            "0x1s",
            "1sm",
            "٣s",
            "1\u{b5}",
            "null",
            "9223372036854775808ns",
            "2562048h",
            "1000000h1000000h1000000h",
            &long,
        ] {
            assert_eq!(parse(text), None, "{:.40}", text);
        }
    }

    proptest! {
        #[test]
        fn any_text_is_a_duration_or_none(text in "\\PC{0,40}", numbers in "[-+]?([0-9.]{0,30}[hmsunµ]{0,3}){0,5}") {
            for text in [text, numbers] {
                if let Some(value) = parse(&text) {
                    prop_assert!(text == "0" || text.ends_with(['s', 'm', 'h', '0']), "{text} is {value}");
                }
            }
        }

        #[test]
        fn what_is_written_part_by_part_is_their_sum(hours in 0..100_000_i64, minutes in 0..60_i64, nanos in 0..60_000_000_000_i64) {
            let text = format!("{hours}h{minutes}m{}.{:09}s", nanos / 1_000_000_000, nanos % 1_000_000_000);
            prop_assert_eq!(parse(&text), Some((hours * 60 + minutes) * 60_000_000_000 + nanos));
        }
    }
}
