//! XDP against tc: what leaves by an uplink is, byte by byte, what the two tc programs make of it, a hop further; what does
//! not goes up the stack as it came. Over good frames and damaged ones.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use bpvs_tests::{
    datapath::{DROPPED, Datapath, Hook, NEXT, Options, Sizes, XDP_DROP, XDP_PASS, XDP_REDIRECT, XDP_TX, next_instant},
    packets::{flags, ones_complement, verify},
    topology::{Topology, UPLINK},
};
use lb_common::address::Protocol;
use lb_userspace::plan::{Access, Frontend, Masquerade, Plan, Scope};

use crate::{
    hostile::runs,
    mutations::{Numbers, mutations, noise},
    rows::hex,
    shapes::{Around, Inside},
    world::{CHANGED, EMPTY, HAIRPIN, NODE_PORT, PAIR, SERVER_PORT, World, service},
};

/// A datapath with the XDP program, and a node with an uplink that everything but one server is behind.
struct Node {
    topology: Topology,
    world: World,
    options: Options,
}

impl Node {
    fn new(v6: bool) -> Self {
        let topology = Topology::builder().servers(0).clients(0).build().unwrap();
        let gateway = if v6 { IpAddr::from(topology.external.v6) } else { topology.external.v4.into() };
        let datapath = Datapath::load_with_uplink(Sizes::default()).unwrap();
        let mut world = World { datapath, v6 };
        let family = if v6 { "-6" } else { "-4" };
        let (everything, length) = if v6 { ("fd00::/16", 128) } else { ("10.0.0.0/8", 32) };
        let here = world.second_server(0).ip();
        let node = &topology.node.namespace;
        // The second server of PAIR is on this node.
        node.ip(&[
            format!("route replace {everything} via {gateway} dev {UPLINK}"),
            format!("addr add {here}/{length} dev lo"),
        ])
        .unwrap_or_else(|error| panic!("{family}: {error:#}"));
        let interface = node.interface_index(UPLINK).unwrap();
        world.datapath.insert("uplinks", interface, interface).unwrap();
        let mut plan = world.plan();
        node_ports(&world, &mut plan);
        world.apply(&plan);
        Self { topology, world, options: Options { interface, ..Options::default() } }
    }

    fn both() -> [Self; 2] {
        [false, true].map(Self::new)
    }

    fn drops(&self) -> BTreeMap<&'static str, u64> {
        self.world.datapath.all_drops().unwrap().into_iter().collect()
    }

    /// One frame by XDP, judged by what tc does with the same frame afterwards. The verdict.
    fn compare(&self, sent: &[u8]) -> i32 {
        let before = self.drops();
        let run = self.topology.node.namespace.enter(|| self.world.datapath.uplink(sent, self.options)).unwrap();
        let what = || format!("XDP verdict {}:\nsent {}\n got {}", run.verdict, hex(sent), hex(&run.frame));
        match run.verdict {
            XDP_PASS => {
                assert_eq!(run.frame, sent, "changed on its way to the stack: {}", what());
                assert_eq!(self.drops(), before, "passed and counted as dropped: {}", what());
            }
            XDP_DROP => {
                let after = self.drops();
                let counted: u64 = after.values().sum::<u64>() - before.values().sum::<u64>();
                assert_eq!(counted, 1, "dropped without a name: {}", what());
            }
            XDP_TX => self.leaves_as_from_tc(sent, &run.frame),
            XDP_REDIRECT => panic!("there is one uplink: {}", what()),
            other => panic!("verdict {other}: {}", what()),
        }
        run.verdict
    }

    /// The frame that left against the one that both tc programs make of the same packet.
    fn leaves_as_from_tc(&self, sent: &[u8], left: &[u8]) {
        let datapath = &self.world.datapath;
        let inside = datapath.run(Hook::Ingress, sent, Options::default()).unwrap();
        assert_eq!(inside.verdict, NEXT, "tc has no way on for {}", hex(sent));
        let outside = datapath.run(Hook::Egress, &inside.frame, Options::default()).unwrap();
        assert_eq!(outside.verdict, NEXT, "tc has no way out for {}", hex(sent));
        let what = || format!("sent {}\n xdp {}\n  tc {}", hex(sent), hex(left), hex(&outside.frame));
        let external = &self.topology.external;
        assert_eq!((&left[..6], &left[6..12]), (&external.mac[..], &external.gateway_mac[..]), "{}", what());
        assert_eq!(left.len(), outside.frame.len(), "{}", what());
        assert_eq!(left[12..14], outside.frame[12..14], "{}", what());
        let (hops, sum) = if self.world.v6 { (21, None) } else { (22, Some(24)) };
        assert_eq!(left[hops], outside.frame[hops] - 1, "hops: {}", what());
        let same = |at: usize| at < 14 || at == hops || sum.is_some_and(|sum| at == sum || at == sum + 1);
        for at in (0..left.len()).filter(|at| !same(*at)) {
            assert_eq!(left[at], outside.frame[at], "byte {at}: {}", what());
        }
        if sum.is_some() {
            let right = |frame: &[u8]| ones_complement(&[&frame[14..34]]) == 0;
            assert_eq!(right(left), right(&outside.frame), "the header's checksum: {}", what());
        }
    }
}

/// A node port for every protocol, whose clients come from the node.
fn node_ports(world: &World, plan: &mut Plan) {
    for protocol in Protocol::ALL {
        let (_, mut desired) = service(protocol, world.vip(NODE_PORT), &[(world.server(0).ip(), SERVER_PORT, 1)]);
        desired.access = Access { masquerade: Masquerade::Always, ..Access::default() };
        plan.services.insert(world.node_port(protocol, Scope::NodePort), desired);
    }
    plan.node_port_addresses.insert(world.node(0).ip());
}

/// Who a masqueraded client is to its server: source of the packet that left.
fn source(v6: bool, frame: &[u8]) -> SocketAddr {
    let seen = verify(frame).unwrap();
    assert_eq!(seen.from.is_ipv6(), v6);
    seen.from
}

#[test]
fn conversations_of_every_protocol_leave_as_from_tc() {
    for node in Node::both() {
        let (world, mut port) = (&node.world, 4000);
        for opening in Inside::OPENING {
            port += 1;
            let (client, vip, server) = (world.client(port), world.vip(CHANGED), world.server(SERVER_PORT));
            let plain = |from, to, inside: Inside| Around::Plain.frame(from, to, inside);
            for (from, to, inside) in [
                (client, vip, opening),
                (server, client, opening.answer()),
                (client, vip, opening.following()),
                (client, vip, opening.following()),
                (server, client, opening.following()),
            ] {
                assert_eq!(node.compare(&plain(from, to, inside)), XDP_TX, "{from} to {to}, {inside:?}");
            }
            // The same by the node's port: to the server the client is the node.
            let frontend = world.node(NODE_PORT);
            let request = plain(client, frontend, opening);
            let run = node.topology.node.namespace.enter(|| world.datapath.uplink(&request, node.options)).unwrap();
            assert_eq!(run.verdict, XDP_TX);
            let stands_for = source(world.v6, &run.frame);
            assert_eq!(stands_for.ip(), world.node(0).ip());
            for (from, to, inside) in [
                (server, stands_for, opening.answer()),
                (client, frontend, opening.following()),
                (server, stands_for, opening.following()),
            ] {
                assert_eq!(node.compare(&plain(from, to, inside)), XDP_TX, "{from} to {to}, {inside:?}");
            }
        }
        let frontend = Frontend::new(world.vip(CHANGED).ip(), CHANGED, Protocol::Tcp);
        let server = world.datapath.destination_in(&frontend, world.server(0).ip(), SERVER_PORT).unwrap().unwrap();
        // What XDP and tc saw of one connection is one connection; each packet was shown to both.
        assert_eq!(world.datapath.traffic(server).unwrap().connections, 1);
    }
}

#[test]
fn a_connection_to_a_server_of_this_node_is_opened_once_and_left_to_the_stack() {
    for node in Node::both() {
        let world = &node.world;
        for (port, opening) in (5000..).zip(Inside::OPENING) {
            let vip = world.vip(PAIR);
            let frontend = Frontend::new(vip.ip(), vip.port(), crate::shapes::protocol_of(opening));
            let here = world.second_server(0).ip();
            let here = world.datapath.destination_in(&frontend, here, SERVER_PORT).unwrap().unwrap();
            let mut verdicts = Vec::new();
            for client in [world.client(port), world.client(port + 100)] {
                let frame = Around::Plain.frame(client, vip, opening);
                verdicts.push(node.compare(&frame));
                if verdicts.last() == Some(&XDP_PASS) {
                    // Counted by the stack, which has it now, and not twice.
                    assert_eq!(world.datapath.traffic(here).unwrap().in_packets, 0);
                    assert_eq!(world.datapath.ingress(&frame).unwrap().verdict, NEXT);
                    let traffic = world.datapath.traffic(here).unwrap();
                    assert_eq!((traffic.connections, traffic.in_packets), (1, 1));
                    assert_eq!(node.compare(&Around::Plain.frame(client, vip, opening.following())), XDP_PASS);
                }
            }
            verdicts.sort_unstable();
            assert_eq!(verdicts, [XDP_PASS, XDP_TX], "{opening:?}: one of the two servers is on this node");
        }
    }
}

#[test]
fn what_is_not_plain_goes_up_as_it_came() {
    for node in Node::both() {
        let world = &node.world;
        let (client, vip) = (world.client(4000), world.vip(CHANGED));
        for inside in [Inside::Syn, Inside::Udp, Inside::Init, Inside::Segment(flags::ACK)] {
            for &around in &Around::all(world.v6)[1..] {
                assert_eq!(node.compare(&around.frame(client, vip, inside)), XDP_PASS, "{around:?} {inside:?}");
            }
            for port in [EMPTY, HAIRPIN] {
                let frame = Around::Plain.frame(client, world.vip(port), inside);
                assert_eq!(node.compare(&frame), XDP_PASS, "port {port}, {inside:?}");
            }
            let fragments = Around::Plain.packet(client, vip);
            for fragment in fragments.fragments(&inside.transport(&fragments), 8) {
                assert_eq!(node.compare(&fragment), XDP_PASS, "a fragment of {inside:?}");
            }
            let last = Around::Plain.packet(client, vip).hop_limit(1);
            assert_eq!(node.compare(&last.frame(&inside.transport(&last))), XDP_PASS, "the last hop, {inside:?}");
        }
    }
}

#[test]
fn any_bytes_leave_as_from_tc_or_go_up_as_they_came() {
    for node in Node::both() {
        let world = &node.world;
        let (client, server, mut numbers) = (world.client(4000), world.server(SERVER_PORT), Numbers::new(11));
        let mut frames = Vec::new();
        for inside in Inside::OF_A_CONNECTION {
            for to in [world.vip(CHANGED), world.vip(PAIR), world.vip(EMPTY), world.node(NODE_PORT)] {
                frames.push(Around::Plain.frame(client, to, inside));
            }
            frames.push(Around::Plain.frame(server, client, inside));
        }
        if !world.v6 {
            frames.push(Around::Plain.frame(client, world.vip(CHANGED), Inside::UdpUnchecked));
        }
        let mut verdicts: BTreeMap<i32, u64> = BTreeMap::new();
        for frame in &frames {
            for damaged in mutations(frame, &frames, &mut numbers).iter().filter(|frame| runs(frame)) {
                *verdicts.entry(node.compare(damaged)).or_default() += 1;
            }
        }
        for _ in 0..5_000 {
            let frame = noise(&mut numbers);
            if runs(&frame) {
                *verdicts.entry(node.compare(&frame)).or_default() += 1;
            }
        }
        assert!(verdicts[&XDP_TX] > 10_000 && verdicts[&XDP_PASS] > 10_000, "{verdicts:?}");
    }
}

/// Of a busy flow neither connection nor route is looked up for each packet: it leaves as any other does, unless it is too long,
/// and goes another way from the next instant on.
#[test]
fn busy_flows_leave_as_from_tc_and_too_long_packets_go_up() {
    for node in Node::both() {
        let (world, namespace) = (&node.world, &node.topology.node.namespace);
        let xdp = |frame: &[u8]| namespace.enter(|| world.datapath.uplink(frame, node.options)).unwrap();
        let frame = |from: SocketAddr, to: SocketAddr, payload: &[u8]| {
            let packet = Around::Plain.packet(from, to);
            packet.frame(&packet.udp(payload))
        };
        let (client, server) = (world.client(4000), world.server(SERVER_PORT));
        for frontend in [world.vip(CHANGED), world.node(NODE_PORT)] {
            let opened = xdp(&frame(client, frontend, b"first"));
            assert_eq!(opened.verdict, XDP_TX);
            let stands_for = source(world.v6, &opened.frame);
            for (from, to) in [(client, frontend), (server, stands_for)] {
                let small = frame(from, to, b"small");
                for _ in 0..20 {
                    (0..3).for_each(|_| drop(xdp(&small)));
                    let last = xdp(&small);
                    assert_eq!(last.verdict, XDP_TX, "{from} to {to}");
                    // One byte more than the interface takes, and as many as it takes.
                    let room = 1500 - if world.v6 { 48 } else { 28 };
                    assert_eq!(xdp(&frame(from, to, &vec![7; room + 1])).verdict, XDP_PASS, "{from} to {to}");
                    assert_eq!(xdp(&frame(from, to, &vec![7; room])).verdict, XDP_TX, "{from} to {to}");
                    node.leaves_as_from_tc(&small, &last.frame);
                }
            }
        }
        let small = frame(client, world.vip(CHANGED), b"small");
        assert!((0..4).all(|_| xdp(&small).verdict == XDP_TX));
        let length = if world.v6 { 128 } else { 32 };
        namespace.ip(&[format!("route replace blackhole {}/{length}", server.ip())]).unwrap();
        next_instant();
        assert_eq!(xdp(&small).verdict, XDP_PASS);
    }
}

/// The table is full: XDP drops by name what tc would.
#[test]
fn a_full_table_drops_by_name() {
    let mut node = Node::new(false);
    let sizes = Sizes { connections: 64, ..Sizes::default() };
    node.world.datapath = Datapath::load_with_uplink(sizes).unwrap();
    let plan = node.world.plan();
    node.world.apply(&plan);
    node.world.datapath.insert("uplinks", node.options.interface, node.options.interface).unwrap();
    let vip = node.world.vip(CHANGED);
    let verdict = |port| node.compare(&Around::Plain.frame(node.world.client(port), vip, Inside::Udp));
    let dropped = (1000..1100).filter(|port| verdict(*port) == XDP_DROP).count() as u64;
    assert!(dropped > 0);
    assert_eq!(node.drops()["table-full"], dropped);
    let frame = Around::Plain.frame(node.world.client(2000), vip, Inside::Udp);
    assert_eq!(node.world.datapath.ingress(&frame).unwrap().verdict, DROPPED);
}
