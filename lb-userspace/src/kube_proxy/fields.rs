//! Every field of the file: the shape of its value, and what becomes of it here.

use std::ops::RangeInclusive;

use super::duration;
use super::values::Mode;
use crate::model::address::{NETWORK_ALLOWED, parse_network};
use crate::model::field::{Field, Noted, Report};
use crate::model::tree::{Tree, Value};

/// What becomes of a field.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Use {
    /// It is done.
    Done,
    /// Nothing has to be done for what it asks for: it is so in any case, or is not of Linux.
    Granted,
    /// It has no effect, which is said if it asks for something.
    NoEffect,
}

/// What a value must be; null and a missing one are fine.
#[derive(Clone, Debug)]
enum Shape {
    Text,
    Truth,
    Number(RangeInclusive<i64>),
    AnyNumber,
    /// Not negative.
    Duration,
    Texts,
    Networks,
    /// A map whose fields are not looked at.
    Map,
    /// Feature gates: a map of truth values.
    Truths,
    Anything,
}

/// A field that kube-proxy knows.
#[derive(Debug)]
pub struct Known {
    /// Its name behind that of its section, as in `ipvs.scheduler`.
    pub path: &'static str,
    /// What becomes of it.
    pub becomes: Use,
    shape: Shape,
}

const fn field(path: &'static str, becomes: Use, shape: Shape) -> Known {
    Known { path, becomes, shape }
}

const COUNT: Shape = Shape::Number(0..=i32::MAX as i64);
const BIT: Shape = Shape::Number(0..=31);

/// All fields of `kubeproxy.config.k8s.io/v1alpha1`.
pub const FIELDS: [Known; 59] = {
    use Shape::{AnyNumber, Anything, Duration, Map, Networks, Number, Text, Texts, Truth, Truths};
    use Use::{Done, Granted, NoEffect};
    [
        field("apiVersion", Done, Text),
        field("kind", Done, Text),
        field("bindAddress", Done, Text),
        field("bindAddressHardFail", Done, Truth),
        field("clientConnection.acceptContentTypes", NoEffect, Text),
        field("clientConnection.burst", Done, COUNT),
        field("clientConnection.contentType", NoEffect, Text),
        field("clientConnection.kubeconfig", Done, Text),
        field("clientConnection.qps", Done, AnyNumber),
        field("clusterCIDR", Done, Text),
        field("configSyncPeriod", NoEffect, Duration),
        field("conntrack.maxPerCore", NoEffect, COUNT),
        field("conntrack.min", NoEffect, COUNT),
        field("conntrack.tcpBeLiberal", NoEffect, Truth),
        field("conntrack.tcpCloseWaitTimeout", NoEffect, Duration),
        field("conntrack.tcpEstablishedTimeout", NoEffect, Duration),
        field("conntrack.udpStreamTimeout", NoEffect, Duration),
        field("conntrack.udpTimeout", NoEffect, Duration),
        field("detectLocal.bridgeInterface", Done, Text),
        field("detectLocal.interfaceNamePrefix", Done, Text),
        field("detectLocalMode", Done, Text),
        field("enableProfiling", NoEffect, Truth),
        field("featureGates", Done, Truths),
        field("healthzBindAddress", Done, Text),
        field("hostnameOverride", Done, Text),
        field(LOCALHOST_NODE_PORTS, Done, Truth),
        field("iptables.masqueradeAll", Done, Truth),
        field("iptables.masqueradeBit", NoEffect, BIT),
        field("iptables.minSyncPeriod", NoEffect, Duration),
        field("iptables.syncPeriod", NoEffect, Duration),
        field("ipvs.excludeCIDRs", Granted, Networks),
        field("ipvs.minSyncPeriod", NoEffect, Duration),
        field("ipvs.scheduler", Done, Text),
        field("ipvs.strictARP", Granted, Truth),
        field("ipvs.syncPeriod", NoEffect, Duration),
        field("ipvs.tcpFinTimeout", Done, Duration),
        field("ipvs.tcpTimeout", Done, Duration),
        field("ipvs.udpTimeout", Done, Duration),
        field("logging.flushFrequency", NoEffect, Anything),
        field("logging.format", NoEffect, Text),
        field("logging.options", NoEffect, Map),
        field("logging.verbosity", NoEffect, COUNT),
        field("logging.vmodule", NoEffect, Anything),
        field("metricsBindAddress", Done, Text),
        field("mode", Done, Text),
        field("nftables.masqueradeAll", Done, Truth),
        field("nftables.masqueradeBit", NoEffect, BIT),
        field("nftables.minSyncPeriod", NoEffect, Duration),
        field("nftables.syncPeriod", NoEffect, Duration),
        field("nodePortAddresses", Done, Texts),
        field("oomScoreAdj", Done, Number(-1000..=1000)),
        field("portRange", Granted, Text),
        field("showHiddenMetricsForVersion", NoEffect, Text),
        field("windowsRunAsService", Granted, Truth),
        field("winkernel.enableDSR", Granted, Truth),
        field("winkernel.forwardHealthCheckVip", Granted, Truth),
        field("winkernel.networkName", Granted, Text),
        field("winkernel.rootHnsEndpointName", Granted, Text),
        field("winkernel.sourceVip", Granted, Text),
    ]
};

/// Of mode iptables alone.
const LOCALHOST_NODE_PORTS: &str = "iptables.localhostNodePorts";

/// The section of a field, and its name in it.
fn split(path: &str) -> (&str, Option<&str>) {
    path.split_once('.').map_or((path, None), |(section, name)| (section, Some(name)))
}

/// Calls with the field at a path.
pub(super) fn at<R>(root: &Field<'_>, path: &str, look: impl FnOnce(&Field<'_>) -> R) -> R {
    let (section, name) = split(path);
    let section = root.key(section);
    match name {
        Some(name) => look(&section.key(name)),
        None => look(&section),
    }
}

/// What is at a path, if anything is.
pub(super) fn value_at<'a>(tree: &'a Tree, path: &str) -> Option<&'a Value> {
    let (section, name) = split(path);
    let section = tree.get(section)?;
    name.map_or(Some(section), |name| section.get(name)).map(|tree| &tree.value)
}

/// Notes every value that has not its field's shape.
pub(super) fn check_shapes(root: &Field<'_>, report: &mut Report<'_>) {
    let mut sections: Vec<&str> =
        FIELDS.iter().filter(|known| known.path.contains('.')).map(|k| split(k.path).0).collect();
    sections.dedup();
    for section in sections {
        // What is no map has none of its fields.
        let _noted = root.key(section).fields(report);
    }
    for known in &FIELDS {
        at(root, known.path, |field| known.shape.check(field, report));
    }
}

impl Shape {
    fn check(&self, field: &Field<'_>, report: &mut Report<'_>) {
        let wrong = match (self, field.value()) {
            (_, None | Some(Value::Null))
            | (Self::Text, Some(Value::Text(_)))
            | (Self::Truth, Some(Value::Bool(_)))
            | (Self::AnyNumber, Some(Value::Integer(_) | Value::Float(_)))
            | (Self::Map, Some(Value::Map(_)))
            | (Self::Anything, Some(_)) => return,
            (Self::Number(range), Some(Value::Integer(number))) if range.contains(number) => return,
            (Self::Duration, Some(Value::Text(text))) if duration::parse(text).is_some_and(|time| time >= 0) => return,
            (Self::Texts, Some(Value::List(_))) => return check_texts(field, report, |_| true, "must be text"),
            (Self::Networks, Some(Value::List(_))) => {
                return check_texts(field, report, |text| parse_network(text).is_some(), NETWORK_ALLOWED);
            }
            (Self::Truths, Some(Value::Map(gates))) => {
                for (name, _) in gates {
                    let _noted = field.key(name).truth(report);
                }
                return;
            }
            (Self::Text, _) => "must be text",
            (Self::Truth, _) => "must be true or false",
            (Self::AnyNumber, _) => "must be a number",
            (Self::Number(range), _) => {
                return report.wrong(field, format!("must be a number from {} to {}", range.start(), range.end()));
            }
            (Self::Duration, _) => return report.wrong(field, format!("{}, not negative", duration::ALLOWED)),
            (Self::Texts, _) => "must be a list of texts",
            (Self::Networks, _) => "must be a list of networks",
            (Self::Map | Self::Truths, _) => "must be a map",
        };
        report.wrong(field, wrong);
    }
}

fn check_texts(list: &Field<'_>, report: &mut Report<'_>, right: impl Fn(&str) -> bool, allowed: &str) {
    let Ok(items) = list.items(report) else { return };
    for item in items {
        match item.text(report, allowed) {
            Ok(Some(text)) if right(text) => {}
            Err(Noted) => {}
            Ok(_) => report.wrong(&item, allowed),
        }
    }
}

/// A problem for each field that nobody knows. It is as kube-proxy's: told of, and no more.
pub(super) fn unknown(root: &Field<'_>, report: &mut Report<'_>) {
    for name in keys(root) {
        let section = root.key(name);
        if FIELDS.iter().any(|known| known.path == name) {
            continue;
        }
        if !FIELDS.iter().any(|known| split(known.path).0 == name) {
            report.wrong_part(&section, String::new(), unknown_message(name));
            continue;
        }
        for inner in keys(&section) {
            let path = format!("{name}.{inner}");
            if !FIELDS.iter().any(|known| known.path == path) {
                report.wrong_part(&section.key(inner), String::new(), unknown_message(&path));
            }
        }
    }
}

fn keys<'a>(field: &Field<'a>) -> impl Iterator<Item = &'a str> + use<'a> {
    let entries: &[(Box<str>, Tree)] = match field.value() {
        Some(Value::Map(entries)) => entries,
        _ => &[],
    };
    entries.iter().map(|(key, _)| &**key)
}

/// A field of the wrong case, or in the wrong section, is the usual mistake.
fn unknown_message(path: &str) -> String {
    let name = |path: &str| path.rsplit('.').next().unwrap_or(path).to_lowercase();
    match FIELDS.iter().find(|known| name(known.path) == name(path)) {
        Some(known) => format!("unknown field, ignored: is {} meant?", known.path),
        None => "unknown field, ignored".to_owned(),
    }
}

/// The fields that ask for something and have no effect, in the order of [`FIELDS`].
pub(super) fn without_effect(tree: &Tree, mode: Mode) -> Vec<String> {
    let mut names = Vec::new();
    for known in &FIELDS {
        let asks = value_at(tree, known.path).is_some_and(asks_for_something);
        let other_mode = is_of_other_mode(known.path, mode);
        if !asks || known.becomes == Use::Granted || (known.becomes == Use::Done && !other_mode) {
            continue;
        }
        names.push(if known.becomes == Use::Done {
            format!("{} (the mode is {})", known.path, mode.name())
        } else {
            known.path.to_owned()
        });
    }
    if let Some(Value::Map(gates)) = value_at(tree, "featureGates") {
        let others = gates.iter().filter(|(name, _)| **name != *super::values::EXTERNAL_ADDRESSES_GATE);
        names.extend(others.map(|(name, _)| format!("featureGates.{name}")));
    }
    names
}

/// True for the sections of modes that are not this one. Mode ipvs takes what it shares with iptables from there (CL-3).
fn is_of_other_mode(path: &str, mode: Mode) -> bool {
    if path == LOCALHOST_NODE_PORTS {
        return mode != Mode::Iptables;
    }
    let (section, _) = split(path);
    let of = Mode::ALL.into_iter().find(|other| other.name() == section);
    of.is_some_and(|of| of != mode && !(of == Mode::Iptables && mode == Mode::Ipvs))
}

/// False for what a file states that says nothing: kubeadm writes every field, most of them so.
fn asks_for_something(value: &Value) -> bool {
    match value {
        Value::Null => false,
        Value::Bool(truth) => *truth,
        Value::Integer(number) => *number != 0,
        Value::Float(number) => *number != 0.0,
        // `text` is the one format of logs there is.
        Value::Text(text) => !matches!(&**text, "" | "text") && duration::parse(text) != Some(0),
        Value::List(items) => items.iter().any(|item| asks_for_something(&item.value)),
        Value::Map(entries) => entries.iter().any(|(_, entry)| asks_for_something(&entry.value)),
    }
}
