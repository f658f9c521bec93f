//! The agent has the privileges of the DaemonSet's container, and works with them.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use bpvs_tests::agent::{Agent, binary};
use bpvs_tests::topology::Topology;
use bpvs_tests::traffic::Dial;
use bpvs_tests::world::{TCP, World, frontends};
use lb_userspace::kernel::probe::{Places, probe};
use serde_json::json;

use super::{container, kustomized, strings};

/// `NET_ADMIN` and its like.
pub(super) fn capabilities() -> Vec<String> {
    let objects = kustomized();
    let capabilities = &container(&objects)["securityContext"]["capabilities"];
    assert_eq!(capabilities["drop"], json!(["ALL"]));
    strings(&capabilities["add"]).into_iter().map(str::to_owned).collect()
}

/// A program that is bpvs as a container runtime starts it: root with nothing above these capabilities and no new ones.
pub(super) fn restricted(folder: &Path, capabilities: &[String]) -> std::path::PathBuf {
    let added: String = capabilities.iter().map(|name| format!(",+{}", name.to_lowercase())).collect();
    let script = format!(
        "#!/bin/sh\nexec setpriv --bounding-set=-all{added} --inh-caps=-all --no-new-privs -- '{}' \"$@\"\n",
        binary().unwrap().display()
    );
    let path = folder.join("bpvs");
    std::fs::write(&path, script).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    path
}

#[test]
fn they_are_those_that_the_agent_asks_for() {
    let places = Places { pin_path: "/sys/fs/bpf".into(), cgroup: None, sockets: false };
    let asked = probe(&places).into_iter().find(|probe| probe.feature == "privileges").unwrap().since;
    let given: Vec<String> = capabilities().iter().map(|name| format!("CAP_{name}")).collect();
    assert_eq!(given.join(", "), asked);
}

#[test]
fn the_containers_context_takes_everything_else_away() {
    let objects = kustomized();
    let context = &container(&objects)["securityContext"];
    for (field, value) in [
        ("privileged", json!(false)),
        ("allowPrivilegeEscalation", json!(false)),
        ("readOnlyRootFilesystem", json!(true)),
        ("runAsUser", json!(0)),
        ("seccompProfile", json!({"type": "RuntimeDefault"})),
    ] {
        assert_eq!(context[field], value, "{field}");
    }
}

#[test]
fn they_suffice_for_a_start_a_change_an_upgrade_and_a_clean_up() {
    for hook in ["auto", "clsact"] {
        let world = World::new(Topology::builder().servers(2).build().unwrap()).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let publish = |name, number| world.publish(name, &world.service(name, number)).unwrap();
        publish("a", 1);
        let agent = Agent::builder(&world.topology.node.namespace)
            .manifests(&world.manifests)
            .binary(restricted(folder.path(), &capabilities()))
            .argument(format!("--tc={hook}"))
            .argument("--healthz-bind-address=127.0.0.1:10256")
            .start()
            .unwrap();
        let served = |number| {
            for (name, client) in world.clients() {
                for to in frontends(number, TCP) {
                    let opened = Dial::new(&client.namespace, to).open();
                    assert!(
                        opened.is_ok(),
                        "{hook}: {name} to {to}: {:?}; log:\n{}",
                        opened.err(),
                        agent.log().text(0)
                    );
                }
            }
        };
        served(1);
        // A new process adopts what is pinned, and programs what is new.
        agent.stop().unwrap();
        publish("b", 2);
        agent.start().unwrap();
        served(1);
        served(2);
        assert!(agent.command(&["list"]).unwrap().contains("TCP"));
        agent.command(&["set-timeouts", "900", "120", "300"]).unwrap();
        agent.cleanup().unwrap();
    }
}
