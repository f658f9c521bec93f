//! `--forwarding direct`: everybody is served as by the stack, with and without offload, over links of any width.

use bpvs_tests::agent::Agent;
use bpvs_tests::topology::Topology;
use bpvs_tests::world::World;

use crate::{errors, identity};

#[test]
fn straight_to_the_interface_of_the_receiver() {
    for offload in [false, true] {
        let world = World::new(Topology::builder().servers(1).checksum_offload(offload).build().unwrap()).unwrap();
        world.publish("web", &world.service("web", 1)).unwrap();
        let builder = Agent::builder(&world.topology.node.namespace).manifests(&world.manifests);
        let _agent = builder.argument("--forwarding").argument("direct").start().unwrap();
        identity::everyone_is_served(&world, 1);
        errors::narrow_server_link(&world);
    }
}
