//! A client that is its own server: both directions turn round at the interface that they arrive on.

use std::net::SocketAddr;

use bpvs_tests::{
    datapath::{DROPPED, Hook, REDIRECTED},
    packets::IcmpError,
};
use lb_common::{address::Address, drops::Drop, layout::Settings};

use crate::{
    rows::Row,
    shapes::{Around, Inside, turned},
    world::{HAIRPIN, SERVER_PORT, World},
};

#[test]
fn a_client_that_is_its_own_server_gets_its_request_from_the_node_and_its_reply_from_the_frontend() {
    for world in World::both() {
        let mut port = 20_000;
        for &around in Around::all(world.v6) {
            for opening in Inside::OPENING {
                port += 1;
                let (client, vip) = (world.client(port), world.vip(HAIRPIN));
                let (node, server) = (world.node(port), world.client(SERVER_PORT));
                let (answer, more) = (opening.answer(), opening.following());
                let name = |what: &str| format!("{around:?}, {opening:?}: {what}");
                let row = |what: &str, (from, to, inside), (new_from, new_to)| {
                    let out = turned(&around.frame(new_from, new_to, inside));
                    Row::request(&name(what), around.frame(from, to, inside), out).verdict(REDIRECTED)
                };
                world.check([
                    row("new", (client, vip, opening), (node, server)),
                    row("reply", (server, node, answer), (vip, client)),
                    row("known", (client, vip, more), (node, server)),
                    row("reply to known", (server, node, more), (vip, client)),
                    Row::untouched(&name("the request, leaving"), Hook::Egress, around.frame(node, server, more)),
                    Row::untouched(&name("the reply, leaving"), Hook::Egress, around.frame(server, node, more)),
                ]);
            }
        }
    }
}

#[test]
fn errors_about_a_hairpins_packets_turn_round_too() {
    for world in World::both() {
        for opening in Inside::OPENING {
            let (client, vip) = (world.client(4000), world.vip(HAIRPIN));
            let (node, server) = (world.node(4000), world.client(SERVER_PORT));
            let answer = opening.answer();
            assert_eq!(world.datapath.ingress(&Around::Plain.frame(client, vip, opening)).unwrap().verdict, REDIRECTED);
            let error = |from: SocketAddr, to: SocketAddr, (inner_from, inner_to, inside): (_, _, Inside)| {
                let outer = Around::Plain.packet(SocketAddr::new(from.ip(), 0), SocketAddr::new(to.ip(), 0));
                let inner = Around::Plain.packet(inner_from, inner_to);
                let quoted = inner.ip(&inside.transport(&inner));
                outer.frame(&outer.icmp_error(IcmpError::PortUnreachable, &quoted))
            };
            world.check([
                Row::request(
                    "the server refuses the request",
                    error(server, node, (node, server, opening)),
                    turned(&error(vip, client, (client, vip, opening))),
                )
                .verdict(REDIRECTED),
                Row::request(
                    "the client refuses the reply",
                    error(client, vip, (vip, client, answer)),
                    turned(&error(node, server, (server, node, answer))),
                )
                .verdict(REDIRECTED),
            ]);
        }
    }
}

#[test]
fn a_hairpin_on_a_node_without_an_address_is_dropped_by_name() {
    for mut world in World::both() {
        let settings = world.datapath.settings().unwrap();
        let nobody = Settings { node_v4: Address::UNSPECIFIED, node_v6: Address::UNSPECIFIED, ..settings };
        world.datapath.set_settings(nobody).unwrap();
        for (index, opening) in (1..).zip(Inside::OPENING) {
            let sent = Around::Plain.frame(world.client(4000), world.vip(HAIRPIN), opening);
            assert_eq!(world.datapath.ingress(&sent).unwrap().verdict, DROPPED);
            assert_eq!(world.datapath.all_drops().unwrap(), [(Drop::NoSourcePort.name(), index)]);
        }
        assert!(world.datapath.connections().unwrap().is_empty());
    }
}
