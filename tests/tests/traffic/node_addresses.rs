//! Which of the node's addresses have node ports: those that come, and never those of a link.

use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::process::Command;
use std::time::Duration;

use bpvs_tests::agent::ServiceManifest;
use bpvs_tests::namespace::mac_text;
use bpvs_tests::topology::{Topology, UPLINK};
use bpvs_tests::traffic::{Dial, DialError, UdpClient};
use bpvs_tests::world::{TCP, TCP_TARGET, UDP, UDP_TARGET, World, virtual_addresses, wait_for};

const TCP_PORT: u16 = 30_080;
const UDP_PORT: u16 = 30_053;
/// Longer than an answer takes.
const QUICK: Duration = Duration::from_millis(200);
/// NP-2: what is asked for.
const SOON: Duration = Duration::from_secs(30);

fn service(world: &World) -> ServiceManifest {
    let server = &world.topology.servers[0];
    ServiceManifest::new("web", &virtual_addresses(1))
        .node_port("TCP", TCP, TCP_TARGET, TCP_PORT)
        .node_port("UDP", UDP, UDP_TARGET, UDP_PORT)
        .server(1, &[server.v4.into(), server.v6.into()], 1)
}

#[test]
fn an_address_of_either_family_that_comes_is_served_and_one_that_goes_is_not() {
    let world = World::new(Topology::builder().servers(1).build().unwrap()).unwrap();
    world.publish("web", &service(&world)).unwrap();
    let agent = world.agent().unwrap();
    let (node, outside) = (&world.topology.node.namespace, &world.topology.external.namespace);
    for (address, bits) in [("10.9.0.77", 24), ("fd00:9::77", 64)] {
        let ip = |what: &str| node.ip(&[format!("addr {what} {address}/{bits} dev {UPLINK}")]).unwrap();
        let at = |port| SocketAddr::new(address.parse::<IpAddr>().unwrap(), port);
        let dial = || Dial::new(outside, at(TCP_PORT)).deadline(QUICK).open();
        let ask = || UdpClient::connected(outside, None, at(UDP_PORT)).unwrap().request(20, QUICK);
        assert!(dial().is_err() && ask().is_err(), "{address}");
        ip("add");
        let served = || Ok((dial().is_ok() && ask().is_ok()).then_some(()));
        wait_for(&format!("answer at {address}"), SOON, served, || agent.log().text(0)).unwrap();
        ip("del");
        let silent = || Ok((dial().is_err() && ask().is_err()).then_some(()));
        wait_for(&format!("silence at {address}"), SOON, silent, || agent.log().text(0)).unwrap();
    }
}

/// The uplink's link-local address.
fn link_local(world: &World) -> Ipv6Addr {
    let mut ip = Command::new("ip");
    ip.args(["-j", "-6", "addr", "show", "dev", UPLINK, "scope", "link"]);
    let output = world.topology.node.namespace.run(&mut ip).unwrap();
    let links: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let found = links.as_array().unwrap().iter().flat_map(|link| link["addr_info"].as_array().into_iter().flatten());
    let texts: Vec<_> = found.filter_map(|address| address["local"].as_str()).collect();
    texts.first().unwrap_or_else(|| panic!("no link-local address: {links}")).parse().unwrap()
}

#[test]
fn a_link_local_address_has_no_node_ports() {
    let world = World::new(Topology::builder().servers(1).build().unwrap()).unwrap();
    world.publish("web", &service(&world)).unwrap();
    let (node, outside) = (&world.topology.node, &world.topology.external.namespace);
    // Shows that the way is open: a daemon of the node's own.
    world.servers.tcp(&node.namespace, 9, TCP_PORT + 1).unwrap();
    let _agent = world.agent().unwrap();
    let index = outside.interface_index("eth0").unwrap();
    let at = |port| SocketAddr::V6(SocketAddrV6::new(link_local(&world), port, 0, index));
    assert_eq!(Dial::new(outside, at(TCP_PORT + 1)).open().unwrap().server, 9);
    let dial = Dial::new(outside, at(TCP_PORT)).open();
    assert!(matches!(dial, Err(DialError::Refused(_))), "by the node, where nobody listens: {dial:?}");
    let ask = UdpClient::connected(outside, None, at(UDP_PORT)).unwrap().request(20, QUICK);
    assert!(ask.is_err(), "{ask:?}");
    assert_eq!(world.servers.served(1), 0);
    for to in [node.at(TCP_PORT)[1], node.at(TCP_PORT)[0]] {
        assert_eq!(Dial::new(outside, to).open().unwrap().server, 1, "{to}");
    }
}

/// NP-6: the kernel's list without any address is not believed. The client and the server are reached all the same here.
#[test]
fn node_ports_stay_where_no_address_of_the_node_is_found() {
    let world = World::new(Topology::builder().servers(1).build().unwrap()).unwrap();
    world.publish("web", &service(&world)).unwrap();
    let agent = world.agent().unwrap();
    let topology = &world.topology;
    let (node, outside) = (&topology.node, &topology.external);
    let at = node.at(TCP_PORT)[0];
    assert!(Dial::new(&outside.namespace, at).open().is_ok());
    let mark = agent.log().len();
    // The neighbours are permanent, and routes need no address.
    let lines = [
        format!("addr del {}/64 dev {UPLINK}", node.v6),
        format!("addr del {}/24 dev {UPLINK}", node.v4),
        format!("route replace {} dev {UPLINK}", outside.v4),
        format!("route replace {} dev s1", topology.servers[0].v4),
        format!("neigh replace {} lladdr {} dev {UPLINK} nud permanent", outside.v4, mac_text(outside.mac)),
    ];
    node.namespace.ip(&lines).unwrap();
    agent.wait_for_log(mark, "word of it", SOON, |line| line.contains("what was known of them stays")).unwrap();
    // Not a moment's, either: long after the look that found nothing.
    std::thread::sleep(Duration::from_millis(500));
    let held =
        Dial::new(&outside.namespace, at).open().unwrap_or_else(|error| panic!("{error}\n{}", agent.log().text(mark)));
    assert_eq!((held.server, held.seen_peer.ip()), (1, IpAddr::from(node.v4)));
    // What comes then is believed.
    node.namespace.ip(&[format!("addr add 10.9.0.77/24 dev {UPLINK}")]).unwrap();
    let other = SocketAddr::new("10.9.0.77".parse().unwrap(), TCP_PORT);
    let dial = || Ok(Dial::new(&outside.namespace, other).deadline(QUICK).open().ok());
    wait_for("answer at the new address", SOON, dial, || agent.log().text(mark)).unwrap();
}
