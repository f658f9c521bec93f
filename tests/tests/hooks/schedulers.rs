//! Each scheduler with real connections, held and closed, decision by decision against the independent model; twos, which
//! draws, by its rule.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;

use bpvs_tests::model::{Director, Flags, Packet};
use bpvs_tests::traffic::{DEADLINE, Dial, Held, UdpClient};
use bpvs_tests::world::{TCP, TCP_TARGET, UDP, UDP_TARGET, World, frontends};

use super::{Case, On};

/// Connections of a script.
const OPENS: usize = 20;

/// The table.
pub(crate) const CASES: &[Case] = &[
    by_model("rr", |world, number| service(world, number, "rr"), |on, number| like_the_model(on, number, "rr")),
    by_model("wrr", |world, number| service(world, number, "wrr"), |on, number| like_the_model(on, number, "wrr")),
    by_model("lc", |world, number| service(world, number, "lc"), |on, number| like_the_model(on, number, "lc")),
    by_model("wlc", |world, number| service(world, number, "wlc"), |on, number| like_the_model(on, number, "wlc")),
    by_model("sed", |world, number| service(world, number, "sed"), |on, number| like_the_model(on, number, "sed")),
    by_model("nq", |world, number| service(world, number, "nq"), |on, number| like_the_model(on, number, "nq")),
    by_model("fo", |world, number| service(world, number, "fo"), |on, number| like_the_model(on, number, "fo")),
    by_model("ovf", |world, number| service(world, number, "ovf"), |on, number| like_the_model(on, number, "ovf")),
    by_model("dh", |world, number| service(world, number, "dh"), |on, number| like_the_model(on, number, "dh")),
    by_model("sh", |world, number| service(world, number, "sh"), |on, number| like_the_model(on, number, "sh")),
    by_model("mh", |world, number| service(world, number, "mh"), |on, number| like_the_model(on, number, "mh")),
    by_model("lblc", |world, number| service(world, number, "lblc"), |on, number| like_the_model(on, number, "lblc")),
    by_model(
        "lblcr",
        |world, number| service(world, number, "lblcr"),
        |on, number| like_the_model(on, number, "lblcr"),
    ),
    Case { name: "twos", service: |world, number| service(world, number, "twos"), check: twos },
];

const fn by_model(name: &'static str, service: fn(&World, u16) -> String, check: fn(&On<'_>, u16)) -> Case {
    Case { name, service, check }
}

/// Every server, with its number as its weight.
fn service(world: &World, number: u16, scheduler: &str) -> String {
    world.service(&format!("case-{number}"), number).scheduler(scheduler).yaml()
}

fn like_the_model(on: &On<'_>, number: u16, scheduler: &str) {
    frontends(number, TCP).into_iter().for_each(|to| tcp(on, scheduler, to));
    frontends(number, UDP).into_iter().for_each(|to| udp(on, scheduler, to));
}

fn director(world: &World, scheduler: &str, to: SocketAddr, port: u16) -> Director {
    let mut director = Director::new(scheduler, Flags::default()).unwrap();
    for server in &world.topology.servers {
        director.add(server.id.into(), server.address_like(to.ip()), port, server.id.into()).unwrap();
    }
    director
}

/// Two of three connections stay, and every fifth step closes the oldest.
fn tcp(on: &On<'_>, scheduler: &str, to: SocketAddr) {
    let mut model = director(on.world, scheduler, to, TCP_TARGET);
    let mut open: VecDeque<Held> = VecDeque::new();
    let (mut found, mut expected) = (Vec::new(), Vec::new());
    let wire = on.hook.on_the_wire();
    let close = |model: &mut Director, held: Held| {
        let server = held.server.into();
        held.close().unwrap();
        // On the wire, TIME_WAIT is an inactive connection; a process's socket is counted until it is closed.
        if wire { model.deactivate(server) } else { model.closed(server, true) }
    };
    let clients = on.clients();
    for step in 0..OPENS {
        let (who, client) = clients[step % clients.len()];
        let held = Dial::new(&client.namespace, to).open();
        let held = held.unwrap_or_else(|error| panic!("{scheduler}, {who} to {to}: {error}"));
        let client_port = held.local().unwrap().port();
        let packet = Packet { client: client.address_like(to.ip()), client_port, destination: to.ip() };
        expected.push(model.pick(packet, 0).unwrap_or(0));
        found.push(u32::from(held.server));
        // Counted where it went: one wrong answer must not make all that follow look wrong.
        model.connected(held.server.into());
        model.activate(held.server.into());
        if step % 3 == 1 {
            close(&mut model, held);
        } else {
            open.push_back(held);
        }
        if step % 5 == 4 {
            close(&mut model, open.pop_front().unwrap());
        }
    }
    assert_eq!(found, expected, "{:?}, {scheduler} over TCP to {to}: bpvs, then the model", on.hook);
}

fn udp(on: &On<'_>, scheduler: &str, to: SocketAddr) {
    let mut model = director(on.world, scheduler, to, UDP_TARGET);
    let (mut found, mut expected) = (Vec::new(), Vec::new());
    // Sockets of the node count until they are closed: hold them.
    let mut open = Vec::new();
    let clients = on.clients();
    for step in 0..OPENS / 2 {
        let (who, client) = clients[step % clients.len()];
        let socket = UdpClient::connected(&client.namespace, None, to).unwrap();
        let answer = socket.request(20, DEADLINE).unwrap_or_else(|error| panic!("{scheduler}, {who} to {to}: {error}"));
        let client_port = socket.local().unwrap().port();
        let packet = Packet { client: client.address_like(to.ip()), client_port, destination: to.ip() };
        expected.push(model.pick(packet, 0).unwrap_or(0));
        found.push(u32::from(answer.server));
        model.connected(answer.server.into());
        open.push(socket);
    }
    assert_eq!(found, expected, "{:?}, {scheduler} over UDP to {to}: bpvs, then the model", on.hook);
}

/// Of two draws by weight it takes the one with less to do: held connections come near the weights.
fn twos(on: &On<'_>, number: u16) {
    let (_, client) = on.clients()[0];
    for to in frontends(number, TCP) {
        let open: Vec<Held> = (0..50).map(|_| Dial::new(&client.namespace, to).open().unwrap()).collect();
        let mut servers: BTreeMap<u16, u32> = BTreeMap::new();
        open.iter().for_each(|held| *servers.entry(held.server).or_default() += 1);
        // Weights 1 to 4 of 10. Drawn alone, the least of fifty draws for the heaviest would be lower, and the first would
        // have up to a dozen.
        assert_eq!(servers.keys().copied().collect::<Vec<_>>(), [1, 2, 3, 4], "{servers:?}");
        assert!(servers[&1] <= 10 && servers[&4] >= 14, "{:?}, {to}: {servers:?}", on.hook);
    }
}
