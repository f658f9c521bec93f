//! UDP sockets of the node's own processes, through the real agent's programs on the cgroup.

use bpvs_tests::agent::{Agent, Manifests, ServiceManifest};
use bpvs_tests::topology::Topology;
use bpvs_tests::traffic::{DEADLINE, Servers, UdpClient};

const PORT: u16 = 53;
const TARGET: u16 = 5353;

fn world() -> (Topology, Manifests, ServiceManifest, Servers) {
    let topology = Topology::builder().servers(3).build().unwrap();
    let mut service = ServiceManifest::new("dns", &["10.96.0.1".parse().unwrap(), "fd00:96::1".parse().unwrap()])
        .port("UDP", PORT, TARGET)
        .scheduler("rr");
    let servers = Servers::new().unwrap();
    for server in &topology.servers {
        service = service.server(server.id, &[server.v4.into(), server.v6.into()], 1);
        servers.udp(&server.namespace, server.id, TARGET).unwrap();
    }
    let manifests = Manifests::new().unwrap();
    manifests.write("dns.yaml", &service.yaml()).unwrap();
    (topology, manifests, service, servers)
}

/// Inactive connections of every destination, together.
fn inactive(agent: &Agent<'_>) -> u64 {
    let text = agent.command(&["list", "-o", "json"]).unwrap();
    let list: serde_json::Value = serde_json::from_str(&text).unwrap();
    let services = list.as_array().or_else(|| list["services"].as_array()).unwrap_or_else(|| panic!("{text}"));
    let destinations = services.iter().flat_map(|service| service["destinations"].as_array().unwrap());
    destinations.map(|destination| destination["inactive_connections"].as_u64().unwrap()).sum()
}

#[test]
fn a_connected_socket_that_names_its_peer_again_keeps_its_server() {
    let (topology, manifests, service, _servers) = world();
    let node = &topology.node.namespace;
    let _agent = Agent::builder(node).manifests(&manifests).start().unwrap();
    for to in service.frontends(0) {
        let connected = UdpClient::connected(node, None, to).unwrap();
        let socket = connected.socket();
        socket.set_nonblocking(false).unwrap();
        connected.request(20, DEADLINE).unwrap();
        for _ in 0..4 {
            // What another server answers never gets to a connected socket.
            socket.send_to(b"?", to).unwrap();
            let (_, from) = socket.recv_from(&mut [0; 100]).unwrap_or_else(|error| panic!("sendto {to}: {error}"));
            assert_eq!(from, to);
            // Another client moves the scheduler on meanwhile.
            UdpClient::connected(node, None, to).unwrap().request(20, DEADLINE).unwrap();
        }
    }
}

#[test]
fn a_flow_ends_with_its_socket() {
    let (topology, manifests, service, _servers) = world();
    let node = &topology.node.namespace;
    let agent = Agent::builder(node).manifests(&manifests).start().unwrap();
    for to in service.frontends(0) {
        let held = UdpClient::unconnected(node, None, to).unwrap();
        held.request(20, DEADLINE).unwrap();
        for _ in 0..20 {
            UdpClient::unconnected(node, None, to).unwrap().request(20, DEADLINE).unwrap();
        }
        assert_eq!(inactive(&agent), 1, "the flow of the socket that is open, {to}");
        held.request(20, DEADLINE).unwrap();
        drop(held);
        assert_eq!(inactive(&agent), 0, "{to}");
    }
    let rows = agent.command(&["connections", "-o", "json"]).unwrap();
    assert!(!rows.contains(&format!(":{PORT}\"")), "{rows}");
}
