//! What ends before anything on the node is changed: wrong arguments, missing privileges, missing kernel features.

use std::path::Path;
use std::process::{Command, Output};

use bpvs_tests::agent::binary;
use bpvs_tests::namespace::Namespace;

/// A pin directory that must never come to be.
const PINS: &str = "/sys/fs/bpf/bpvs-test-never-made";

fn output(node: &Namespace, command: &mut Command) -> Output {
    command.env("NO_COLOR", "1").env_remove("KUBERNETES_SERVICE_HOST");
    node.enter(|| command.output()).unwrap_or_else(|error| panic!("{command:?}: {error}"))
}

/// Fails unless the command ended with this code and said this, with nothing on standard output, and made no pin.
#[track_caller]
fn refused(node: &Namespace, command: &mut Command, code: i32, said: &[&str]) {
    let output = output(node, command);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{command:?}: {stderr}");
    assert_eq!(stderr.lines().filter(|line| line.starts_with("error: ")).count(), 1, "{command:?}: {stderr}");
    for text in said {
        assert!(stderr.contains(text), "{command:?} must say {text:?}, said: {stderr}");
    }
    assert!(output.stdout.is_empty(), "{command:?}");
    assert!(!Path::new(PINS).exists(), "{command:?} made {PINS}");
}

fn run(extra: &[&str]) -> Command {
    let mut command = Command::new(binary().unwrap());
    command.args(["run", "--pin-path", PINS]).args(extra);
    command
}

#[test]
fn wrong_arguments_are_named_with_what_is_allowed() {
    let node = Namespace::new("node").unwrap();
    let folder = tempfile::tempdir().unwrap();
    let manifests = folder.path().to_str().unwrap();
    let schedulers = "rr, wrr, lc, wlc, lblc, lblcr, dh, sh, sed, nq, fo, ovf, mh, twos";
    for (arguments, code, said) in [
        (&["--scheduler", "fastest"] as &[&str], 2, ["'fastest'", "--scheduler", schedulers]),
        (&["--max-services", "0"], 1, ["--max-services 0", "out of range", "1 to 67108864"]),
        (&["--max-connections", "67108865"], 1, ["--max-connections 67108865", "out of range", "1 to 67108864"]),
        (&["--max-destinations", "-1"], 2, ["'-1'", "unexpected", ""]),
        (&["--max-slots", "many"], 2, ["'many'", "--max-slots", "invalid digit"]),
        (&["--max-slots", "99999999999"], 2, ["'99999999999'", "--max-slots", "0..=4294967295"]),
        (&["--max-slots", "100"], 1, ["--max-slots 100", "too small", "needs 32768"]),
        (&["--max-destinations-per-service", "16385"], 1, ["per-service 16385", "out of range", "1 to 16384"]),
        (&["--sweep-interval", "5"], 2, ["'5'", "--sweep-interval", "ms, s, m or h"]),
        (&["--recount-interval", "2h"], 2, ["'2h'", "--recount-interval", "10ms to 60m"]),
        (&["--udp-timeout", "1001h"], 2, ["'1001h'", "--udp-timeout", "10ms to 1000h, and 0 for the default"]),
        (&["--interfaces", "eth0,"], 2, ["''", "--interfaces", "empty"]),
        (&["--interfaces", "eth[0-9]"], 2, ["'eth[0-9]'", "--interfaces", "`*` and `?`"]),
        (&["--exclude-interfaces", "a/b"], 2, ["'a/b'", "--exclude-interfaces", "`*` and `?`"]),
        (&["--exclude-interfaces", "averylonginterface"], 2, ["'averylong", "--exclude-interfaces", "15 characters"]),
        (&["--tc", "xdp"], 2, ["'xdp'", "--tc", "auto, tcx, clsact"]),
        (&["--socket-lb", "all"], 2, ["'all'", "--socket-lb", "on, host-only, off"]),
        (&["--socket-lb-exclude-cgroup", "/proc"], 1, ["--socket-lb-exclude-cgroup /proc", "no cgroup v2", "cgroup2"]),
        (&["--node-name", " "], 1, ["no name", "--node-name", ""]),
        (&["--cgroup", "/proc"], 1, ["/proc is no cgroup v2", "--cgroup", "--socket-lb off"]),
        (&["--kubeconfig", "/nowhere"], 1, ["kubeconfig /nowhere", "No such file", ""]),
    ] {
        let arguments: Vec<&str> = ["--manifests", manifests].iter().chain(arguments).copied().collect();
        refused(&node, &mut run(&arguments), code, &said);
    }
    let config = folder.path().join("config.conf");
    let path = config.display().to_string();
    for (text, said) in [
        ("kind: Pod", "must be KubeProxyConfiguration"),
        ("detectLocalMode: BridgeInterface", "KubeProxyConfiguration: detectLocal.bridgeInterface: missing"),
        ("mode: ipvs\nipvs: {scheduler: fastest}", schedulers),
    ] {
        let head = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n";
        std::fs::write(&config, if text.starts_with("kind") { text.to_owned() } else { format!("{head}{text}\n") })
            .unwrap();
        refused(&node, &mut run(&["--config", &path]), 1, &["error: --config: ", said]);
    }
    refused(&node, &mut run(&["--config", "/nowhere"]), 1, &["--config: /nowhere", "No such file"]);
    refused(&node, &mut run(&["--cleanup"]), 1, &["`bpvs cleanup`"]);
    refused(&node, &mut run(&["--cluster_cidr=x"]), 2, &["'x'", "--cluster-cidr", "must be a network"]);
    refused(&node, &mut run(&["--cleanup-iptables"]), 2, &["unexpected argument '--cleanup-iptables'"]);
    refused(&node, &mut run(&["word"]), 2, &["unexpected argument 'word'"]);
    refused(&node, &mut run(&[]), 1, &["no source", "--manifests PATH, --ipvs-rules FILE or --kubeconfig FILE"]);
    refused(&node, &mut run(&["--manifests", "/nowhere"]), 1, &["--manifests /nowhere", "No such file"]);
    let pins = folder.path().join("pins");
    let mut elsewhere = Command::new(binary().unwrap());
    elsewhere.args(["run", "--manifests", manifests, "--pin-path"]).arg(&pins);
    refused(&node, &mut elsewhere, 1, &["BPF file system", pins.to_str().unwrap(), "mount -t bpf", "--pin-path"]);
    assert!(!pins.exists());
}

#[test]
fn a_privilege_that_is_missing_is_named() {
    let node = Namespace::new("node").unwrap();
    let folder = tempfile::tempdir().unwrap();
    for (dropped, named) in [
        ("-all", "CAP_NET_ADMIN, CAP_BPF, CAP_PERFMON missing"),
        ("-net_admin", "CAP_NET_ADMIN missing"),
        ("-bpf,-sys_admin", "CAP_BPF missing"),
        ("-perfmon,-sys_admin", "CAP_PERFMON missing"),
    ] {
        let mut command = Command::new("setpriv");
        command.args([format!("--bounding-set={dropped}"), format!("--inh-caps={dropped}")]).arg(binary().unwrap());
        command.args(["run", "--pin-path", PINS, "--manifests"]).arg(folder.path());
        refused(&node, &mut command, 1, &["missing on this node: privileges", named, "run as root"]);
    }
}

/// The command in a mount namespace of its own, without the file systems of this type.
fn without(file_system: &str, command: &Command) -> Command {
    let mut shell = Command::new("unshare");
    shell.args(["--mount", "sh", "-c", "umount -a -t \"$0\" && exec \"$@\"", file_system]).arg(command.get_program());
    shell.args(command.get_args());
    shell
}

#[test]
fn a_file_system_that_is_not_mounted_is_named_and_check_says_so() {
    let node = Namespace::new("node").unwrap();
    let folder = tempfile::tempdir().unwrap();
    let manifests = folder.path().to_str().unwrap();
    let start = run(&["--manifests", manifests]);
    refused(&node, &mut without("bpf", &start), 1, &["missing on this node: BPF file system", "mount -t bpf"]);
    refused(&node, &mut without("cgroup2", &start), 1, &["missing on this node: cgroup v2", "--socket-lb off"]);

    let mut check = Command::new(binary().unwrap());
    check.arg("check");
    for (file_system, feature) in [("bpf", "BPF file system"), ("cgroup2", "cgroup v2")] {
        let output = output(&node, &mut without(file_system, &check));
        let table = String::from_utf8_lossy(&output.stdout);
        let missing: Vec<&str> = table.lines().filter(|line| line.contains(" missing ")).collect();
        assert_eq!(output.status.code(), Some(1), "{table}");
        assert!(missing.len() == 1 && missing[0].starts_with(feature), "{table}");
    }
    let fine = output(&node, &mut check);
    let table = String::from_utf8_lossy(&fine.stdout);
    assert_eq!(fine.status.code(), Some(0), "{table}");
    for feature in ["privileges", "kernel", "BPF file system", "BTF", "bpf_loop", "TCX", "cgroup v2"] {
        assert!(table.lines().any(|line| line.starts_with(feature)), "{feature} in\n{table}");
    }
    let json = output(&node, check.args(["-o", "json"]));
    let json: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!(json["features"].as_array().unwrap().len(), table.lines().count() - 1);
}

#[test]
fn observers_of_nothing_say_what_to_start() {
    let node = Namespace::new("node").unwrap();
    for verb in ["list", "connections", "maps"] {
        let mut command = Command::new(binary().unwrap());
        command.args([verb, "--pin-path", PINS]);
        refused(&node, &mut command, 1, &[&format!("no map {PINS}/settings"), "start `bpvs run`", "--pin-path"]);
    }
}

#[test]
fn kube_proxys_version_and_init_only_end_at_once_with_success() {
    let node = Namespace::new("node").unwrap();
    for (flag, said) in [("--version", "0.1.0"), ("--init-only", "nothing has to be prepared")] {
        let output = output(&node, &mut run(&[flag]));
        assert!(output.status.success(), "{flag}: {output:?}");
        let text = [output.stdout, output.stderr].concat();
        assert!(String::from_utf8_lossy(&text).contains(said), "{flag}");
        assert!(!Path::new(PINS).exists());
    }
}
