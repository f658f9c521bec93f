//! Every kind of change of a service, under load.

use bpvs_tests::agent::{Agent, Listing};
use bpvs_tests::model::SCHEDULERS;
use bpvs_tests::topology::Topology;
use bpvs_tests::world::{CHANGE, TCP, World, frontends, wait_listed};

use crate::load::Load;

/// Waits until the TCP service of both families is as wanted.
fn until(agent: &Agent<'_>, what: &str, wanted: impl Fn(&bpvs_tests::agent::ListedService) -> bool) {
    let both = |list: &Listing| frontends(1, TCP).iter().all(|to| list.service("TCP", *to).is_some_and(&wanted));
    wait_listed(agent, what, both).unwrap();
}

#[test]
fn no_change_disturbs_what_is_established() {
    let world = World::new(Topology::builder().build().unwrap()).unwrap();
    let mut service = world.service("web", 1);
    world.publish("web", &service).unwrap();
    let agent = world.agent().unwrap();
    let load = Load::start(&world, 1);
    load.alive("at the start");

    for scheduler in SCHEDULERS {
        service = service.scheduler(scheduler);
        world.publish("web", &service).unwrap();
        until(&agent, scheduler, |listed| listed.scheduler == scheduler);
        load.alive(scheduler);
    }
    service = service.scheduler("wlc");

    let own = load.streams[0].1.server;
    let host = &world.topology.servers[usize::from(own) - 1];
    service = service.server(own, &[host.v4.into(), host.v6.into()], 0);
    world.publish("web", &service).unwrap();
    until(&agent, "weight 0", |listed| listed.server(own).is_some_and(|server| server.weight == 0));
    load.avoids(own, "with the stream's server drained");

    let other = (1..=5).find(|server| *server != own).unwrap();
    service = service.without(other);
    world.publish("web", &service).unwrap();
    until(&agent, "a server less", |listed| listed.server(other).is_none());
    load.avoids(other, "with another server removed");

    service = service.without(own);
    world.publish("web", &service).unwrap();
    until(&agent, "the stream's server gone", |listed| listed.server(own).is_none());
    load.avoids(own, "with the stream's server removed");

    let (mark, text) = (agent.log().len(), service.yaml());
    // In the middle of a quoted string.
    let cut = text.find("10.96.").unwrap() + 4;
    world.manifests.write("web.yaml", &text[..cut]).unwrap();
    agent.wait_for_log(mark, "the broken manifest to be named", CHANGE, |line| line.contains("web.yaml")).unwrap();
    load.alive("with a broken manifest");
    until(&agent, "what was programmed", |listed| listed.servers.len() == 3);

    service = service.server(own, &[host.v4.into(), host.v6.into()], 1).scheduler("rr");
    world.publish("web", &service).unwrap();
    until(&agent, "the mended manifest", |listed| listed.scheduler == "rr" && listed.servers.len() == 4);
    load.alive("at the end");
    load.finish();
    agent.cleanup().unwrap();
}
