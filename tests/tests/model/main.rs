//! The model of the kit against everything the specification and the recorded runs of Linux IPVS say.

mod hash;
mod load;
mod locality;
mod maglev;
mod order;
mod recorded;
mod service;

use std::net::{IpAddr, Ipv4Addr};

use bpvs_tests::model::{Director, Flags, Packet};

const NONE: Flags = Flags { port: false, fallback: false };

fn address(server: u32) -> IpAddr {
    Ipv4Addr::from(0xc0a8_3c00 + server).into()
}

/// A service with servers 1, 2, ... of these weights, added in this order.
fn director(scheduler: &str, weights: &[i32]) -> Director {
    let mut director = Director::new(scheduler, NONE).unwrap();
    for (server, &weight) in (1..).zip(weights) {
        director.add(server, address(server), 80, weight).unwrap();
    }
    director
}

fn packet(client: &str, client_port: u16, destination: &str) -> Packet {
    Packet { client: client.parse().unwrap(), client_port, destination: destination.parse().unwrap() }
}

fn usual() -> Packet {
    packet("10.1.2.3", 40000, "10.96.0.1")
}

/// Picks that leave no connection, as words; `R` for none.
fn picks(director: &mut Director, count: usize) -> String {
    let word = |picked: Option<u32>| picked.map_or("R".to_owned(), |server| server.to_string());
    (0..count).map(|_| word(director.pick(usual(), 0))).collect::<Vec<_>>().join(" ")
}

/// Opens an active connection.
fn open(director: &mut Director, packet: Packet, now: u64) -> Option<u32> {
    let server = director.pick(packet, now)?;
    director.connected(server);
    director.activate(server);
    Some(server)
}
