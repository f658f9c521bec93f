//! XDP on uplinks that come and go, that have somebody else's program or cannot have ours, and through restarts.

use std::os::fd::AsFd;
use std::process::Command;
use std::time::Duration;

use bpvs_tests::agent::{Agent, attached};
use bpvs_tests::foreign::{Pinned, on_xdp};
use bpvs_tests::topology::{Topology, UPLINK};
use bpvs_tests::traffic::Dial;
use bpvs_tests::world::{CHANGE, TCP, World, frontends, wait_for};
use lb_userspace::kernel::bpf::link_info;

use crate::load::Load;

fn world() -> World {
    let world = World::new(Topology::builder().servers(2).build().unwrap()).unwrap();
    world.topology.take_frames().unwrap();
    world.publish("web", &world.service("web", 1)).unwrap();
    world
}

/// An agent with XDP, not yet started.
fn agent<'a>(world: &'a World, arguments: &[&str]) -> Agent<'a> {
    let builder = Agent::builder(&world.topology.node.namespace).manifests(&world.manifests);
    arguments.iter().fold(builder, |builder, argument| builder.argument(*argument)).build().unwrap()
}

fn everybody_is_served(world: &World, when: &str) {
    for (who, client) in world.clients() {
        for to in frontends(1, TCP) {
            let held = Dial::new(&client.namespace, to).open();
            held.unwrap_or_else(|error| panic!("{when}: {who} to {to}: {error}")).close().unwrap();
        }
    }
}

/// Interfaces of the node with our XDP program, as `name program`.
fn uplinks(world: &World) -> Vec<String> {
    let found = attached(&world.topology.node.namespace).unwrap();
    found.iter().filter(|hook| hook.contains(" xdp ")).map(|hook| hook.replace(" xdp ", " ")).collect()
}

fn wait_for_uplinks(world: &World, agent: &Agent<'_>, wanted: &[&str]) {
    let there = || Ok((uplinks(world) == wanted).then_some(()));
    let otherwise = || format!("{:?}\n{}", uplinks(world), agent.log().text(0));
    wait_for(&format!("XDP on {wanted:?}"), CHANGE, there, otherwise).unwrap();
}

/// The one line of the log that tells why an uplink is served at tc.
fn wait_for_refusal(agent: &Agent<'_>, mark: usize, why: &str) {
    let told = |line: &str| line.contains("up0 is served at tc, not by XDP") && line.contains(why);
    agent.wait_for_log(mark, &format!("`{why}`"), CHANGE, told).unwrap();
}

#[test]
fn a_link_of_somebody_else_stays_and_tc_serves() {
    for mode in ["native", "generic"] {
        let world = world();
        let node = &world.topology.node.namespace;
        let index = node.interface_index(UPLINK).unwrap();
        let foreign = node.enter(|| on_xdp(index)).unwrap();
        let before = link_info(foreign.as_fd()).unwrap();
        let agent = agent(&world, &["--xdp", mode]);
        agent.start().unwrap();
        wait_for_refusal(&agent, 0, "XDP of it has another program, `foreign` (id ");
        everybody_is_served(&world, mode);
        agent.cleanup().unwrap();
        assert_eq!(link_info(foreign.as_fd()).unwrap(), before, "{mode}");
    }
}

#[test]
fn a_program_that_ip_attached_stays_and_ours_comes_when_it_goes() {
    let world = world();
    let node = &world.topology.node.namespace;
    let agent = agent(&world, &["--xdp", "native"]);
    let mut name = agent.pin_path().as_os_str().to_owned();
    name.push("-foreign");
    let pinned = Pinned::xdp(name.into()).unwrap();
    node.run(Command::new("ip").args(["link", "set", UPLINK, "xdpdrv", "pinned"]).arg(pinned.path())).unwrap();
    let program = || {
        let output = node.run(Command::new("ip").args(["-j", "link", "show", UPLINK])).unwrap();
        let links: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        links[0]["xdp"]["prog"]["id"].as_u64()
    };
    let before = program();
    assert!(before.is_some());
    agent.start().unwrap();
    wait_for_refusal(&agent, 0, "XDP of it has another program, `foreign` (id ");
    everybody_is_served(&world, "beside it");
    assert_eq!(program(), before);
    node.run(Command::new("ip").args(["link", "set", UPLINK, "xdpdrv", "off"])).unwrap();
    wait_for_uplinks(&world, &agent, &["up0 bpvs_uplink"]);
    everybody_is_served(&world, "after it");
    agent.cleanup().unwrap();
    assert_eq!(program(), None);
}

#[test]
fn a_veth_whose_other_end_takes_no_frames_is_served_at_tc() {
    let world = World::new(Topology::builder().servers(2).build().unwrap()).unwrap();
    world.publish("web", &world.service("web", 1)).unwrap();
    let agent = agent(&world, &["--xdp", "native"]);
    agent.start().unwrap();
    wait_for_refusal(&agent, 0, "the other end of this veth takes no frames from XDP");
    assert!(uplinks(&world).is_empty());
    everybody_is_served(&world, "without XDP");
}

/// Mode by mode, each start finds what the one before left.
#[test]
fn the_mode_changes_with_a_restart_and_off_releases_the_uplink() {
    let world = world();
    let mut agent = agent(&world, &["--xdp", "native"]);
    agent.start().unwrap();
    wait_for_uplinks(&world, &agent, &["up0 bpvs_uplink"]);
    agent.kill().unwrap();
    everybody_is_served(&world, "without an agent");
    for (arguments, expected) in [
        // The kernel keeps fifteen characters of a program's name.
        (&["--xdp", "generic"][..], &["up0 bpvs_uplink_gen"][..]),
        (&["--xdp", "native"], &["up0 bpvs_uplink"]),
        (&["--xdp", "native", "--uplinks", "none*"], &[]),
        (&["--xdp", "native"], &["up0 bpvs_uplink"]),
        (&["--xdp", "off"], &[]),
    ] {
        let manifests = ["--manifests", world.manifests.path().to_str().unwrap()];
        agent.set_arguments([&manifests, arguments].concat());
        agent.start().unwrap();
        let found = uplinks(&world);
        assert_eq!(found, expected, "{arguments:?}:\n{}", agent.log().text(0));
        everybody_is_served(&world, &format!("{arguments:?}"));
        agent.kill().unwrap();
    }
    agent.cleanup().unwrap();
    assert!(uplinks(&world).is_empty());
}

#[test]
fn no_end_of_the_agent_disturbs_traffic_by_xdp() {
    let world = world();
    let agent = agent(&world, &["--xdp", "native", "--uplinks", "*"]);
    agent.start().unwrap();
    let all = uplinks(&world);
    assert_eq!(all.len(), world.topology.node_interfaces().len(), "{all:?}");
    let load = Load::start(&world, 1);
    load.alive("at the start");
    for round in 0..3 {
        agent.kill().unwrap();
        load.alive(&format!("killed, round {round}"));
        // The program is loaded anew, and takes the place of the one before in its link.
        let mark = agent.log().text(0).len();
        agent.start().unwrap();
        let replaced = format!("(0 attached, {} replaced, 0 released)", all.len());
        assert!(agent.log().text(0)[mark..].contains(&replaced), "{}", agent.log().text(0));
        load.alive(&format!("started again, round {round}"));
    }
    load.finish();
    assert_eq!(uplinks(&world), all);
    let footprint = agent.footprint().unwrap();
    agent.cleanup().unwrap();
    bpvs_tests::agent::assert_clean(agent.pin_path(), &world.topology.node.namespace, &footprint);
}

#[test]
fn uplinks_come_and_go() {
    let world = world();
    let agent = agent(&world, &["--xdp", "generic", "--uplinks", "up*,c9"]);
    agent.start().unwrap();
    let links = agent.pin_path().join("links");
    for round in 0..2 {
        let pod = world.topology.new_client(9).unwrap();
        let wanted = ["c9 bpvs_uplink", "up0 bpvs_uplink"];
        let there = || {
            let mut found = uplinks(&world);
            found.sort();
            Ok((found.len() == 2 && found.iter().zip(wanted).all(|(a, b)| a.starts_with(b))).then_some(()))
        };
        wait_for("XDP on both", CHANGE, there, || format!("{:?}\n{}", uplinks(&world), agent.log().text(0))).unwrap();
        for to in frontends(1, TCP) {
            Dial::new(&pod.namespace, to)
                .open()
                .unwrap_or_else(|error| panic!("round {round}: {error}"))
                .close()
                .unwrap();
        }
        drop(pod);
        let pinned = || {
            std::fs::read_dir(&links)
                .unwrap()
                .any(|entry| entry.unwrap().file_name().to_string_lossy().ends_with("-c9-xdp"))
        };
        let gone = || Ok((!pinned()).then_some(()));
        wait_for("end of the pod's pin", CHANGE, gone, || agent.log().text(0)).unwrap();
    }
}

/// Without an entry for the next hop the first packet goes by the stack, which finds it; the others by XDP.
#[test]
fn a_neighbour_that_is_not_known_yet_is_found_by_the_stack() {
    let world = world();
    let node = &world.topology.node.namespace;
    let agent = agent(&world, &["--xdp", "native", "--uplinks", "*", "--socket-lb", "off"]);
    agent.start().unwrap();
    for server in &world.topology.servers {
        let dev = &server.node_interface;
        let forget = [format!("neigh del {} dev {dev}", server.v4), format!("neigh del {} dev {dev}", server.v6)];
        node.ip(&forget).unwrap();
    }
    node.nft(
        "table inet seen {\nchain f {\ntype filter hook forward priority filter\ntcp flags & (syn|psh) == psh counter\n}\n}",
    )
    .unwrap();
    for (who, client) in &world.clients()[..2] {
        for to in frontends(1, TCP) {
            let dial = Dial::new(&client.namespace, to).deadline(Duration::from_secs(10)).open();
            let mut held = dial.unwrap_or_else(|error| panic!("{who} to {to}: {error}\n{}", agent.log().text(0)));
            held.exchange(&[7; 20_000]).unwrap();
            held.close().unwrap();
        }
    }
    let rules = node.nft("list table inet seen").unwrap();
    assert!(rules.contains("counter packets 0 "), "data went by the stack:\n{rules}");
}
