//! Objects as users and kubelets write them.

use std::net::IpAddr;

use serde_json::{Value, json};

use super::network::{Node, Pod, TCP_TARGET, UDP_TARGET};

/// A node in a zone of its own, as its kubelet registers it, and its status.
pub(crate) fn node(node: &Node) -> Value {
    let addresses: Vec<Value> =
        node.host.addresses.iter().map(|address| json!({"type": "InternalIP", "address": address})).collect();
    let networks = node.pod_networks();
    json!({"apiVersion": "v1", "kind": "Node",
           "metadata": {"name": node.name, "labels": {"kubernetes.io/hostname": node.name,
                        "topology.kubernetes.io/zone": format!("zone-{}", node.number)}},
           "spec": {"podCIDR": networks[0], "podCIDRs": networks},
           "status": {"addresses": addresses, "conditions": [
               {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "is",
                "lastHeartbeatTime": "2026-01-01T00:00:00Z", "lastTransitionTime": "2026-01-01T00:00:00Z"}]}})
}

/// A pod of a Service's selector `app`.
pub(crate) fn pod(pod: &Pod, app: &str) -> Value {
    pod_named(&pod.name, pod.node, app)
}

pub(crate) fn pod_named(name: &str, node: &str, app: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod",
           "metadata": {"name": name, "namespace": "demo", "labels": {"app": app}},
           "spec": {"nodeName": node, "automountServiceAccountToken": false, "terminationGracePeriodSeconds": 300,
                    "containers": [{"name": "server", "image": "server", "ports": [
                        {"name": "web", "containerPort": TCP_TARGET, "protocol": "TCP"},
                        {"name": "names", "containerPort": UDP_TARGET, "protocol": "UDP"}]}]}})
}

/// The status that a kubelet writes.
pub(crate) fn with_status(mut pod: Value, addresses: &[IpAddr], ready: bool) -> Value {
    let ready = if ready { "True" } else { "False" };
    let addresses: Vec<Value> = addresses.iter().map(|address| json!({"ip": address})).collect();
    let conditions: Vec<Value> =
        ["Ready", "ContainersReady"].iter().map(|kind| json!({"type": kind, "status": ready})).collect();
    pod["status"] =
        json!({"phase": "Running", "podIP": addresses[0]["ip"], "podIPs": addresses, "conditions": conditions});
    pod
}

/// A Service of both families for `app`, with these fields besides.
pub(crate) fn service(name: &str, app: &str, fields: &Value) -> Value {
    let mut object = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "namespace": "demo"},
        "spec": {"selector": {"app": app}, "ipFamilyPolicy": "RequireDualStack", "ports": [
            {"name": "web", "port": 80, "protocol": "TCP", "targetPort": "web"},
            {"name": "names", "port": 53, "protocol": "UDP", "targetPort": "names"}]}});
    for (name, value) in fields.as_object().unwrap() {
        object["spec"][name] = value.clone();
    }
    object
}
