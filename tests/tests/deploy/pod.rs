//! The DaemonSet's pod, as a process: its arguments, files and capabilities, at an API server that allows what the role
//! allows.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, TcpStream};

use bpvs_tests::agent::Agent;
use bpvs_tests::api_server::ApiServer;
use bpvs_tests::namespace::Namespace;
use bpvs_tests::topology::Topology;
use bpvs_tests::traffic::DEADLINE;
use bpvs_tests::world::{CHANGE, wait_for};
use lb_userspace::kernel::probe::find_cgroup2;
use serde_json::json;

use super::capabilities::{capabilities, restricted};
use super::commands::accepted;
use super::{container, kustomized, named, strings};

/// The arguments as the kubelet has them on node-1, of `env`.
fn arguments() -> Vec<String> {
    let objects = kustomized();
    let container = container(&objects);
    assert_eq!(strings(&container["command"]), ["bpvs"]);
    let field = &named(&container["env"], "NODE_NAME")["valueFrom"]["fieldRef"]["fieldPath"];
    assert_eq!(field, "spec.nodeName");
    let arguments = strings(&container["args"]).into_iter().map(|argument| argument.replace("$(NODE_NAME)", "node-1"));
    arguments.collect()
}

#[test]
fn the_arguments_are_bpvss() {
    assert!(arguments().iter().all(|argument| !argument.contains('$')), "{:?}", arguments());
    accepted("daemonset.yaml", &[arguments()]);
}

/// The status of the node's answer at loopback.
fn status(node: &Namespace, port: u16, path: &str) -> std::io::Result<String> {
    let answer = node.enter(|| {
        let mut stream = TcpStream::connect_timeout(&(Ipv4Addr::LOCALHOST, port).into(), DEADLINE)?;
        stream.set_read_timeout(Some(DEADLINE))?;
        write!(stream, "GET {path} HTTP/1.1\r\nhost: node\r\nconnection: close\r\n\r\n")?;
        let mut text = String::new();
        stream.read_to_string(&mut text).map(|_| text)
    })?;
    Ok(answer.split(' ').nth(1).unwrap_or_default().to_owned())
}

#[test]
fn a_pod_of_the_daemon_set_starts_and_answers_its_probes() {
    let topology = Topology::builder().servers(1).build().unwrap();
    let node = &topology.node.namespace;
    let api = node.block_on(ApiServer::start).unwrap();
    api.apply(json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-1"}}));
    api.apply(json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": "a", "namespace": "demo"},
        "spec": {"clusterIP": "10.96.0.1", "clusterIPs": ["10.96.0.1"], "ports": [{"port": 80}]}
    }));
    // The ConfigMap as its volume has it, but for the API server's address.
    let (objects, mounted) = (kustomized(), tempfile::tempdir().unwrap());
    let folder = mounted.path().to_str().unwrap();
    let here = |text: &str| text.replace("/etc/bpvs", folder);
    let config = here(objects["ConfigMap"]["data"]["config.conf"].as_str().unwrap());
    // The kubelet has set it before; whoever runs a test may not be allowed to.
    let own = std::fs::read_to_string("/proc/self/oom_score_adj").unwrap();
    let config = config.replace("oomScoreAdj: -997", &format!("oomScoreAdj: {}", own.trim()));
    std::fs::write(mounted.path().join("config.conf"), config).unwrap();
    std::fs::copy(api.kubeconfig(), mounted.path().join("kubeconfig.conf")).unwrap();
    let program = restricted(mounted.path(), &capabilities());
    let mut builder = Agent::builder(node).binary(program);
    let cgroup = find_cgroup2().unwrap();
    for argument in &arguments()[1..] {
        builder = builder.argument(here(argument).replace("/host/sys/fs/cgroup", cgroup.to_str().unwrap()));
    }
    let agent = builder.start().unwrap();
    let container = container(&objects);
    let port = named(&container["ports"], "healthz")["containerPort"].as_u64().unwrap().try_into().unwrap();
    for probe in ["startupProbe", "livenessProbe", "readinessProbe"] {
        let path = container[probe]["httpGet"]["path"].as_str().unwrap();
        let well = || Ok(status(node, port, path).ok().filter(|status| status == "200"));
        wait_for(path, CHANGE, well, || agent.log().text(0)).unwrap();
    }
    let text = agent.log().text(0);
    assert!(!text.contains("WARN") && !text.contains("ERROR"), "{text}");
    assert!(agent.command(&["list"]).unwrap().contains("TCP  10.96.0.1:80"));
    agent.cleanup().unwrap();
}
