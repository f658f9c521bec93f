//! Arguments of `bpvs run`, and what they come to.

use clap::Parser;

use super::*;
use crate::agent::Api;

#[derive(Debug, Parser)]
struct Wrapper {
    #[command(flatten)]
    args: RunArgs,
}

fn parse(arguments: &[&str]) -> Result<Config, String> {
    let arguments = ["run"].iter().chain(arguments);
    let wrapper = Wrapper::try_parse_from(arguments).map_err(|error| error.to_string())?;
    config(wrapper.args).map_err(|error| error.to_string())
}

fn kubeconfig(path: &str) -> Api {
    Api::Kubeconfig { path: path.into(), server: None }
}

#[test]
fn manifests_alone_need_no_api_server() {
    let config = parse(&["--manifests", "x", "--node-name", " Node-A "]).unwrap();
    assert_eq!(config.api, None);
    assert_eq!(config.node_name, "node-a");
    assert_eq!(config.scheduler, Scheduler::RoundRobin);
    assert_eq!(config.sockets, SocketScope::HostOnly);
}

#[test]
fn both_sources_may_be_given() {
    let config = parse(&["--manifests", "x", "--kubeconfig", "y", "--scheduler", "wlc"]).unwrap();
    assert_eq!(config.api, Some(kubeconfig("y")));
    assert_eq!(config.manifests, Some("x".into()));
    assert_eq!(config.scheduler, Scheduler::WeightedLeastConnection);
}

#[test]
fn lists_of_interfaces_are_separated_by_commas() {
    let config = parse(&["--manifests", "x", "--interfaces", "eth*,veth?", "--exclude-interfaces", "eth9"]).unwrap();
    assert_eq!(config.selection.include, ["eth*", "veth?"]);
    assert_eq!(config.selection.exclude, ["eth9"]);
}

#[test]
fn timeouts_are_changed_if_given() {
    assert_eq!(parse(&["--manifests", "x"]).unwrap().timeouts, TimeoutChange::default());
    let zero = ["--manifests", "x", "--tcp-timeout", "0s", "--tcp-fin-timeout", "0", "--udp-timeout", "0m"];
    assert_eq!(parse(&zero).unwrap().timeouts, TimeoutChange::default());
    let given = ["--manifests", "x", "--tcp-timeout", "1h30m", "--tcp-fin-timeout", "500ms", "--udp-timeout", "1000h"];
    let expected = TimeoutChange { tcp: 5_400_000, tcp_fin: 500, udp: 3_600_000_000 };
    assert_eq!(parse(&given).unwrap().timeouts, expected);
}

#[test]
fn switches_are_off_unless_given() {
    assert_eq!(parse(&["--manifests", "x"]).unwrap().switches, 0);
    for (flag, bit) in [
        ("--expire-nodest-conn", SETTING_EXPIRE_NODEST),
        ("--expire-quiescent-template", SETTING_EXPIRE_QUIESCENT),
        ("--sloppy-tcp", SETTING_SLOPPY_TCP),
        ("--sloppy-sctp", SETTING_SLOPPY_SCTP),
    ] {
        assert_eq!(parse(&["--manifests", "x", flag]).unwrap().switches, bit, "{flag}");
    }
}

#[test]
fn rules_alone_need_no_api_server_and_go_with_other_sources() {
    let config = parse(&["--ipvs-rules", "x"]).unwrap();
    assert_eq!((config.api, config.manifests, config.rules), (None, None, Some("x".into())));
    let config = parse(&["--ipvs-rules", "x", "--kubeconfig", "y", "--manifests", "z"]).unwrap();
    assert_eq!((config.api, config.manifests), (Some(kubeconfig("y")), Some("z".into())));
}

#[test]
fn the_node_is_named_by_either_flag() {
    let config = parse(&["--manifests", "x", "--hostname-override", " N1"]).unwrap();
    assert_eq!(config.node_name, "n1");
}

#[test]
fn servers_are_where_there_is_a_cluster_or_where_they_are_asked_for() {
    let at = |arguments: &[&str]| parse(arguments).map(|config| [config.healthz, config.metrics]);
    let parsed = |text: &str| Some(text.parse().unwrap());
    assert_eq!(at(&["--manifests", "x"]), Ok([None, None]));
    assert_eq!(at(&["--kubeconfig", "x"]), Ok([parsed("0.0.0.0:10256"), parsed("127.0.0.1:10249")]));
    let given = ["--manifests", "x", "--healthz-bind-address", "[::1]:9", "--metrics-bind-address", "[::1]:8"];
    assert_eq!(at(&given), Ok([parsed("[::1]:9"), parsed("[::1]:8")]));
}

#[test]
fn wrong_values_are_refused_with_what_is_allowed() {
    for (arguments, expected) in [
        (["--scheduler", "fastest"], "rr, wrr, lc, wlc, lblc, lblcr, dh, sh, sed, nq, fo, ovf, mh, twos"),
        (["--sweep-interval", "1d"], "ms, s, m or h"),
        (["--sweep-interval", "5"], "ms, s, m or h"),
        (["--sweep-interval", ""], "value"),
        (["--sweep-interval", "s"], "ms, s, m or h"),
        (["--sweep-interval", "1h1s"], "10ms to 60m"),
        (["--tcp-timeout", "15"], "ms, s, m or h"),
        (["--tcp-timeout", "9ms"], "10ms to 1000h"),
        (["--tcp-fin-timeout", "1000h1ms"], "10ms to 1000h"),
        (["--udp-timeout", "99999999999999999999s"], "10ms to 1000h"),
        (["--udp-timeout", "9999999999999999h9999999999999999h"], "10ms to 1000h"),
        (["--udp-timeout", "-1s"], "unexpected"),
        (["--sweep-interval", "0s"], "10ms to 60m"),
        (["--check-interval", "0s"], "10ms to 60m"),
        (["--max-services", "0"], "--max-services 0"),
        (["--max-destinations-per-service", "20000"], "16384"),
        (["--node-name", " "], "--node-name"),
        (["--healthz-bind-address", "10256"], "must be an address and a port"),
        (["--metrics-bind-address", "localhost"], "must be an address and a port"),
        (["--metrics-limit", "all"], "--metrics-limit"),
    ] {
        let error = parse(&["--manifests", "x", arguments[0], arguments[1]]).unwrap_err();
        assert!(error.contains(expected), "{error}");
    }
}
