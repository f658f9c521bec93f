//! ICMP errors, in both directions: to its receiver an error is about the packet that it sent.

use std::net::SocketAddr;

use bpvs_tests::{
    datapath::Hook,
    packets::{IcmpError, Packet},
};

use crate::{
    rows::Row,
    shapes::{Around, Inside},
    world::{CHANGED, SAME, SERVER_PORT, World},
};

const ERRORS: [IcmpError; 4] =
    [IcmpError::PortUnreachable, IcmpError::HostUnreachable, IcmpError::TooBig(1400), IcmpError::TimeExceeded];

/// An error about the first bytes of a packet: `behind` bytes of its transport, or all.
fn error(
    (from, to): (SocketAddr, SocketAddr),
    kind: IcmpError,
    around: Around,
    about: (SocketAddr, SocketAddr, Inside),
    behind: usize,
) -> Vec<u8> {
    let outer = Around::Vlan.packet(SocketAddr::new(from.ip(), 0), SocketAddr::new(to.ip(), 0));
    let inner = around.packet(about.0, about.1);
    let transport = about.2.transport(&inner);
    let quoted = inner.ip(&transport);
    let length = quoted.len() - transport.bytes.len() + behind.min(transport.bytes.len());
    outer.frame(&outer.icmp_error(kind, &quoted[..length]))
}

/// How much of the transport is quoted: the least, a TCP header with its option, all.
const QUOTED: [usize; 3] = [8, 24, 1000];

#[test]
fn an_error_about_a_request_reaches_the_client_as_the_frontends() {
    for world in World::both() {
        let mut client_port = 20_000;
        for &around in Around::all(world.v6) {
            if matches!(around, Around::QinQ | Around::Authentication) {
                continue; // Of the link layer, or unknown to the builder of quotes.
            }
            for (port, server_port) in [(CHANGED, SERVER_PORT), (SAME, SAME)] {
                for opening in Inside::OPENING {
                    client_port += 1;
                    let (client, vip, server) = (world.client(client_port), world.vip(port), world.server(server_port));
                    let rows = ERRORS.iter().flat_map(|&kind| QUOTED.map(|length| (kind, length))).flat_map(
                        |(kind, length)| {
                            let name = format!("{kind:?} about {opening:?}, {around:?}, {length} bytes");
                            let out = error((vip, client), kind, around, (client, vip, opening), length);
                            // From the server, from a router, from the node itself.
                            [server, world.router(), world.node(0)].map(|from| {
                                let sent = error((from, client), kind, around, (client, server, opening), length);
                                Row::reply(&name, sent, out.clone())
                            })
                        },
                    );
                    let rows: Vec<_> = rows.collect();
                    for row in &rows {
                        world.check([Row::untouched(&row.what, Hook::Egress, row.sent.clone())]);
                    }
                    world.check([Row::request(
                        "opening",
                        around.frame(client, vip, opening),
                        around.frame(client, server, opening),
                    )]);
                    for row in &rows {
                        world.check([Row::untouched(&row.what, Hook::Ingress, row.sent.clone())]);
                    }
                    world.check(rows);
                }
            }
        }
        assert_eq!(world.datapath.all_drops().unwrap(), []);
    }
}

#[test]
fn an_error_about_a_reply_reaches_the_server_as_about_its_own() {
    for world in World::both() {
        let mut client_port = 20_000;
        for (port, server_port) in [(CHANGED, SERVER_PORT), (SAME, SAME)] {
            for opening in Inside::OPENING {
                client_port += 1;
                let (client, vip, server) = (world.client(client_port), world.vip(port), world.server(server_port));
                let (around, answer) = (Around::Plain, opening.answer());
                world.check([
                    Row::request("opening", around.frame(client, vip, opening), around.frame(client, server, opening)),
                    Row::reply("answer", around.frame(server, client, answer), around.frame(vip, client, answer)),
                ]);
                for from in [client, world.router()] {
                    for kind in ERRORS {
                        for length in QUOTED {
                            let sent = error((from, vip), kind, around, (vip, client, answer), length);
                            let out = error((from, server), kind, around, (server, client, answer), length);
                            let name = format!("{kind:?} from {from} about {opening:?}, {length} bytes");
                            world.check([
                                Row::untouched(&name, Hook::Egress, sent.clone()),
                                Row::request(&name, sent, out),
                            ]);
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn an_error_leaves_its_connection_as_it_is() {
    for world in World::both() {
        let (client, vip, server) = (world.client(4000), world.vip(CHANGED), world.server(SERVER_PORT));
        for opening in Inside::OPENING {
            world.datapath.ingress(&Around::Plain.frame(client, vip, opening)).unwrap();
        }
        let sorted = || {
            let mut all = world.datapath.connections().unwrap();
            all.sort_by_key(|(key, _)| bytemuck::bytes_of(key).to_vec());
            all
        };
        let before = sorted();
        for opening in Inside::OPENING {
            let about = (client, server, opening);
            world
                .datapath
                .egress(&error((world.router(), client), IcmpError::HostUnreachable, Around::Plain, about, 8))
                .unwrap();
        }
        assert_eq!(sorted(), before);
    }
}

/// The quote ends where the error ends; what a link layer put behind is no checksum of it.
#[test]
fn a_trailer_behind_an_error_is_not_taken_for_its_quote() {
    for world in World::both() {
        for opening in Inside::OPENING {
            let (client, vip, server) = (world.client(4000), world.vip(CHANGED), world.server(SERVER_PORT));
            world.datapath.ingress(&Around::Plain.frame(client, vip, opening)).unwrap();
            let with = |mut frame: Vec<u8>| {
                frame.extend([0x5a; 40]);
                frame
            };
            let kind = IcmpError::PortUnreachable;
            let sent = error((server, client), kind, Around::Plain, (client, server, opening), 8);
            let out = error((vip, client), kind, Around::Plain, (client, vip, opening), 8);
            world.check([Row::reply("error with a trailer", with(sent), with(out))]);
        }
    }
}

#[test]
fn an_error_cut_inside_the_quoted_headers_passes_by() {
    for world in World::both() {
        let (client, vip, server) = (world.client(4000), world.vip(CHANGED), world.server(SERVER_PORT));
        world.datapath.ingress(&Around::Plain.frame(client, vip, Inside::Udp)).unwrap();
        let outer = Packet::new(SocketAddr::new(server.ip(), 0), SocketAddr::new(client.ip(), 0));
        let inner = Around::Plain.packet(client, server);
        let quoted = inner.ip(&Inside::Udp.transport(&inner));
        let header = if world.v6 { 40 } else { 20 };
        for length in 0..header + 8 {
            let mut frame = outer.frame(&outer.icmp_error(IcmpError::PortUnreachable, &quoted[..length]));
            world.check([Row::untouched("cut", Hook::Egress, frame.clone())]);
            // The bytes are there, but behind the end of the error.
            frame.extend(&quoted[length..]);
            world.check([Row::untouched("cut, with a trailer", Hook::Egress, frame)]);
        }
    }
}
