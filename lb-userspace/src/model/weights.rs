//! Weights: one number per destination, stated per slice, zone, node or pod.

use std::collections::BTreeMap;

use super::field::{Field, Noted, Report};
use super::problem::shown;

/// Annotation of a Service: `pod-a=5, pod-b=0, zone/eu-1=3, node/n7=2`.
pub const WEIGHTS_ANNOTATION: &str = "bpvs.io/weights";
/// Annotation of an EndpointSlice: one weight for all its endpoints.
pub const WEIGHT_ANNOTATION: &str = "bpvs.io/weight";

/// Weight of a destination that nothing states a weight for.
pub const DEFAULT_WEIGHT: i32 = 1;

const ALLOWED: &str = "must be a whole number from 0 to 2147483647 in quotes (0 takes no new connections)";

/// What a weight of a Service is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scope {
    /// The endpoint whose `targetRef` has the name.
    Pod,
    /// Endpoints on the node.
    Node,
    /// Endpoints in the zone.
    Zone,
}

/// The weights that a Service states.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Weights(Option<Box<Stated>>);

/// What most Services have none of.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Stated {
    pods: BTreeMap<String, i32>,
    nodes: BTreeMap<String, i32>,
    zones: BTreeMap<String, i32>,
}

impl Weights {
    /// The most specific weight for an endpoint: its pod's, else its node's, else its zone's.
    pub fn of(&self, pod: Option<&str>, node: Option<&str>, zone: Option<&str>) -> Option<i32> {
        let find = |weights: &BTreeMap<String, i32>, name: Option<&str>| weights.get(name?).copied();
        let Stated { pods, nodes, zones } = self.0.as_deref()?;
        find(pods, pod).or_else(|| find(nodes, node)).or_else(|| find(zones, zone))
    }

    fn known(&self, scope: Scope, name: &str) -> Option<i32> {
        let Stated { pods, nodes, zones } = self.0.as_deref()?;
        let weights = match scope {
            Scope::Pod => pods,
            Scope::Node => nodes,
            Scope::Zone => zones,
        };
        weights.get(name).copied()
    }

    fn insert(&mut self, scope: Scope, name: &str, weight: i32) {
        let Stated { pods, nodes, zones } = &mut **self.0.get_or_insert_default();
        let weights = match scope {
            Scope::Pod => pods,
            Scope::Node => nodes,
            Scope::Zone => zones,
        };
        weights.insert(name.to_owned(), weight);
    }

    /// Reads the annotation of a Service. A wrong entry keeps the weight that its key had before, if any.
    pub(crate) fn read(field: &Field<'_>, report: &mut Report<'_>, previous: &Self) -> Self {
        const FORM: &str = "must be NAME=WEIGHT, zone/NAME=WEIGHT or node/NAME=WEIGHT, separated by commas, WEIGHT from 0 to \
                            2147483647";
        let text = match field.text(report, "must be text: put it in quotes") {
            Ok(text) => text.unwrap_or_default(),
            Err(Noted) => return previous.clone(),
        };
        let mut weights = Self::default();
        for entry in text.split(',').map(str::trim).filter(|entry| !entry.is_empty()) {
            let split = entry.split_once('=').map(|(key, weight)| (parse_key(key.trim()), weight.trim()));
            let Some((Some((scope, name)), weight)) = split else {
                report.wrong_part(field, shown(entry), FORM);
                continue;
            };
            let weight = match parse_weight(weight) {
                Some(weight) => Some(weight),
                None => {
                    report.wrong_part(field, shown(entry), FORM);
                    previous.known(scope, name)
                }
            };
            let Some(weight) = weight else { continue };
            if weights.known(scope, name).is_some() {
                report.wrong_part(field, shown(entry), "stated twice: the first one holds");
            } else {
                weights.insert(scope, name, weight);
            }
        }
        weights
    }
}

/// Reads the annotation of a slice. A wrong one keeps what was there before, if anything.
pub(crate) fn read_weight(field: &Field<'_>, report: &mut Report<'_>, previous: Option<i32>) -> Option<i32> {
    match field.text(report, ALLOWED) {
        Ok(None) => None,
        Ok(Some(text)) => match parse_weight(text.trim()) {
            Some(weight) => Some(weight),
            None => {
                report.wrong(field, ALLOWED);
                previous
            }
        },
        Err(Noted) => previous,
    }
}

fn parse_key(key: &str) -> Option<(Scope, &str)> {
    let (scope, name) = match key.split_once('/') {
        None => (Scope::Pod, key),
        Some(("zone", name)) => (Scope::Zone, name),
        Some(("node", name)) => (Scope::Node, name),
        Some(_) => return None,
    };
    let name_like = |b| matches!(b, b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_');
    (!name.is_empty() && name.bytes().all(name_like)).then_some((scope, name))
}

/// A weight as IPVS takes it. Digits only: `+5` and `-1` are none.
fn parse_weight(text: &str) -> Option<i32> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    digits.then(|| text.parse().ok()).flatten()
}
