//! Values of arguments, read with an error that says what is allowed.

use std::time::Duration;

use lb_common::scheduler::Scheduler;

/// A scheduler by its name.
pub(super) fn scheduler(name: &str) -> Result<Scheduler, String> {
    let known = || Scheduler::ALL.map(Scheduler::name).join(", ");
    Scheduler::from_name(name).ok_or_else(|| format!("no such scheduler; allowed are {}", known()))
}

/// A pattern of interface names. What could match none is a mistake, and so is what other programs know as a pattern.
pub(super) fn pattern(text: &str) -> Result<String, String> {
    if text.is_empty() {
        return Err("an empty pattern matches no interface".to_owned());
    }
    if text.contains(|c: char| c.is_whitespace() || c.is_control() || "/:[]{}!".contains(c)) {
        return Err("patterns are names of interfaces in which only `*` and `?` mean others".to_owned());
    }
    if text.bytes().filter(|byte| *byte != b'*').count() > 15 {
        return Err("names of interfaces have at most 15 characters".to_owned());
    }
    Ok(text.to_owned())
}

/// A time from 10 ms to an hour.
pub(super) fn duration(text: &str) -> Result<Duration, String> {
    match milliseconds(text)? {
        Some(time @ 10..=3_600_000) => Ok(Duration::from_millis(time)),
        _ => Err("allowed are 10ms to 60m".to_owned()),
    }
}

/// A timeout of connections in milliseconds, 0 for the default. The highest is near what the map's field holds.
pub(super) fn timeout(text: &str) -> Result<u32, String> {
    if text == "0" {
        return Ok(0);
    }
    match milliseconds(text)? {
        Some(time @ (0 | 10..=3_600_000_000)) => Ok(time as u32),
        _ => Err("allowed are 10ms to 1000h, and 0 for the default".to_owned()),
    }
}

/// Numbers with `ms`, `s`, `m` or `h`, one after another (`1h30m`, as kube-proxy's flags are written), added up. `None`
/// if that is more than can be counted.
fn milliseconds(text: &str) -> Result<Option<u64>, String> {
    let wrong = || "write numbers with their unit: ms, s, m or h".to_owned();
    let mut rest = text;
    let mut sum = Some(0_u64);
    while !rest.is_empty() || text.is_empty() {
        let (number, tail) = rest.split_at(rest.find(|c: char| !c.is_ascii_digit()).ok_or_else(wrong)?);
        let (unit, tail) = tail.split_at(tail.find(|c: char| c.is_ascii_digit()).unwrap_or(tail.len()));
        let factor = match unit {
            "ms" => 1,
            "s" => 1_000,
            "m" => 60_000,
            "h" => 3_600_000,
            _ => return Err(wrong()),
        };
        if number.is_empty() {
            return Err(wrong());
        }
        let part = number.parse::<u64>().ok().and_then(|number| number.checked_mul(factor));
        sum = sum.zip(part).and_then(|(sum, part)| sum.checked_add(part));
        rest = tail;
    }
    Ok(sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_that_could_match_no_interface_are_refused() {
        for text in ["eth0", "*", "eth*", "veth?", "abcdefghijklmno", "a*b*c*d*e*f*g*h*i*j"] {
            assert_eq!(pattern(text).as_deref(), Ok(text));
        }
        for text in ["", "eth[0-9]", "a/b", "a b", "{a}", "!eth0", "abcdefghijklmnop"] {
            assert!(pattern(text).is_err(), "{text}");
        }
    }
}
