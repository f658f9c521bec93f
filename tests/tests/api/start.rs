//! An agent that starts programs nothing before it knows everything.

use bpvs_tests::agent::Agent;
use bpvs_tests::traffic::Dial;

use super::objects::{ready, service, slice};
use super::{COLLECTIONS, DEADLINE, World, address, unhurt, until};

fn told(agent: &Agent<'_>, mark: usize, text: &str) {
    agent.wait_for_log(mark, text, DEADLINE, |line| line.contains(text)).unwrap();
}

#[test]
fn each_list_is_waited_for() {
    for missing in COLLECTIONS {
        let world = World::new(1);
        world.api().apply(service("a", &["10.96.0.1"]));
        world.api().apply(slice("a-1", "a", &ready(&[1])));
        world.api().refuse(missing, Some(500));
        let agent = world.agent().build().unwrap();
        let mark = agent.launch().unwrap();
        world.wait("the others are watched", |api| {
            COLLECTIONS.iter().all(|collection| api.watching(collection) == usize::from(*collection != missing))
        });
        told(&agent, mark, &format!("API server: {missing}: "));
        assert!(!agent.command(&["list"]).unwrap().contains("10.96.0.1"), "programmed without {missing}");
        world.api().refuse(missing, None);
        told(&agent, mark, "ready:");
        assert_eq!(world.dial(address("10.96.0.1:80")), Some(1));
    }
}

#[test]
fn a_service_that_was_removed_before_a_restart_comes_back_with_its_connections() {
    let world = World::new(1);
    let to = address("10.96.0.1:80");
    world.api().apply(service("a", &["10.96.0.1"]));
    world.api().apply(slice("a-1", "a", &ready(&[1])));
    let agent = world.agent().start().unwrap();
    let mut held = Dial::new(&world.topology.clients[0].namespace, to).open().unwrap();
    let listed = || agent.command(&["list"]).unwrap();
    until("the connection is counted", || listed().contains("Masq    1      1          0"));
    world.api().delete("Service", "demo", "a");
    until("a is gone", || !listed().contains("10.96.0.1"));
    agent.kill().unwrap();
    agent.start().unwrap();
    held.exchange(b"still here").unwrap();
    world.api().apply(service("a", &["10.96.0.1"]));
    until("a is back", || listed().contains("10.96.0.1"));
    assert!(listed().contains("Masq    1      1          0"), "{}", listed());
    held.exchange(b"and now").unwrap();
    held.close().unwrap();
}

#[test]
fn timeouts_given_at_a_start_hold_from_the_next_packet_on() {
    let world = World::new(1);
    world.api().apply(service("a", &["10.96.0.1"]));
    world.api().apply(slice("a-1", "a", &ready(&[1])));
    let agent = world.agent().argument("--sweep-interval=100ms").argument("--tcp-timeout=1s").start().unwrap();
    // As a client that vanishes: nothing ends the connection but time.
    let mut held = Dial::new(&world.topology.clients[0].namespace, address("10.96.0.1:80")).open().unwrap();
    held.exchange(b"the last packet").unwrap();
    let connections = || agent.command(&["connections"]).unwrap().matches("10.96.0.1:80").count();
    assert_eq!(connections(), 1);
    until("it has timed out", || connections() == 0);
    held.reset().unwrap();
}

#[test]
fn what_an_earlier_agent_programmed_holds_until_the_api_server_answers() {
    let world = World::new(2);
    let (a, b) = (address("10.96.0.1:80"), address("10.96.0.2:80"));
    world.api().apply(service("a", &["10.96.0.1"]));
    world.api().apply(slice("a-1", "a", &ready(&[1])));
    world.api().apply(service("b", &["10.96.0.2"]));
    world.api().apply(slice("b-1", "b", &ready(&[2])));
    let agent = world.agent().start().unwrap();
    let hammer = world.hammer(a);
    hammer.advance(20, DEADLINE).unwrap();

    agent.kill().unwrap();
    world.stop_api();
    world.api().apply(slice("a-1", "a", &ready(&[1, 2])));
    world.api().delete("Service", "demo", "b");
    let mark = agent.launch().unwrap();
    for collection in COLLECTIONS {
        told(&agent, mark, &format!("API server: {collection}: "));
    }
    hammer.advance(20, DEADLINE).unwrap();
    assert_eq!((world.dial(a), world.dial(b)), (Some(1), Some(2)));
    assert!(!agent.log().text(mark).contains("ready:"), "{}", agent.log().text(mark));
    world.start_api();
    told(&agent, mark, "ready:");
    world.expect(a, &[1, 2]);
    assert!(!agent.command(&["list"]).unwrap().contains("10.96.0.2"));
    unhurt(hammer);
}
