//! Programs and filters of others survive all that bpvs does.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::process::Command;

use bpvs_tests::agent::Agent;
use bpvs_tests::foreign::{Pinned, on_cgroup, on_tcx};
use bpvs_tests::topology::Topology;
use bpvs_tests::traffic::Dial;
use bpvs_tests::world::{TCP, World, frontends};
use lb_userspace::kernel::bpf::{LinkInfo, link_info};

/// Where cgroup2 is mounted.
fn cgroup() -> String {
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
    let mounts: Vec<Vec<_>> = mounts.lines().map(|line| line.split(' ').collect()).collect();
    mounts.iter().find(|fields| fields[2] == "cgroup2").expect("cgroup2 is mounted")[1].to_owned()
}

fn links(links: &[OwnedFd]) -> Vec<LinkInfo> {
    links.iter().map(|link| link_info(link.as_fd()).unwrap()).collect()
}

fn filters(world: &World) -> String {
    let mut tc = Command::new("tc");
    let output = world.topology.node.namespace.run(tc.args(["filter", "show", "dev", "c1", "ingress", "pref", "77"]));
    String::from_utf8(output.unwrap().stdout).unwrap()
}

fn survive(mode: &str) {
    let world = World::new(Topology::builder().servers(2).build().unwrap()).unwrap();
    world.publish("web", &world.service("web", 1)).unwrap();
    let node = &world.topology.node.namespace;
    let agent = Agent::builder(node).manifests(&world.manifests).argument("--tc").argument(mode).build().unwrap();
    let mut name = agent.pin_path().as_os_str().to_owned();
    name.push("-foreign");
    let pinned = Pinned::classifier(name.into()).unwrap();
    node.run(Command::new("tc").args(["qdisc", "add", "dev", "c1", "clsact"])).unwrap();
    let filter = ["filter", "add", "dev", "c1", "ingress", "pref", "77", "bpf", "direct-action", "object-pinned"];
    node.run(Command::new("tc").args(filter).arg(pinned.path())).unwrap();
    let index = node.interface_index("c1").unwrap();
    let foreign = [node.enter(|| on_tcx(index)).unwrap(), on_cgroup(Path::new(&cgroup())).unwrap()];
    let before = (links(&foreign), filters(&world));
    assert!(before.1.contains("foreign"), "{}", before.1);
    let unharmed = |when: &str| assert_eq!((links(&foreign), filters(&world)), before, "{when}");
    let served = |when: &str| {
        for (who, client) in world.clients() {
            let held = Dial::new(&client.namespace, frontends(1, TCP)[0]).open();
            held.unwrap_or_else(|error| panic!("{when}: {who}: {error}")).close().unwrap();
        }
    };
    agent.start().unwrap();
    unharmed("after the start");
    served("after the start");
    agent.kill().unwrap();
    agent.start().unwrap();
    unharmed("after the restart");
    served("after the restart");
    agent.cleanup().unwrap();
    unharmed("after the cleanup");
}

#[test]
fn beside_tcx() {
    survive("tcx");
}

#[test]
fn beside_clsact() {
    survive("clsact");
}
