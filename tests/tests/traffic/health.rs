//! What load balancers are told: a Service's health check, and that of the node.

use std::net::SocketAddr;
use std::time::Instant;

use bpvs_tests::agent::{Agent, ServiceManifest};
use bpvs_tests::http::get;
use bpvs_tests::topology::{Topology, UPLINK};
use bpvs_tests::world::{CHANGE, TCP_TARGET, World, virtual_addresses, wait_for};

const CHECK: u16 = 32_000;
const HEALTHZ: u16 = 10_256;
const HERE: &str = "here";

fn service(world: &World, local: u16) -> ServiceManifest {
    let mut service = ServiceManifest::new("web", &virtual_addresses(1)).node_port("TCP", 80, TCP_TARGET, 30_080);
    for server in &world.topology.servers {
        let node = if server.id <= local { HERE } else { "there" };
        service = service.server(server.id, &[server.v4.into(), server.v6.into()], 1).on_node(server.id, node);
    }
    service
}

fn publish(world: &World, service: &ServiceManifest, policy: &str) {
    let service = service.clone().spec(policy).spec(&format!("healthCheckNodePort: {CHECK}"));
    let yaml = service.yaml().replacen("type: NodePort", "type: LoadBalancer", 1);
    world.manifests.write("web.yaml", &yaml).unwrap();
}

fn agent(world: &World) -> Agent<'_> {
    let builder = Agent::builder(&world.topology.node.namespace).manifests(&world.manifests);
    let arguments = ["--node-name", HERE, "--healthz-bind-address", "10.9.0.1:10256"];
    arguments.into_iter().fold(builder, |builder, argument| builder.argument(argument)).start().unwrap()
}

#[test]
fn a_services_health_check_follows_its_endpoints_on_this_node() {
    let world = World::new(Topology::builder().servers(3).build().unwrap()).unwrap();
    const LOCAL: &str = "externalTrafficPolicy: Local";
    publish(&world, &service(&world, 2), LOCAL);
    let agent = agent(&world);
    let (outside, node) = (&world.topology.external.namespace, &world.topology.node);
    for check in node.at(CHECK) {
        for path in ["/", "/healthz", "/anything?else"] {
            let answer = get(outside, check, path).unwrap();
            assert_eq!(answer.status, 200, "{check}{path}");
            for header in [
                "content-type: application/json",
                "x-content-type-options: nosniff",
                "x-load-balancing-endpoint-weight: 2",
            ] {
                assert!(answer.headers.contains(header), "{}", answer.headers);
            }
            let body = serde_json::json!({
                "service": {"namespace": "demo", "name": "web"}, "localEndpoints": 2, "serviceProxyHealthy": true
            });
            assert_eq!(answer.json(), body);
        }
    }
    // The last one here goes: no new load for this node, and it says so itself.
    publish(&world, &service(&world, 0), LOCAL);
    let changed = Instant::now();
    for check in node.at(CHECK) {
        let gone = || Ok(get(outside, check, "/").ok().filter(|answer| answer.status == 503));
        let answer = wait_for("503", CHANGE, gone, || agent.log().text(0)).unwrap();
        // HC-10: a figure to look at, which decides nothing.
        eprintln!(
            "503 at {check} {:?} after the file was written that has no endpoint here any more",
            changed.elapsed()
        );
        assert_eq!(answer.json()["localEndpoints"], 0);
        assert!(answer.headers.contains("x-load-balancing-endpoint-weight: 0"), "{}", answer.headers);
    }
    // HC-8: nobody listens where no check is wanted, and somebody does when it is wanted again.
    publish(&world, &service(&world, 2), "externalTrafficPolicy: Cluster");
    for check in node.at(CHECK) {
        let refused = || Ok(get(outside, check, "/").is_err().then_some(()));
        wait_for("refusal", CHANGE, refused, || agent.log().text(0)).unwrap();
    }
    publish(&world, &service(&world, 1), LOCAL);
    for check in node.at(CHECK) {
        let back = || Ok(get(outside, check, "/").ok().filter(|answer| answer.status == 200));
        wait_for("200", CHANGE, back, || agent.log().text(0)).unwrap();
    }
}

/// HC-7: on the addresses that serve node ports; a family without a network is not restricted.
#[test]
fn a_services_health_check_is_answered_where_node_ports_are() {
    let world = World::new(Topology::builder().servers(1).build().unwrap()).unwrap();
    publish(&world, &service(&world, 1), "externalTrafficPolicy: Local");
    let builder = Agent::builder(&world.topology.node.namespace).manifests(&world.manifests);
    let arguments = ["--node-name", HERE, "--nodeport-addresses", "10.9.0.0/16"];
    let agent = arguments.into_iter().fold(builder, |builder, argument| builder.argument(argument)).start().unwrap();
    let node = &world.topology.node.namespace;
    let asked = |address: &str| get(node, SocketAddr::new(address.parse().unwrap(), CHECK), "/");
    for address in ["10.9.0.1", "::1", &world.topology.node.v6.to_string()] {
        let answer = asked(address).unwrap_or_else(|error| panic!("{address}: {error}"));
        assert_eq!(answer.status, 200, "{address}");
    }
    assert!(asked("127.0.0.1").is_err(), "no node port is served there");
    node.ip(&[format!("addr add 10.9.0.77/24 dev {UPLINK}")]).unwrap();
    let answered = |address: &'static str| move || Ok(asked(address).ok().map(|answer| answer.status));
    assert_eq!(wait_for("answer", CHANGE, answered("10.9.0.77"), || agent.log().text(0)).unwrap(), 200);
}

/// HC-11: some load balancers ask at their own address. Its other ports pass by.
#[test]
fn a_services_health_check_is_answered_at_the_load_balancers_addresses_too() {
    let world = World::new(Topology::builder().servers(2).build().unwrap()).unwrap();
    let addresses = ["203.0.113.10", "2001:db8::10"];
    let state = |policy: &str| {
        let status = format!(
            "status: {{loadBalancer: {{ingress: [{{ip: {}}}, {{ip: \"{}\"}}]}}}}\n---\n",
            addresses[0], addresses[1]
        );
        let service = service(&world, 1).spec(policy).spec(&format!("healthCheckNodePort: {CHECK}"));
        let yaml = service.yaml().replacen("---\n", &status, 1).replacen("type: NodePort", "type: LoadBalancer", 1);
        world.manifests.write("web.yaml", &yaml).unwrap();
    };
    state("externalTrafficPolicy: Local");
    let agent = agent(&world);
    for (who, client) in world.clients() {
        for address in addresses {
            let check = SocketAddr::new(address.parse().unwrap(), CHECK);
            let answer = get(&client.namespace, check, "/").unwrap_or_else(|error| panic!("{who} at {check}: {error}"));
            assert_eq!((answer.status, &answer.json()["localEndpoints"]), (200, &1.into()), "{who} at {check}");
        }
    }
    state("externalTrafficPolicy: Cluster");
    let check = SocketAddr::new(addresses[0].parse().unwrap(), CHECK);
    let gone = || Ok(get(&world.topology.node.namespace, check, "/").is_err().then_some(()));
    wait_for("no answer", CHANGE, gone, || agent.log().text(0)).unwrap();
}

#[test]
fn a_health_check_port_that_is_taken_is_named_and_served_when_it_is_free() {
    let world = World::new(Topology::builder().servers(1).build().unwrap()).unwrap();
    let node = &world.topology.node;
    let taken = node.namespace.enter(|| std::net::TcpListener::bind(("0.0.0.0", CHECK)).unwrap());
    publish(&world, &service(&world, 1), "externalTrafficPolicy: Local");
    let agent = agent(&world);
    let text = agent.log().text(0);
    assert!(
        text.contains("Service demo/web: spec.healthCheckNodePort 32000: cannot listen on 0.0.0.0:32000"),
        "{text}"
    );
    let [v4, v6] = node.at(CHECK);
    assert_eq!(
        get(&world.topology.external.namespace, v6, "/").unwrap().status,
        200,
        "the other family is not stopped"
    );
    drop(taken);
    publish(&world, &service(&world, 1).spec("sessionAffinity: None"), "externalTrafficPolicy: Local");
    let free = || Ok(get(&world.topology.external.namespace, v4, "/").ok().filter(|answer| answer.status == 200));
    wait_for("200", CHANGE, free, || agent.log().text(0)).unwrap();
}

#[test]
fn the_nodes_health_is_told_as_kube_proxy_tells_it() {
    let world = World::new(Topology::builder().servers(1).build().unwrap()).unwrap();
    publish(&world, &service(&world, 1), "externalTrafficPolicy: Local");
    let agent = agent(&world);
    let (outside, healthz) = (&world.topology.external.namespace, world.topology.node.at(HEALTHZ)[0]);
    let told = || Ok(get(outside, healthz, "/healthz").ok());
    let answer = wait_for("answer", CHANGE, told, || agent.log().text(0)).unwrap();
    assert_eq!(answer.status, 200);
    assert!(answer.headers.contains("content-type: application/json"), "{}", answer.headers);
    assert_eq!((&answer.json()["nodeEligible"], &answer.json()["healthy"]), (&true.into(), &true.into()));
    for family in ["IPv4", "IPv6"] {
        assert_eq!(answer.json()["status"][family]["healthy"], true);
        assert!(answer.json()["status"][family]["lastUpdated"].as_str().unwrap().starts_with("20"));
    }
    let answer = get(outside, healthz, "/livez").unwrap();
    assert_eq!((answer.status, answer.json().get("nodeEligible")), (200, None));
    assert_eq!(get(outside, healthz, "/metrics").unwrap().status, 404);
}
