//! Each scheduler with real connections, held and closed, from everywhere, against the independent model.

use std::net::SocketAddr;

use bpvs_tests::model::{Director, Flags, Packet, SCHEDULERS};
use bpvs_tests::topology::Topology;
use bpvs_tests::traffic::{DEADLINE, Dial, Held, UdpClient};
use bpvs_tests::world::{TCP, TCP_TARGET, UDP, UDP_TARGET, World, frontends};

/// Connections of a script.
const OPENS: usize = 24;

fn director(world: &World, scheduler: &str, v6: bool, port: u16) -> Director {
    let mut director = Director::new(scheduler, Flags::default()).unwrap();
    for server in &world.topology.servers {
        let address = if v6 { server.v6.into() } else { server.v4.into() };
        director.add(server.id.into(), address, port, server.id.into()).unwrap();
    }
    director
}

/// The same steps for every scheduler: two of three connections stay, and every fifth step closes the oldest.
fn tcp(world: &World, scheduler: &str, to: SocketAddr) {
    let mut model = director(world, scheduler, to.is_ipv6(), TCP_TARGET);
    let mut held: std::collections::VecDeque<(Held, bool)> = Default::default();
    let (mut found, mut expected) = (Vec::new(), Vec::new());
    let close = |model: &mut Director, (held, node): (Held, bool)| {
        let server = held.server.into();
        held.close().unwrap();
        // A process's socket is counted until it is closed; on the wire, TIME_WAIT is an inactive connection.
        if node { model.closed(server, true) } else { model.deactivate(server) }
    };
    for step in 0..OPENS {
        let (who, client) = world.clients()[step % 3];
        let connection = Dial::new(&client.namespace, to).open();
        let connection = connection.unwrap_or_else(|error| panic!("{scheduler}, {who} to {to}: {error}"));
        let client_port = connection.local().unwrap().port();
        let packet = Packet { client: client.address_like(to.ip()), client_port, destination: to.ip() };
        let server = model.pick(packet, 0);
        found.push(u32::from(connection.server));
        expected.push(server.unwrap_or(0));
        // Counted where it went: one wrong answer must not make all that follow look wrong.
        model.connected(connection.server.into());
        model.activate(connection.server.into());
        if step % 3 == 1 && step % 2 == 0 {
            close(&mut model, (connection, who == "node"));
        } else {
            held.push_back((connection, who == "node"));
        }
        if step % 5 == 4 {
            let oldest = held.pop_front().unwrap();
            close(&mut model, oldest);
        }
    }
    assert_eq!(found, expected, "{scheduler} over TCP to {to}: bpvs, then the model");
}

fn udp(world: &World, scheduler: &str, to: SocketAddr) {
    let mut model = director(world, scheduler, to.is_ipv6(), UDP_TARGET);
    let (mut found, mut expected) = (Vec::new(), Vec::new());
    // Sockets of the node count until they are closed: hold them.
    let mut open = Vec::new();
    for step in 0..OPENS / 2 {
        let (who, client) = world.clients()[step % 3];
        let udp = UdpClient::connected(&client.namespace, None, to).unwrap();
        let answer = udp.request(20, DEADLINE).unwrap_or_else(|error| panic!("{scheduler}, {who} to {to}: {error}"));
        let client_port = udp.local().unwrap().port();
        let packet = Packet { client: client.address_like(to.ip()), client_port, destination: to.ip() };
        expected.push(model.pick(packet, 0).unwrap_or(0));
        found.push(u32::from(answer.server));
        model.connected(answer.server.into());
        open.push(udp);
    }
    assert_eq!(found, expected, "{scheduler} over UDP to {to}: bpvs, then the model");
}

#[test]
fn all_ten_against_the_model() {
    let world = World::new(Topology::builder().build().unwrap()).unwrap();
    for (number, scheduler) in (1..).zip(SCHEDULERS) {
        world.publish(scheduler, &world.service(scheduler, number).scheduler(scheduler)).unwrap();
    }
    let _agent = world.agent().unwrap();
    for (number, scheduler) in (1..).zip(SCHEDULERS) {
        frontends(number, TCP).into_iter().for_each(|to| tcp(&world, scheduler, to));
        frontends(number, UDP).into_iter().for_each(|to| udp(&world, scheduler, to));
    }
}
