//! Metrics that are read at the moment they are asked for: their values live in the maps.

use prometheus::proto::{Counter, Gauge, LabelPair, Metric, MetricFamily, MetricType};

/// What a value is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    Counter,
    Gauge,
}

/// A metric with all its values.
pub(super) struct Family {
    name: String,
    help: String,
    kind: Kind,
    metrics: Vec<Metric>,
}

impl Family {
    pub(super) fn new(kind: Kind, name: impl Into<String>, help: impl Into<String>) -> Self {
        Self { name: name.into(), help: help.into(), kind, metrics: Vec::new() }
    }

    /// Adds a value. No two may have the same labels.
    pub(super) fn add(&mut self, labels: &[(&str, &str)], value: u64) {
        let pair = |(name, value): &(&str, &str)| {
            let mut pair = LabelPair::default();
            pair.set_name((*name).to_owned());
            pair.set_value((*value).to_owned());
            pair
        };
        let mut metric = Metric::from_label(labels.iter().map(pair).collect());
        match self.kind {
            Kind::Counter => {
                let mut counter = Counter::default();
                counter.set_value(value as f64);
                metric.set_counter(counter);
            }
            Kind::Gauge => {
                let mut gauge = Gauge::default();
                gauge.set_value(value as f64);
                metric.set_gauge(gauge);
            }
        }
        self.metrics.push(metric);
    }

    /// A metric that has one value.
    pub(super) fn single(kind: Kind, name: &str, help: &str, value: u64) -> Option<MetricFamily> {
        let mut family = Self::new(kind, name, help);
        family.add(&[], value);
        family.done()
    }

    /// As it is written; one without values is not.
    pub(super) fn done(self) -> Option<MetricFamily> {
        if self.metrics.is_empty() {
            return None;
        }
        let mut family = MetricFamily::default();
        family.set_name(self.name);
        family.set_help(self.help);
        family.set_field_type(match self.kind {
            Kind::Counter => MetricType::COUNTER,
            Kind::Gauge => MetricType::GAUGE,
        });
        family.set_metric(self.metrics);
        Some(family)
    }
}
