//! What a real API server and its controllers make of `deploy/`.

use bpvs_tests::control_plane::ControlPlane;
use bpvs_tests::namespace::{Namespace, reap_leftovers};
use serde_json::{Value, json};

use super::chart::{API_SERVER, rendered};
use super::path;

const OBJECTS: [&str; 4] = ["serviceaccount/bpvs", "clusterrolebinding/bpvs", "configmap/bpvs", "daemonset/bpvs"];

/// Where the controller says which node a pod is for.
const WANTED: &str = "/spec/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution\
                      /nodeSelectorTerms/0/matchFields/0/values/0";

/// A control plane without a network, but with an address that is not of 127.0.0.0/8.
fn control_plane() -> ControlPlane {
    for name in reap_leftovers().unwrap() {
        eprintln!("removed {name}, left behind by a killed run");
    }
    let namespace = Namespace::new("control-plane").unwrap();
    namespace.ip(&["addr add 10.9.0.1/32 dev lo".to_owned()]).unwrap();
    ControlPlane::start(namespace, &["10.9.0.1".parse().unwrap()]).unwrap()
}

fn node(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": {"kubernetes.io/os": "linux"}}})
}

/// The nodes that have a pod of the DaemonSet. Those that its controller has made are bound to the node that their affinity
/// names, as a scheduler does, and those that are to go are removed, as a kubelet does.
fn served(control: &ControlPlane) -> Vec<String> {
    let pods = control.get(&["-n", "kube-system", "pods", "-l", "app.kubernetes.io/name=bpvs"]).unwrap();
    let mut nodes = Vec::new();
    for pod in pods["items"].as_array().unwrap() {
        let [name, node] = [&pod["metadata"]["name"], pod.pointer(WANTED).unwrap()].map(|text| text.as_str().unwrap());
        if !pod["metadata"]["deletionTimestamp"].is_null() {
            // It may have gone meanwhile.
            let _gone = control.kubectl(&["-n", "kube-system", "delete", "pod", name, "--force", "--grace-period=0"]);
            continue;
        }
        if pod["spec"]["nodeName"].is_null() {
            bind(control, name, node);
        }
        nodes.push(node.to_owned());
    }
    nodes.sort();
    nodes
}

fn bind(control: &ControlPlane, pod: &str, node: &str) {
    let binding = json!({"apiVersion": "v1", "kind": "Binding", "metadata": {"name": pod, "namespace": "kube-system"},
                         "target": {"apiVersion": "v1", "kind": "Node", "name": node}});
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), binding.to_string()).unwrap();
    let place = format!("/api/v1/namespaces/kube-system/pods/{pod}/binding");
    control.kubectl(&["create", "--raw", &place, "--filename", file.path().to_str().unwrap()]).unwrap();
}

#[track_caller]
fn until_served(control: &ControlPlane, nodes: &[&str]) {
    let end = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while served(control) != nodes {
        let events = control.kubectl(&["-n", "kube-system", "get", "events"]).unwrap();
        assert!(std::time::Instant::now() < end, "{:?}, not {nodes:?}: {events}", served(control));
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
}

#[test]
#[ignore = "needs the programs of Kubernetes: BPVS_KUBERNETES_BIN"]
fn a_real_api_server_takes_the_manifests_and_the_chart_and_a_nodes_label_decides_who_serves_it() {
    let control = control_plane();
    let kustomize = path("deploy/kustomize");
    let folder = kustomize.to_str().unwrap();
    let strict = ["apply", "--validate=strict", "--warnings-as-errors"];
    let said = control.kubectl(&[&strict[..], &["--dry-run=server", "--kustomize", folder]].concat()).unwrap();
    let chart: Vec<Value> = rendered(&json!({"apiServer": API_SERVER})).into_values().collect();
    let of_chart = control.kubectl_with(&[&strict[..], &["--dry-run=server"]].concat(), &chart).unwrap();
    for object in OBJECTS {
        let name =
            object.split_once('/').map(|(kind, name)| (kind, format!("/{name} created (server dry run)"))).unwrap();
        for said in [&said, &of_chart] {
            assert!(said.lines().any(|line| line.starts_with(name.0) && line.ends_with(&name.1)), "{object}: {said}");
        }
    }

    // For real. Pods of this kind are for namespaces that let them in.
    let enforce = "pod-security.kubernetes.io/enforce=privileged";
    control.kubectl(&["label", "namespace", "kube-system", enforce]).unwrap();
    control.apply(&[node("a"), node("b")]).unwrap();
    control.kubectl(&[&strict[..], &["--kustomize", folder]].concat()).unwrap();
    until_served(&control, &["a", "b"]);
    control.kubectl(&["label", "node", "a", "bpvs.io/proxy=kube-proxy"]).unwrap();
    until_served(&control, &["b"]);
    control.kubectl(&["label", "node", "a", "bpvs.io/proxy-"]).unwrap();
    until_served(&control, &["a", "b"]);
    // The chart in their place: nothing to change.
    let again = control.kubectl_with(&[&strict[..], &["--dry-run=server"]].concat(), &chart).unwrap();
    for object in ["serviceaccount", "clusterrolebinding", "daemonset"] {
        let unchanged = |line: &str| line.starts_with(object) && line.ends_with("unchanged (server dry run)");
        assert!(again.lines().any(unchanged), "{object}: {again}");
    }
}
