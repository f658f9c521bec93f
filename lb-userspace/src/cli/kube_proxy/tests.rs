//! kube-proxy's flags, and its file beside them.

use clap::Parser;

use super::flags::{FLAGS, Role};
use super::*;
use crate::cli::run::RunArgs;
use crate::plan::{Detector, NodePortAddresses};
use crate::source::api::RequestLimit;

#[derive(Debug, Parser)]
struct Wrapper {
    #[command(flatten)]
    run: RunArgs,
}

fn arguments(arguments: &[&str]) -> Result<KubeProxyArgs, String> {
    let wrapper = Wrapper::try_parse_from(["run"].iter().chain(arguments));
    wrapper.map(|wrapper| wrapper.run.kube_proxy).map_err(|error| error.to_string())
}

/// What is stated, with an API server.
fn stated(given: &[&str]) -> Result<Stated, String> {
    let given: Vec<&str> = given.iter().copied().chain(["--kubeconfig", "k"]).collect();
    arguments(&given)?.stated(false).map_err(|error| format!("{error:#}"))
}

/// A file with these lines below its kind.
fn file(lines: &str) -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new().unwrap();
    let head = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n";
    std::fs::write(file.path(), format!("{head}{lines}\n")).unwrap();
    file
}

#[test]
fn flags_come_to_what_the_same_fields_of_the_file_come_to() {
    for (flags, lines) in [
        (&[] as &[&str], ""),
        (&["--proxy-mode=iptables", "--v=2", "-v", "4"], "mode: iptables"),
        (&["--proxy-mode=ipvs", "--ipvs-scheduler=wlc"], "mode: ipvs\nipvs: {scheduler: wlc}"),
        (&["--proxy-mode=ipvs", "--ipvs-scheduler="], "mode: ipvs"),
        (&["--proxy-mode=nftables", "--ipvs-scheduler=wlc"], "mode: nftables\nipvs: {scheduler: wlc}"),
        (
            &[
                "--proxy-mode",
                "ipvs",
                "--ipvs-scheduler",
                "mh",
                "--ipvs-tcp-timeout",
                "15m0s",
                "--ipvs-udp-timeout=0.5h",
            ],
            "mode: ipvs\nipvs: {scheduler: mh, tcpTimeout: 15m, udpTimeout: 30m}",
        ),
        (&["--proxy-mode=iptables", "--ipvs-tcpfin-timeout=2m"], "ipvs: {tcpFinTimeout: 2m}"),
        (
            &["--masquerade-all", "--cluster-cidr=10.0.0.0/8"],
            "iptables: {masqueradeAll: true}\nclusterCIDR: 10.0.0.0/8",
        ),
        (&["--iptables-localhost-nodeports"], "iptables: {localhostNodePorts: true}"),
        (
            &["--proxy-mode=ipvs", "--ipvs-scheduler=rr", "--iptables-localhost-nodeports=true"],
            "mode: ipvs\niptables: {localhostNodePorts: true}",
        ),
        (&["--nodeport-addresses=10.0.0.0/8,192.0.2.0/24"], "nodePortAddresses: [10.0.0.0/8, 192.0.2.0/24]"),
        (
            &["--detect-local-mode=BridgeInterface", "--pod-bridge-interface=cni0"],
            "detectLocalMode: BridgeInterface\ndetectLocal: {bridgeInterface: cni0}",
        ),
        (
            &["--detect-local-mode=InterfaceNamePrefix", "--pod-interface-name-prefix=veth"],
            "detectLocalMode: InterfaceNamePrefix\ndetectLocal: {interfaceNamePrefix: veth}",
        ),
        (
            &["--detect-local-mode=NodeCIDR", "--bind-address=192.0.2.1"],
            "detectLocalMode: NodeCIDR\nbindAddress: 192.0.2.1",
        ),
        (&["--healthz-bind-address=127.0.0.1"], "healthzBindAddress: 127.0.0.1"),
        (
            &["--metrics-bind-address=0.0.0.0", "--bind-address-hard-fail"],
            "metricsBindAddress: 0.0.0.0\nbindAddressHardFail: true",
        ),
        (
            &["--feature-gates=AllowServiceExternalIPs=false,B=true"],
            "featureGates: {AllowServiceExternalIPs: false, B: true}",
        ),
        (&["--hostname-override=a", "--cleanup=false", "--init-only=false"], "hostnameOverride: a"),
        (&["--hostname-override="], ""),
    ] {
        let by_flags = stated(flags).unwrap();
        let file = file(&format!("{lines}\nclientConnection: {{kubeconfig: k}}"));
        let by_file = arguments(&["--config", file.path().to_str().unwrap()]).unwrap().stated(false).unwrap();
        let of = |stated: &Stated| {
            let Stated { node_name, api, scheduler, timeouts, services, healthz, metrics, bind_hard_fail, .. } = stated;
            format!(
                "{node_name:?} {api:?} {scheduler:?} {timeouts:?} {services:?} {healthz:?} {metrics:?} {bind_hard_fail}"
            )
        };
        assert_eq!(of(&by_flags), of(&by_file), "{flags:?}");
    }
}

#[test]
fn with_a_file_kube_proxys_other_flags_count_for_nothing() {
    let file = file("hostnameOverride: file\nmode: ipvs\nclientConnection: {kubeconfig: k}\noomScoreAdj: 7");
    let path = file.path().to_str().unwrap();
    let given = [
        "--config",
        path,
        "--hostname-override=Flag",
        "--master=http://192.0.2.1:80",
        "--kubeconfig=other",
        "--ipvs-scheduler=wlc",
        "--cluster-cidr=10.0.0.0/8",
        "--healthz-port=0",
        "--oom-score-adj=-5",
        "--conntrack-min=1",
        "-v=4",
        "--logtostderr",
        "--tc=tcx",
    ];
    let arguments = arguments(&given).unwrap();
    let expected =
        ["--cluster-cidr", "--conntrack-min", "--healthz-port", "--ipvs-scheduler", "--kubeconfig", "--oom-score-adj"];
    assert_eq!(arguments.given.overruled(), expected);
    assert_eq!(arguments.given.without_effect(true), ["-v", "--logtostderr"]);
    let stated = arguments.stated(false).unwrap();
    assert_eq!(stated.node_name.as_deref(), Some("Flag"));
    let server = Some("http://192.0.2.1:80".parse().unwrap());
    assert_eq!(stated.api, Some(Api::Kubeconfig { path: "k".into(), server }));
    assert_eq!((stated.scheduler, stated.services), (Some(Scheduler::RoundRobin), Options::default()));
    assert_eq!((stated.healthz, stated.oom_score_adjust), (Some("0.0.0.0:10256".parse().unwrap()), Some(7)));
    assert_eq!(stated.config_file.unwrap().path, file.path());
}

#[test]
fn without_a_file_what_has_no_effect_is_named() {
    let given = ["--conntrack-min", "-1", "--profiling", "--ipvs-strict-arp=false", "--v=2", "--masquerade-all"];
    let arguments = arguments(&given).unwrap();
    assert_eq!(arguments.given.without_effect(false), ["--conntrack-min", "--ipvs-strict-arp", "--profiling", "-v"]);
}

#[test]
fn an_api_server_is_found_by_a_file_by_its_url_or_as_a_pod() {
    let api =
        |arguments_given: &[&str], others| arguments(arguments_given).unwrap().stated(others).map(|stated| stated.api);
    let server = || Some("https://192.0.2.1:6443/x".parse().unwrap());
    assert_eq!(api(&["--master=https://192.0.2.1:6443/x"], false).unwrap(), Some(Api::Server(server().unwrap())));
    let both = api(&["--master=https://192.0.2.1:6443/x", "--kubeconfig=k"], true).unwrap();
    assert_eq!(both, Some(Api::Kubeconfig { path: "k".into(), server: server() }));
    assert_eq!(api(&[], true).unwrap(), None);
    let file = file("");
    let config = ["--config", file.path().to_str().unwrap()];
    assert_eq!(api(&config, true).unwrap(), None);
    let error = format!("{:#}", api(&config, false).unwrap_err());
    assert!(error.contains("clientConnection.kubeconfig: missing: must name a file"), "{error}");
}

#[test]
fn all_of_kube_proxys_flags_are_taken_and_wrong_ones_are_not() {
    for (name, role) in FLAGS {
        let with = |value: &str| arguments(&[&format!("--{name}{value}")]);
        match role {
            Role::NoEffect | Role::Log => {
                assert!(with("=x").is_ok() && with("=-1").is_ok() && with("").is_err(), "{name}");
            }
            Role::NoEffectSwitch | Role::LogSwitch => assert!(with("").is_ok() && with("=false").is_ok(), "{name}"),
            Role::Done | Role::Always => {
                let error = with("=\u{1}").map_or_else(|error| error, |_| String::new());
                assert!(!error.contains("unexpected argument '--"), "{name}: {error}");
            }
        }
    }
    for (given, expected) in [
        (&["--cleanup"] as &[&str], "`bpvs cleanup`"),
        (&["--config=/nowhere"], "--config: /nowhere: KubeProxyConfiguration: cannot be read: No such file"),
        (&["--proxy-mode=userspace"], "no such mode any more"),
        (&["--ipvs-scheduler=fastest"], "no such scheduler"),
        (&["--ipvs-scheduler=rr", "--scheduler=rr"], "cannot be used with"),
        (&["--ipvs-tcp-timeout=900"], "must be a duration"),
        (&["--ipvs-udp-timeout=-1s"], "10ms to 1000h"),
        (&["--healthz-port=65536"], "65536"),
        (&["--healthz-bind-address=10256"], "must be an address and a port"),
        (&["--oom-score-adj=-1001"], "-1000"),
        (&["--master=192.0.2.1"], "must be a URL"),
        (&["--master=ftp://192.0.2.1"], "must be a URL"),
        (&["--feature-gates=A"], "names with true or false"),
        (&["--feature-gates=A=maybe"], "names with true or false"),
        (&["--detect-local-mode=BridgeInterface"], "state --pod-bridge-interface NAME too"),
        (&["--cleanup-iptables"], "unexpected argument"),
        (&["--profiling", "false"], "unexpected argument"),
    ] {
        let error = stated(given).map(|_| ()).unwrap_err();
        assert!(error.contains(expected), "{given:?}: {error}");
    }
}

#[test]
fn the_api_server_is_asked_as_often_as_flags_or_file_say() {
    let limit = |flags: &[&str]| stated(flags).unwrap().api_limit;
    assert_eq!(limit(&[]), RequestLimit::default());
    let seldom = RequestLimit { per_thousand_seconds: 2_500, burst: 7 };
    assert_eq!(limit(&["--kube-api-qps=2.5", "--kube-api-burst=7"]), seldom);
    assert_eq!(limit(&["--kube-api-qps=-1"]).per_thousand_seconds, 0);
    let file = file("clientConnection: {kubeconfig: k, qps: 2.5, burst: 7}");
    let path = file.path().display().to_string();
    assert_eq!(limit(&["--config", &path]), seldom);
}

#[test]
fn mode_nftables_serves_node_ports_at_the_primary_addresses() {
    let options = stated(&["--proxy-mode=nftables"]).unwrap().services;
    assert_eq!(options, Options { node_port_addresses: NodePortAddresses::Primary, ..Options::default() });
    assert_eq!(options.detector, Detector::default());
}

#[test]
fn every_flag_is_documented_with_what_becomes_of_it() {
    let document = include_str!("../../../../docs/configuration.md");
    for (name, role) in FLAGS {
        let cell = if name == "v" { "`-v`".to_owned() } else { format!("`--{name}`") };
        let mut rows = document
            .lines()
            .filter(|line| line.starts_with("| `-") && line.split('|').nth(1).is_some_and(|c| c.contains(&cell)));
        let row = rows.next().unwrap_or_else(|| panic!("docs/configuration.md has no row for {cell}"));
        let no_effect = !matches!(role, Role::Done | Role::Always);
        assert_eq!(row.contains("| no effect |"), no_effect, "{row}");
    }
}

#[test]
fn what_flags_say_is_written_as_a_file_that_says_the_same() {
    let written = tempfile::NamedTempFile::new().unwrap();
    let flags = [
        "--proxy-mode=nftables",
        "--cluster-cidr=10.244.0.0/16",
        "--hostname-override=n7",
        "--healthz-bind-address=[::]:99",
        "--bind-address-hard-fail",
        "--oom-score-adj=5",
        "--feature-gates=AllowServiceExternalIPs=false",
    ];
    let of_flags = stated(&flags).unwrap();
    of_flags.write(written.path()).unwrap();
    let path = written.path().to_str().unwrap();
    let of_file = arguments(&["--config", path]).unwrap().stated(false).unwrap();
    assert_eq!(of_file.settings(), Settings { scheduler: Some(Scheduler::RoundRobin), ..of_flags.settings() });
    assert_eq!(of_flags.services.node_port_addresses, NodePortAddresses::Primary);
    // A file cannot say it.
    for flag in ["--healthz-bind-address", "--metrics-bind-address"] {
        let error = stated(&[&format!("{flag}=")]).unwrap().write(written.path()).unwrap_err().to_string();
        assert!(error.contains(flag) && error.contains("nowhere"), "{error}");
    }
    let error = format!("{:#}", of_flags.write("/nowhere/file".as_ref()).unwrap_err());
    assert!(error.contains("--write-config-to /nowhere/file: cannot write: No such file"), "{error}");
}
