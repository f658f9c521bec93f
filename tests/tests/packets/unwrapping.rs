//! The server's node: what comes for its server inside of another packet is a request; all else is somebody else's.

use std::net::SocketAddr;

use bpvs_tests::{
    datapath::{DROPPED, Hook, NEXT, Options, REDIRECTED},
    packets::{IcmpError, Packet, flags, verify},
};
use lb_common::{
    address::Protocol,
    drops::Drop,
    layout::{ConnectionState, DESTINATION_AVAILABLE, DESTINATION_LOCAL, LOOKUP_TUNNELS},
};

use crate::{
    director::{Director, Method, mend},
    mutations::{Numbers, mutations},
    rows::hex,
    shapes::{Around, Inside, protocol_of},
    world::{CHANGED, PAIR, SERVER_PORT, World},
};

const ACK: Inside = Inside::Segment(flags::ACK);

/// A node that unwraps, in each family.
fn both() -> [Director; 2] {
    Director::both(Method::Unwrapped)
}

impl Director {
    /// A client's frame as the director sends it to the server's node.
    fn arriving(&self, frame: &[u8]) -> Vec<u8> {
        self.wrapped(self.world.router().ip(), self.server, &frame[14..])
    }

    /// Sends a packet in a tunnel; it must go on to the server, by NAT.
    fn unwraps(&self, around: Around, port: u16, inside: Inside) {
        let (client, vip, server) = (self.world.client(port), self.world.vip(CHANGED), self.world.server(SERVER_PORT));
        let run = self.ingress(&self.arriving(&around.frame(client, vip, inside)));
        let expected = around.frame(client, server, inside);
        let drops = self.world.datapath.all_drops().unwrap();
        assert_eq!(run.verdict, NEXT, "{around:?}, {inside:?}: {drops:?}");
        assert!(run.frame == expected, "{around:?}, {inside:?}\n  got {}\n want {}", hex(&run.frame), hex(&expected));
    }

    /// Sends a packet that must pass untouched, and leave nothing behind.
    fn passes(&self, what: &str, sent: &[u8]) {
        let before = self.world.datapath.connections().unwrap().len();
        let run = self.ingress(sent);
        assert_eq!((run.verdict, hex(&run.frame)), (NEXT, hex(sent)), "{what}");
        assert_eq!(self.world.datapath.connections().unwrap().len(), before, "{what}");
    }
}

#[test]
fn what_was_inside_reaches_the_server_by_nat_and_its_answer_comes_from_the_frontend() {
    for director in both() {
        let mut port = 4000;
        for &around in Around::all(director.world.v6) {
            if matches!(around, Around::Vlan | Around::QinQ) {
                continue; // Tags are outside.
            }
            for opening in Inside::OPENING {
                port += 1;
                director.unwraps(around, port, opening);
                let (client, vip) = (director.world.client(port), director.world.vip(CHANGED));
                let answer = opening.answer();
                let sent = Around::Plain.frame(director.world.server(SERVER_PORT), client, answer);
                let run = director.world.datapath.run(Hook::Egress, &sent, Options::default()).unwrap();
                assert_eq!(run.frame, Around::Plain.frame(vip, client, answer));
                director.unwraps(around, port, opening.following());
                let (_, entry) = director.entry(port, protocol_of(opening)).unwrap();
                assert!(!ConnectionState(entry.state).has(ConnectionState::DIRECT_RETURN));
            }
        }
        assert_eq!(director.world.datapath.all_drops().unwrap(), []);
        let connections = port - 4000;
        assert_eq!(director.world.datapath.connections().unwrap().len(), 2 * usize::from(connections));
        let traffic = director.world.datapath.traffic(director.id(Protocol::Tcp)).unwrap();
        let of_tcp = u64::from(connections / 3);
        assert_eq!((traffic.in_packets, traffic.out_packets), (2 * of_tcp, of_tcp));
    }
}

#[test]
fn what_is_not_for_a_server_of_this_node_passes_untouched() {
    for mut director in both() {
        let world = &director.world;
        let (client, vip, router) = (world.client(4000), world.vip(CHANGED), world.router().ip());
        let request = director.request(4000, Inside::Syn);
        let other = world.second_server(0).ip();
        director.passes("for another server", &director.wrapped(router, other, &request[14..]));
        let foreign = Around::Plain.frame(client, world.router(), Inside::Udp);
        director.passes("for no service", &director.arriving(&foreign));
        for port in [PAIR, crate::world::SAME] {
            let nat = Around::Plain.frame(client, world.vip(port), Inside::Syn);
            director.passes("for a service that has this server by NAT", &director.arriving(&nat));
        }
        let twice = director.arriving(&director.arriving(&request));
        director.passes("a tunnel in a tunnel", &twice);
        let echo = Packet::new(client, vip);
        director.passes("an echo", &director.arriving(&echo.frame(&echo.echo_request(1, 1, b"x"))));
        director.passes("not in a tunnel, for no service", &foreign);
        // Nothing of a service tells that it has tunnels: nothing is looked into.
        let arriving = director.arriving(&request);
        let kinds: u32 = director.world.datapath.get("lookups", 0).unwrap();
        director.world.datapath.set("lookups", 0, kinds & !LOOKUP_TUNNELS).unwrap();
        director.passes("where no service has tunnels", &arriving);
        director.world.datapath.set("lookups", 0, kinds).unwrap();
        // A server of another node, which this one only passes on to.
        let id = director.id(Protocol::Tcp);
        director.world.datapath.change_destination(id, |record| record.flags &= !DESTINATION_LOCAL).unwrap();
        director.passes("for a server of another node", &arriving);
        assert_eq!(director.world.datapath.all_drops().unwrap(), []);
    }
}

#[test]
fn lies_about_lengths_and_versions_pass_untouched() {
    for director in both() {
        let good = director.arriving(&director.request(4000, Inside::Udp));
        let header = if director.world.v6 { 40 } else { 20 };
        let inside = 14 + header;
        let changed = |what: &str, change: &dyn Fn(&mut Vec<u8>)| {
            let mut frame = good.clone();
            change(&mut frame);
            if !director.world.v6 && frame.len() >= 14 + usize::from(frame[14] & 15) * 4 {
                mend(&mut frame[14..]);
            }
            director.passes(what, &frame);
        };
        changed("cut", &|frame| frame.truncate(inside + header + 4));
        changed("nothing inside", &|frame| frame.truncate(inside));
        changed("another version inside", &|frame| frame[inside] ^= 0x20);
        let length = if director.world.v6 { 4 } else { 2 };
        changed("longer than the outer packet", &|frame| frame[inside + length + 1] += 1);
        changed("longer than the frame", &|frame| {
            frame[14 + length] = 0x10;
            frame[inside + length] = 0x08;
        });
        changed("shorter than its header", &|frame| frame[inside + length + 1] = 4);
        changed("the outer shorter than the inner", &|frame| frame[14 + length + 1] -= 1);
        changed("no length inside", &|frame| frame[inside + length..inside + length + 2].fill(0));
        changed("no length at all", &|frame| {
            frame[inside + length..inside + length + 2].fill(0);
            frame[14 + length..14 + length + 2].fill(0);
        });
        changed("a protocol that is another", &|frame| {
            frame[if director.world.v6 { 20 } else { 23 }] = if director.world.v6 { 4 } else { 41 };
        });
        if !director.world.v6 {
            changed("a fragment", &|frame| frame[20] = 0x20);
            changed("a later fragment", &|frame| frame[21] = 1);
            changed("a short outer header", &|frame| frame[14] = 0x44);
            changed("an outer header longer than the packet", &|frame| frame[14] = 0x4f);
        }
        assert_eq!(director.world.datapath.all_drops().unwrap(), []);
        assert_eq!(director.ingress(&good).verdict, NEXT);
        assert_eq!(director.world.datapath.connections().unwrap().len(), 2);
    }
}

#[test]
fn padding_behind_the_packet_stays_behind_it() {
    for director in both() {
        let mut frame = director.arriving(&director.request(4000, Inside::Udp));
        frame.extend([0x5a; 20]);
        let run = director.ingress(&frame);
        assert_eq!(run.verdict, NEXT);
        let (client, server) = (director.world.client(4000), director.world.server(SERVER_PORT));
        let mut expected = Around::Plain.frame(client, server, Inside::Udp);
        expected.extend([0x5a; 20]);
        assert_eq!(run.frame, expected);
    }
}

#[test]
fn outer_options_go_with_the_outer_header() {
    let director = Director::new(false, Method::Unwrapped);
    let request = director.request(4000, Inside::Syn);
    let outer = Packet::new(director.world.router(), SocketAddr::new(director.server, 0)).ipv4_options(&[1; 40]);
    let transport = bpvs_tests::packets::Transport { protocol: 4, bytes: request[14..].to_vec() };
    let run = director.ingress(&outer.frame(&transport));
    let (client, server) = (director.world.client(4000), director.world.server(SERVER_PORT));
    assert_eq!(hex(&run.frame), hex(&Around::Plain.frame(client, server, Inside::Syn)));
}

#[test]
fn nothing_that_is_damaged_ends_without_a_name() {
    for director in both() {
        let good = director.arriving(&director.request(4000, Inside::Syn));
        let twin = director.request(4000, Inside::Udp);
        let mut numbers = Numbers::new(7);
        for frame in mutations(&good, std::slice::from_ref(&twin), &mut numbers)
            .into_iter()
            .filter(|frame| crate::hostile::runs(frame))
        {
            let before: u64 = director.world.datapath.all_drops().unwrap().iter().map(|(_, count)| count).sum();
            let run = director.ingress(&frame);
            let after: u64 = director.world.datapath.all_drops().unwrap().iter().map(|(_, count)| count).sum();
            match run.verdict {
                NEXT => assert_eq!(after, before, "{}", hex(&frame)),
                DROPPED | REDIRECTED => assert!(after > before, "ended without a name: {}", hex(&frame)),
                other => panic!("verdict {other}: {}", hex(&frame)),
            }
        }
    }
}

#[test]
fn a_director_that_changed_its_mind_is_followed() {
    for mut director in both() {
        director.unwraps(Around::Plain, 4000, Inside::Syn);
        director.unwraps(Around::Plain, 4000, ACK);
        // The same client's port, by another server of this node.
        let (second, frontend) =
            (director.world.second_server(0).ip(), World::frontend(Protocol::Tcp, director.world.vip(PAIR)));
        let old = director.id(Protocol::Tcp);
        let service = director.world.datapath.service(&World::frontend(Protocol::Tcp, director.world.vip(CHANGED)));
        let id = director.world.datapath.destination_in(&frontend, second, SERVER_PORT).unwrap().unwrap();
        let (service, frontend) =
            (service.unwrap().unwrap(), World::frontend(Protocol::Tcp, director.world.vip(CHANGED)));
        let flags = director.world.datapath.destination(old).unwrap().flags;
        director
            .world
            .datapath
            .change_destination(id, |record| (record.service, record.flags) = (service.id, flags))
            .unwrap();
        let pair = World::frontend(Protocol::Tcp, director.world.vip(PAIR));
        let set = director.world.datapath.service(&pair).unwrap().unwrap();
        director
            .world
            .datapath
            .change_service(&frontend, |service| {
                (service.set_base, service.set_length) = (set.set_base, set.set_length);
            })
            .unwrap();
        let sent = director.wrapped(director.world.router().ip(), second, &director.request(4000, Inside::Syn)[14..]);
        let run = director.ingress(&sent);
        assert_eq!(run.verdict, NEXT);
        assert_eq!(verify(&run.frame).unwrap().to.ip(), second);
        assert_eq!(director.world.datapath.counts(old).unwrap(), (0, 0), "the one before is over");
        assert_eq!(director.world.datapath.counts(id).unwrap(), (1, 0));
    }
}

#[test]
fn a_server_that_was_removed_gets_what_it_has_and_nothing_new() {
    for mut director in both() {
        director.unwraps(Around::Plain, 4000, Inside::Syn);
        let id = director.id(Protocol::Tcp);
        let frontend = World::frontend(Protocol::Tcp, director.world.vip(CHANGED));
        director.world.datapath.change_destination(id, |record| record.flags &= !DESTINATION_AVAILABLE).unwrap();
        director.world.datapath.change_service(&frontend, |service| service.set_length = 0).unwrap();
        director.unwraps(Around::Plain, 4000, ACK);
        director.passes("a new one", &director.arriving(&director.request(4001, Inside::Syn)));
    }
}

#[test]
fn fragments_and_errors_inside_are_found_too() {
    for director in both() {
        let (client, vip, server) =
            (director.world.client(4000), director.world.vip(CHANGED), director.world.server(SERVER_PORT));
        let fragments = |to| {
            let packet = Packet::new(client, to).identification(5);
            packet.fragments(&packet.udp(&[3; 100]), 56)
        };
        let sent = fragments(vip);
        director.passes("a later fragment before the first", &director.arriving(&sent[1]));
        let got: Vec<_> = sent.iter().map(|frame| director.ingress(&director.arriving(frame)).frame).collect();
        let whole = bpvs_tests::packets::reassemble(&got).unwrap();
        assert_eq!(verify(&whole).unwrap().to, server);
        assert_eq!(verify(&whole).unwrap().payload, [3; 100]);
        // What a router says about an answer.
        let error = |(to, from): (SocketAddr, SocketAddr)| {
            let about = Packet::new(from, client);
            let outer = Packet::new(director.world.router(), SocketAddr::new(to.ip(), 0));
            outer.frame(&outer.icmp_error(IcmpError::TooBig(1300), &about.ip(&about.udp(b"answer"))))
        };
        let run = director.ingress(&director.arriving(&error((vip, vip))));
        assert_eq!((run.verdict, hex(&run.frame)), (NEXT, hex(&error((server, server)))));
    }
}

#[test]
fn congestion_on_the_way_is_shown_or_costs_the_packet() {
    for director in both() {
        for (class, after) in [(0, None), (1, Some(3)), (2, Some(3)), (3, Some(3))] {
            let set = |frame: &mut [u8], at: usize, class: u8| {
                if director.world.v6 {
                    frame[at + 1] = class << 4;
                } else {
                    frame[at + 1] = class;
                    mend(&mut frame[at..]);
                }
            };
            let mut request = director.request(4000, Inside::Udp);
            set(&mut request, 14, class);
            let mut arriving = director.arriving(&request);
            set(&mut arriving, 14, 3);
            let run = director.ingress(&arriving);
            let Some(after) = after else {
                assert_eq!(run.verdict, DROPPED);
                continue;
            };
            assert_eq!(run.verdict, NEXT);
            verify(&run.frame).unwrap();
            let found = if director.world.v6 { run.frame[15] >> 4 } else { run.frame[15] };
            assert_eq!(found, after, "class {class}");
        }
        assert_eq!(director.world.datapath.all_drops().unwrap(), [(Drop::Congestion.name(), 1)]);
    }
}

#[test]
fn a_request_that_comes_without_a_tunnel_is_served_as_ever() {
    for director in both() {
        director.unwraps(Around::Plain, 4000, Inside::Syn);
        let request = director.request(4001, Inside::Syn);
        let run = director.ingress(&request);
        let (client, server): (SocketAddr, SocketAddr) =
            (director.world.client(4001), director.world.server(SERVER_PORT));
        assert_eq!(hex(&run.frame), hex(&Around::Plain.frame(client, server, Inside::Syn)));
    }
}
