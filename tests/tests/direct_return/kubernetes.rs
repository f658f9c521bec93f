//! `bpvs.io/forwarding: dsr` on a Service with an endpoint on each of two nodes.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use bpvs_tests::agent::{Agent, Manifests, ServiceManifest};
use bpvs_tests::traffic::{DEADLINE, Dial, UdpClient};
use bpvs_tests::world::{CHANGE, wait_for};

use crate::lan::{HERE, Host, Lan, THERE, VIRTUAL, senders};

const TCP: u16 = 80;
const UDP: u16 = 53;
const TCP_TARGET: u16 = 8080;
const UDP_TARGET: u16 = 5353;
const NODE_PORT: u16 = 30_080;

/// Addresses of the cluster; [`VIRTUAL`] are for the outside.
const CLUSTER: [&str; 2] = ["10.96.0.1", "fd00:96::1"];

fn cluster() -> [IpAddr; 2] {
    CLUSTER.map(|address| address.parse().unwrap())
}

fn service(lan: &Lan, forwarding: &str) -> ServiceManifest {
    let [v4, v6] = VIRTUAL;
    ServiceManifest::new("web", &cluster())
        .annotation("bpvs.io/forwarding", forwarding)
        .spec(&format!("externalIPs: [\"{v4}\", \"{v6}\"]"))
        .node_port("TCP", TCP, TCP_TARGET, NODE_PORT)
        .port("UDP", UDP, UDP_TARGET)
        .server(HERE, &lan.here.addresses, 1)
        .on_node(HERE, "here")
        .server(THERE, &lan.there.addresses, 1)
        .on_node(THERE, "there")
}

fn agent<'a>(host: &'a Host, name: &str, manifests: &Manifests) -> Agent<'a> {
    let arguments = ["--node-name", name, "--cluster-cidr", "10.0.0.0/13,fd00:1::/32"];
    let builder = Agent::builder(&host.namespace).manifests(manifests);
    arguments.into_iter().fold(builder, |builder, argument| builder.argument(argument)).start().unwrap()
}

/// Who serves a client in some TCP connections to a frontend, and as whom it is seen.
fn connected(from: &Host, address: IpAddr, port: u16) -> BTreeSet<(u16, IpAddr)> {
    let to = SocketAddr::new(address, port);
    let one = |_| {
        let mut held = Dial::new(&from.namespace, to).open().unwrap_or_else(|error| panic!("{to}: {error}"));
        held.exchange(b"there and back").unwrap();
        let found = (held.server, held.seen_peer.ip());
        held.close().unwrap();
        found
    };
    (0..4).map(one).collect()
}

/// The same, and with some datagrams where it is the Service's port.
fn served(from: &Host, address: IpAddr, port: u16) -> BTreeSet<(u16, IpAddr)> {
    let datagrams = if port == TCP { 4 } else { 0 };
    let mut found = connected(from, address, port);
    for _ in 0..datagrams {
        let udp = UdpClient::connected(&from.namespace, None, SocketAddr::new(address, UDP)).unwrap();
        let answer = udp.request(1000, DEADLINE).unwrap_or_else(|error| panic!("{address} {UDP}: {error}"));
        found.insert((answer.server, answer.seen_peer.ip()));
    }
    found
}

#[test]
fn endpoints_of_other_nodes_answer_past_this_one_and_node_ports_through_it() {
    let lan = Lan::new(true);
    for pod in [&lan.here, &lan.there] {
        lan.servers.tcp(&pod.namespace, pod.number, TCP_TARGET).unwrap();
        lan.servers.udp(&pod.namespace, pod.number, UDP_TARGET).unwrap();
    }
    let manifests = Manifests::new().unwrap();
    manifests.write("web.yaml", &service(&lan, "dsr").yaml()).unwrap();
    let (director, node) = (agent(&lan.director, "here", &manifests), agent(&lan.node, "there", &manifests));

    for address in VIRTUAL {
        let (client, at_director) = (lan.client.listen(), lan.director.listen());
        let own = lan.client.like(address);
        assert_eq!(served(&lan.client, address, TCP), [(HERE, own), (THERE, own)].into(), "at {address}");
        // Each node answers for its own endpoint.
        assert_eq!(senders(&client, address), [lan.director.mac, lan.node.mac].into());
        assert_eq!(senders(&at_director, address), [].into());
        // The node port is the director's own address: answers come through it.
        let (to, seen) = (lan.director.like(address), lan.director.like(address));
        assert_eq!(served(&lan.client, to, NODE_PORT), [(HERE, seen), (THERE, seen)].into(), "at {to}");
        assert_eq!(senders(&client, to), [lan.director.mac].into());
    }
    for address in cluster() {
        // A pod, which is a server too: it reaches itself by its node's address.
        let (pod, seen) = (lan.here.like(address), lan.director.like(address));
        assert_eq!(served(&lan.here, address, TCP), [(HERE, seen), (THERE, pod)].into(), "at {address}");
        // Who is no pod is seen as itself, where NAT would need the node's address.
        let own = lan.client.like(address);
        assert_eq!(served(&lan.client, address, TCP), [(HERE, own), (THERE, own)].into(), "at {address}");
    }

    // Who keeps its server keeps it at every frontend, however it is reached there.
    let sticky = service(&lan, "dsr").spec("sessionAffinity: ClientIP").without(HERE);
    manifests.write("web.yaml", &sticky.yaml()).unwrap();
    until_listed([&director, &node], "persistent 10800", true);
    until_listed([&director, &node], &lan.here.addresses[0].to_string(), false);
    let [external, cluster] = [VIRTUAL[0], cluster()[0]];
    assert_eq!(connected(&lan.client, external, TCP).first().map(|(server, _)| *server), Some(THERE));
    let sticky = service(&lan, "dsr").spec("sessionAffinity: ClientIP");
    manifests.write("web.yaml", &sticky.yaml()).unwrap();
    until_listed([&director, &node], &lan.here.addresses[0].to_string(), true);
    let (own, node_port) = (lan.client.like(external), lan.director.like(external));
    for (to, port, seen) in [(external, TCP, own), (cluster, TCP, own), (node_port, NODE_PORT, node_port)] {
        assert_eq!(connected(&lan.client, to, port), [(THERE, seen)].into(), "at {to}");
    }

    for agent in [director, node] {
        agent.cleanup().unwrap();
    }
}

/// Waits until all agents list something, or none does any more.
fn until_listed(agents: [&Agent<'_>; 2], word: &str, wanted: bool) {
    for agent in agents {
        let ask = || Ok((agent.command(&["list"])?.contains(word) == wanted).then_some(()));
        let what = format!("list {} {word}", if wanted { "with" } else { "without" });
        wait_for(&what, CHANGE, ask, || agent.command(&["list"]).unwrap()).unwrap();
    }
}

#[test]
fn connections_outlive_their_endpoint_and_the_annotation() {
    let lan = Lan::new(true);
    for pod in [&lan.here, &lan.there] {
        lan.servers.tcp(&pod.namespace, pod.number, TCP_TARGET).unwrap();
    }
    let manifests = Manifests::new().unwrap();
    manifests.write("web.yaml", &service(&lan, "dsr").yaml()).unwrap();
    let agents = (agent(&lan.director, "here", &manifests), agent(&lan.node, "there", &manifests));
    let agents = [&agents.0, &agents.1];
    let open = || -> Vec<_> {
        let dial = |address| Dial::new(&lan.client.namespace, SocketAddr::new(address, TCP)).open().unwrap();
        let held: Vec<_> = VIRTUAL.into_iter().chain(VIRTUAL).map(dial).collect();
        assert_eq!(held.iter().map(|held| held.server).collect::<BTreeSet<_>>(), [HERE, THERE].into());
        held
    };
    let mut held = open();
    let mut go_on = |what: &str| {
        for held in &mut held {
            held.exchange(b"as before").unwrap_or_else(|error| panic!("{what}, server {}: {error}", held.server));
        }
    };
    go_on("at first");

    // As while a pod ends: it is no endpoint any more, its connections are there.
    manifests.write("web.yaml", &service(&lan, "dsr").without(THERE).yaml()).unwrap();
    until_listed(agents, &lan.there.addresses[0].to_string(), false);
    go_on("without its endpoint");
    let own = lan.client.like(VIRTUAL[0]);
    assert_eq!(connected(&lan.client, VIRTUAL[0], TCP), [(HERE, own)].into());

    // Back to NAT: new connections come through the director, from its address.
    manifests.write("web.yaml", &service(&lan, "nat").yaml()).unwrap();
    until_listed(agents, " Tunnel ", false);
    go_on("without the annotation");
    let client = lan.client.listen();
    let seen = lan.director.like(VIRTUAL[0]);
    assert_eq!(connected(&lan.client, VIRTUAL[0], TCP), [(HERE, seen), (THERE, seen)].into());
    assert_eq!(senders(&client, VIRTUAL[0]), [lan.director.mac].into());
    for agent in agents {
        agent.cleanup().unwrap();
    }
}
