//! Services with more endpoints than a slice has, and more networks of cluster addresses than there were.

use std::net::{IpAddr, SocketAddr};

use bpvs_tests::agent::Listing;
use bpvs_tests::namespace::Namespace;
use bpvs_tests::packets::{RawSocket, Summary, protocol};
use bpvs_tests::topology::offload_off;
use bpvs_tests::traffic::UdpClient;
use serde_json::{Value, json};

use super::objects::{pod_named, service, with_status};
use super::{Cluster, dial, expect, until};

/// A slice has a hundred.
const PODS: u8 = 230;

#[test]
#[ignore = "needs the programs of Kubernetes: BPVS_KUBERNETES_BIN"]
fn endpoints_of_several_slices_are_one_service() {
    let cluster = Cluster::new();
    let client = cluster.pod(0, 9, "client");
    // One namespace stands for all pods of the other node.
    let many = cluster.network.pod(1, 250);
    let far = &cluster.network.nodes[1].host.namespace;
    far.ip(&["route add 10.1.2.0/24 dev v250".to_owned(), "route add fd00:1:2::/64 dev v250".to_owned()]).unwrap();
    let local = ["route add local 10.1.2.0/24 dev lo".to_owned(), "route add local fd00:1:2::/64 dev lo".to_owned()];
    many.namespace.ip(&local).unwrap();
    let far_gateway = ["neigh replace 169.254.1.1 lladdr 02:01:02:01:00:fa dev eth0 nud permanent".to_owned()];
    many.namespace.ip(&far_gateway).unwrap();
    many.namespace
        .sysctls(&[
            ("ipv6/ip_nonlocal_bind", "1"),
            ("ipv4/conf/eth0/proxy_arp", "1"),
            ("ipv6/conf/all/forwarding", "1"),
            ("ipv6/conf/eth0/proxy_ndp", "1"),
        ])
        .unwrap();
    let pods: Vec<Value> = (1..=PODS)
        .map(|number| {
            let addresses: [IpAddr; 2] =
                [format!("10.1.2.{number}"), format!("fd00:1:2::{number:x}")].map(|text| text.parse().unwrap());
            with_status(pod_named(&format!("many-{number}"), "node-b", "many"), &addresses, true)
        })
        .collect();
    for (number, _) in pods.iter().enumerate() {
        let number = number + 1;
        far.ip(&[
            format!("neigh replace 10.1.2.{number} lladdr 02:01:02:00:00:fa dev v250 nud permanent"),
            format!("neigh replace fd00:1:2::{number:x} lladdr 02:01:02:00:00:fa dev v250 nud permanent"),
        ])
        .unwrap();
    }
    cluster.control.apply(&[service("many", "many", &json!({}))]).unwrap();
    let agents = cluster.agents();
    cluster.control.apply(&pods).unwrap();
    cluster.control.state(&pods).unwrap();
    let frontends = cluster.at("many", 80);
    let listed = |at: SocketAddr| {
        let count = |agent| Listing::read(agent).unwrap().service("TCP", at).map_or(0, |service| service.servers.len());
        [count(&agents[0]), count(&agents[1])]
    };
    for to in &frontends {
        until("all endpoints are there", || listed(*to) == [usize::from(PODS); 2]);
    }
    let slices =
        cluster.control.get(&["-n", "demo", "endpointslices", "-l", "kubernetes.io/service-name=many"]).unwrap();
    assert!(slices["items"].as_array().unwrap().len() >= 6, "{slices}");
    for to in &frontends {
        for _ in 0..PODS {
            assert_eq!(dial(&client.namespace, *to), Ok(Some(250)), "{to}");
        }
        let listing = Listing::read(&agents[0]).unwrap();
        let unused =
            listing.service("TCP", *to).unwrap().servers.iter().filter(|server| server.traffic[0] == 0).count();
        assert_eq!(unused, 0, "of {PODS} at {to}");
    }
    // A hundred and thirty go at once: slices are emptied and removed.
    cluster.control.kubectl_with(&["delete", "--force", "--grace-period=0"], &pods[100..]).unwrap();
    for to in &frontends {
        until("a hundred are left", || listed(*to) == [100, 100]);
        assert_eq!(dial(&client.namespace, *to), Ok(Some(250)), "{to}");
    }
    cluster.within_its_role();
}

/// Whether a datagram leaves the node by the default route, which ends at the control plane.
fn leaves(cluster: &Cluster, from: &Namespace, to: SocketAddr) -> bool {
    let wire = RawSocket::open(cluster.control.namespace(), "eth0").unwrap();
    let udp = UdpClient::unconnected(from, None, to).unwrap();
    udp.socket().send_to(b"nobody", to).unwrap();
    let port = udp.local().unwrap().port();
    let ours = |packet: &Summary| packet.protocol == protocol::UDP && packet.from.port() == port;
    wire.expect(std::time::Duration::from_millis(200), ours).is_ok()
}

#[test]
#[ignore = "needs the programs of Kubernetes: BPVS_KUBERNETES_BIN"]
fn a_network_of_cluster_addresses_that_is_added_while_the_agent_runs_is_followed() {
    let cluster = Cluster::new();
    let _pod = cluster.pod(1, 1, "web");
    let client = cluster.pod(0, 9, "client");
    // Packets that are looked at have their checksums.
    offload_off(&client.namespace, "eth0").unwrap();
    let _agents = cluster.agents();
    let [own, new]: [SocketAddr; 2] = ["10.96.200.200:4711", "10.97.0.99:4711"].map(|text| text.parse().unwrap());
    until("the first network is known", || !leaves(&cluster, &client.namespace, own));
    assert!(leaves(&cluster, &client.namespace, new));
    let network = json!({"apiVersion": "networking.k8s.io/v1", "kind": "ServiceCIDR", "metadata": {"name": "more"},
                         "spec": {"cidrs": ["10.97.0.0/24"]}});
    cluster.control.apply(std::slice::from_ref(&network)).unwrap();
    until("the other one is known", || !leaves(&cluster, &client.namespace, new));
    cluster.control.kubectl(&["wait", "--for=condition=Ready", "servicecidr/more", "--timeout=60s"]).unwrap();
    let fields = json!({"clusterIP": "10.97.0.10", "ipFamilyPolicy": "SingleStack", "ipFamilies": ["IPv4"]});
    cluster.control.apply(&[service("web", "web", &fields)]).unwrap();
    let to: SocketAddr = "10.97.0.10:80".parse().unwrap();
    expect(&client.namespace, to, &[1]);
    cluster.control.kubectl(&["-n", "demo", "delete", "service", "web"]).unwrap();
    cluster.control.kubectl(&["delete", "servicecidr", "more", "--timeout=60s"]).unwrap();
    until("it is forgotten", || leaves(&cluster, &client.namespace, new));
    cluster.within_its_role();
}
