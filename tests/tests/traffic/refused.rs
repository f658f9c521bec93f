//! No usable server: everybody is told at once.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use bpvs_tests::agent::Agent;
use bpvs_tests::packets::{RawSocket, protocol, verify};
use bpvs_tests::topology::Topology;
use bpvs_tests::traffic::{DEADLINE, Dial, DialError, UdpClient};
use bpvs_tests::world::{TCP, UDP, World, frontends};

/// Far below the first repetition of a SYN (1 s).
const AT_ONCE: Duration = Duration::from_millis(200);
/// After the first repetition.
const REPEATED: Duration = Duration::from_millis(1500);

fn all_are_refused(world: &World, number: u16, complete: bool) {
    for (who, client) in world.clients() {
        for to in frontends(number, TCP) {
            let begin = Instant::now();
            let result = std::thread::scope(|scope| {
                let wire = (who != "node").then(|| RawSocket::open(&client.namespace, "eth0").unwrap());
                let dial = scope.spawn(|| Dial::new(&client.namespace, to).open());
                if let Some(wire) = wire {
                    told_at_once(&wire, to, complete);
                }
                dial.join().unwrap()
            });
            let took = begin.elapsed();
            assert!(result.as_ref().is_err_and(DialError::is_refused), "{who} to {to}: {result:?}");
            // A Linux client takes an ICMP error that finds its connect() still inside the kernel for a hint, until it
            // repeats its SYN; with everything on one machine the answer is that quick.
            let limit = if who == "node" { AT_ONCE } else { REPEATED };
            assert!(took < limit, "{who} to {to}: refused after {took:?}");
        }
        for to in frontends(number, UDP) {
            let begin = Instant::now();
            // A process of the node learns of it by connect() itself.
            let result = UdpClient::connected(&client.namespace, None, to).map_err(DialError::from);
            let error = result.and_then(|udp| udp.request(10, DEADLINE)).expect_err("nobody is there to answer");
            let took = begin.elapsed();
            assert!(error.is_refused() && took < AT_ONCE, "{who} to {to}: {error} after {took:?}");
        }
    }
    for to in frontends(number, UDP) {
        let error = UdpClient::unconnected(&world.topology.node.namespace, None, to).unwrap().request(10, DEADLINE);
        assert!(error.as_ref().is_err_and(DialError::is_refused), "sendto() by the node to {to}: {error:?}");
    }
}

/// An ICMP error about a packet to `to` comes from the virtual address, at once. Where senders leave checksums to the
/// device (not `complete`), the packet in it has none yet, as in the errors that Linux writes.
fn told_at_once(wire: &RawSocket, to: SocketAddr, complete: bool) {
    let frame = wire.receive(AT_ONCE).unwrap().unwrap_or_else(|| panic!("nothing came from {to} in {AT_ONCE:?}"));
    if complete {
        let packet = verify(&frame).unwrap_or_else(|error| panic!("from {to}: {error:#}"));
        assert_eq!((packet.from.ip(), packet.embedded.unwrap().to), (to.ip(), to));
    }
    let (protocol, kind) = if to.is_ipv4() { (frame[23], &frame[34..36]) } else { (frame[20], &frame[54..56]) };
    let unreachable = if to.is_ipv4() { (protocol::ICMP, [3, 3]) } else { (protocol::ICMPV6, [1, 4]) };
    assert_eq!((protocol, kind), (unreachable.0, &unreachable.1[..]), "{frame:02x?}");
}

fn world(offload: bool) -> World {
    World::new(Topology::builder().servers(2).checksum_offload(offload).build().unwrap()).unwrap()
}

#[test]
fn without_servers_and_with_drained_ones() {
    for offload in [false, true] {
        let world = world(offload);
        world.publish("none", &world.empty_service("none", 1)).unwrap();
        let mut drained = world.service("drained", 2);
        for server in &world.topology.servers {
            drained = drained.server(server.id, &[server.v4.into(), server.v6.into()], 0);
        }
        world.publish("drained", &drained.scheduler("wrr")).unwrap();
        let _agent: Agent<'_> = world.agent().unwrap();
        all_are_refused(&world, 1, !offload);
        all_are_refused(&world, 2, !offload);
    }
}
