//! A client's port that was used before, right after the endpoint of its old connection went.

use std::net::SocketAddr;
use std::time::Duration;

use bpvs_tests::agent::ServiceManifest;
use bpvs_tests::topology::Topology;
use bpvs_tests::traffic::Dial;
use bpvs_tests::world::{TCP, TCP_TARGET, World, frontends, virtual_addresses, wait_listed};

const TCP_PORT: u16 = 30_080;
/// Below the first repetition of a SYN (1 s), which is also the delay of IPVS with `conn_reuse_mode` 1.
const AT_ONCE: Duration = Duration::from_millis(500);

/// A client that vanishes: nobody hears its resets.
const MUTE: &str = "add table inet mute;
add chain inet mute output { type filter hook output priority filter; };
add rule inet mute output tcp flags rst drop";

fn service(world: &World) -> ServiceManifest {
    let mut service = ServiceManifest::new("web", &virtual_addresses(1)).node_port("TCP", TCP, TCP_TARGET, TCP_PORT);
    for server in &world.topology.servers {
        service = service.server(server.id, &[server.v4.into(), server.v6.into()], 1);
    }
    service
}

#[test]
fn a_syn_from_a_used_port_gets_a_live_server_at_once() {
    let world = World::new(Topology::builder().servers(2).build().unwrap()).unwrap();
    world.publish("web", &service(&world)).unwrap();
    let agent = world.agent().unwrap();
    let has = |count: usize| {
        let both = |list: &bpvs_tests::agent::Listing| {
            frontends(1, TCP).iter().all(|to| list.service("TCP", *to).is_some_and(|web| web.servers.len() == count))
        };
        wait_listed(&agent, &format!("{count} servers"), both).unwrap();
    };
    let mut port = 20_000;
    for (who, client) in world.clients() {
        for to in frontends(1, TCP).into_iter().chain(world.topology.node.at(TCP_PORT)) {
            for vanishes in [false, true] {
                port += 1;
                let what = format!("{who} to {to}, vanishes: {vanishes}");
                let source = SocketAddr::new(client.address_like(to.ip()), port);
                let dial = || Dial::new(&client.namespace, to).source(source).open();
                let mut held = dial().unwrap_or_else(|error| panic!("{what}: {error}"));
                held.exchange(b"established").unwrap();
                let gone = held.server;
                if vanishes {
                    client.namespace.nft(MUTE).unwrap();
                }
                held.reset().unwrap();
                if vanishes {
                    client.namespace.nft("delete table inet mute").unwrap();
                }
                world.publish("web", &service(&world).without(gone)).unwrap();
                has(1);
                let mut again = dial().unwrap_or_else(|error| panic!("{what}, again: {error}"));
                assert_ne!(again.server, gone, "{what}");
                assert!(again.took < AT_ONCE, "{what}: after {:?}", again.took);
                again.exchange(b"works").unwrap();
                again.close().unwrap();
                world.publish("web", &service(&world)).unwrap();
                has(2);
            }
        }
    }
}
