//! While any object changes, no connection to a service with a ready server fails.

use std::time::Duration;

use lb_common::scheduler::Scheduler;
use serde_json::{Value, json};

use super::objects::{ready, service, slice, with};
use super::{World, address, unhurt, until};

const CHANGES: u32 = 1000;
/// Servers there are.
const SERVERS: u16 = 4;

/// The servers of a number's bits, at least one.
fn some(bits: u32) -> Vec<u16> {
    let found: Vec<u16> = (1..=SERVERS).filter(|server| bits & 1 << server != 0).collect();
    if found.is_empty() { vec![1] } else { found }
}

/// What is stated of the service that connections go to. Its first slice always has a server.
struct Stated {
    scheduler: Scheduler,
    affinity: bool,
    second_port: bool,
    external: bool,
    local: bool,
    servers: Vec<u16>,
    weight: u32,
}

impl Stated {
    fn service(&self) -> Value {
        let mut object = with_port(service("a", &["10.96.0.1"]), self.second_port);
        object["spec"]["sessionAffinity"] = json!(if self.affinity { "ClientIP" } else { "None" });
        object["spec"]["externalIPs"] = if self.external { json!(["198.51.100.9"]) } else { json!([]) };
        object["spec"]["externalTrafficPolicy"] = json!(if self.local { "Local" } else { "Cluster" });
        with(object, "annotations", "bpvs.io/scheduler", self.scheduler.name())
    }

    fn slice(&self) -> Value {
        with(slice("a-1", "a", &ready(&self.servers)), "annotations", "bpvs.io/weight", &self.weight.to_string())
    }
}

fn with_port(mut object: Value, second: bool) -> Value {
    if second {
        object["spec"]["ports"] = json!([{"name": "web", "port": 80, "protocol": "TCP"},
                                         {"name": "more", "port": 81, "protocol": "TCP"}]);
    }
    object
}

#[test]
fn no_connection_fails_through_a_thousand_changes() {
    let world = World::new(SERVERS);
    let (to, steady) = (address("10.96.0.1:80"), address("10.96.0.2:80"));
    let mut stated = Stated {
        scheduler: Scheduler::RoundRobin,
        affinity: false,
        second_port: false,
        external: false,
        local: false,
        servers: vec![1, 2],
        weight: 1,
    };
    world.api().apply(stated.service());
    world.api().apply(stated.slice());
    world.api().apply(service("steady", &["10.96.0.2"]));
    world.api().apply(slice("steady-1", "steady", &ready(&[1, 2])));
    let agent = world.agent().start().unwrap();
    world.wait_for_watches();
    let hammers = [world.hammer(to), world.hammer(steady)];
    let mut others = [false; 50];
    let mut second_slice = false;
    let mut random = 0x2545_f491u32;
    for number in 0..CHANGES {
        random ^= random << 13;
        random ^= random >> 17;
        random ^= random << 5;
        let bits = random >> 8;
        match number % 10 {
            0 | 5 => {
                stated.servers = some(bits);
                world.api().apply(stated.slice());
            }
            1 if second_slice => world.api().delete("EndpointSlice", "demo", "a-2"),
            1 => world.api().apply(slice("a-2", "a", &ready(&some(bits)))),
            2 => {
                stated.scheduler = Scheduler::ALL[bits as usize % Scheduler::ALL.len()];
                world.api().apply(stated.service());
            }
            3 => {
                stated.affinity = !stated.affinity;
                world.api().apply(stated.service());
            }
            4 => {
                stated.weight = 1 + bits % 9;
                world.api().apply(stated.slice());
            }
            6 => {
                (stated.second_port, stated.external) = (bits & 1 != 0, bits & 2 != 0);
                stated.local = bits & 4 != 0;
                world.api().apply(stated.service());
            }
            7 => {
                let zone = if bits & 1 == 0 { "a" } else { "b" };
                let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n0"}});
                world.api().apply(with(node, "labels", "topology.kubernetes.io/zone", zone));
            }
            _ => {
                let which = bits as usize % others.len();
                let name = format!("other-{which}");
                let there = std::mem::take(&mut others[which]);
                others[which] = !there;
                if there {
                    world.api().delete("Service", "demo", &name);
                    world.api().delete("EndpointSlice", "demo", &format!("{name}-1"));
                } else {
                    world.api().apply(service(&name, &[&format!("10.96.1.{}", 1 + which)]));
                    world.api().apply(slice(&format!("{name}-1"), &name, &ready(&some(bits))));
                }
            }
        }
        if number % 10 == 1 {
            second_slice = !second_slice;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    hammers.into_iter().for_each(unhurt);
    // All of it was followed to the end.
    stated.scheduler = Scheduler::RoundRobin;
    (stated.affinity, stated.servers) = (false, vec![3, 4]);
    if second_slice {
        world.api().delete("EndpointSlice", "demo", "a-2");
    }
    world.api().apply(stated.service());
    world.api().apply(stated.slice());
    world.expect(to, &[3, 4]);
    let left = others.iter().filter(|there| **there).count();
    until("the other services are those that are stated", || {
        agent.command(&["list"]).unwrap().matches("10.96.1.").count() == left
    });
}
