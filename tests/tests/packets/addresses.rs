//! Addresses where there is nothing but services: other ports of a cluster address, and addresses that no Service has.

use std::net::SocketAddr;

use bpvs_tests::datapath::{DROPPED, NEXT, REDIRECTED};
use lb_common::drops::Drop;
use lb_userspace::plan::Plan;

use crate::{
    shapes::{Around, Inside},
    world::{CHANGED, World},
};

/// A port of the cluster address that no service has.
const OTHER: u16 = 4_711;

fn with_addresses(world: &World) -> Plan {
    let mut plan = world.plan();
    plan.cluster_addresses.insert(world.vip(0).ip());
    plan
}

#[test]
fn other_ports_of_a_cluster_address_are_refused_and_no_other_address_is() {
    for mut world in World::both() {
        let plan = with_addresses(&world);
        world.apply(&plan);
        let client = world.client(9000);
        let ingress = |world: &World, to: SocketAddr, inside| {
            world.datapath.ingress(&Around::Plain.frame(client, to, inside)).unwrap().verdict
        };
        for (number, opening) in (1..).zip(Inside::OPENING) {
            assert_eq!(ingress(&world, world.vip(OTHER), opening), REDIRECTED, "{opening:?}: the answer goes back");
            assert_eq!(world.datapath.drops(Drop::NoDestination).unwrap(), number);
            assert_eq!(ingress(&world, world.vip(CHANGED), opening), NEXT, "{opening:?}: a service");
            assert_eq!(ingress(&world, world.other_vip(CHANGED), opening), NEXT, "{opening:?}: another service");
            // An address that is not stated to be a cluster address has ports of its own.
            assert_eq!(ingress(&world, world.other_vip(OTHER), opening), NEXT, "{opening:?}");
            assert_eq!(ingress(&world, world.server(OTHER), opening), NEXT, "{opening:?}");
        }
        let refused = world.datapath.drops(Drop::NoDestination).unwrap();
        world.apply(&world.plan());
        for opening in Inside::OPENING {
            assert_eq!(ingress(&world, world.vip(OTHER), opening), NEXT, "{opening:?}: none any more");
        }
        assert_eq!(world.datapath.drops(Drop::NoDestination).unwrap(), refused);
    }
}

/// On its way out and not before: whoever else translates on this node has had it by then.
#[test]
fn what_no_service_has_does_not_leave_the_node() {
    for mut world in World::both() {
        let mut plan = with_addresses(&world);
        let network = format!("{}/{}", world.vip(0).ip(), if world.v6 { 112 } else { 24 });
        plan.service_networks.insert(network.parse().unwrap());
        world.apply(&plan);
        let client = world.client(9000);
        // Of the network, and no service's.
        let nobody = SocketAddr::new(world.other_vip(0).ip(), OTHER);
        let outside = SocketAddr::new(world.router().ip(), OTHER);
        for (number, inside) in (1..).zip(Inside::OPENING) {
            let [to_nobody, to_outside] = [nobody, outside].map(|to| Around::Plain.frame(client, to, inside));
            assert_eq!(world.datapath.ingress(&to_nobody).unwrap().verdict, NEXT, "{inside:?}");
            assert_eq!(world.datapath.egress(&to_nobody).unwrap().verdict, DROPPED, "{inside:?}");
            assert_eq!(world.datapath.egress(&to_outside).unwrap().verdict, NEXT, "{inside:?}");
            assert_eq!(world.datapath.all_drops().unwrap(), [(Drop::NoService.name(), number)]);
            // From there, such as the reply of a proxy that translates elsewhere.
            let from = Around::Plain.frame(nobody, client, inside);
            assert_eq!(world.datapath.egress(&from).unwrap().verdict, NEXT, "{inside:?}");
        }
        plan.service_networks.clear();
        world.apply(&plan);
        let sent = Around::Plain.frame(client, nobody, Inside::OPENING[0]);
        assert_eq!(world.datapath.egress(&sent).unwrap().verdict, NEXT, "no such network any more");
    }
}
