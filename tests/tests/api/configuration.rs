//! The agent in kube-proxy's place: with the file that kubeadm writes for it, and with its flags.

use std::path::PathBuf;
use std::process::Command;

use bpvs_tests::agent::{Agent, Builder, Listing};
use bpvs_tests::http;
use tempfile::TempDir;

use super::objects::{ready, service, slice};
use super::{DEADLINE, World, address, until};

/// What kubeadm writes, with mode ipvs and wlc.
const KUBEADM: &str = include_str!("../../../lb-userspace/tests/data/kubeadm-config.conf");

struct File {
    folder: TempDir,
}

impl File {
    /// The file, with these changes, for the API server of a world.
    fn new(world: &World, changes: &[(&str, &str)]) -> Self {
        let file = Self { folder: tempfile::tempdir().unwrap() };
        file.write(world, changes);
        file
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("config.conf")
    }

    /// As volumes do it: another file takes the name.
    fn write(&self, world: &World, changes: &[(&str, &str)]) {
        let kubeconfig = world.api().kubeconfig().display().to_string();
        let own = [
            ("/var/lib/kube-proxy/kubeconfig.conf", kubeconfig.as_str()),
            ("hostnameOverride: \"\"", "hostnameOverride: n0"),
        ];
        let mut text = KUBEADM.to_owned();
        for (from, to) in own.iter().chain(changes) {
            assert!(text.contains(from), "{from}");
            text = text.replace(from, to);
        }
        let new = self.folder.path().join("new");
        std::fs::write(&new, text).unwrap();
        std::fs::rename(new, self.path()).unwrap();
    }
}

fn agent<'a>(world: &'a World, file: &File) -> Builder<'a> {
    Agent::builder(world.node()).argument("--config").argument(file.path())
}

fn world() -> World {
    let world = World::new(2);
    world.api().apply(service("a", &["10.96.0.1"]));
    world.api().apply(slice("a-1", "a", &ready(&[1, 2])));
    world
}

fn scheduler(agent: &Agent<'_>) -> String {
    Listing::read(agent).unwrap().service("TCP", address("10.96.0.1:80")).unwrap().scheduler.clone()
}

#[test]
fn a_file_as_kubeadm_writes_it_starts_an_agent_that_serves_with_its_scheduler() {
    let world = world();
    let file = File::new(&world, &[]);
    let agent = agent(&world, &file).start().unwrap();
    assert_eq!(scheduler(&agent), "wlc");
    world.expect(address("10.96.0.1:80"), &[1, 2]);
    let log = agent.log().text(0);
    // A container may not be allowed to be spared.
    let worth_a_word = |line: &&str| line.contains("WARN") && !line.contains("oomScoreAdj -999: cannot write");
    assert_eq!(log.lines().find(worth_a_word), None);
    assert!(!log.contains("no effect"), "{log}");
    for (at, path) in [("127.0.0.1:10256", "/livez"), ("127.0.0.1:10249", "/proxyMode")] {
        assert_eq!(http::get(world.node(), address(at), path).unwrap().status, 200, "{at}");
    }
}

/// How soon the kernel ends the agent when it is out of memory. To be ended sooner needs no privilege.
fn oom_score_adjust(agent: &Agent<'_>) -> String {
    let file = format!("/proc/{}/oom_score_adj", agent.process().unwrap());
    std::fs::read_to_string(file).unwrap().trim().to_owned()
}

#[test]
fn a_file_that_changes_ends_the_agent_and_the_next_one_does_what_it_says() {
    let world = world();
    let file = File::new(&world, &[]);
    let agent = agent(&world, &file).start().unwrap();
    let hammer = world.hammer(address("10.96.0.1:80"));
    hammer.advance(20, DEADLINE).unwrap();
    // The same again is no change, and what is not there may come again.
    file.write(&world, &[]);
    std::fs::remove_file(file.path()).unwrap();
    hammer.advance(20, DEADLINE).unwrap();
    assert_eq!(agent.exit_status().unwrap(), None);
    let mark = agent.log().len();
    file.write(
        &world,
        &[
            ("scheduler: wlc", "scheduler: sh\n  nonsense: 1"),
            ("maxPerCore: null", "maxPerCore: 1"),
            ("oomScoreAdj: null", "oomScoreAdj: 1000"),
        ],
    );
    let told = format!("error: {} has changed: restart the agent", file.path().display());
    agent.wait_for_log(mark, "it to end", DEADLINE, |line| line.contains(&told)).unwrap();
    let mut status = None;
    until("it has ended", || {
        status = agent.exit_status().unwrap();
        status.is_some()
    });
    assert_eq!(status.unwrap().code(), Some(1));
    hammer.advance(20, DEADLINE).unwrap();
    agent.start().unwrap();
    assert_eq!((scheduler(&agent), oom_score_adjust(&agent)), ("sh".to_owned(), "1000".to_owned()));
    super::unhurt(hammer);
    let log = agent.log().text(mark);
    assert!(log.contains("ipvs.nonsense: unknown field, ignored"), "{log}");
    assert_eq!(log.matches("no effect here: conntrack.maxPerCore (").count(), 1, "{log}");
}

#[test]
fn kube_proxys_flags_beside_the_file_are_named_and_count_for_nothing() {
    let world = world();
    let file = File::new(&world, &[("hostnameOverride: n0", "hostnameOverride: nobody")]);
    let builder = agent(&world, &file).argument("--hostname_override=N0").argument("--v=2");
    let agent =
        builder.argument("--ipvs-scheduler=sh").argument("--cluster_cidr").argument("10.0.0.0/8").start().unwrap();
    assert_eq!(scheduler(&agent), "wlc");
    let log = agent.log().text(0);
    assert!(log.contains("without effect beside --config: --cluster-cidr, --ipvs-scheduler ("), "{log}");
    assert!(log.contains("as node n0"), "{log}");
}

#[test]
fn kube_proxys_flags_start_an_agent_without_a_file() {
    let world = world();
    let builder = world.agent().argument("--metrics-bind-address=127.0.0.1").argument("--metrics-port=99");
    let builder =
        builder.argument("--proxy-mode=ipvs").argument("--ipvs-scheduler=lc").argument("--oom-score-adj=1000");
    let agent = builder.argument("--healthz-port=0").argument("--conntrack-min=1").argument("--v=2").start().unwrap();
    assert_eq!(scheduler(&agent), "lc");
    let log = agent.log().text(0);
    assert!(log.contains("no effect here: --conntrack-min, -v ("), "{log}");
    assert_eq!(http::get(world.node(), address("127.0.0.1:99"), "/metrics").unwrap().status, 200);
    assert!(http::get(world.node(), address("127.0.0.1:10256"), "/healthz").is_err());
    assert_eq!(oom_score_adjust(&agent), "1000");
}

#[test]
fn the_file_that_is_written_from_a_file_starts_the_same_agent() {
    let world = world();
    let file = File::new(&world, &[("scheduler: wlc", "scheduler: sed")]);
    let written = file.folder.path().join("written");
    let output = Command::new(bpvs_tests::agent::binary().unwrap())
        .args(["run", "--config"])
        .arg(file.path())
        .arg("--write-config-to")
        .arg(&written)
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let agent = Agent::builder(world.node()).argument("--config").argument(&written).start().unwrap();
    assert_eq!(scheduler(&agent), "sed");
    assert!(world.dial(address("10.96.0.1:80")).is_some());
}
