//! `bpvs-bench traffic` measures every row in every direction that the row serves, and leaves nothing behind.

use std::collections::BTreeSet;
use std::process::{Command, Output};

use bpvs_tests::agent;
use serde_json::Value;

/// Names of the namespaces of a process.
fn namespaces(process: u32) -> Vec<String> {
    let entries = std::fs::read_dir("/run/netns").into_iter().flatten();
    let names = entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned());
    names.filter(|name| name.starts_with(&format!("bpvs-{process}-"))).collect()
}

fn run(bench: &mut Command) -> Output {
    let child = bench.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped()).spawn().unwrap();
    let process = child.id();
    let output = child.wait_with_output().unwrap();
    assert_eq!(namespaces(process), Vec::<String>::new(), "left behind");
    output
}

fn bench() -> Command {
    let mut bench = Command::new(env!("CARGO_BIN_EXE_bpvs-bench"));
    bench.arg("traffic").env("BPVS_BIN", agent::binary().unwrap());
    bench
}

#[test]
fn every_row_is_measured_in_its_directions_and_nothing_stays() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("figures.json");
    let output = run(bench().args(["--rounds", "1", "--seconds", "0.02", "--services", "1", "--json"]).arg(&file));
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{told}");
    let figures: Value = serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
    let mut found = BTreeSet::new();
    for figure in figures.as_array().unwrap() {
        assert!(figure["median"].as_f64().unwrap() > 0.0 && figure["ratio"].as_f64().unwrap() > 0.0, "{figure}");
        found.insert(format!("{} {}", figure["row"].as_str().unwrap(), figure["direction"].as_str().unwrap()));
    }
    let mut wanted: BTreeSet<String> =
        ["tc pod", "tc outside", "direct pod", "direct outside", "socket node"].map(str::to_owned).into();
    for row in ["none", "iptables-nft", "iptables-legacy", "nftables"] {
        wanted.extend(["pod", "node", "outside"].map(|direction| format!("{row} {direction}")));
    }
    assert_eq!(found, wanted);
    assert_eq!(figures.as_array().unwrap().len(), wanted.len() * 6);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("outside to node port, 1 Services") && text.contains("\n| nftables | "), "{text}");
}

#[test]
fn an_agent_that_does_not_start_is_named_and_nothing_stays() {
    let output = run(bench().args(["--rounds", "1", "--services", "1", "--rows", "tc"]).env("BPVS_BIN", "/bin/false"));
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success());
    assert!(told.contains("with 1 Services: row `bpvs, tc`: the agent ended"), "{told}");
}

#[test]
fn a_program_that_is_missing_is_named_with_the_command_that_installs_it() {
    let folder = tempfile::tempdir().unwrap();
    let output = run(bench().env("PATH", folder.path()));
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success());
    assert!(told.contains("no program `ip` on PATH") && told.contains("apt-get install iproute2"), "{told}");
}
