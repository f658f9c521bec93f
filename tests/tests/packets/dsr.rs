//! The director's half of direct routing and tunnels: what leaves, what is kept of it, who is told what.

use std::time::Duration;

use bpvs_tests::{
    datapath::{DROPPED, Datapath, Hook, NEXT, Options, REDIRECTED, Sizes, XDP_PASS},
    packets::{IcmpError, Packet, flags, protocol, verify},
    topology::UPLINK,
    world::{CHANGE, wait_for},
};
use lb_common::{
    address::{Address, Port, Protocol},
    drops::Drop,
    layout::{ACCESS_MASQUERADE, ConnectionState, SERVICE_ONE_PACKET},
    tcp::State,
};

use crate::{
    director::{Director, Method, mend},
    shapes::{Around, Inside, protocol_of},
    world::{CHANGED, SERVER_PORT, World},
};

const ACK: Inside = Inside::Segment(flags::ACK);
const FIN: Inside = Inside::Segment(flags::FIN | flags::ACK);
const RST: Inside = Inside::Segment(flags::RST);

#[test]
fn requests_leave_as_they_came_or_inside_of_another_packet() {
    for director in Director::past() {
        let mut port = 4000;
        let world = &director.world;
        for &around in Around::all(world.v6) {
            if matches!(around, Around::Vlan | Around::QinQ) {
                continue; // A tag that stands in the packet, see below.
            }
            for opening in Inside::OPENING {
                port += 1;
                let (client, vip) = (world.client(port), world.vip(CHANGED));
                director.leaves(&around.frame(client, vip, opening));
                director.leaves(&around.frame(client, vip, opening.following()));
            }
        }
        assert_eq!(world.datapath.all_drops().unwrap(), []);
    }
}

#[test]
fn an_outer_header_has_the_traffic_class_and_may_be_cut_as_the_packet_inside() {
    for director in Director::past().filter(|director| director.method != Method::Route) {
        for class in [0x00, 0xb8, 0xb9, 0xba, 0xbb, 0x03] {
            for whole in [false, true] {
                let mut sent = director.request(4000, Inside::Udp);
                if director.world.v6 {
                    (sent[14], sent[15]) = (0x60 | class >> 4, class << 4);
                } else {
                    (sent[15], sent[20]) = (class, if whole { 0x40 } else { 0 });
                    mend(&mut sent[14..]);
                }
                director.leaves(&sent);
            }
        }
    }
}

#[test]
fn one_entry_is_kept_of_a_connection_and_replies_are_not_looked_for() {
    for mut director in Director::past() {
        for opening in Inside::OPENING {
            let protocol = protocol_of(opening);
            director.leaves(&director.request(4000, opening));
            let (_, entry) = director.entry(4000, protocol).unwrap();
            let flag = if director.method == Method::Route { ConnectionState::ROUTE } else { ConnectionState::TUNNEL };
            assert_eq!(entry.state & ConnectionState::DIRECT_RETURN, flag);
            assert_eq!(entry.destination, Address::from(director.server));
            assert_eq!(entry.destination_port.number(), CHANGED, "the frontend's port stays");
            assert_eq!(entry.source_port.number(), 4000);
            director.leaves(&director.request(4000, opening.following()));
            let traffic = director.world.datapath.traffic(director.id(protocol)).unwrap();
            let sent = [opening, opening.following()].map(|inside| director.request(4000, inside).len() as u64 - 14);
            let (packets, bytes) = ((traffic.in_packets, traffic.out_packets), (traffic.in_bytes, traffic.out_bytes));
            assert_eq!((traffic.connections, packets, bytes), (1, (2, 0), (sent.iter().sum(), 0)));
        }
        assert_eq!(director.world.datapath.connections().unwrap().len(), 3);
        director.world.datapath.age(Duration::from_secs(3600)).unwrap();
        director.world.datapath.sweep(true).unwrap();
        assert_eq!(director.world.datapath.connections().unwrap(), []);
        for protocol in Protocol::ALL {
            assert_eq!(director.world.datapath.counts(director.id(protocol)).unwrap(), (0, 0));
        }
    }
}

#[test]
fn states_follow_from_requests_alone() {
    for director in Director::past() {
        let steps = [
            (Inside::Syn, State::SynReceived, (1, 0)),
            (ACK, State::Established, (1, 0)),
            (FIN, State::FinWait, (0, 1)),
            (ACK, State::FinWait, (0, 1)),
            (Inside::Syn, State::SynReceived, (1, 0)),
            (ACK, State::Established, (1, 0)),
            (RST, State::Close, (0, 1)),
        ];
        for (inside, state, counts) in steps {
            director.leaves(&director.request(4000, inside));
            let (_, entry) = director.entry(4000, Protocol::Tcp).unwrap();
            assert_eq!(ConnectionState(entry.state).number(), state as u8, "after {inside:?}");
            assert_eq!(director.world.datapath.counts(director.id(Protocol::Tcp)).unwrap(), counts, "{inside:?}");
        }
    }
}

#[test]
fn a_client_port_may_talk_to_the_same_server_by_nat_at_the_same_time() {
    for mut director in Method::PAST[..2].iter().flat_map(|&method| Director::both(method)) {
        // By NAT the server's port is the frontend's, so that those answers have the key that these would have.
        let (client, server) = (director.world.client(4000), director.world.server(CHANGED));
        let frontend = director.world.other_vip(CHANGED);
        let other = World::frontend(Protocol::Tcp, frontend);
        let id = director.world.datapath.destination_in(&other, server.ip(), SERVER_PORT).unwrap().unwrap();
        director.world.datapath.change_destination(id, |record| record.port = Port::new(CHANGED)).unwrap();

        director.leaves(&director.request(4000, Inside::Syn));
        let run = director.ingress(&Around::Plain.frame(client, frontend, Inside::Syn));
        assert_eq!(run.verdict, NEXT);
        assert_eq!(run.frame, Around::Plain.frame(client, server, Inside::Syn), "the client's port is its own");
        director.leaves(&director.request(4000, ACK));
        let answered = |director: &Director| {
            let sent = Around::Plain.frame(server, client, Inside::Syn.answer());
            let run = director.world.datapath.run(Hook::Egress, &sent, Options::default()).unwrap();
            assert_eq!(run.frame, Around::Plain.frame(frontend, client, Inside::Syn.answer()));
        };
        answered(&director);
        // Packets of the one do not keep the other, and the end of one is not the end of the other.
        let (key, _) = director.entry(4000, Protocol::Tcp).unwrap();
        director.world.datapath.age_if(Duration::from_secs(3600), |found, _| *found == key).unwrap();
        director.world.datapath.sweep(false).unwrap();
        assert_eq!(director.entry(4000, Protocol::Tcp), None);
        assert_eq!(director.world.datapath.connections().unwrap().len(), 2, "both entries of the one by NAT");
        answered(&director);
    }
}

#[test]
fn what_does_not_fit_is_answered_with_what_fits() {
    for director in Director::past() {
        let header = if director.server.is_ipv6() { 40 } else { 20 };
        let fits = if director.method == Method::Route { 1500 } else { 1500 - header };
        let (client, vip) = (director.world.client(4000), director.world.vip(CHANGED));
        let packet = Packet::new(client, vip);
        let of_length = |length: usize| {
            let headers = if director.world.v6 { 48 } else { 28 };
            let mut frame = packet.frame(&packet.udp(&vec![7; length - headers]));
            if !director.world.v6 {
                frame[20] = 0x40;
                mend(&mut frame[14..]);
            }
            frame
        };
        director.leaves(&of_length(fits));
        let sent = of_length(fits + 1);
        let run = director.ingress(&sent);
        assert_eq!(run.verdict, REDIRECTED, "turned round");
        let found = verify(&run.frame).unwrap();
        assert_eq!((found.from.ip(), found.to.ip()), (vip.ip(), client.ip()));
        let (icmp, kind, code) = if director.world.v6 { (protocol::ICMPV6, 2, 0) } else { (protocol::ICMP, 3, 4) };
        assert_eq!((found.protocol, found.kind, found.code), (icmp, kind, code));
        let at = if director.world.v6 { 14 + 40 + 4 } else { 14 + 20 + 4 };
        let mtu = u32::from_be_bytes(run.frame[at..at + 4].try_into().unwrap());
        assert_eq!(mtu as usize, fits);
        assert_eq!(run.frame[at + 4..], sent[14..sent.len().min(run.frame.len() - at - 4 + 14)], "the quote");
        assert_eq!(director.world.datapath.all_drops().unwrap(), [(Drop::TooBig.name(), 1)]);
    }
}

#[test]
fn the_last_hop_and_no_way_are_told_to_the_client() {
    for director in Director::past() {
        let world = &director.world;
        let packet = Packet::new(world.client(4000), world.vip(CHANGED)).hop_limit(1);
        let sent = packet.frame(&packet.udp(b"last"));
        let answered = |sent: &[u8], v4: (u8, u8), v6: (u8, u8)| {
            let run = director.ingress(sent);
            assert_eq!(run.verdict, REDIRECTED, "turned round");
            let found = verify(&run.frame).unwrap();
            assert_eq!((found.kind, found.code), if world.v6 { v6 } else { v4 });
            assert_eq!(found.embedded.unwrap().to, world.vip(CHANGED));
            let quote = if world.v6 { 14 + 48 } else { 14 + 28 };
            assert_eq!(run.frame[quote..], sent[14..], "as the client sent it");
        };
        answered(&sent, (11, 0), (3, 0));
        let node = &director.topology.node.namespace;
        node.ip(&[
            "route replace unreachable 10.1.0.0/16".to_owned(),
            "route replace unreachable fd00:1::/32".to_owned(),
        ])
        .unwrap();
        answered(&director.request(4000, Inside::Udp), (3, 1), (1, 3));
        let counted = [(Drop::NoRoute.name(), 1), (Drop::HopsExceeded.name(), 1)];
        assert_eq!(world.datapath.all_drops().unwrap(), counted);
    }
}

#[test]
fn a_server_at_an_address_of_the_node_gets_its_packets_up_the_stack() {
    for director in Director::past() {
        let length = if director.server.is_ipv6() { 128 } else { 32 };
        let node = &director.topology.node.namespace;
        node.ip(&["link set lo up".to_owned(), format!("addr add {}/{length} dev lo", director.server)]).unwrap();
        // The kernel takes an IPv6 address into its routes in its own time.
        let is_local = || {
            let mut ask = std::process::Command::new("ip");
            let answer = node.run(ask.args(["route", "get", &director.server.to_string()]))?;
            Ok(answer.stdout.starts_with(b"local").then_some(()))
        };
        wait_for("route to the node's own address", CHANGE, is_local, String::new).unwrap();
        let sent = director.request(4000, Inside::Udp);
        let run = director.ingress(&sent);
        assert_eq!((run.verdict, run.frame), (NEXT, sent));
        assert_eq!(director.world.datapath.traffic(director.id(Protocol::Udp)).unwrap().in_packets, 1);
    }
}

#[test]
fn an_error_about_an_answer_goes_to_the_server_as_it_is() {
    for director in Director::past() {
        let world = &director.world;
        let (client, vip) = (world.client(4000), world.vip(CHANGED));
        let about = Packet::new(vip, client);
        let quoted = about.ip(&about.udp(b"answer"));
        let outer = Packet::new(world.router(), std::net::SocketAddr::new(vip.ip(), 0));
        let mut sent = outer.frame(&outer.icmp_error(IcmpError::TooBig(1400), &quoted));
        if !world.v6 {
            sent[20] = 0x40;
            mend(&mut sent[14..]);
        }
        assert_eq!(director.ingress(&sent).frame, sent, "of no connection");
        director.leaves(&director.request(4000, Inside::Udp));
        director.leaves(&sent);
        assert_eq!(world.datapath.traffic(director.id(Protocol::Udp)).unwrap().in_packets, 2);
    }
}

#[test]
fn fragments_follow_their_first_and_nothing_else_does() {
    for director in Director::past() {
        let (client, vip) = (director.world.client(4000), director.world.vip(CHANGED));
        let packet = Packet::new(client, vip).identification(77);
        let fragments = packet.fragments(&packet.udp(&[9; 100]), 56);
        let later = director.ingress(&fragments[1]);
        assert_eq!((later.verdict, &later.frame), (NEXT, &fragments[1]), "before the first");
        for fragment in &fragments {
            director.leaves(fragment);
        }
    }
}

#[test]
fn one_packet_datagrams_leave_nothing_behind() {
    for mut director in Director::past() {
        let frontend = World::frontend(Protocol::Udp, director.world.vip(CHANGED));
        director.world.datapath.change_service(&frontend, |service| service.flags |= SERVICE_ONE_PACKET).unwrap();
        for _ in 0..2 {
            director.leaves(&director.request(4000, Inside::Udp));
        }
        assert_eq!(director.world.datapath.connections().unwrap(), []);
        let traffic = director.world.datapath.traffic(director.id(Protocol::Udp)).unwrap();
        assert_eq!((traffic.connections, traffic.in_packets), (2, 2));
    }
}

#[test]
fn a_packet_with_a_tag_in_it_is_dropped_by_name() {
    // The kernel takes the outermost tag out of a packet before tc sees it: only one inside of another stays.
    for director in Director::past() {
        let frame = Around::Vlan.frame(director.world.client(4000), director.world.vip(CHANGED), Inside::Udp);
        assert_eq!(director.ingress(&frame).verdict, DROPPED);
        assert_eq!(director.world.datapath.all_drops().unwrap(), [(Drop::RewriteFailed.name(), 1)]);
    }
}

#[test]
fn a_neighbour_that_nobody_has_asked_for_yet_is_no_obstacle() {
    for director in Director::both(Method::Route) {
        let node = &director.topology.node.namespace;
        let length = if director.world.v6 { 128 } else { 32 };
        node.ip(&[format!("route add {}/{length} dev {UPLINK}", director.server)]).unwrap();
        director.leaves(&director.request(4000, Inside::Udp));
    }
}

/// An error to this node about a packet that it sent, from a router on the way to the server.
fn about(director: &Director, sent: &[u8], length: usize) -> Vec<u8> {
    let node = director.world.node(0);
    let outer = Packet::new(director.world.router(), node);
    outer.frame(&outer.icmp_error(IcmpError::TooBig(1400), &sent[14..14 + length]))
}

#[test]
fn a_router_that_says_too_big_of_the_outer_packet_is_heard_by_the_client() {
    for director in Director::both(Method::Tunnel) {
        let header = if director.world.v6 { 40 } else { 20 };
        let (client, vip) = (director.world.client(4000), director.world.vip(CHANGED));
        let packet = Packet::new(client, vip);
        let request = packet.frame(&packet.udp(&[5; 1000]));
        let sent = director.expected(&request);
        let unknown = about(&director, &sent, 300);
        assert_eq!(director.ingress(&unknown).frame, unknown, "of no connection");
        director.leaves(&request);
        for length in [2 * header + 8, 300, sent.len() - 14] {
            let run = director.ingress(&about(&director, &sent, length));
            assert_eq!(run.verdict, REDIRECTED, "{length}: {:?}", director.world.datapath.all_drops().unwrap());
            let found = verify(&run.frame).unwrap();
            assert_eq!((found.from.ip(), found.to.ip()), (vip.ip(), client.ip()));
            assert_eq!((found.kind, found.code), if director.world.v6 { (2, 0) } else { (3, 4) });
            let at = 14 + header + 4;
            let mtu = u32::from_be_bytes(run.frame[at..at + 4].try_into().unwrap());
            assert_eq!(mtu as usize, 1400 - header, "what fits inside");
            let quoted = &sent[14 + header..14 + length];
            assert_eq!(run.frame[at + 4..], quoted[..quoted.len().min(run.frame.len() - at - 4)], "{length}");
        }
        let short = about(&director, &sent, 2 * header + 4);
        assert_eq!(director.ingress(&short).frame, short, "too little of it");
        let mut other = director.expected(&request);
        other[14 + if director.world.v6 { 39 } else { 19 }] ^= 1;
        if !director.world.v6 {
            mend(&mut other[14..]);
        }
        let other = about(&director, &other, 300);
        assert_eq!(director.ingress(&other).frame, other, "of another server");
        assert_eq!(director.world.datapath.all_drops().unwrap(), []);
    }
}

#[test]
fn xdp_leaves_such_packets_to_tc_and_they_are_counted_once() {
    for method in [Method::Route, Method::Tunnel] {
        let mut director = Director::with(Datapath::load_with_uplink(Sizes::default()).unwrap(), false, method);
        let interface = director.options.interface;
        director.world.datapath.insert("uplinks", interface, interface).unwrap();
        let passes = |sent: &[u8]| {
            let run = || director.world.datapath.uplink(sent, director.options);
            let run = director.topology.node.namespace.enter(run).unwrap();
            assert_eq!((run.verdict, run.frame.as_slice()), (XDP_PASS, sent));
            director.leaves(sent);
        };
        passes(&director.request(4000, Inside::Syn));
        passes(&director.request(4000, ACK));
        // One that XDP has not seen begin.
        director.leaves(&director.request(4001, Inside::Syn));
        passes(&director.request(4001, ACK));
        let traffic = director.world.datapath.traffic(director.id(Protocol::Tcp)).unwrap();
        assert_eq!((traffic.connections, traffic.in_packets), (2, 4));
        assert_eq!(director.world.datapath.connections().unwrap().len(), 2);
    }
}

#[test]
fn nobody_is_masqueraded_whatever_the_service_says() {
    for (method, entries) in [(Method::Route, 1), (Method::Tunnel, 1), (Method::Unwrapped, 2)] {
        let mut director = Director::new(false, method);
        let frontend = World::frontend(Protocol::Udp, director.world.vip(CHANGED));
        director.world.datapath.change_service(&frontend, |service| service.access |= ACCESS_MASQUERADE).unwrap();
        director.ingress(&director.request(4000, Inside::Udp));
        let found = director.world.datapath.connections().unwrap();
        assert_eq!(found.len(), entries, "{method:?}: the second half of a masqueraded connection has two more");
        assert!(found.iter().all(|(_, entry)| !ConnectionState(entry.state).has(ConnectionState::MASQUERADED)));
    }
}
