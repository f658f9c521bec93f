//! From the fields that count to settings. Every value that is wrong is noted with what is allowed.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;

use super::fields::{at, value_at, without_effect};
use super::values::{self, DetectLocalMode, EXTERNAL_ADDRESSES_GATE, Local, Mode};
use super::{HEALTHZ_PORT, METRICS_PORT, OOM_SCORE_ADJUST, Settings, duration, node_address};
use crate::agent::TimeoutChange;
use crate::model::field::{Field, Report};
use crate::model::problem::shown;
use crate::model::tree::{Tree, Value};
use crate::plan::{Detector, NodePortAddresses, Options};
use crate::source::api::RequestLimit;

/// Field of the bridge that pods are behind.
const BRIDGE: &str = "detectLocal.bridgeInterface";
/// Field of how their interfaces' names begin.
const PREFIX: &str = "detectLocal.interfaceNamePrefix";

/// The settings, with defaults where nothing is stated. They count for nothing if the report has a problem.
pub(super) fn read(tree: &Tree, report: &mut Report<'_>) -> Settings {
    let mut reader = Reader { tree, report };
    let mode = reader.value("mode", Mode::parse).unwrap_or_default();
    let bind_address = reader.value("bindAddress", values::address).unwrap_or(Ipv4Addr::UNSPECIFIED.into());
    let (any, loopback): (IpAddr, IpAddr) = match bind_address {
        IpAddr::V4(_) => (Ipv4Addr::UNSPECIFIED.into(), Ipv4Addr::LOCALHOST.into()),
        IpAddr::V6(_) => (Ipv6Addr::UNSPECIFIED.into(), Ipv6Addr::LOCALHOST.into()),
    };
    reader.check_periods(mode);
    let ipvs = mode == Mode::Ipvs;
    let scheduler = reader.value("ipvs.scheduler", values::scheduler);
    let mut timeout = |path| reader.value(path, values::timeout).filter(|_| ipvs).unwrap_or(0);
    let timeouts = TimeoutChange {
        tcp: timeout("ipvs.tcpTimeout"),
        tcp_fin: timeout("ipvs.tcpFinTimeout"),
        udp: timeout("ipvs.udpTimeout"),
    };
    Settings {
        node_name: reader.text("hostnameOverride").map(str::to_owned),
        kubeconfig: reader.text("clientConnection.kubeconfig").map(PathBuf::from),
        api_limit: reader.api_limit(),
        scheduler: ipvs.then(|| scheduler.unwrap_or(lb_common::scheduler::Scheduler::RoundRobin)),
        timeouts,
        services: reader.services(mode, bind_address),
        healthz: reader.listen("healthzBindAddress", SocketAddr::new(any, HEALTHZ_PORT)),
        metrics: reader.listen("metricsBindAddress", SocketAddr::new(loopback, METRICS_PORT)),
        bind_hard_fail: reader.truth("bindAddressHardFail"),
        oom_score_adjust: reader.oom_score_adjust(),
        without_effect: without_effect(tree, mode),
    }
}

struct Reader<'a, 'r, 'o> {
    tree: &'a Tree,
    report: &'r mut Report<'o>,
}

impl<'a> Reader<'a, '_, '_> {
    /// A text that says something. One of another shape has been noted.
    fn text(&self, path: &str) -> Option<&'a str> {
        // Null and "" both say that nothing is stated.
        match value_at(self.tree, path)? {
            Value::Text(text) if !text.is_empty() => Some(text),
            _ => None,
        }
    }

    fn truth(&self, path: &str) -> bool {
        value_at(self.tree, path) == Some(&Value::Bool(true))
    }

    /// A value whose shape is wrong has been noted already.
    fn wrong(&mut self, path: &str, message: String) {
        if self.report.problems.iter().all(|problem| problem.field != path) {
            at(&Field::root(self.tree), path, |field| self.report.wrong(field, message));
        }
    }

    /// A text that says something, read; what cannot be is noted.
    fn value<T>(&mut self, path: &str, read: impl FnOnce(&str) -> Result<T, String>) -> Option<T> {
        match read(self.text(path)?) {
            Ok(value) => Some(value),
            Err(message) => {
                self.wrong(path, message);
                None
            }
        }
    }

    fn listen(&mut self, path: &str, default: SocketAddr) -> SocketAddr {
        self.value(path, |text| values::listen(text, default.port())).unwrap_or(default)
    }

    fn api_limit(&self) -> RequestLimit {
        let per_second = match value_at(self.tree, "clientConnection.qps") {
            Some(Value::Integer(number)) => Some(*number as f64),
            Some(Value::Float(number)) => Some(*number),
            _ => None,
        };
        let burst = match value_at(self.tree, "clientConnection.burst") {
            Some(Value::Integer(number)) => u32::try_from(*number).ok(),
            _ => None,
        };
        RequestLimit::stated(per_second, burst)
    }

    fn oom_score_adjust(&self) -> i32 {
        match value_at(self.tree, "oomScoreAdj") {
            Some(Value::Integer(number)) => i32::try_from(*number).unwrap_or(OOM_SCORE_ADJUST),
            _ => OOM_SCORE_ADJUST,
        }
    }

    fn services(&mut self, mode: Mode, bind_address: IpAddr) -> Options {
        let detect = self.value("detectLocalMode", DetectLocalMode::parse).unwrap_or_default();
        let networks = self.value("clusterCIDR", values::cluster_networks).unwrap_or_default();
        let text = |path| self.text(path).map(str::to_owned);
        let (bridge, prefix) = (text(BRIDGE), text(PREFIX));
        let detector = values::detector(detect, Local { networks, bridge, prefix }).unwrap_or_else(|mode| {
            let path = if mode == DetectLocalMode::BridgeInterface { BRIDGE } else { PREFIX };
            self.wrong(path, "must say which interfaces pods are behind, as detectLocalMode asks for it".to_owned());
            Detector::default()
        });
        let masquerade_all = match mode {
            Mode::Iptables | Mode::Ipvs => self.truth("iptables.masqueradeAll"),
            Mode::Nftables => self.truth("nftables.masqueradeAll"),
        };
        Options {
            detector,
            masquerade_all,
            node_port_addresses: self.node_port_addresses(mode),
            localhost_node_ports: values::localhost_node_ports(mode, self.truth("iptables.localhostNodePorts")),
            node_address: node_address(bind_address),
            external_addresses: self.gate(EXTERNAL_ADDRESSES_GATE).unwrap_or(true),
            ..Options::default()
        }
    }

    fn gate(&self, name: &str) -> Option<bool> {
        match value_at(self.tree, &format!("featureGates.{name}")) {
            Some(Value::Bool(on)) => Some(*on),
            _ => None,
        }
    }

    fn node_port_addresses(&mut self, mode: Mode) -> NodePortAddresses {
        const PATH: &str = "nodePortAddresses";
        let items = match value_at(self.tree, PATH) {
            Some(Value::List(items)) => items.as_slice(),
            _ => &[],
        };
        let texts = items.iter().filter_map(|item| match &item.value {
            Value::Text(text) => Some(&**text),
            _ => None,
        });
        let texts: Vec<&str> = texts.collect();
        values::node_port_addresses_in(mode, &texts).unwrap_or_else(|message| {
            self.report.wrong_part(&Field::root(self.tree).key(PATH), shown(&texts.join(", ")), message);
            NodePortAddresses::default()
        })
    }

    /// What the section of this mode says of the time between two changes: no effect here, but kube-proxy refuses it.
    fn check_periods(&mut self, mode: Mode) {
        // Nanoseconds; 0 and what is no duration stand for the default.
        let stated = |path: &str| self.text(path).and_then(duration::parse).filter(|time| *time > 0);
        const SECOND: i64 = 1_000_000_000;
        let section = mode.name();
        let shortest = format!("{section}.minSyncPeriod");
        let default = if mode == Mode::Ipvs { 0 } else { SECOND };
        let (longest, least) =
            (stated(&format!("{section}.syncPeriod")).unwrap_or(30 * SECOND), stated(&shortest).unwrap_or(default));
        if least > longest {
            self.wrong(
                &shortest,
                format!("must not be more than {section}.syncPeriod, which is 30s unless it is stated"),
            );
        }
    }
}
