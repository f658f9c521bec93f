//! Wrong rules.

use std::fs;
use std::process::Command;

use bpvs_tests::agent::{Agent, binary};

use super::{DEADLINE, World};

#[test]
fn each_wrong_rule_is_told_with_its_place_and_costs_only_itself() {
    let world = World::new();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("rules");
    let good = "-A -t 10.96.0.7:80 -s rr\n-a -t 10.96.0.7:80 -r 10.1.1.2:8080 -m -w 1\n";
    fs::write(&file, good).unwrap();
    let agent =
        Agent::builder(&world.topology.node.namespace).manifests(&world.manifests).rules(&file).start().unwrap();
    let saved = agent.command(&["save"]).unwrap();
    for (line, expected) in [
        (
            "-a -t 10.96.0.7:80 -r 10.1.1.1:8080 -i --tun-type gue",
            "rules:3: rule TCP 10.96.0.7:80: --tun-type: \"gue\": is not supported",
        ),
        ("-a -t 10.96.0.7:80 -r 10.1.1.1:8080 -m -w -1", "-w: \"-1\": must be a number from 0 to 2147483647"),
        ("-A -t www.example.org:80 -s rr", "-t: \"www.example.org:80\": must be a number address"),
        ("-A -t 10.96.0.1:80 -s rr", "rules:3: rule TCP 10.96.0.1:80: belongs to demo/web:"),
        ("-A -t 10.96.0.7:80 -s wlc", "the service exists already, from line 1"),
        ("-A -t 10.96.0.8:80 --pe sip", "--pe: \"sip\": there are no persistence engines"),
        ("-D -t 10.96.0.9:80", "rule TCP 10.96.0.9:80: there is no such service yet"),
        ("\u{1}\u{7f}", "is no option"),
    ] {
        let mark = agent.log().len();
        fs::write(&file, format!("{good}{line}\n")).unwrap();
        agent.wait_for_log(mark, line, DEADLINE, |told| told.contains(expected)).unwrap();
        assert_eq!((world.dial(), world.dial_at("10.96.0.7:80")), (1, 2), "{line}");
        assert_eq!(agent.command(&["save"]).unwrap(), saved, "{line}");
    }
    agent.cleanup().unwrap();
}

#[test]
fn the_check_reads_rules_as_the_agent_would() {
    let world = World::new();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("rules");
    let check = |text: &str| {
        fs::write(&file, text).unwrap();
        let mut command = Command::new(binary().unwrap());
        command.args(["check", "--ipvs-rules"]).arg(&file).env("NO_COLOR", "1");
        let output = world.topology.node.namespace.enter(|| command.output()).unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let (code, said) = check("-A -f 1\n-a -f 1 -r 10.1.1.1 -m\n");
    assert!(code == Some(0) && said.ends_with("\nRules: 1 services, 1 real servers, 0 problems\n"), "{said}");
    let (code, said) = check("-A -f 1\n-a -f 1 -r 10.1.1.1 -i --tun-type gue\n");
    assert!(code == Some(1) && said.contains("rules:2: rule FWM 1: --tun-type: "), "{said}");
    fs::remove_file(&file).unwrap();
    let mut command = Command::new(binary().unwrap());
    command.args(["check", "--ipvs-rules"]).arg(&file);
    let output = command.output().unwrap();
    assert!(String::from_utf8_lossy(&output.stderr).contains("cannot read --ipvs-rules"));
}
