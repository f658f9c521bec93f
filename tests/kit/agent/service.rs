//! Manifests of one Service, written as `kubectl` prints them.

use std::fmt::Write;
use std::net::{IpAddr, SocketAddr};

/// A ClusterIP Service and its EndpointSlices. Every server is a pod `server-<n>`, in the order given: the first is
/// added first, and so is the last of IPVS's list.
#[derive(Debug, Clone)]
pub struct ServiceManifest {
    name: String,
    addresses: Vec<IpAddr>,
    ports: Vec<Port>,
    annotations: Vec<(String, String)>,
    spec: Vec<String>,
    servers: Vec<Server>,
}

#[derive(Debug, Clone)]
struct Port {
    protocol: &'static str,
    port: u16,
    target: u16,
    node_port: u16,
}

#[derive(Debug, Clone)]
struct Server {
    name: String,
    addresses: Vec<IpAddr>,
    weight: i32,
    node: Option<String>,
}

impl ServiceManifest {
    /// A Service in namespace `demo` with one virtual address per family.
    pub fn new(name: &str, addresses: &[IpAddr]) -> Self {
        let (name, addresses) = (name.to_owned(), addresses.to_vec());
        Self { name, addresses, ports: Vec::new(), annotations: Vec::new(), spec: Vec::new(), servers: Vec::new() }
    }

    /// Adds a port; `protocol` is `TCP`, `UDP` or `SCTP`.
    pub fn port(mut self, protocol: &'static str, port: u16, target: u16) -> Self {
        self.ports.push(Port { protocol, port, target, node_port: 0 });
        self
    }

    /// Adds a port that is a node port too.
    pub fn node_port(mut self, protocol: &'static str, port: u16, target: u16, node_port: u16) -> Self {
        self.ports.push(Port { protocol, port, target, node_port });
        self
    }

    /// Adds a field of the Service's `spec`, as YAML on one line.
    pub fn spec(mut self, line: &str) -> Self {
        self.spec.push(line.to_owned());
        self
    }

    /// Says on which node a server is.
    pub fn on_node(mut self, number: u16, node: &str) -> Self {
        for server in self.servers.iter_mut().filter(|server| server.name == format!("server-{number}")) {
            server.node = Some(node.to_owned());
        }
        self
    }

    /// Sets the scheduler.
    pub fn scheduler(self, scheduler: &str) -> Self {
        self.annotation("bpvs.io/scheduler", scheduler)
    }

    /// Adds or replaces an annotation of the Service.
    pub fn annotation(mut self, key: &str, value: &str) -> Self {
        self.annotations.retain(|(known, _)| known != key);
        self.annotations.push((key.to_owned(), value.to_owned()));
        self
    }

    /// Adds a server, or replaces the one of this number in its place.
    pub fn server(mut self, number: u16, addresses: &[IpAddr], weight: i32) -> Self {
        let server = Server { name: format!("server-{number}"), addresses: addresses.to_vec(), weight, node: None };
        match self.servers.iter_mut().find(|known| known.name == server.name) {
            Some(known) => *known = server,
            None => self.servers.push(server),
        }
        self
    }

    /// Removes a server.
    pub fn without(mut self, number: u16) -> Self {
        self.servers.retain(|server| server.name != format!("server-{number}"));
        self
    }

    /// Virtual address and port of each family, for clients of the port at this place.
    pub fn frontends(&self, port: usize) -> Vec<SocketAddr> {
        self.addresses.iter().map(|&address| SocketAddr::new(address, self.ports[port].port)).collect()
    }

    /// The YAML: the Service, then one slice per family.
    pub fn yaml(&self) -> String {
        let mut out = String::new();
        self.write(&mut out).expect("writing to a String does not fail");
        out
    }

    fn write(&self, out: &mut String) -> std::fmt::Result {
        writeln!(out, "apiVersion: v1\nkind: Service\nmetadata:\n  name: {}\n  namespace: demo", self.name)?;
        let weights: Vec<_> = self.servers.iter().map(|server| format!("{}={}", server.name, server.weight)).collect();
        writeln!(out, "  annotations:\n    bpvs.io/weights: \"{}\"", weights.join(", "))?;
        for (key, value) in &self.annotations {
            writeln!(out, "    {key}: \"{value}\"")?;
        }
        let kind = if self.ports.iter().any(|port| port.node_port != 0) { "NodePort" } else { "ClusterIP" };
        writeln!(out, "spec:\n  type: {kind}\n  clusterIP: \"{}\"\n  clusterIPs:", self.addresses[0])?;
        self.addresses.iter().try_for_each(|address| writeln!(out, "  - \"{address}\""))?;
        writeln!(out, "  ipFamilies:")?;
        self.addresses.iter().try_for_each(|address| writeln!(out, "  - {}", family(address)))?;
        let policy = if self.addresses.len() > 1 { "RequireDualStack" } else { "SingleStack" };
        self.spec.iter().try_for_each(|line| writeln!(out, "  {line}"))?;
        writeln!(out, "  ipFamilyPolicy: {policy}\n  ports:")?;
        for Port { protocol, port, target, node_port } in &self.ports {
            writeln!(out, "  - name: {}\n    port: {port}", port_name(protocol, *port))?;
            if *node_port != 0 {
                writeln!(out, "    nodePort: {node_port}")?;
            }
            writeln!(out, "    protocol: {protocol}\n    targetPort: {target}")?;
        }
        self.addresses.iter().try_for_each(|address| self.slice(out, address))
    }

    fn slice(&self, out: &mut String, like: &IpAddr) -> std::fmt::Result {
        let family = family(like);
        writeln!(out, "---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata:")?;
        writeln!(out, "  name: {}-{}\n  namespace: demo", self.name, family.to_lowercase())?;
        writeln!(out, "  labels:\n    kubernetes.io/service-name: {}\naddressType: {family}\nports:", self.name)?;
        for Port { protocol, port, target, .. } in &self.ports {
            writeln!(out, "- name: {}\n  port: {target}\n  protocol: {protocol}", port_name(protocol, *port))?;
        }
        let of_family = |server: &Server| server.addresses.iter().find(|a| a.is_ipv4() == like.is_ipv4()).copied();
        let servers: Vec<_> = self.servers.iter().filter_map(|server| Some((server, of_family(server)?))).collect();
        writeln!(out, "endpoints:{}", if servers.is_empty() { " []" } else { "" })?;
        for (server, address) in servers {
            writeln!(out, "- addresses:\n  - \"{address}\"\n  conditions:\n    ready: true")?;
            writeln!(out, "    serving: true\n    terminating: false")?;
            if let Some(node) = &server.node {
                writeln!(out, "  nodeName: {node}")?;
            }
            writeln!(out, "  targetRef:\n    kind: Pod\n    name: {}\n    namespace: demo", server.name)?;
        }
        Ok(())
    }
}

fn family(address: &IpAddr) -> &'static str {
    if address.is_ipv4() { "IPv4" } else { "IPv6" }
}

fn port_name(protocol: &str, port: u16) -> String {
    format!("{}-{port}", protocol.to_lowercase())
}

#[cfg(test)]
mod tests {
    use super::ServiceManifest;

    #[test]
    fn a_service_is_written_as_kubectl_prints_it() {
        let service = ServiceManifest::new("web", &["10.96.0.1".parse().unwrap(), "fd00:96::1".parse().unwrap()])
            .port("TCP", 80, 8080)
            .scheduler("rr")
            .scheduler("wlc")
            .server(1, &["10.1.1.1".parse().unwrap()], 3)
            .server(2, &["10.1.1.2".parse().unwrap()], 4)
            .server(1, &["10.1.1.1".parse().unwrap(), "fd00:1:1::1".parse().unwrap()], 1)
            .without(2);
        let yaml = service.yaml();
        for line in [
            "    bpvs.io/weights: \"server-1=1\"",
            "    bpvs.io/scheduler: \"wlc\"",
            "  - \"fd00:96::1\"",
            "  name: web-ipv6",
            "    targetPort: 8080",
            "  - \"fd00:1:1::1\"",
        ] {
            assert_eq!(yaml.lines().filter(|found| *found == line).count(), 1, "{line} in\n{yaml}");
        }
        assert!(!yaml.contains("server-2"), "{yaml}");
        assert_eq!(service.frontends(0)[1], "[fd00:96::1]:80".parse().unwrap());
    }
}
