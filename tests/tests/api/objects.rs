//! Objects as the API server holds them.

use std::net::IpAddr;

use serde_json::{Value, json};

/// A ClusterIP Service `demo/<name>` with port 80.
pub(crate) fn service(name: &str, addresses: &[&str]) -> Value {
    let families: Vec<&str> = addresses.iter().map(|address| family(address)).collect();
    json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "namespace": "demo"},
           "spec": {"type": "ClusterIP", "clusterIP": addresses[0], "clusterIPs": addresses, "ipFamilies": families,
                    "ports": [{"name": "web", "port": 80, "protocol": "TCP"}]}})
}

/// A slice of it; port 8080 is where the kit's servers listen.
pub(crate) fn slice(name: &str, service: &str, endpoints: &[Value]) -> Value {
    let family = endpoints.first().map_or("IPv4", |endpoint| family(endpoint["addresses"][0].as_str().unwrap()));
    json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": family, "endpoints": endpoints,
           "metadata": {"name": name, "namespace": "demo", "labels": {"kubernetes.io/service-name": service}},
           "ports": [{"name": "web", "port": 8080, "protocol": "TCP"}]})
}

/// Ready endpoints: the servers of these numbers, IPv4.
pub(crate) fn ready(servers: &[u16]) -> Vec<Value> {
    servers.iter().map(|server| endpoint(&format!("10.1.1.{server}"), json!({"ready": true}))).collect()
}

pub(crate) fn endpoint(address: &str, conditions: Value) -> Value {
    json!({"addresses": [address], "conditions": conditions})
}

/// The same object with one more entry in `labels` or `annotations`.
pub(crate) fn with(mut object: Value, place: &str, key: &str, value: &str) -> Value {
    object["metadata"][place][key] = json!(value);
    object
}

/// An object that services do not need: each new one moves the server's version on.
pub(crate) fn other_node(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}})
}

fn family(address: &str) -> &'static str {
    match address.parse() {
        Ok(IpAddr::V6(_)) => "IPv6",
        _ => "IPv4",
    }
}
