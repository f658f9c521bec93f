//! A Service that changes in place: what is new is served, and what is old is not (SV-14). And how soon.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use bpvs_tests::traffic::{Dial, Held};
use serde_json::{Value, json};

use super::objects::{ready, service, slice};
use super::{World, address, until};

/// What e2e allows for a change of endpoints is 30 s (`KubeProxyEndpointLagTimeout`); of a Service, 2 minutes.
const SOON: Duration = Duration::from_secs(5);
/// Far below the first repetition of a SYN (1 s).
const AT_ONCE: Duration = Duration::from_millis(200);

fn open(world: &World, to: SocketAddr) -> Option<Held> {
    Dial::new(&world.topology.external.namespace, to).deadline(AT_ONCE).open().ok()
}

/// Waits until what is new is served and what is old is not.
#[track_caller]
fn moved(world: &World, what: &str, old: &[SocketAddr], new: &[SocketAddr]) {
    until(what, || new.iter().all(|to| open(world, *to).is_some()) && old.iter().all(|to| open(world, *to).is_none()));
}

#[test]
fn ports_addresses_and_types_change_in_place() {
    let world = World::new(1);
    let node = |port: u16| world.topology.node.at(port)[0];
    let mut object = service("a", &["10.96.0.1"]);
    let mut change = |edit: &dyn Fn(&mut Value)| {
        edit(&mut object);
        world.api().apply(object.clone());
    };
    world.api().apply(slice("a-1", "a", &ready(&[1])));
    change(&|object| {
        object["spec"]["type"] = json!("NodePort");
        object["spec"]["ports"][0]["nodePort"] = json!(30_080);
    });
    let _agent = world.agent().start().unwrap();
    let cluster = |port: u16| SocketAddr::new([10, 96, 0, 1].into(), port);
    moved(&world, "all is served", &[], &[cluster(80), node(30_080)]);

    change(&|object| object["spec"]["ports"][0]["port"] = json!(81));
    moved(&world, "another port", &[cluster(80)], &[cluster(81), node(30_080)]);
    change(&|object| object["spec"]["ports"][0]["nodePort"] = json!(30_081));
    moved(&world, "another node port", &[node(30_080)], &[cluster(81), node(30_081)]);

    let vip = |last: u8| SocketAddr::new([203, 0, 113, last].into(), 81);
    let ingress = |last: u8| json!({"loadBalancer": {"ingress": [{"ip": format!("203.0.113.{last}")}]}});
    change(&|object| {
        object["spec"]["type"] = json!("LoadBalancer");
        object["status"] = ingress(10);
    });
    moved(&world, "a load balancer's address", &[], &[vip(10), cluster(81), node(30_081)]);
    change(&|object| object["status"] = ingress(11));
    moved(&world, "another of its addresses", &[vip(10)], &[vip(11), cluster(81)]);
    change(&|object| object["spec"]["loadBalancerSourceRanges"] = json!(["192.0.2.0/24"]));
    moved(&world, "source ranges", &[vip(11)], &[cluster(81), node(30_081)]);
    change(&|object| object["spec"]["loadBalancerSourceRanges"] = json!([]));
    moved(&world, "none any more", &[], &[vip(11)]);

    // There and back, with another address, by ExternalName, whose addresses may linger.
    change(&|object| object["spec"]["type"] = json!("ExternalName"));
    moved(&world, "no cluster's Service", &[cluster(81), node(30_081), vip(11)], &[]);
    change(&|object| {
        object["spec"]["type"] = json!("NodePort");
        object["spec"]["clusterIP"] = json!("10.96.0.2");
        object["spec"]["clusterIPs"] = json!(["10.96.0.2"]);
        object["status"] = json!({});
    });
    moved(&world, "back", &[cluster(81), vip(11)], &[address("10.96.0.2:81"), node(30_081)]);

    // The slice's port has the same name and another protocol.
    change(&|object| object["spec"]["ports"][0]["protocol"] = json!("UDP"));
    moved(&world, "another protocol", &[address("10.96.0.2:81"), node(30_081)], &[]);
    change(&|object| object["spec"]["ports"][0]["protocol"] = json!("TCP"));
    moved(&world, "the old one", &[], &[address("10.96.0.2:81"), node(30_081)]);
}

/// FE-12, IN-7: from the event, or the last list, to the first packet.
#[test]
fn changes_are_served_soon_and_so_is_what_the_first_lists_say() {
    let world = World::new(3);
    let to = address("10.96.0.1:80");
    world.api().apply(service("a", &["10.96.0.1"]));
    world.api().apply(slice("a-1", "a", &ready(&[1])));
    world.api().refuse("services", Some(500));
    let agent = world.agent().build().unwrap();
    agent.launch().unwrap();
    world.wait("slices are watched", |api| api.watching("endpointslices") == 1 && api.watching("nodes") == 1);
    world.api().refuse("services", None);
    world.wait("services are listed", |api| api.count("list", "services") > 0);
    let soon = |what: &str, server: u16| {
        let begin = Instant::now();
        until(what, || {
            Dial::new(&world.topology.clients[0].namespace, to).open().is_ok_and(|held| held.server == server)
        });
        let took = begin.elapsed();
        assert!(took < SOON, "{what}: {took:?}");
    };
    soon("the first lists", 1);
    for server in [2, 3, 1, 3, 2] {
        world.api().apply(slice("a-1", "a", &ready(&[server])));
        soon("other endpoints", server);
    }
}

/// SY-9: services that are not told yet are not gone; none that are told are.
#[test]
fn a_restarted_agent_keeps_what_is_programmed_until_it_has_been_told_that_there_is_none() {
    let world = World::new(1);
    let to = address("10.96.0.1:80");
    world.api().apply(service("a", &["10.96.0.1"]));
    world.api().apply(slice("a-1", "a", &ready(&[1])));
    let agent = world.agent().start().unwrap();
    world.expect(to, &[1]);
    agent.stop().unwrap();
    world.api().delete("Service", "demo", "a");
    world.api().refuse("services", Some(500));
    let mark = agent.launch().unwrap();
    world.wait("the others are watched", |api| api.watching("endpointslices") == 1 && api.watching("nodes") == 1);
    assert_eq!(world.dial(to), Some(1), "{}", agent.log().text(mark));
    world.api().refuse("services", None);
    until("it is gone", || open(&world, to).is_none());
    until("it is listed no more", || !agent.command(&["list"]).unwrap().contains("10.96.0.1"));
}

/// SY-7: the only endpoint is replaced, as a rolling update with one replica does it.
#[test]
fn a_rolling_update_of_one_replica_loses_no_connection() {
    let world = World::new(4);
    let to = address("10.96.0.1:80");
    world.api().apply(service("a", &["10.96.0.1"]));
    world.api().apply(slice("a-1", "a", &ready(&[1])));
    let agent = world.agent().start().unwrap();
    world.expect(to, &[1]);
    let hammer = world.hammer(to);
    for server in 1..4 {
        hammer.advance(10, SOON).unwrap();
        let (old, new) = (ready(&[server]), ready(&[server + 1]));
        world.api().apply(slice("a-1", "a", &[old.clone(), new.clone()].concat()));
        world.expect(to, &[server, server + 1]);
        let mut leaving = old[0].clone();
        leaving["conditions"] = json!({"ready": false, "serving": true, "terminating": true});
        world.api().apply(slice("a-1", "a", &[vec![leaving], new.clone()].concat()));
        world.expect(to, &[server + 1]);
        // The agent is replaced meanwhile.
        agent.stop().unwrap();
        world.api().apply(slice("a-1", "a", &new));
        agent.start().unwrap();
        world.expect(to, &[server + 1]);
    }
    super::unhurt(hammer);
}
