//! Prometheus' text format, version 0.0.4, read as strictly as it is specified: a test that reads it also checks it.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, bail, ensure};

/// A metric with all its values.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Family {
    /// `counter`, `gauge`, `histogram`.
    pub kind: String,
    /// What it says of itself.
    pub help: String,
    /// Values by their labels; of a histogram its counts, [`Self::buckets`] has the rest.
    pub values: BTreeMap<Labels, f64>,
    /// Of a histogram: bounds and what is below them, by the labels.
    pub buckets: BTreeMap<Labels, Vec<(f64, f64)>>,
}

/// Labels by name.
pub type Labels = BTreeMap<String, String>;

/// All families, by name.
pub type Families = BTreeMap<String, Family>;

impl Family {
    /// The names of the labels, of all values together.
    pub fn label_names(&self) -> BTreeSet<&str> {
        self.values.keys().flat_map(|labels| labels.keys().map(String::as_str)).collect()
    }

    /// The value with exactly these labels.
    pub fn value(&self, labels: &[(&str, &str)]) -> Option<f64> {
        let labels = labels.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        self.values.get(&labels).copied()
    }
}

/// Reads what a server shows.
///
/// # Errors
/// The first line that breaks a rule.
pub fn parse(text: &str) -> Result<Families> {
    ensure!(text.ends_with('\n'), "the last line has no end");
    let mut families = Families::new();
    let mut current: Option<String> = None;
    for line in text.lines() {
        parse_line(line, &mut families, &mut current).with_context(|| format!("in the line {line:?}"))?;
    }
    for (name, family) in &families {
        check(family).with_context(|| format!("in the metric {name}"))?;
    }
    Ok(families)
}

fn parse_line(line: &str, families: &mut Families, current: &mut Option<String>) -> Result<()> {
    if let Some(rest) = line.strip_prefix("# HELP ") {
        let (name, help) = rest.split_once(' ').context("no text")?;
        ensure!(!families.contains_key(name), "{name} is there twice, or its lines are not together");
        ensure!(!help.trim().is_empty(), "{name} says nothing");
        families.insert(name.to_owned(), Family { help: help.to_owned(), ..Family::default() });
        *current = Some(name.to_owned());
        return Ok(());
    }
    if let Some(rest) = line.strip_prefix("# TYPE ") {
        let (name, kind) = rest.split_once(' ').context("no type")?;
        ensure!(current.as_deref() == Some(name), "TYPE without HELP before it");
        ensure!(["counter", "gauge", "histogram"].contains(&kind), "unknown type");
        families.entry(name.to_owned()).or_default().kind = kind.to_owned();
        return Ok(());
    }
    ensure!(!line.starts_with('#') && !line.is_empty(), "neither HELP nor TYPE nor a value");
    let name = current.as_deref().context("a value before all metrics")?;
    let family = families.get_mut(name).context("unknown")?;
    let rest = line.strip_prefix(name).with_context(|| format!("not of {name}, which is the last TYPE"))?;
    sample(rest, family)
}

/// What follows a name: the suffix of a histogram, labels, value.
fn sample(rest: &str, family: &mut Family) -> Result<()> {
    let end = rest.find(['{', ' ']).context("no value")?;
    let (suffix, rest) = rest.split_at(end);
    let (mut labels, rest) = match rest.strip_prefix('{') {
        Some(rest) => labels(rest)?,
        None => (Labels::new(), rest),
    };
    let value = number(rest.strip_prefix(' ').context("no space before the value")?)?;
    let histogram = family.kind == "histogram";
    match suffix {
        "" if !histogram => {}
        "_count" if histogram => {}
        "_sum" if histogram => return Ok(()),
        "_bucket" if histogram => {
            let bound = number(&labels.remove("le").context("a bucket without a bound")?)?;
            family.buckets.entry(labels).or_default().push((bound, value));
            return Ok(());
        }
        other => bail!("the suffix {other:?} is not of a {}", family.kind),
    }
    ensure!(family.values.insert(labels, value).is_none(), "the same labels twice");
    Ok(())
}

fn labels(mut rest: &str) -> Result<(Labels, &str)> {
    let mut labels = Labels::new();
    loop {
        if let Some(after) = rest.strip_prefix('}') {
            return Ok((labels, after));
        }
        let (name, after) = rest.split_once("=\"").context("no label")?;
        let name_like = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
        ensure!(!name.is_empty() && name.bytes().all(name_like), "{name:?} is no name of a label");
        let mut value = String::new();
        let mut characters = after.char_indices();
        let end = loop {
            match characters.next().context("a label without an end")? {
                (at, '"') => break at,
                (_, '\\') => match characters.next() {
                    Some((_, 'n')) => value.push('\n'),
                    Some((_, other @ ('\\' | '"'))) => value.push(other),
                    other => bail!("{other:?} cannot be escaped"),
                },
                (_, other) => value.push(other),
            }
        };
        ensure!(labels.insert(name.to_owned(), value).is_none(), "the label {name} is there twice");
        rest = &after[end + 1..];
        rest = match rest.strip_prefix(',') {
            Some(after) => after,
            None => rest,
        };
    }
}

fn number(text: &str) -> Result<f64> {
    match text {
        "+Inf" => Ok(f64::INFINITY),
        text => text.parse().with_context(|| format!("{text:?} is no number")),
    }
}

fn check(family: &Family) -> Result<()> {
    ensure!(!family.kind.is_empty(), "no type");
    ensure!(!family.values.is_empty(), "no value");
    for (labels, value) in &family.values {
        ensure!(value.is_finite() && (*value >= 0.0 || family.kind == "gauge"), "{labels:?}: {value}");
    }
    for (labels, buckets) in &family.buckets {
        let sorted = buckets.windows(2).all(|two| two[0].0 < two[1].0 && two[0].1 <= two[1].1);
        let last = buckets.last().copied();
        let count = family.values.get(labels).copied();
        ensure!(sorted && last == count.map(|count| (f64::INFINITY, count)), "{labels:?}: {buckets:?}, of {count:?}");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "# HELP a_total Things\n# TYPE a_total counter\na_total{x=\"1\\\"\\\\\\n\",y=\"\"} 7\na_total 2\n\
        # HELP h Times\n# TYPE h histogram\nh_bucket{le=\"0.5\"} 1\nh_bucket{le=\"+Inf\"} 2\nh_sum 3.5\nh_count 2\n";

    #[test]
    fn what_is_right_is_read() {
        let families = parse(GOOD).unwrap();
        assert_eq!(families["a_total"].value(&[("x", "1\"\\\n"), ("y", "")]), Some(7.0));
        assert_eq!(families["a_total"].value(&[]), Some(2.0));
        assert_eq!(families["a_total"].label_names(), ["x", "y"].into());
        assert_eq!((families["h"].value(&[]), families["h"].kind.as_str()), (Some(2.0), "histogram"));
        assert_eq!(families["h"].buckets[&Labels::new()], [(0.5, 1.0), (f64::INFINITY, 2.0)]);
    }

    #[test]
    fn what_breaks_a_rule_is_refused() {
        for (from, to) in [
            ("# HELP a_total Things\n", ""),
            (" Things", " "),
            (" counter", " number"),
            ("a_total 2\n", "a_total 7 2 \n"),
            ("a_total 2\n", "a_total -2\n"),
            ("a_total 2\n", "a_total NaN\n"),
            ("a_total 2\n", "b_total 2\n"),
            ("a_total 2\n", "a_total_sum 2\n"),
            ("a_total 2\n", "a_total{x=\"1\\\"\\\\\\n\",y=\"\"} 7\n"),
            ("a_total 2\n", "a_total{x=\"1} 7\n"),
            ("a_total 2\n", "a_total{x-y=\"1\"} 7\n"),
            ("a_total 2\n", "a_total{x=\"\\t\"} 7\n"),
            ("a_total 2\n", "\n"),
            ("a_total 2\n", "# EOF\n"),
            ("h_count 2\n", "h_count 3\n"),
            ("h_count 2\n", ""),
            ("le=\"0.5\"} 1", "le=\"0.5\"} 3"),
            ("h_sum 3.5\n", "# HELP a_total Things\n"),
        ] {
            assert!(GOOD.contains(from), "{from:?}");
            let text = GOOD.replacen(from, to, 1);
            assert!(parse(&text).is_err(), "{text}");
        }
        assert!(parse(GOOD.trim_end()).is_err());
    }
}
