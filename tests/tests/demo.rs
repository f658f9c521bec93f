//! The demo ends in order whatever happens to it: no namespace, pin or process stays.
//!
//! It runs here with a stand-in for the agent that balances nothing: the lines must then be wrong, and the end clean.
//! That the demo is right with the real agent is what `cargo xtask demo` shows.

use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use bpvs_tests::{agent, namespace};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

struct Demo {
    _folder: tempfile::TempDir,
    child: Child,
}

/// Starts the demo and returns when the stand-in is ready.
fn start() -> Demo {
    let folder = tempfile::tempdir().unwrap();
    let binary = folder.path().join("bpvs");
    std::fs::write(&binary, include_str!("../data/stand-in-agent.sh")).unwrap();
    std::fs::set_permissions(&binary, std::fs::Permissions::from_mode(0o755)).unwrap();
    std::fs::write(folder.path().join("rr.yaml"), "kind: Service\n").unwrap();
    let mut child = Command::new(env!("CARGO_BIN_EXE_bpvs-demo"))
        .arg("--manifests")
        .arg(folder.path())
        .env("BPVS_BIN", &binary)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().contains("bpvs is ready")), "the demo did not come to the agent");
    // Read on, so that the demo does not block; it ends when the demo does.
    std::thread::spawn(move || lines.for_each(drop));
    Demo { _folder: folder, child }
}

impl Demo {
    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id() as i32), signal).unwrap();
    }

    fn wait(&mut self) -> ExitStatus {
        let end = Instant::now() + Duration::from_secs(60);
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(Instant::now() < end, "the demo did not end");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn namespaces(&self) -> Vec<String> {
        named("/run/netns", &format!("bpvs-{}-", self.child.id()))
    }

    fn pins(&self) -> Vec<String> {
        named("/sys/fs/bpf", &format!("bpvs-test-{}-", self.child.id()))
    }

    /// Stand-ins that run with this demo's pins, and shells that they have just forked.
    fn agents(&self) -> usize {
        let pins = format!("bpvs-test-{}-", self.child.id());
        let processes = std::fs::read_dir("/proc").unwrap().filter_map(|entry| Some(entry.ok()?.path()));
        let told = |path: PathBuf| std::fs::read(path.join("cmdline")).unwrap_or_default();
        processes.map(told).filter(|line| String::from_utf8_lossy(line).contains(&pins)).count()
    }

    fn assert_nothing_left(&self) {
        assert_eq!(self.namespaces(), [""; 0]);
        assert_eq!(self.pins(), [""; 0]);
        let end = Instant::now() + Duration::from_secs(5);
        while self.agents() > 0 {
            assert!(Instant::now() < end, "an agent still runs");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

fn named(folder: &str, prefix: &str) -> Vec<String> {
    let entries = std::fs::read_dir(Path::new(folder)).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned());
    names.filter(|name| name.starts_with(prefix)).collect()
}

#[test]
fn an_interrupted_demo_removes_everything() {
    for signal in [Signal::SIGINT, Signal::SIGTERM] {
        let mut demo = start();
        assert_eq!((demo.namespaces().len(), demo.pins().len()), (8, 1));
        assert!(demo.agents() > 0);
        demo.signal(signal);
        assert_eq!(demo.wait().code(), Some(128 + signal as i32));
        demo.assert_nothing_left();
    }
}

#[test]
fn an_agent_that_balances_nothing_fails_the_demo_cleanly() {
    let mut demo = start();
    assert_eq!(demo.wait().code(), Some(1));
    demo.assert_nothing_left();
}

#[test]
fn what_a_killed_demo_leaves_is_reaped() {
    let mut demo = start();
    demo.signal(Signal::SIGKILL);
    demo.wait();
    assert!(demo.agents() > 0, "nobody ended the agent");
    // A test beside this one may reap some of it first.
    namespace::reap_leftovers().unwrap();
    agent::reap_leftovers().unwrap();
    demo.assert_nothing_left();
}

#[test]
fn wrong_arguments_and_a_missing_binary_are_named() {
    let run = |arguments: &[&str]| {
        let mut demo = Command::new(env!("CARGO_BIN_EXE_bpvs-demo"));
        let demo = demo.args(arguments).env("BPVS_BIN", "/nowhere/bpvs").stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = demo.spawn().unwrap();
        let mut text = String::new();
        child.stderr.take().unwrap().read_to_string(&mut text).unwrap();
        (child.wait().unwrap().code(), text)
    };
    let (code, text) = run(&["--nonsense"]);
    assert!(code == Some(2) && text.contains("unknown argument `--nonsense`") && text.contains("usage:"), "{text}");
    let (code, text) = run(&[]);
    assert!(code == Some(1) && text.contains("BPVS_BIN is /nowhere/bpvs"), "{text}");
}
