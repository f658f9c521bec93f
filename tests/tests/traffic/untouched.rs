//! What is not for a service passes as if bpvs were not there.

use std::net::{IpAddr, SocketAddr};

use bpvs_tests::topology::Topology;
use bpvs_tests::traffic::{DEADLINE, Dial, UdpClient};
use bpvs_tests::world::{TCP, TCP_TARGET, UDP_TARGET, World, virtual_addresses};

#[test]
fn pods_the_node_and_other_ports() {
    let world = World::new(Topology::builder().servers(2).build().unwrap()).unwrap();
    let node = &world.topology.node;
    world.servers.tcp(&node.namespace, 9, TCP_TARGET).unwrap();
    world.servers.udp(&node.namespace, 9, UDP_TARGET).unwrap();
    world.publish("web", &world.service("web", 1)).unwrap();
    let agent = world.agent().unwrap();
    let server = &world.topology.servers[0];
    let (pod, outside) = (&world.topology.clients[0], &world.topology.external);
    for (client, to, id) in
        [(pod, server, 1), (outside, server, 1), (node, server, 1), (pod, node, 9), (outside, node, 9)]
    {
        for address in [IpAddr::from(to.v4), to.v6.into()] {
            let mut held = Dial::new(&client.namespace, SocketAddr::new(address, TCP_TARGET)).open().unwrap();
            assert_eq!((held.server, held.seen_peer), (id, held.local().unwrap()));
            held.exchange(&[1; 100_000]).unwrap();
            let udp = UdpClient::connected(&client.namespace, None, SocketAddr::new(address, UDP_TARGET)).unwrap();
            let answer = udp.request(3000, DEADLINE).unwrap();
            assert_eq!((answer.server, answer.seen_peer), (id, udp.local().unwrap()));
        }
    }
    for address in virtual_addresses(1) {
        // Port 80 is a TCP port of the service, 81 none, and 53 UDP's.
        for port in [TCP, 81] {
            for client in [pod, node] {
                let to = SocketAddr::new(address, port);
                let packet = world.leaves_by_the_default_route(&client.namespace, to).unwrap();
                assert_eq!((packet.to, packet.from.ip()), (to, client.address_like(address)));
            }
        }
    }
    assert_eq!(agent.command(&["connections"]).unwrap().lines().filter(|line| line.starts_with("UDP")).count(), 0);
}
