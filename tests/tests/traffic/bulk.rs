//! Megabytes in both directions, with full and with partial checksums.

use bpvs_tests::topology::Topology;
use bpvs_tests::traffic::Dial;
use bpvs_tests::world::{TCP, World, frontends};

const BYTES: usize = 4 << 20;

fn transfer(offload: bool) {
    let world = World::new(Topology::builder().servers(2).checksum_offload(offload).build().unwrap()).unwrap();
    world.publish("web", &world.service("web", 1)).unwrap();
    let _agent = world.agent().unwrap();
    for (who, client) in world.clients() {
        for to in frontends(1, TCP) {
            let held = Dial::new(&client.namespace, to).open().unwrap();
            let took = held.stream_through(BYTES).unwrap_or_else(|error| panic!("{who} to {to}: {error:#}"));
            println!("{who} to {to}: {BYTES} bytes each way in {took:.2?}");
        }
    }
}

#[test]
fn with_complete_checksums() {
    transfer(false);
}

#[test]
fn with_offload() {
    transfer(true);
}
