//! Files and what they come to.

use proptest::prelude::*;

use super::fields::FIELDS;
use super::file::{Unusable, parse};
use super::*;
use crate::plan::{Detector, NodePortAddresses, PodInterfaces};
use crate::source::api::RequestLimit;

const KUBEADM: &str = include_str!("../../tests/data/kubeadm-config.conf");
const HEAD: &str = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n";

fn bytes(bytes: &[u8]) -> Result<(Settings, Vec<String>), String> {
    let read = parse(&"config.conf".into(), bytes).map_err(|error: Unusable| error.to_string());
    read.map(|(settings, warnings)| (settings, warnings.iter().map(ToString::to_string).collect()))
}

/// A file with these lines below its kind, without warnings.
#[track_caller]
fn settings(lines: &str) -> Settings {
    let (settings, warnings) = bytes(format!("{HEAD}{lines}\n").as_bytes()).unwrap();
    assert_eq!(warnings, [""; 0], "{lines}");
    settings
}

fn error(lines: &str) -> String {
    bytes(format!("{HEAD}{lines}\n").as_bytes()).expect_err(lines)
}

fn defaults() -> Settings {
    Settings {
        node_name: None,
        kubeconfig: None,
        api_limit: RequestLimit::default(),
        scheduler: None,
        timeouts: TimeoutChange::default(),
        services: Options::default(),
        healthz: "0.0.0.0:10256".parse().unwrap(),
        metrics: "127.0.0.1:10249".parse().unwrap(),
        bind_hard_fail: false,
        oom_score_adjust: -999,
        without_effect: Vec::new(),
    }
}

#[test]
fn a_file_as_kubeadm_writes_it_is_taken_whole() {
    let (settings, warnings) = bytes(KUBEADM.as_bytes()).unwrap();
    assert_eq!(warnings, [""; 0]);
    let pods = Detector::ClusterNetworks(vec!["10.244.0.0/16".parse().unwrap()]);
    let expected = Settings {
        kubeconfig: Some("/var/lib/kube-proxy/kubeconfig.conf".into()),
        scheduler: Some(Scheduler::WeightedLeastConnection),
        services: Options { detector: pods, ..Options::default() },
        ..defaults()
    };
    assert_eq!(settings, expected);
    for known in FIELDS.iter().filter(|known| known.path != "windowsRunAsService" && known.path != "logging.vmodule") {
        let name = known.path.rsplit('.').next().unwrap();
        let written = name == "format" || KUBEADM.lines().any(|line| line.trim().starts_with(&format!("{name}:")));
        assert!(written, "{} is not in the file of the test", known.path);
    }
}

#[test]
fn the_least_that_is_a_file_has_kube_proxys_defaults() {
    assert_eq!(settings(""), defaults());
    let json = br#"{"kind": "KubeProxyConfiguration", "apiVersion": "kubeproxy.config.k8s.io/v1alpha1", "mode": ""}"#;
    assert_eq!(bytes(json).unwrap().0, defaults());
    let marked = format!("\u{feff}---\n# ours\n{HEAD}...\n");
    assert_eq!(bytes(marked.as_bytes()).unwrap().0, defaults());
    let nulls: String = FIELDS[2..]
        .iter()
        .filter(|known| !known.path.contains('.'))
        .map(|known| format!("{}: null\n", known.path))
        .collect();
    assert_eq!(settings(&format!("{nulls}ipvs: null\nconntrack: {{}}")), defaults());
}

#[test]
fn every_field_that_counts_comes_to_something() {
    let with = |change: &dyn Fn(&mut Settings)| {
        let mut settings = defaults();
        change(&mut settings);
        settings
    };
    let networks = |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect::<Vec<_>>();
    let ipvs = |settings: &mut Settings| settings.scheduler = Some(Scheduler::RoundRobin);
    for (lines, expected) in [
        ("hostnameOverride: Node-A", with(&|s| s.node_name = Some("Node-A".to_owned()))),
        ("clientConnection: {qps: 0, burst: 0}", defaults()),
        (
            "clientConnection: {qps: 2.5, burst: 7}",
            with(&|s| s.api_limit = RequestLimit { per_thousand_seconds: 2_500, burst: 7 }),
        ),
        ("clientConnection: {qps: -1}", with(&|s| s.api_limit.per_thousand_seconds = 0)),
        ("clientConnection: {kubeconfig: /etc/k}", with(&|s| s.kubeconfig = Some("/etc/k".into()))),
        ("mode: iptables", defaults()),
        ("mode: ipvs", with(&ipvs)),
        ("mode: ipvs\nipvs: {scheduler: ''}", with(&ipvs)),
        ("mode: ipvs\nipvs: {scheduler: mh}", with(&|s| s.scheduler = Some(Scheduler::Maglev))),
        (
            "mode: ipvs\nipvs: {tcpTimeout: 1.5h, tcpFinTimeout: 0s, udpTimeout: 100ms}",
            with(&|s| {
                ipvs(s);
                s.timeouts = TimeoutChange { tcp: 5_400_000, tcp_fin: 0, udp: 100 };
            }),
        ),
        // CL-3: mode ipvs has no such field of its own.
        (
            "mode: ipvs\niptables: {masqueradeAll: true}",
            with(&|s| {
                ipvs(s);
                s.services.masquerade_all = true;
            }),
        ),
        ("iptables: {localhostNodePorts: true}", with(&|s| s.services.localhost_node_ports = true)),
        ("iptables: {localhostNodePorts: false}", defaults()),
        (
            "mode: ipvs\niptables: {localhostNodePorts: true}",
            with(&|s| {
                ipvs(s);
                s.without_effect = vec!["iptables.localhostNodePorts (the mode is ipvs)".to_owned()];
            }),
        ),
        ("iptables: {masqueradeAll: true}", with(&|s| s.services.masquerade_all = true)),
        (
            "mode: nftables\nnftables: {masqueradeAll: true}",
            with(&|s| {
                s.services.masquerade_all = true;
                s.services.node_port_addresses = NodePortAddresses::Primary;
            }),
        ),
        (
            "mode: nftables\nnodePortAddresses: [192.0.2.0/24]",
            with(&|s| s.services.node_port_addresses = NodePortAddresses::Networks(networks(&["192.0.2.0/24"]))),
        ),
        ("nodePortAddresses: [primary]", with(&|s| s.services.node_port_addresses = NodePortAddresses::Primary)),
        ("nodePortAddresses: []", defaults()),
        (
            "clusterCIDR: 10.244.0.0/16,fd00:244::/56",
            with(&|s| s.services.detector = Detector::ClusterNetworks(networks(&["10.244.0.0/16", "fd00:244::/56"]))),
        ),
        ("detectLocalMode: ClusterCIDR", defaults()),
        ("detectLocalMode: NodeCIDR", with(&|s| s.services.detector = Detector::NodeNetworks)),
        (
            "detectLocalMode: BridgeInterface\ndetectLocal: {bridgeInterface: cni0, interfaceNamePrefix: veth}",
            with(&|s| s.services.detector = Detector::Interfaces(PodInterfaces::Named("cni0".into()))),
        ),
        (
            "detectLocalMode: InterfaceNamePrefix\ndetectLocal: {bridgeInterface: cni0, interfaceNamePrefix: veth}",
            with(&|s| s.services.detector = Detector::Interfaces(PodInterfaces::Prefixed("veth".into()))),
        ),
        ("detectLocalMode: NodeCIDR\nclusterCIDR: 10.0.0.0/8", with(&|s| s.services.detector = Detector::NodeNetworks)),
        ("bindAddress: 192.0.2.7", with(&|s| s.services.node_address = Some("192.0.2.7".parse().unwrap()))),
        (
            "bindAddress: '::'",
            with(&|s| (s.healthz, s.metrics) = ("[::]:10256".parse().unwrap(), "[::1]:10249".parse().unwrap())),
        ),
        (
            "bindAddress: fd00::7\nhealthzBindAddress: 127.0.0.1\nmetricsBindAddress: 0.0.0.0:9",
            with(&|s| {
                (s.healthz, s.metrics) = ("127.0.0.1:10256".parse().unwrap(), "0.0.0.0:9".parse().unwrap());
                s.services.node_address = Some("fd00::7".parse().unwrap());
            }),
        ),
        ("bindAddressHardFail: true", with(&|s| s.bind_hard_fail = true)),
        ("oomScoreAdj: 0", with(&|s| s.oom_score_adjust = 0)),
        ("featureGates: {AllowServiceExternalIPs: false}", with(&|s| s.services.external_addresses = false)),
        ("featureGates: {AllowServiceExternalIPs: true}", defaults()),
        // It is so in any case, or is nobody's here.
        ("mode: ipvs\nipvs: {strictARP: true, excludeCIDRs: [10.0.0.0/8]}", with(&ipvs)),
        ("portRange: 1-2\nwindowsRunAsService: true\nwinkernel: {enableDSR: true, networkName: n}", defaults()),
    ] {
        assert_eq!(settings(lines), expected, "{lines}");
    }
}

#[test]
fn what_asks_for_something_and_has_no_effect_is_named() {
    let stated = "conntrack: {min: 131072, maxPerCore: 0, tcpEstablishedTimeout: 24h0m0s, tcpBeLiberal: false}\n\
                  iptables: {masqueradeBit: 14, syncPeriod: 30s, localhostNodePorts: true}\n\
                  logging: {format: text, verbosity: 2, options: {json: {infoBufferSize: '0'}}, vmodule: []}\n\
                  mode: nftables\nipvs: {scheduler: wlc, minSyncPeriod: 1s, udpTimeout: 0s}\n\
                  featureGates: {AllowServiceExternalIPs: true, Other: false}";
    assert_eq!(
        settings(stated).without_effect,
        [
            "conntrack.min",
            "conntrack.tcpEstablishedTimeout",
            "iptables.localhostNodePorts (the mode is nftables)",
            "iptables.masqueradeBit",
            "iptables.syncPeriod",
            "ipvs.minSyncPeriod",
            "ipvs.scheduler (the mode is nftables)",
            "logging.verbosity",
            "featureGates.Other",
        ]
    );
}

#[test]
fn fields_that_nobody_knows_are_told_of_with_their_line_and_change_nothing() {
    let lines =
        "mode: ipvs\nipvs:\n  scheduler: wlc\n  Scheduler: rr\nstrictARP: true\nudpIdleTimeout: 250ms\nclusterCidr: x";
    let (settings, warnings) = bytes(format!("{HEAD}{lines}\n").as_bytes()).unwrap();
    assert_eq!(settings.scheduler, Some(Scheduler::WeightedLeastConnection));
    assert_eq!(
        warnings,
        [
            "config.conf:6 (document 1): KubeProxyConfiguration: ipvs.Scheduler: unknown field, ignored: is ipvs.scheduler meant?",
            "config.conf:7 (document 1): KubeProxyConfiguration: strictARP: unknown field, ignored: is ipvs.strictARP meant?",
            "config.conf:8 (document 1): KubeProxyConfiguration: udpIdleTimeout: unknown field, ignored",
            "config.conf:9 (document 1): KubeProxyConfiguration: clusterCidr: unknown field, ignored: is clusterCIDR meant?",
        ]
    );
}

#[test]
fn wrong_values_are_named_with_their_line_and_what_is_allowed() {
    for (lines, expected) in [
        ("mode: IPVS", "mode: \"IPVS\": must be ipvs, iptables, nftables or empty"),
        ("mode: userspace", "mode: \"userspace\": kube-proxy itself has no such mode any more"),
        ("mode: [ipvs]", "mode: a list of 1: must be text"),
        (
            "mode: ipvs\nipvs: {scheduler: fastest}",
            "ipvs.scheduler: \"fastest\": no such scheduler: allowed are rr, wrr",
        ),
        ("ipvs: {scheduler: 7}", "ipvs.scheduler: 7: must be text"),
        ("ipvs: wlc", "ipvs: \"wlc\": must be a map of fields"),
        ("conntrack: []", "conntrack: a list of 0: must be a map of fields"),
        ("ipvs: {tcpTimeout: 900}", "ipvs.tcpTimeout: 900: must be a duration"),
        ("ipvs: {tcpTimeout: '900'}", "ipvs.tcpTimeout: \"900\": must be a duration"),
        ("ipvs: {udpTimeout: -1s}", "ipvs.udpTimeout: \"-1s\": must be a duration"),
        ("mode: ipvs\nipvs: {udpTimeout: 1ms}", "ipvs.udpTimeout: \"1ms\": must be from 10ms to 1000h, or 0"),
        ("ipvs: {syncPeriod: 1d}", "ipvs.syncPeriod: \"1d\": must be a duration, such as 30s"),
        ("configSyncPeriod: -15m", "configSyncPeriod: \"-15m\": must be a duration"),
        (
            "mode: ipvs\nipvs: {minSyncPeriod: 31s}",
            "ipvs.minSyncPeriod: \"31s\": must not be more than ipvs.syncPeriod",
        ),
        ("iptables: {syncPeriod: 2s, minSyncPeriod: 3s}", "iptables.minSyncPeriod: \"3s\": must not be more"),
        ("iptables: {syncPeriod: 500ms}", "iptables.minSyncPeriod: missing: must not be more"),
        ("ipvs: {strictARP: 'true'}", "ipvs.strictARP: \"true\": must be true or false"),
        ("ipvs: {excludeCIDRs: [10.0.0.0/8, 10.0.0.1]}", "ipvs.excludeCIDRs[1]: \"10.0.0.1\": must be a network"),
        ("ipvs: {excludeCIDRs: 10.0.0.0/8}", "ipvs.excludeCIDRs: \"10.0.0.0/8\": must be a list of networks"),
        ("iptables: {masqueradeBit: 32}", "iptables.masqueradeBit: 32: must be a number from 0 to 31"),
        ("nftables: {masqueradeBit: -1}", "nftables.masqueradeBit: -1: must be a number from 0 to 31"),
        ("clusterCIDR: 10.244.0.0", "clusterCIDR: \"10.244.0.0\": must be a network, such as"),
        ("clusterCIDR: '10.0.0.0/8,10.1.0.0/16'", "names two IPv4 networks"),
        ("detectLocalMode: Pods", "detectLocalMode: \"Pods\": must be ClusterCIDR, NodeCIDR, BridgeInterface"),
        (
            "detectLocalMode: BridgeInterface",
            "detectLocal.bridgeInterface: missing: must say which interfaces pods are",
        ),
        (
            "detectLocalMode: InterfaceNamePrefix\ndetectLocal: {interfaceNamePrefix: '', bridgeInterface: cni0}",
            "detectLocal.interfaceNamePrefix: \"\": must say which interfaces pods are behind",
        ),
        (
            "nodePortAddresses: [primary, 10.0.0.0/8]",
            "nodePortAddresses: \"primary, 10.0.0.0/8\": `primary` stands alone",
        ),
        ("nodePortAddresses: [eth0]", "must be a network, such as 203.0.113.0/24 or 2001:db8::/32, or `primary`"),
        ("nodePortAddresses: primary", "nodePortAddresses: \"primary\": must be a list of texts"),
        ("nodePortAddresses: [null]", "nodePortAddresses[0]: missing: must be text"),
        ("bindAddress: node-a", "bindAddress: \"node-a\": must be an address"),
        (
            "healthzBindAddress: '10256'",
            "healthzBindAddress: \"10256\": must be an address and a port, such as 0.0.0.0:10256",
        ),
        ("healthzBindAddress: 10256", "healthzBindAddress: 10256: must be text"),
        (
            "metricsBindAddress: localhost:10249",
            "metricsBindAddress: \"localhost:10249\": must be an address and a port",
        ),
        ("oomScoreAdj: -1001", "oomScoreAdj: -1001: must be a number from -1000 to 1000"),
        ("oomScoreAdj: 1.5", "oomScoreAdj: 1.5: must be a number from -1000 to 1000"),
        ("conntrack: {min: 99999999999999999999}", ": must be a number from 0 to 2147483647"),
        ("featureGates: {A: maybe}", "featureGates.A: \"maybe\": must be true or false"),
        ("featureGates: [A]", "featureGates: a list of 1: must be a map"),
        ("clientConnection: {qps: fast}", "clientConnection.qps: \"fast\": must be a number"),
        ("hostnameOverride: 7", "hostnameOverride: 7: must be text"),
        ("apiVersion: x", "config.conf:3 (document 1): KubeProxyConfiguration: cannot be read: "),
    ] {
        let error = error(lines);
        assert!(error.contains(expected), "{lines}: {error}");
        assert!(error.starts_with("config.conf:"), "{error}");
    }
    let once = error("ipvs: {tcpTimeout: x}");
    assert_eq!(once.matches("tcpTimeout").count(), 1, "{once}");
    let all = error("mode: x\nclusterCIDR: y\nipvs: {syncPeriod: z}");
    for (line, field) in [(3, "mode"), (4, "clusterCIDR"), (5, "ipvs.syncPeriod")] {
        assert!(all.contains(&format!("config.conf:{line} (document 1): KubeProxyConfiguration: {field}: ")), "{all}");
    }
}

#[test]
fn what_is_no_such_file_is_refused() {
    let others = "apiVersion: kubeadm.k8s.io/v1beta4\nkind: ClusterConfiguration\n";
    for (text, expected) in [
        ("", "config.conf:1 (document 1): KubeProxyConfiguration: is empty: must be a KubeProxyConfiguration"),
        ("# nothing\n---\n", "is empty"),
        ("mode: ipvs\n", "apiVersion: missing: must be kubeproxy.config.k8s.io/v1alpha1"),
        (
            "kind: KubeProxyConfiguration\napiVersion: v1\n",
            "apiVersion: \"v1\": must be kubeproxy.config.k8s.io/v1alpha1",
        ),
        (others, "kind: \"ClusterConfiguration\": must be KubeProxyConfiguration"),
        (&format!("{HEAD}---\n{others}"), "config.conf:3 (document 1): KubeProxyConfiguration: a second document"),
        ("[]", "a list of 0: must be a KubeProxyConfiguration"),
        ("mode", "\"mode\": must be a KubeProxyConfiguration"),
        (&format!("{HEAD}mode: 'ipvs\n"), "cannot be read: "),
        (&format!("{HEAD}ipvs: {}\n", "[".repeat(100_000)), "cannot be read: "),
    ] {
        let error = bytes(text.as_bytes()).unwrap_err();
        assert!(error.contains(expected), "{text:.60}: {error:.200}");
        assert!(error.len() < 1000 && !error.contains('\n'), "{error}");
    }
    let no_text = bytes(b"kind: x\nmode: \xff\n").unwrap_err();
    assert!(no_text.starts_with("config.conf:2 ") && no_text.contains("is no UTF-8 text"), "{no_text}");
    let large = format!("{HEAD}{}", "#\n".repeat(1 << 20));
    assert!(bytes(large.as_bytes()).unwrap_err().contains("is larger than 1024 KiB"));
    let error = file::read("/nowhere/config.conf".as_ref()).unwrap_err().to_string();
    assert!(error.starts_with("/nowhere/config.conf: KubeProxyConfiguration: cannot be read: No such file"), "{error}");
}

#[test]
fn every_field_is_documented_with_what_becomes_of_it() {
    let document = include_str!("../../../docs/configuration.md");
    for known in &FIELDS {
        let row = document.lines().find(|line| line.starts_with(&format!("| `{}` |", known.path)));
        let row = row.unwrap_or_else(|| panic!("docs/configuration.md has no row for `{}`", known.path));
        let expected = match known.becomes {
            fields::Use::Done => "| done |",
            fields::Use::Granted => "| granted |",
            fields::Use::NoEffect => "| no effect |",
        };
        assert!(row.contains(expected), "{row}");
    }
}

/// One of the values that a field may meet, right or wrong.
fn value() -> impl Strategy<Value = String> {
    const TEXTS: [&str; 14] = [
        "null",
        "''",
        "true",
        "0",
        "-1",
        "1.5",
        "1e999",
        "0s",
        "1m0s",
        "ipvs",
        "[]",
        "{}",
        "[a, {b: c}]",
        "10.0.0.0/8",
    ];
    prop_oneof![
        proptest::sample::select(&TEXTS[..]).prop_map(str::to_owned),
        "[0-9a-zA-Z./:,*&!%@#' -]{0,20}",
        "\\PC{0,20}".prop_map(|text| format!("{text:?}")),
    ]
}

proptest! {
    #[test]
    fn any_bytes_are_a_file_or_a_short_error(text in proptest::collection::vec(any::<u8>(), 0..200)) {
        if let Err(error) = bytes(&text) {
            prop_assert!(error.starts_with("config.conf:") && error.len() < 1000, "{error}");
        }
    }

    #[test]
    fn any_values_are_settings_or_errors_that_name_the_file(stated in proptest::collection::vec((0..FIELDS.len(), value()), 0..6)) {
        let lines = stated.iter().map(|(index, value)| match FIELDS[*index].path.split_once('.') {
            Some((section, name)) => format!("{section}: {{{name}: {value}}}\n"),
            None => format!("{}: {value}\n", FIELDS[*index].path),
        });
        let text = lines.fold(HEAD.to_owned(), |text, line| text + &line);
        if let Err(error) = bytes(text.as_bytes()) {
            prop_assert!(error.starts_with("config.conf:") && !error.contains('\n'), "{error}");
        }
    }
}
