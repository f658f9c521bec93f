//! The kit's handling of the agent, proved with a stand-in that keeps the same contract: a shell script that says
//! `ready`, pins a map, ends at SIGTERM, and removes the pin on `cleanup`.

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::Duration;

use bpvs_tests::agent::{Agent, Manifests, assert_clean, check_clean};
use bpvs_tests::namespace::Namespace;

const STAND_IN: &str = include_str!("../data/stand-in-agent.sh");

struct StandIn {
    _folder: tempfile::TempDir,
    path: PathBuf,
    manifests: Manifests,
}

fn stand_in() -> StandIn {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("bpvs");
    std::fs::write(&path, STAND_IN).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    let manifests = Manifests::new().unwrap();
    manifests.write("a.yaml", "kind: Service\n").unwrap();
    StandIn { _folder: folder, path, manifests }
}

#[test]
fn an_agent_starts_stops_dies_and_starts_again_over_its_pins() {
    let (node, bpvs) = (Namespace::new("node").unwrap(), stand_in());
    let agent = Agent::builder(&node).binary(&bpvs.path).manifests(&bpvs.manifests).start().unwrap();
    let footprint = agent.footprint().unwrap();
    assert_eq!(footprint.maps.len(), 1);
    assert!(agent.log().text(0).contains("kind: Service"), "{}", agent.log().text(0));

    let inside = node.enter(|| std::fs::read_link("/proc/thread-self/ns/net")).unwrap();
    assert_eq!(agent.command(&["list"]).unwrap(), format!("net {}\n", inside.display()));
    assert!(node.processes().unwrap().contains(&(agent.process().unwrap() as i32)));

    let mark = agent.log().len();
    agent.stop().unwrap();
    assert_eq!(agent.process(), None);
    agent.start().unwrap();
    agent.kill().unwrap();
    agent.start().unwrap();
    let readies = agent.log().text(mark).matches("ready\n").count() + 1;
    assert!(readies >= 2, "{}", agent.log().text(mark));
    assert_eq!(agent.footprint().unwrap(), footprint, "pins outlived the stop and the SIGKILL");

    let error = check_clean(agent.pin_path(), &node, &footprint).unwrap_err().to_string();
    assert!(error.contains("still pinned"), "{error}");
    agent.cleanup().unwrap();
    assert!(footprint.remaining().unwrap().is_empty());
}

#[test]
fn an_agent_that_ends_early_or_wrongly_is_an_error_with_its_log() {
    let (node, bpvs) = (Namespace::new("node").unwrap(), stand_in());
    let builder = || Agent::builder(&node).binary(&bpvs.path).manifests(&bpvs.manifests);
    let error = builder().environment("BROKEN", "1").start().unwrap_err().to_string();
    assert!(error.contains("exit status: 4") && error.contains("broken on purpose"), "{error}");

    let agent = builder().environment("END", "5").start().unwrap();
    let error = agent.stop().unwrap_err().to_string();
    assert!(error.contains("exit status: 5"), "{error}");
    let error = agent.command(&["nonsense"]).unwrap_err().to_string();
    assert!(error.contains("no such command"), "{error}");

    agent.start().unwrap();
    let mark = agent.log().len();
    let error = agent.wait_for_log(mark, "a word", Duration::from_millis(100), |line| line == "word");
    assert!(error.unwrap_err().to_string().contains("a word"));
}

#[test]
fn a_dropped_agent_leaves_no_process_and_no_pin() {
    let (node, bpvs) = (Namespace::new("node").unwrap(), stand_in());
    let agent = Agent::builder(&node).binary(&bpvs.path).manifests(&bpvs.manifests).start().unwrap();
    let (pins, footprint) = (agent.pin_path().to_owned(), agent.footprint().unwrap());
    assert!(pins.exists());
    drop(agent);
    assert!(!pins.exists());
    assert_clean(&pins, &node, &footprint);
    // The script's own `sleep` may live for another moment.
    let end = std::time::Instant::now() + Duration::from_secs(5);
    while !node.processes().unwrap().is_empty() {
        assert!(std::time::Instant::now() < end, "{:?}", node.processes());
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn manifests_change_in_one_step_and_an_empty_edit_is_an_error() {
    let manifests = Manifests::new().unwrap();
    manifests.write("a.yaml", "weight: 1\n").unwrap();
    manifests.edit("a.yaml", |text| text.replace('1', "2")).unwrap();
    assert_eq!(manifests.read("a.yaml").unwrap(), "weight: 2\n");
    manifests.edit("a.yaml", |text| text.replace('7', "8")).unwrap_err();
    let copy = Manifests::copy_of(manifests.path()).unwrap();
    assert_eq!(copy.names().unwrap(), ["a.yaml"]);
    copy.remove("a.yaml").unwrap();
    Manifests::copy_of(copy.path()).unwrap_err();
}
