//! Settings as the file that says them: for `/configz` and `--write-config-to`.

use std::net::{IpAddr, Ipv4Addr};

use ipnet::IpNet;
use serde_json::{Value, json};

use super::file::{API_VERSION, KIND};
use super::values::EXTERNAL_ADDRESSES_GATE;
use super::{Settings, duration};
use crate::plan::{Detector, NodePortAddresses, PodInterfaces};

/// The fields that count here, each with the value that it has. In mode ipvs, as which bpvs schedules, and what another mode
/// would have without a word is said in words; but in mode iptables where that alone has what is asked for.
pub fn document(settings: &Settings) -> Value {
    let Settings { services, timeouts, .. } = settings;
    let (mode, networks) = match &services.detector {
        Detector::ClusterNetworks(networks) => ("ClusterCIDR", texts(networks).join(",")),
        Detector::NodeNetworks => ("NodeCIDR", String::new()),
        Detector::Interfaces(PodInterfaces::Named(_)) => ("BridgeInterface", String::new()),
        Detector::Interfaces(PodInterfaces::Prefixed(_)) => ("InterfaceNamePrefix", String::new()),
    };
    let (bridge, prefix) = match &services.detector {
        Detector::Interfaces(PodInterfaces::Named(name)) => (name.as_str(), ""),
        Detector::Interfaces(PodInterfaces::Prefixed(prefix)) => ("", prefix.as_str()),
        _ => ("", ""),
    };
    let node_port_addresses = match &services.node_port_addresses {
        NodePortAddresses::Networks(networks) => texts(networks),
        NodePortAddresses::Primary => vec!["primary".to_owned()],
    };
    let kubeconfig = settings.kubeconfig.as_ref().map(|path| path.display().to_string());
    json!({
        "apiVersion": API_VERSION,
        "kind": KIND,
        "bindAddress": services.node_address.unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED)),
        "bindAddressHardFail": settings.bind_hard_fail,
        "clientConnection": {
            "burst": settings.api_limit.burst,
            "kubeconfig": kubeconfig.unwrap_or_default(),
            "qps": settings.api_limit.per_second(),
        },
        "clusterCIDR": networks,
        "detectLocal": {"bridgeInterface": bridge, "interfaceNamePrefix": prefix},
        "detectLocalMode": mode,
        "featureGates": {EXTERNAL_ADDRESSES_GATE: services.external_addresses},
        "healthzBindAddress": settings.healthz,
        "hostnameOverride": settings.node_name.as_deref().unwrap_or_default(),
        "iptables": {
            "localhostNodePorts": services.localhost_node_ports,
            "masqueradeAll": services.masquerade_all,
        },
        "ipvs": {
            "scheduler": settings.scheduler.map_or("", |scheduler| scheduler.name()),
            "tcpFinTimeout": duration::text(timeouts.tcp_fin),
            "tcpTimeout": duration::text(timeouts.tcp),
            "udpTimeout": duration::text(timeouts.udp),
        },
        "metricsBindAddress": settings.metrics,
        "mode": if services.localhost_node_ports { "iptables" } else { "ipvs" },
        "nodePortAddresses": node_port_addresses,
        "oomScoreAdj": settings.oom_score_adjust,
    })
}

fn texts(networks: &[IpNet]) -> Vec<String> {
    networks.iter().map(IpNet::to_string).collect()
}

#[cfg(test)]
mod tests {
    use lb_common::scheduler::Scheduler;

    use super::super::file::parse;
    use super::*;
    use crate::agent::TimeoutChange;
    use crate::plan::Options;
    use crate::source::api::RequestLimit;

    #[test]
    fn what_is_written_is_read_as_the_same_settings() {
        let network = |text: &str| text.parse::<IpNet>().unwrap();
        let least = Settings {
            node_name: None,
            kubeconfig: None,
            api_limit: RequestLimit::default(),
            scheduler: Some(Scheduler::RoundRobin),
            timeouts: TimeoutChange::default(),
            services: Options::default(),
            healthz: "0.0.0.0:10256".parse().unwrap(),
            metrics: "127.0.0.1:10249".parse().unwrap(),
            bind_hard_fail: false,
            oom_score_adjust: 0,
            without_effect: Vec::new(),
        };
        let most = Settings {
            node_name: Some("n0".to_owned()),
            kubeconfig: Some("/etc/a: b#c".into()),
            api_limit: RequestLimit { per_thousand_seconds: 2_500, burst: 7 },
            scheduler: Some(Scheduler::Maglev),
            timeouts: TimeoutChange { tcp: 5_400_010, tcp_fin: 10, udp: 300_000 },
            services: Options {
                detector: Detector::ClusterNetworks(vec![network("10.244.0.0/16"), network("fd00:244::/56")]),
                masquerade_all: true,
                node_port_addresses: NodePortAddresses::Primary,
                node_address: Some("2001:db8::1".parse().unwrap()),
                external_addresses: false,
                ..Options::default()
            },
            healthz: "[::]:9".parse().unwrap(),
            metrics: "[::1]:99".parse().unwrap(),
            bind_hard_fail: true,
            oom_score_adjust: -7,
            without_effect: Vec::new(),
        };
        let networks = NodePortAddresses::Networks(vec![network("192.0.2.0/24"), network("2001:db8::/32")]);
        let of_node = Settings {
            services: Options { detector: Detector::NodeNetworks, node_port_addresses: networks, ..Options::default() },
            ..least.clone()
        };
        let localhost = Settings {
            scheduler: None,
            services: Options { localhost_node_ports: true, ..Options::default() },
            ..least.clone()
        };
        let by_interface = |interfaces| Settings {
            services: Options { detector: Detector::Interfaces(interfaces), ..Options::default() },
            ..least.clone()
        };
        let bridge = by_interface(PodInterfaces::Named("cni0".to_owned()));
        let prefix = by_interface(PodInterfaces::Prefixed("cali".to_owned()));
        for settings in [least, most, of_node, localhost, bridge, prefix] {
            let document = document(&settings);
            for text in [document.to_string(), serde_saphyr::to_string(&document).unwrap()] {
                let (read, warnings) =
                    parse(&"written".into(), text.as_bytes()).unwrap_or_else(|e| panic!("{e}: {text}"));
                assert_eq!(warnings, [], "{text}");
                // Said, as kube-proxy's defaults have it, of what nobody asked for.
                assert_eq!(Settings { without_effect: Vec::new(), ..read }, settings, "{text}");
            }
        }
    }
}
