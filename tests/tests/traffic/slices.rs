//! Slices that contradict each other, and slices that say nothing that a proxy can use.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use bpvs_tests::topology::{Host, Topology};
use bpvs_tests::traffic::{Dial, UdpClient};
use bpvs_tests::world::{CHANGE, TCP, TCP_TARGET, UDP, UDP_TARGET, World, frontends, wait_for};

/// Longer than an answer takes.
const QUICK: Duration = Duration::from_millis(200);
const READY: &str = "{ready: true, serving: true, terminating: false}";
const TERMINATING: &str = "{ready: false, serving: true, terminating: true}";
const GONE: &str = "{ready: false, serving: false, terminating: true}";

/// A slice of the Service `web`, as YAML.
fn slice(name: &str, kind: &str, ports: &str, endpoints: &str) -> String {
    format!(
        "---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\n\
         metadata: {{name: {name}, namespace: demo, labels: {{kubernetes.io/service-name: web}}}}\n\
         addressType: {kind}\nports: {ports}\nendpoints: [{endpoints}]\n"
    )
}

fn ports() -> String {
    format!(
        "[{{name: tcp-{TCP}, port: {TCP_TARGET}, protocol: TCP}}, {{name: udp-{UDP}, port: {UDP_TARGET}, protocol: UDP}}]"
    )
}

fn endpoint(address: impl Into<IpAddr>, conditions: &str) -> String {
    format!("{{addresses: [\"{}\"], conditions: {conditions}}}", address.into())
}

/// A slice of each family, of one server.
fn slices(name: &str, server: &Host, conditions: &str) -> String {
    slice(&format!("{name}-4"), "IPv4", &ports(), &endpoint(server.v4, conditions))
        + &slice(&format!("{name}-6"), "IPv6", &ports(), &endpoint(server.v6, conditions))
}

/// The Service alone.
fn service(world: &World) -> String {
    let whole = world.empty_service("web", 1).yaml();
    whole.split_once("---\n").expect("a Service, then slices").0.to_owned()
}

/// Servers of some new connections and flows, sorted and once each.
fn reached(from: &Host, tcp: SocketAddr, udp: SocketAddr) -> Vec<u16> {
    let dial = |_| Some(Dial::new(&from.namespace, tcp).deadline(QUICK).open().ok()?.server);
    let ask = |_| Some(UdpClient::connected(&from.namespace, None, udp).ok()?.request(20, QUICK).ok()?.server);
    let mut all: Vec<u16> = (0..4).filter_map(dial).chain((0..4).filter_map(ask)).collect();
    all.sort_unstable();
    all.dedup();
    all
}

#[test]
fn of_two_conditions_of_one_endpoint_the_one_that_does_not_terminate_holds() {
    let world = World::new(Topology::builder().servers(2).build().unwrap()).unwrap();
    let [first, second] = &world.topology.servers[..] else { panic!("two servers") };
    world.manifests.write("web.yaml", &service(&world)).unwrap();
    let agent = world.agent().unwrap();
    for (conditions, servers) in [
        // Of the first server in two slices, then of the second in one.
        ([READY, TERMINATING, TERMINATING], &[1][..]),
        ([TERMINATING, TERMINATING, READY], &[2]),
        ([GONE, READY, TERMINATING], &[1]),
        ([TERMINATING, GONE, TERMINATING], &[1, 2]),
        ([READY, GONE, READY], &[1, 2]),
        ([GONE, GONE, TERMINATING], &[2]),
        ([GONE, GONE, GONE], &[]),
    ] {
        let [a, b, c] = conditions;
        let yaml = service(&world) + &slices("a", first, a) + &slices("b", first, b) + &slices("c", second, c);
        world.manifests.write("web.yaml", &yaml).unwrap();
        for (who, client) in world.clients() {
            for (tcp, udp) in frontends(1, TCP).into_iter().zip(frontends(1, UDP)) {
                let met = || Ok((reached(client, tcp, udp) == servers).then_some(()));
                let wanted = format!("connections of the {who} to {servers:?} at {tcp} with {conditions:?}");
                wait_for(&wanted, CHANGE, met, || agent.log().text(0)).unwrap();
            }
        }
    }
}

#[test]
fn slices_without_a_port_a_name_or_an_address_are_as_if_they_were_not_there() {
    let world = World::new(Topology::builder().servers(2).build().unwrap()).unwrap();
    let [first, second] = &world.topology.servers[..] else { panic!("two servers") };
    let odd = |number: usize, kind: &str, ports: &str, address: &str| {
        slice(&format!("odd-{number}"), kind, ports, &format!("{{addresses: [\"{address}\"]}}"))
    };
    let [v4, v6] = [second.v4.to_string(), second.v6.to_string()];
    let mut yaml = service(&world);
    for (number, (kind, address)) in [("IPv4", v4.as_str()), ("IPv6", v6.as_str())].into_iter().enumerate() {
        yaml += &odd(10 * number, kind, &format!("[{{name: tcp-{TCP}, protocol: TCP}}]"), address);
        yaml += &odd(10 * number + 1, kind, &format!("[{{port: {TCP_TARGET}, protocol: TCP}}]"), address);
        yaml += &odd(10 * number + 2, kind, "[]", address);
    }
    yaml += &odd(20, "FQDN", &ports(), "server-2.example.org");
    world.manifests.write("web.yaml", &yaml).unwrap();
    let agent = world.agent().unwrap();
    let pod = &world.topology.clients[0];
    for to in frontends(1, TCP) {
        let error = Dial::new(&pod.namespace, to).open().expect_err("no endpoint can be used");
        assert!(error.is_refused(), "{to}: {error}");
    }
    // They do not stand in the way of one that can be.
    world.manifests.write("web.yaml", &(yaml + &slices("right", first, READY))).unwrap();
    for (tcp, udp) in frontends(1, TCP).into_iter().zip(frontends(1, UDP)) {
        let met = || Ok((reached(pod, tcp, udp) == [1]).then_some(()));
        wait_for(&format!("connections to server 1 at {tcp}"), CHANGE, met, || agent.log().text(0)).unwrap();
    }
}
