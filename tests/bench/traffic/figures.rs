//! Medians, percentiles, and ratios to no proxy.

use std::collections::BTreeMap;

use anyhow::{Context, Result};

use super::network::Direction;
use super::rows::Row;

/// What is told of a kind of traffic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Figure {
    /// Short connections a second.
    Connections,
    /// Of a short connection, from beginning to end: half take longer. Microseconds.
    Median,
    /// One in a hundred takes longer. Microseconds.
    Late,
    /// Requests a second on one connection.
    Requests,
    /// One stream, gigabits a second.
    Stream,
    /// UDP packets a second, of both directions.
    Datagrams,
}

impl Figure {
    /// In the order of the tables.
    pub(crate) const ALL: [Self; 6] =
        [Self::Connections, Self::Median, Self::Late, Self::Requests, Self::Stream, Self::Datagrams];

    /// In a heading.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Connections => "short connections/s",
            Self::Median => "p50, us",
            Self::Late => "p99, us",
            Self::Requests => "requests/s, kept",
            Self::Stream => "one stream, Gbit/s",
            Self::Datagrams => "UDP packets/s",
        }
    }

    /// In JSON.
    pub(crate) fn key(self) -> &'static str {
        match self {
            Self::Connections => "short_connections_per_s",
            Self::Median => "short_connection_p50_us",
            Self::Late => "short_connection_p99_us",
            Self::Requests => "requests_per_s",
            Self::Stream => "stream_gbit_per_s",
            Self::Datagrams => "udp_packets_per_s",
        }
    }

    /// True if more is better.
    pub(crate) fn is_rate(self) -> bool {
        !matches!(self, Self::Median | Self::Late)
    }

    /// Whether a ratio is better than another.
    pub(crate) fn is_better(self, this: f64, other: f64) -> bool {
        if self.is_rate() { this > other } else { this < other }
    }
}

/// What a sample is of.
pub(crate) type Key = (u32, Direction, Row, Figure);

/// All samples, a value for each round.
#[derive(Debug, Default)]
pub(crate) struct Samples(BTreeMap<Key, Vec<f64>>);

impl Samples {
    /// Adds the value of a round; rounds come in order.
    pub(crate) fn add(&mut self, services: u32, direction: Direction, row: Row, figure: Figure, value: f64) {
        self.0.entry((services, direction, row, figure)).or_default().push(value);
    }

    /// What there are samples of, in order.
    pub(crate) fn keys(&self) -> impl Iterator<Item = Key> {
        self.0.keys().copied()
    }

    /// Median over the rounds.
    pub(crate) fn median(&self, key: Key) -> Option<f64> {
        median(self.0.get(&key)?)
    }

    /// The ratio to no proxy in each round.
    pub(crate) fn ratios(&self, key: Key) -> Option<Vec<f64>> {
        let (services, direction, _, figure) = key;
        let plain = self.0.get(&(services, direction, Row::NoProxy, figure))?;
        Some(self.0.get(&key)?.iter().zip(plain).map(|(value, plain)| value / plain).collect())
    }

    /// Its median over the rounds.
    pub(crate) fn ratio(&self, key: Key) -> Option<f64> {
        median(&self.ratios(key)?)
    }
}

/// The middle one, or the mean of the two in the middle; none of none.
pub(crate) fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => None,
        length if length % 2 == 0 => Some((sorted[middle - 1] + sorted[middle]) / 2.0),
        _ => Some(sorted[middle]),
    }
}

/// Nanoseconds of a part of a measurement.
const PART: u64 = 5_000_000;

/// How often something was done a second, of how long it took each time: the median of all parts of 5 ms. What other work
/// takes of a CPU comes in slices that spoil some parts; the mean would have all of it.
pub(crate) fn rate(each: &[u64]) -> Result<f64> {
    let mut parts = Vec::new();
    let (mut count, mut took) = (0_u64, 0);
    for one in each {
        count += 1;
        took += one;
        if took >= PART {
            parts.push(count as f64 * 1e9 / took as f64);
            (count, took) = (0, 0);
        }
    }
    if parts.is_empty() && took > 0 {
        parts.push(count as f64 * 1e9 / took as f64);
    }
    median(&parts).context("nothing was measured: --seconds is too short")
}

/// The smallest value that so many percent of all do not exceed.
pub(crate) fn percentile(sorted: &[u64], percent: f64) -> Result<f64> {
    let place = (sorted.len() as f64 * percent / 100.0).ceil() as usize;
    let value = sorted.get(place.saturating_sub(1)).context("nothing was measured: --seconds is too short")?;
    Ok(*value as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_median_stands_in_the_middle() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[3.0]), Some(3.0));
        assert_eq!(median(&[9.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 9.0]), Some(3.0));
    }

    #[test]
    fn a_percentile_is_a_value_that_was_there() {
        let hundred: Vec<u64> = (1..=100).collect();
        for (percent, wanted) in [(50.0, 50.0), (99.0, 99.0), (100.0, 100.0), (0.0, 1.0), (98.5, 99.0)] {
            assert_eq!(percentile(&hundred, percent).unwrap(), wanted, "{percent}");
        }
        assert_eq!(percentile(&[7], 99.0).unwrap(), 7.0);
        assert!(percentile(&[], 50.0).unwrap_err().to_string().contains("--seconds"));
    }

    #[test]
    fn a_rate_is_that_of_the_middle_part() {
        // A microsecond each, for 50 ms; twice another process had the CPU for 20 ms.
        let mut each = vec![1_000; 50_000];
        each[10_000] = 20_000_000;
        each[40_000] = 20_000_000;
        assert_eq!(rate(&each).unwrap(), 1e6);
        assert_eq!(rate(&[2_000, 2_000]).unwrap(), 5e5);
        assert!(rate(&[]).unwrap_err().to_string().contains("--seconds"));
    }

    #[test]
    fn ratios_are_of_the_same_round() {
        let mut samples = Samples::default();
        let key = |row| (10, Direction::Pod, row, Figure::Requests);
        // The machine was busy in the second round, and the third row of the third disturbed.
        for (plain, tc) in [(100.0, 90.0), (50.0, 44.0), (100.0, 20.0)] {
            samples.add(10, Direction::Pod, Row::NoProxy, Figure::Requests, plain);
            samples.add(10, Direction::Pod, Row::Tc, Figure::Requests, tc);
        }
        assert_eq!(samples.ratios(key(Row::Tc)), Some(vec![0.9, 0.88, 0.2]));
        assert_eq!(samples.ratio(key(Row::Tc)), Some(0.88));
        assert_eq!(samples.ratio(key(Row::NoProxy)), Some(1.0));
        assert_eq!(samples.median(key(Row::NoProxy)), Some(100.0));
        assert_eq!(samples.ratio(key(Row::Socket)), None);
    }

    #[test]
    fn a_rate_is_better_high_and_a_time_low() {
        assert!(Figure::Connections.is_better(0.9, 0.8) && !Figure::Connections.is_better(0.8, 0.8));
        assert!(Figure::Late.is_better(1.1, 1.2) && !Figure::Median.is_better(1.3, 1.2));
    }
}
