//! Services of every type, and the endpoints that the real controllers make of pods.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use bpvs_tests::agent::Listing;
use bpvs_tests::traffic::{Dial, Hammer};
use serde_json::{Value, json};

use super::objects::{pod, service};
use super::{Cluster, DEADLINE, both, datagram, dial, expect, hammer, until};

/// From what kubectl wrote to connections from everywhere, the controller's part with it (FE-12: e2e allows 30 s).
const ENOUGH: Duration = Duration::from_secs(5);

fn port_of(service: &Value, place: usize) -> u16 {
    service["spec"]["ports"][place]["nodePort"].as_u64().unwrap() as u16
}

#[test]
#[ignore = "needs the programs of Kubernetes: BPVS_KUBERNETES_BIN"]
fn services_of_every_type_and_every_change_of_it_are_served_on_both_nodes() {
    let cluster = Cluster::new();
    let pods =
        [cluster.pod(0, 1, "web"), cluster.pod(0, 2, "web"), cluster.pod(1, 3, "web"), cluster.pod(1, 4, "other")];
    cluster.control.apply(&[service("web", "web", &json!({}))]).unwrap();
    cluster.control.apply(&[service("headless", "web", &json!({"clusterIP": "None"}))]).unwrap();
    let external = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "elsewhere", "namespace": "demo"},
                          "spec": {"type": "ExternalName", "externalName": "example.org"}});
    cluster.control.apply(&[external]).unwrap();
    let agents = cluster.agents();
    let [here, there] = [&cluster.network.nodes[0].host, &cluster.network.nodes[1].host];
    let outside = &cluster.network.outside.namespace;
    let frontends = cluster.at("web", 80);
    assert_eq!(frontends.len(), 2, "{frontends:?}");
    for to in &frontends {
        for from in [&pods[3].namespace, &pods[0].namespace, &here.namespace, &there.namespace, outside] {
            expect(from, *to, &[1, 2, 3]);
            assert!(datagram(from, SocketAddr::new(to.ip(), 53)).is_some(), "{to} from {}", from.name());
        }
    }
    for agent in &agents {
        let listing = Listing::read(agent).unwrap();
        let addresses: Vec<SocketAddr> = listing.services.iter().map(|service| service.address).collect();
        let web = listing.service("TCP", frontends[0]).unwrap();
        assert_eq!(web.scheduler, "wlc");
        // The Service `kubernetes` beside it, and neither the headless one nor the name.
        assert_eq!(addresses.len(), 5, "{addresses:?}");
        assert!(addresses.contains(&"10.96.0.1:443".parse().unwrap()), "{addresses:?}");
    }

    cluster.patch("web", &json!({"spec": {"type": "NodePort"}}));
    let node_port = port_of(&cluster.service("web"), 0);
    for node in [here, there] {
        for to in both(node.addresses, node_port) {
            expect(outside, to, &[1, 2, 3]);
        }
    }

    cluster.patch("web", &json!({"spec": {"type": "LoadBalancer"}}));
    let balancers: [SocketAddr; 2] = ["198.51.100.1:80", "[fd00:a::1]:80"].map(|text| text.parse().unwrap());
    let mut object = cluster.service("web");
    object["status"]["loadBalancer"] =
        json!({"ingress": balancers.map(|address| json!({"ip": address.ip(), "ipMode": "VIP"}))});
    cluster.control.state(&[object]).unwrap();
    for to in balancers {
        for from in [outside, &pods[3].namespace, &here.namespace] {
            expect(from, to, &[1, 2, 3]);
        }
    }
    // The API server clears the status with the type.
    cluster.patch("web", &json!({"spec": {"type": "ClusterIP"}}));
    for to in balancers.into_iter().chain(both(here.addresses, node_port)) {
        let gone = |answer: Result<Option<u16>, String>| !matches!(answer, Ok(Some(_)));
        until(&format!("{to} is not served"), || gone(dial(outside, to)) && gone(dial(&here.namespace, to)));
    }
    for to in &frontends {
        expect(outside, *to, &[1, 2, 3]);
    }

    // Another port and target, by name and by number.
    cluster.patch("web", &json!({"spec": {"ports": [{"name": "web", "port": 81, "targetPort": 8080}]}}));
    for to in &frontends {
        expect(&pods[3].namespace, SocketAddr::new(to.ip(), 81), &[1, 2, 3]);
        expect(&pods[3].namespace, *to, &[]);
    }
    // A name has no address; a Service that is gone has none either.
    cluster.patch(
        "web",
        &json!({"spec": {"type": "ExternalName", "externalName": "example.org", "clusterIP": null,
                                          "clusterIPs": null, "ipFamilies": null, "ipFamilyPolicy": null}}),
    );
    for agent in &agents {
        until("the Service's addresses are gone", || {
            let listing = Listing::read(agent).unwrap();
            listing.services.iter().all(|service| service.address == "10.96.0.1:443".parse().unwrap())
        });
    }
    cluster.patch("web", &json!({"spec": {"type": "ClusterIP", "ipFamilyPolicy": "RequireDualStack"}}));
    let again = cluster.at("web", 81);
    for to in &again {
        expect(&pods[3].namespace, *to, &[1, 2, 3]);
    }
    cluster.control.kubectl(&["-n", "demo", "delete", "service", "web"]).unwrap();
    for to in &again {
        until(&format!("{to} is not served"), || !matches!(dial(&pods[3].namespace, *to), Ok(Some(_))));
    }
    cluster.within_its_role();
}

#[test]
#[ignore = "needs the programs of Kubernetes: BPVS_KUBERNETES_BIN"]
fn pods_that_come_change_and_go_are_followed_and_no_connection_fails() {
    let cluster = Cluster::new();
    let pods = [cluster.pod(0, 1, "web"), cluster.pod(1, 2, "web")];
    let client = cluster.pod(0, 9, "client");
    cluster.control.apply(&[service("web", "web", &json!({}))]).unwrap();
    let agents = cluster.agents();
    let frontends = cluster.at("web", 80);
    let from = [&client.namespace, &cluster.network.nodes[1].host.namespace];
    let mut longest = Duration::ZERO;
    let mut follow = |what: &str, servers: &[u16]| {
        let begin = Instant::now();
        for (from, to) in from.iter().flat_map(|from| frontends.iter().map(move |to| (from, to))) {
            expect(from, *to, servers);
        }
        eprintln!("{what}: everywhere after {:?}", begin.elapsed());
        longest = longest.max(begin.elapsed());
    };
    follow("at first", &[1, 2]);
    let hammers: Vec<Hammer> = frontends.iter().map(|to| hammer(&client.namespace, *to)).collect();
    let mut held = Dial::new(&client.namespace, frontends[0]).open().unwrap();

    cluster.readiness(&pods[0], "web", false);
    follow("not ready", &[2]);
    cluster.readiness(&pods[0], "web", true);
    follow("ready", &[1, 2]);
    // Terminating, and serving still: the last resort. Without a kubelet the object stays until it is forced.
    cluster.control.kubectl(&["-n", "demo", "delete", "pod", "pod-1", "--wait=false"]).unwrap();
    follow("terminating", &[2]);
    cluster.readiness(&pods[1], "web", false);
    follow("only one that terminates serves", &[1]);
    cluster.readiness(&pods[1], "web", true);
    follow("one is ready again", &[2]);
    cluster.control.kubectl(&["-n", "demo", "delete", "pod", "pod-1", "--force", "--grace-period=0"]).unwrap();
    follow("gone", &[2]);
    // A rolling update: another pod instead of each, the new one ready before the old one goes.
    let next = cluster.pod(0, 3, "web");
    follow("one more", &[2, 3]);
    cluster.control.kubectl(&["-n", "demo", "delete", "pod", "pod-2", "--force", "--grace-period=0"]).unwrap();
    follow("replaced", &[3]);
    for hammer in hammers {
        let report = hammer.stop().unwrap();
        eprintln!("{} connections meanwhile, none longer than {:?}", report.attempts, report.slowest);
        assert!(report.attempts > 10, "{report:?}");
        assert_eq!(report.failed, 0, "of {}: {:?}", report.attempts, report.failures);
    }
    // By its labels out of the Service, and in again.
    cluster.control.apply(&[pod(&next, "none")]).unwrap();
    follow("nobody", &[]);
    cluster.control.apply(&[pod(&next, "web")]).unwrap();
    follow("somebody", &[3]);
    assert!(longest < ENOUGH, "{longest:?}");
    held.exchange(b"through all of it").unwrap();
    held.close().unwrap();
    cluster.within_its_role();
    drop(agents);
}

/// The e2e test of UDP that goes on from one port (CT-9): the server's pod is replaced, and datagrams reach the next one.
#[test]
#[ignore = "needs the programs of Kubernetes: BPVS_KUBERNETES_BIN"]
fn datagrams_that_go_on_from_one_port_reach_the_next_pod() {
    let cluster = Cluster::new();
    let client = cluster.pod(0, 9, "client");
    let _agents = cluster.agents();
    cluster.control.apply(&[service("web", "web", &json!({"type": "NodePort"}))]).unwrap();
    let node_port = port_of(&cluster.service("web"), 1);
    let mut targets = cluster.at("web", 53);
    targets.extend(both(cluster.network.nodes[0].host.addresses, node_port));
    // Each sends from one port of its own all the time.
    let clients: Vec<_> = targets
        .iter()
        .map(|to| (*to, bpvs_tests::traffic::UdpClient::unconnected(&client.namespace, None, *to).unwrap()))
        .collect();
    let reach = |server: u16| {
        for (to, client) in &clients {
            let begin = Instant::now();
            while client.request(20, Duration::from_millis(100)).map(|answer| answer.server).ok() != Some(server) {
                assert!(begin.elapsed() < DEADLINE, "{to} does not reach {server}");
            }
        }
    };
    let first = cluster.pod(1, 1, "web");
    reach(1);
    cluster.control.kubectl(&["-n", "demo", "delete", "pod", &first.name, "--force", "--grace-period=0"]).unwrap();
    let second = cluster.pod(0, 2, "web");
    reach(2);
    // The other way round: nobody in between.
    cluster.control.kubectl(&["-n", "demo", "delete", "pod", &second.name, "--force", "--grace-period=0"]).unwrap();
    until("nobody answers", || {
        clients.iter().all(|(_, client)| client.request(20, Duration::from_millis(100)).is_err())
    });
    let _third = cluster.pod(1, 3, "web");
    reach(3);
    cluster.within_its_role();
}
