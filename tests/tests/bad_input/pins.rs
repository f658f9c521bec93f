//! A pin directory that holds something else than an agent of this version expects, or belongs to another agent.

use std::fs;
use std::path::Path;
use std::process::Command;

use bpvs_tests::agent::Agent;
use bpvs_tests::namespace;
use serde_json::Value;

use super::{DEADLINE, World, web};

fn bpftool(arguments: &[&str]) -> Vec<u8> {
    namespace::run(Command::new("bpftool").args(arguments)).unwrap().stdout
}

fn pin<'a>(agent: &'a Agent<'_>, name: &str) -> (&'a Path, String) {
    (agent.pin_path(), agent.pin_path().join(name).to_str().unwrap().to_owned())
}

/// The agent must refuse to start and say all this on one line.
#[track_caller]
fn refuses(agent: &Agent<'_>, said: &[&str]) {
    let mark = agent.launch().unwrap();
    let error = agent.wait_for_log(mark, "its end", DEADLINE, |line| line.starts_with("error: "));
    let log = agent.log().text(mark);
    error.unwrap_or_else(|error| panic!("{error:#}"));
    let end = std::time::Instant::now() + DEADLINE;
    let status = loop {
        if let Some(status) = agent.exit_status().unwrap() {
            break status;
        }
        assert!(std::time::Instant::now() < end, "it goes on:\n{log}");
        std::thread::sleep(std::time::Duration::from_millis(5));
    };
    assert_eq!(status.code(), Some(1), "{log}");
    let errors: Vec<&str> = log.lines().filter(|line| line.starts_with("error: ")).collect();
    assert_eq!(errors.len(), 1, "{log}");
    for text in said {
        assert!(errors[0].contains(text), "must say {text:?}: {}", errors[0]);
    }
}

#[test]
fn a_second_agent_is_told_of_the_first_which_goes_on() {
    let world = World::new();
    let agent = world.start();
    let (folder, manifests) = (agent.pin_path().to_str().unwrap(), world.manifests.path().to_str().unwrap());
    let pid = format!("(pid {})", agent.process().unwrap());
    let second = agent.output(&["run", "--manifests", manifests]).unwrap();
    let stderr = String::from_utf8_lossy(&second.stderr);
    assert_eq!(second.status.code(), Some(1), "{stderr}");
    for text in [folder, "in use by another bpvs agent", &pid, "one node needs one agent", "--pin-path"] {
        assert!(stderr.contains(text), "must say {text:?}: {stderr}");
    }
    let refused = agent.output(&["cleanup"]).unwrap();
    let stderr = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("nothing was removed") && stderr.contains(&pid), "{stderr}");
    assert_eq!(world.dial(), 1);
    world.manifests.write("a-web.yaml", &web("rr", 2)).unwrap();
    let until = std::time::Instant::now() + DEADLINE;
    while world.dial() != 2 {
        assert!(std::time::Instant::now() < until, "the first agent does not follow its manifests any more");
    }
}

#[test]
fn a_foreign_map_is_named_and_left_and_what_is_programmed_goes_on() {
    let world = World::new();
    let agent = world.start();
    agent.stop().unwrap();
    let (folder, foreign) = pin(&agent, "mine");
    bpftool(&["map", "create", &foreign, "type", "array", "key", "4", "value", "4", "entries", "1", "name", "mine"]);
    refuses(&agent, &[&foreign, "is not a map of this bpvs", "remove it, or give another --pin-path"]);
    assert!(Path::new(&foreign).exists());
    assert_eq!(world.dial(), 1);
    let cleanup = agent.output(&["cleanup"]).unwrap();
    assert_eq!(cleanup.status.code(), Some(3));
    let stderr = String::from_utf8_lossy(&cleanup.stderr);
    assert!(stderr.contains(&foreign) && stderr.contains("left where it is"), "{stderr}");
    assert_eq!(fs::read_dir(folder).unwrap().count(), 1);

    // A map that bears one of our names and is another.
    let (_, services) = pin(&agent, "services");
    fs::rename(&foreign, &services).unwrap();
    refuses(&agent, &[&services, "is a map of another layout", "values of 4 bytes", "--pin-path"]);
    fs::remove_file(&services).unwrap();
    agent.start().unwrap();
    assert_eq!(world.dial(), 1);
}

#[test]
fn maps_of_another_version_are_named_and_serve_on() {
    let world = World::new();
    let agent = world.start();
    agent.stop().unwrap();
    let (_, settings) = pin(&agent, "settings");
    let dump: Value = serde_json::from_slice(&bpftool(&["-j", "map", "dump", "pinned", &settings])).unwrap();
    let ours: Vec<String> = bytes(&dump[0]["value"]);
    let write = |version: u8| {
        let mut value = ours.clone();
        value[0] = format!("{version:#04x}");
        let mut arguments = vec!["map", "update", "pinned", &settings, "key", "0", "0", "0", "0", "value"];
        arguments.extend(value.iter().map(String::as_str));
        bpftool(&arguments);
    };
    write(99);
    refuses(&agent, &["layout version 99", "bpvs cleanup --pin-path", "open connections are lost"]);
    for verb in ["list", "connections", "maps"] {
        let output = agent.output(&[verb]).unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{stderr}");
        assert!(stderr.contains("layout version 99") && stderr.contains("use the bpvs that made them"), "{stderr}");
    }
    assert_eq!(world.dial(), 1);
    write(lb_common::layout::VERSION as u8);
    agent.start().unwrap();
    assert_eq!(world.dial(), 1);
}

/// The bytes of a dumped value, as bpftool wants them back.
fn bytes(value: &Value) -> Vec<String> {
    value.as_array().unwrap().iter().map(|byte| byte.as_str().unwrap().to_owned()).collect()
}

#[test]
fn bpftool_reads_the_pinned_maps_by_the_names_and_fields_that_are_documented() {
    let world = World::new();
    let agent = world.start();
    assert_eq!(world.dial(), 1);
    let cli: &'static str = include_str!("../../../docs/cli.md");
    let (_, section) = cli.split_once("\n## bpvs maps\n").unwrap();
    let (section, _) = section.split_once("\n## ").unwrap();
    let row = |line: &'static str| Some(line.strip_prefix("| `")?.split_once('`')?.0);
    let documented: Vec<&str> = section.lines().filter_map(row).collect();
    let mut pinned: Vec<String> = fs::read_dir(agent.pin_path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name != "links")
        .collect();
    pinned.sort();
    assert_eq!(documented, pinned, "docs/cli.md names the pinned maps, in order");
    for (name, field) in [("services", "scheduler"), ("connections", "last_seen"), ("destination_load", "changes")] {
        let (_, path) = pin(&agent, name);
        let dump = String::from_utf8(bpftool(&["map", "dump", "pinned", &path])).unwrap();
        assert!(dump.contains(&format!("\"{field}\": ")), "{name}:\n{}", &dump[..dump.len().min(500)]);
    }
}
