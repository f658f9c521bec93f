//! `-i` and `-g` servers of rules.

use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use bpvs_tests::agent::{Agent, Listing};
use bpvs_tests::namespace::Namespace;
use bpvs_tests::traffic::{DEADLINE, Dial, UdpClient};

use crate::lan::{Datagrams, Host, Lan, VIRTUAL, senders, tunnelled};

const TCP: u16 = 80;
const UDP: u16 = 53;

/// Whether segments are left to the device, and `--forwarding`.
const WAYS: [(bool, &str); 3] = [(false, "stack"), (true, "stack"), (true, "direct")];

fn agent<'a>(at: &'a Namespace, rules: &Rules, forwarding: &str) -> Agent<'a> {
    Agent::builder(at).rules(&rules.file()).argument("--forwarding").argument(forwarding).start().unwrap()
}

/// A file of rules with a server for both protocols of both families.
pub(crate) struct Rules {
    folder: tempfile::TempDir,
}

impl Rules {
    pub(crate) fn new(host: &Host, method: &str) -> Self {
        let rules = Self { folder: tempfile::tempdir().unwrap() };
        rules.write(host, method);
        rules
    }

    pub(crate) fn file(&self) -> PathBuf {
        self.folder.path().join("rules")
    }

    pub(crate) fn write(&self, host: &Host, method: &str) {
        let mut text = String::new();
        for (option, port) in [("-t", TCP), ("-u", UDP)] {
            for address in VIRTUAL {
                let service = format!("{option} {}", SocketAddr::new(address, port));
                // The port is the service's, whatever is stated.
                let server = SocketAddr::new(host.like(address), 9);
                text += &format!("-A {service} -s rr\n-a {service} -r {server} {method}\n");
            }
        }
        fs::write(self.folder.path().join("new"), text).unwrap();
        fs::rename(self.folder.path().join("new"), self.file()).unwrap();
    }
}

/// The client is served by this host in both protocols, sees the virtual address and is seen as itself, and all answers are
/// the host's own frames: nothing from the virtual address came to the director.
pub(crate) fn answers_past_the_director(lan: &Lan, director: &Agent<'_>, host: &Host, address: IpAddr) {
    let (client, at_director) = (lan.client.listen(), lan.director.listen());
    let to = SocketAddr::new(address, TCP);
    let mut held = Dial::new(&lan.client.namespace, to).open().unwrap_or_else(|error| panic!("{to}: {error}"));
    assert_eq!((held.server, held.seen_peer.ip()), (host.number, lan.client.like(address)));
    assert_eq!((held.peer().unwrap(), held.seen_peer), (to, held.local().unwrap()));
    held.exchange(b"to the server and back").unwrap();
    held.close().unwrap();
    let to = SocketAddr::new(address, UDP);
    let udp = UdpClient::connected(&lan.client.namespace, None, to).unwrap();
    for size in [0, 1200] {
        let answer = udp.request(size, DEADLINE).unwrap_or_else(|error| panic!("{size} bytes to {to}: {error}"));
        assert_eq!((answer.server, answer.seen_peer), (host.number, udp.local().unwrap()));
    }
    assert_eq!(senders(&client, address), [host.mac].into(), "who answers from {address}");
    assert_eq!(senders(&at_director, address), [].into(), "what came to the director from {address}");
    let listing = Listing::read(director).unwrap();
    for (protocol, port) in [("TCP", TCP), ("UDP", UDP)] {
        let service = listing.service(protocol, SocketAddr::new(address, port)).unwrap();
        let server = service.servers.iter().find(|server| server.address.ip() == host.like(address)).unwrap();
        let [connections, in_packets, out_packets, in_bytes, out_bytes] = server.traffic;
        assert!(connections > 0 && in_packets > 1 && in_bytes > 0, "{server:?}");
        assert_eq!((server.address.port(), out_packets, out_bytes), (port, 0, 0));
    }
    let shown = director.command(&["connections"]).unwrap();
    let place = SocketAddr::new(host.like(address), UDP).to_string();
    assert!(shown.lines().any(|line| line.starts_with("UDP") && line.trim_end().ends_with(&place)), "{shown}");
}

/// As much as makes segments that the device is left to cut, each way.
fn streams(lan: &Lan, address: IpAddr) {
    let to = SocketAddr::new(address, TCP);
    let held = Dial::new(&lan.client.namespace, to).open().unwrap_or_else(|error| panic!("{to}: {error}"));
    held.stream_through(4 << 20).unwrap_or_else(|error| panic!("{to}: {error:#}"));
}

#[test]
fn a_tunnel_ends_at_the_bpvs_of_the_servers_node_which_answers_from_the_virtual_address() {
    for (offload, forwarding) in WAYS {
        let lan = Lan::new(offload);
        lan.servers.tcp(&lan.node.namespace, lan.node.number, TCP).unwrap();
        lan.servers.udp(&lan.node.namespace, lan.node.number, UDP).unwrap();
        let rules = Rules::new(&lan.node, "-i");
        let [director, node] = lan.routers().map(|at| agent(at, &rules, forwarding));
        for agent in [&director, &node] {
            let list = agent.command(&["list", "--tun-info"]).unwrap();
            assert_eq!(list.matches(" Tunnel  ipip  ").count(), 4, "{list}");
        }
        for address in VIRTUAL {
            let at_node = lan.node.listen();
            answers_past_the_director(&lan, &director, &lan.node, address);
            assert_eq!(tunnelled(&at_node, |_| true), [true].into(), "what came to the node for {address}");
            streams(&lan, address);
        }
        for agent in [director, node] {
            agent.cleanup().unwrap();
        }
    }
}

#[test]
fn a_server_with_the_virtual_address_is_reached_by_its_hardware_address_and_answers_itself() {
    for (offload, forwarding) in WAYS {
        let lan = Lan::new(offload);
        let [v4, v6] = VIRTUAL;
        let own = [format!("addr add {v4}/32 dev lo"), format!("addr add {v6}/128 dev lo nodad")];
        lan.real.namespace.ip(&own).unwrap();
        lan.servers.tcp(&lan.real.namespace, lan.real.number, TCP).unwrap();
        let _datagrams = VIRTUAL.map(|address| Datagrams::new(&lan.real, SocketAddr::new(address, UDP)));
        // Direct routing is what ipvsadm takes where nothing is stated.
        let rules = Rules::new(&lan.real, "");
        let director = agent(&lan.director.namespace, &rules, forwarding);
        let list = director.command(&["list"]).unwrap();
        assert_eq!(list.matches(" Route   1 ").count(), 4, "{list}");
        for address in VIRTUAL {
            let at_real = lan.real.listen();
            answers_past_the_director(&lan, &director, &lan.real, address);
            assert_eq!(tunnelled(&at_real, |_| true), [false].into(), "what came to the server for {address}");
            streams(&lan, address);
        }
        director.cleanup().unwrap();
    }
}
