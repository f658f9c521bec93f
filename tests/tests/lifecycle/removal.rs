//! What goes: servers, services, bpvs itself.

use std::net::SocketAddr;
use std::time::Duration;

use bpvs_tests::agent::{ServiceManifest, attached};
use bpvs_tests::topology::Topology;
use bpvs_tests::traffic::{DEADLINE, Dial, DialError, Stream, UdpClient};
use bpvs_tests::world::{TCP, UDP, World, frontends, wait_listed};

fn world(servers: u16) -> (World, ServiceManifest) {
    let world = World::new(Topology::builder().servers(servers).build().unwrap()).unwrap();
    let service = world.service("web", 1);
    world.publish("web", &service).unwrap();
    (world, service)
}

fn assert_untranslated(world: &World) {
    for (who, client) in world.clients() {
        for to in frontends(1, UDP) {
            let packet = world.leaves_by_the_default_route(&client.namespace, to);
            let packet = packet.unwrap_or_else(|error| panic!("{who}: {error:#}"));
            assert_eq!((packet.to, packet.from.ip()), (to, client.address_like(to.ip())), "{who}");
        }
        for to in frontends(1, TCP) {
            let error = Dial::new(&client.namespace, to).deadline(Duration::from_millis(100)).open().unwrap_err();
            assert!(matches!(error, DialError::Silent(_)), "{who} to {to}: {error}");
        }
    }
}

#[test]
fn a_removed_service_keeps_its_connections_and_takes_no_more() {
    let (world, _) = world(2);
    let agent = world.agent().unwrap();
    let mut streams = Vec::new();
    for (who, client) in world.clients() {
        for to in frontends(1, TCP) {
            let stream = Stream::start(&client.namespace, None, to, 200_000, Duration::from_secs(60)).unwrap();
            streams.push((who, to, stream));
        }
    }
    world.manifests.remove("web.yaml").unwrap();
    wait_listed(&agent, "empty list", |list| list.services.is_empty()).unwrap();
    assert_untranslated(&world);
    for (who, to, stream) in streams {
        stream.advance(20_000, DEADLINE).unwrap_or_else(|error| panic!("{who} to {to}: {error:#}"));
        stream.finish().unwrap_or_else(|error| panic!("{who} to {to}: {error:#}"));
    }
}

#[test]
fn after_cleanup_nothing_is_translated() {
    let (world, _) = world(2);
    let agent = world.agent().unwrap();
    for (_, client) in world.clients() {
        Dial::new(&client.namespace, frontends(1, TCP)[0]).open().unwrap().close().unwrap();
    }
    agent.cleanup().unwrap();
    assert_eq!(attached(&world.topology.node.namespace).unwrap(), [""; 0]);
    assert_untranslated(&world);
}

#[test]
fn datagrams_of_one_port_follow_the_servers() {
    let (world, service) = world(2);
    let agent = world.agent().unwrap();
    let mut sockets = Vec::new();
    for (who, client) in world.clients() {
        for to in frontends(1, UDP) {
            let source = SocketAddr::new(client.address_like(to.ip()), 20_000);
            // A connected socket of the node is tied to its server until it connects anew.
            let open = if who == "node" { UdpClient::unconnected } else { UdpClient::connected };
            sockets.push((who, to, open(&client.namespace, Some(source), to).unwrap()));
        }
    }
    let ask = |wanted: &[u16]| {
        for (who, to, udp) in &sockets {
            let answer = udp.request(50, DEADLINE).unwrap_or_else(|error| panic!("{who} to {to}: {error}"));
            assert!(wanted.contains(&answer.server), "{who} to {to}: server {}, not {wanted:?}", answer.server);
        }
    };
    let listed = |servers: &[u16]| {
        let as_wanted = |service: &bpvs_tests::agent::ListedService| {
            let mut found: Vec<_> = service.servers.iter().map(|server| server.number()).collect();
            found.sort_unstable();
            found == servers
        };
        let all = |list: &bpvs_tests::agent::Listing| {
            frontends(1, UDP).iter().all(|to| list.service("UDP", *to).is_some_and(as_wanted))
        };
        wait_listed(&agent, &format!("servers {servers:?}"), all).unwrap();
    };
    ask(&[1, 2]);
    for left in [1, 2] {
        world.publish("web", &service.clone().without(3 - left)).unwrap();
        listed(&[left]);
        ask(&[left]);
    }
    world.publish("web", &service.clone().without(1).without(2)).unwrap();
    listed(&[]);
    for (who, to, udp) in &sockets {
        let error = udp.request(50, Duration::from_secs(2)).expect_err("no server is there");
        assert!(error.is_refused(), "{who} to {to}: {error}");
    }
    world.publish("web", &service).unwrap();
    listed(&[1, 2]);
    ask(&[1, 2]);
}
