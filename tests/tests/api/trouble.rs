//! Whatever happens to the API server or the way to it: connections go on, and what it states is followed as soon as it
//! can be asked.

use std::fs;
use std::time::{Duration, Instant};

use super::objects::{other_node, ready, service, slice};
use super::{COLLECTIONS, DEADLINE, World, address, unhurt, until};

const A: &str = "10.96.0.1:80";

/// Service `a` with these servers.
fn world(servers: &[u16]) -> World {
    let world = World::new(3);
    world.api().apply(service("a", &["10.96.0.1"]));
    world.api().apply(slice("a-1", "a", &ready(servers)));
    world
}

#[test]
fn a_version_that_is_gone_is_answered_with_a_new_list() {
    let world = world(&[1]);
    let _agent = world.agent().start().unwrap();
    let hammer = world.hammer(address(A));
    for (in_stream, servers) in [(false, [2, 3]), (true, [1, 2])] {
        world.wait_for_watches();
        let lists = world.api().count("list", "endpointslices");
        world.api().tell_gone_in_stream(in_stream);
        // Moves the version on without any of the watches seeing it.
        world.api().apply(other_node(&format!("n-{in_stream}")));
        world.api().compact();
        world.api().end_watches();
        world.wait("the slices are listed again", |api| api.count("list", "endpointslices") > lists);
        world.wait_for_watches();
        world.api().apply(slice("a-1", "a", &ready(&servers)));
        world.expect(address(A), &servers);
    }
    unhurt(hammer);
}

/// Traps 16, first: the list after the break shows nothing new, the first event after it removes a server.
#[test]
fn a_removal_in_the_first_event_after_a_break_is_not_lost() {
    let world = world(&[1, 2]);
    let _agent = world.agent().start().unwrap();
    let hammer = world.hammer(address(A));
    for (compacted, servers) in [(false, [1]), (true, [2])] {
        world.wait_for_watches();
        let opened = world.api().count("watch", "endpointslices");
        if compacted {
            world.api().apply(other_node("n7"));
            world.api().compact();
        }
        world.api().drop_watches();
        world.wait("the slices are watched again", |api| api.count("watch", "endpointslices") > opened);
        world.api().apply(slice("a-1", "a", &ready(&servers)));
        world.expect(address(A), &servers);
    }
    unhurt(hammer);
}

/// Traps 16, second: the list after the break lacks what was there before it.
#[test]
fn what_is_deleted_during_an_outage_goes_when_the_server_returns_and_not_before() {
    let world = world(&[1, 2]);
    let b = address("10.96.0.2:80");
    world.api().apply(service("b", &["10.96.0.2"]));
    world.api().apply(slice("b-1", "b", &ready(&[3])));
    world.api().apply(service("c", &["10.96.0.3"]));
    let agent = world.agent().start().unwrap();
    let hammer = world.hammer(address(A));
    world.wait_for_watches();
    let mark = agent.log().len();
    world.stop_api();
    world.api().delete("EndpointSlice", "demo", "b-1");
    world.api().delete("Service", "demo", "c");
    world.api().apply(slice("a-1", "a", &ready(&[2])));
    world.api().compact();
    let told = |line: &str| line.contains("API server: endpointslices: ");
    agent.wait_for_log(mark, "the outage to be told", DEADLINE, told).unwrap();
    world.expect(address(A), &[1, 2]);
    assert_eq!(world.dial(b), Some(3));
    world.start_api();
    world.expect(address(A), &[2]);
    world.expect(b, &[]);
    until("c is gone", || !agent.command(&["list"]).unwrap().contains("10.96.0.3"));
    let log = agent.log().text(mark);
    assert_eq!(log.lines().filter(|line| told(line) && line.contains("WARN")).count(), 1, "told once:\n{log}");
    assert!(log.contains("API server: endpointslices: listed again"), "{log}");
    unhurt(hammer);
}

#[test]
fn a_server_that_only_fails_is_asked_ever_more_seldom_and_followed_again_when_it_works() {
    let world = world(&[1]);
    let agent = world.agent().start().unwrap();
    let hammer = world.hammer(address(A));
    let mut servers = [1];
    for (status, next) in [(500, 2), (429, 3), (504, 1)] {
        world.wait_for_watches();
        COLLECTIONS.iter().for_each(|collection| world.api().refuse(collection, Some(status)));
        let (asked, busy, begin) = (world.api().requests().len(), cpu(agent.process().unwrap()), Instant::now());
        world.api().drop_watches();
        world.api().apply(slice("a-1", "a", &ready(&[next])));
        let failed = move |api: &bpvs_tests::api_server::ApiServer| {
            let failed = |request: &&bpvs_tests::api_server::Request| request.status == status;
            COLLECTIONS.iter().all(|of| {
                let requests = api.requests();
                requests.iter().filter(failed).filter(|request| request.collection == **of).count() >= 2
            })
        };
        world.wait("every collection has failed twice", failed);
        // At least 0.4 s between two requests, twice that from then on; three collections.
        let (requests, took) = (world.api().requests(), begin.elapsed());
        let asked =
            requests[asked..].iter().filter(|request| COLLECTIONS.contains(&request.collection.as_str())).count();
        assert!(asked as f64 <= 3.0 * (2.0 + took.as_secs_f64() / 0.4), "{status}: {asked} requests in {took:?}");
        let busy = cpu(agent.process().unwrap()) - busy;
        assert!(busy < took.mul_f64(0.5) + Duration::from_millis(100), "{status}: {busy:?} of CPU time in {took:?}");
        world.expect(address(A), &servers);
        COLLECTIONS.iter().for_each(|collection| world.api().refuse(collection, None));
        servers = [next];
        world.expect(address(A), &servers);
    }
    unhurt(hammer);
}

/// CPU time of a process: fields 14 and 15 of its `stat`, in hundredths of a second.
fn cpu(process: u32) -> Duration {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap();
    let (_, rest) = stat.rsplit_once(')').unwrap();
    let ticks: u64 = rest.split_whitespace().skip(11).take(2).map(|field| field.parse::<u64>().unwrap()).sum();
    Duration::from_millis(ticks * 10)
}
