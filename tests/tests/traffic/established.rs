//! Connections that go on while their endpoint and their Service change under them, and where new ones go meanwhile.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use bpvs_tests::agent::{Agent, ServiceManifest};
use bpvs_tests::http::get;
use bpvs_tests::topology::{Host, Topology};
use bpvs_tests::traffic::{DEADLINE, Dial, Stream};
use bpvs_tests::world::{CHANGE, TCP, TCP_TARGET, World, frontends, virtual_addresses, wait_for, wait_listed};

const TCP_PORT: u16 = 30_080;
const CHECK: u16 = 32_000;
const HERE: &str = "here";
/// Longer than an answer takes.
const QUICK: Duration = Duration::from_millis(200);
const READY: &str = "ready: true\n    serving: true\n    terminating: false\n";
const TERMINATING: &str = "ready: false\n    serving: true\n    terminating: true\n";
const UNREADY: &str = "ready: false\n    serving: false\n    terminating: false\n";

fn service(world: &World) -> ServiceManifest {
    let mut service = ServiceManifest::new("web", &virtual_addresses(1)).node_port("TCP", TCP, TCP_TARGET, TCP_PORT);
    for server in &world.topology.servers {
        service = service.server(server.id, &[server.v4.into(), server.v6.into()], 1).on_node(server.id, HERE);
    }
    service
}

/// The manifest with other conditions for a server.
fn with_conditions(yaml: &str, server: &Host, conditions: &str) -> String {
    let addresses: [IpAddr; 2] = [server.v4.into(), server.v6.into()];
    addresses.iter().fold(yaml.to_owned(), |yaml, address| {
        let endpoint = |conditions| format!("- addresses:\n  - \"{address}\"\n  conditions:\n    {conditions}");
        assert_eq!(yaml.matches(&endpoint(READY)).count(), 1, "{address} in\n{yaml}");
        yaml.replace(&endpoint(READY), &endpoint(conditions))
    })
}

fn agent(world: &World) -> Agent<'_> {
    let builder = Agent::builder(&world.topology.node.namespace).manifests(&world.manifests);
    builder.argument("--node-name").argument(HERE).start().unwrap()
}

/// A stream of every client to every frontend, of one family each.
fn streams(world: &World) -> Vec<(String, Stream)> {
    let mut all = Vec::new();
    for (who, client) in world.clients() {
        for to in frontends(1, TCP).into_iter().chain(world.topology.node.at(TCP_PORT)) {
            let stream = Stream::start(&client.namespace, None, to, 100_000, Duration::from_secs(120));
            let what = format!("{who} to {to}");
            all.push((what.clone(), stream.unwrap_or_else(|error| panic!("{what}: {error}"))));
        }
    }
    all
}

/// Servers of some new connections, sorted and once each; none if nobody answers.
fn reached(client: &Host, to: SocketAddr) -> Vec<u16> {
    let dial = |_| Some(Dial::new(&client.namespace, to).deadline(QUICK).open().ok()?.server);
    let mut all: Vec<u16> = (0..6).filter_map(dial).collect();
    all.sort_unstable();
    all.dedup();
    all
}

#[test]
fn streams_go_on_whatever_is_said_of_their_endpoint_and_service() {
    let world = World::new(Topology::builder().servers(2).build().unwrap()).unwrap();
    let plain = service(&world).yaml();
    world.manifests.write("web.yaml", &plain).unwrap();
    let agent = agent(&world);
    let streams = streams(&world);
    assert!([1, 2].iter().all(|id| streams.iter().any(|(_, stream)| stream.server == *id)), "both servers have some");
    let first = &world.topology.servers[0];
    let changed = |from: &str, to: &str| {
        assert!(plain.contains(from), "{from} in\n{plain}");
        plain.replace(from, to)
    };
    let policies = "spec:\n  externalTrafficPolicy: Local\n  internalTrafficPolicy: Local\n";
    let other_name = changed("name: tcp-80", "name: web");
    let pod = &world.topology.clients[0];
    for (what, yaml, servers) in [
        ("an endpoint terminates", with_conditions(&plain, first, TERMINATING), &[2][..]),
        ("all is well", plain.clone(), &[1, 2]),
        ("an endpoint is not ready", with_conditions(&plain, first, UNREADY), &[2]),
        ("all endpoints terminate", changed(READY, TERMINATING), &[1, 2]),
        ("no endpoint serves", changed(READY, UNREADY), &[]),
        ("policy Local", changed("spec:\n", policies), &[1, 2]),
        ("policy Local, and the endpoints are elsewhere", changed("spec:\n", policies).replace(HERE, "there"), &[]),
        ("policy Cluster again", plain.clone(), &[1, 2]),
        ("another name of the port, one endpoint", with_conditions(&other_name, first, TERMINATING), &[2]),
    ] {
        let mark = agent.log().len();
        world.manifests.write("web.yaml", &yaml).unwrap();
        for to in frontends(1, TCP) {
            let met = || Ok((reached(pod, to) == servers).then_some(()));
            let wanted = format!("new connections to {servers:?} at {to}: {what}");
            wait_for(&wanted, CHANGE, met, || agent.log().text(mark)).unwrap();
        }
        for (who, stream) in &streams {
            stream.advance(5_000, DEADLINE).unwrap_or_else(|error| panic!("{what}: {who}: {error:#}"));
        }
    }
    for (who, stream) in streams {
        stream.finish().unwrap_or_else(|error| panic!("{who}: {error:#}"));
    }
}

/// A load balancer is told to send no more, and what it still sends is served.
#[test]
fn endpoints_that_terminate_serve_until_one_is_ready_while_the_health_check_says_none() {
    let world = World::new(Topology::builder().servers(2).build().unwrap()).unwrap();
    let local = service(&world).spec("externalTrafficPolicy: Local").spec(&format!("healthCheckNodePort: {CHECK}"));
    let ready = local.yaml().replacen("type: NodePort", "type: LoadBalancer", 1);
    let [first, second] = &world.topology.servers[..] else { panic!("two servers") };
    let one = with_conditions(&ready, first, TERMINATING);
    world.manifests.write("web.yaml", &with_conditions(&one, second, TERMINATING)).unwrap();
    let agent = agent(&world);
    let (outside, node) = (&world.topology.external, &world.topology.node);
    let told = |status: u16| {
        for check in node.at(CHECK) {
            let asked = || Ok(get(&outside.namespace, check, "/").ok().filter(|answer| answer.status == status));
            let answer = wait_for(&format!("{status}"), CHANGE, asked, || agent.log().text(0)).unwrap();
            assert_eq!(answer.json()["localEndpoints"], u16::from(status == 200));
        }
    };
    told(503);
    for to in node.at(TCP_PORT).into_iter().chain(frontends(1, TCP)) {
        assert_eq!(reached(outside, to), [1, 2], "{to}");
    }
    world.manifests.write("web.yaml", &one).unwrap();
    told(200);
    let alone = |service: &bpvs_tests::agent::ListedService| service.servers.len() == 1;
    let listed = |list: &bpvs_tests::agent::Listing| {
        frontends(1, TCP).iter().all(|to| list.service("TCP", *to).is_some_and(alone))
    };
    wait_listed(&agent, "one server", listed).unwrap();
    for to in node.at(TCP_PORT).into_iter().chain(frontends(1, TCP)) {
        assert_eq!(reached(outside, to), [2], "{to}");
    }
}
