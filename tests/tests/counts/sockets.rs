//! Sockets of the node's processes are counted from connect() to their end, however the process ends.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use bpvs_tests::agent::Listing;
use bpvs_tests::topology::Topology;
use bpvs_tests::traffic::DEADLINE;
use bpvs_tests::world::{TCP, World, frontends, wait_for};

/// Ends the process when dropped, on failure too.
struct Holder(Child);

impl Drop for Holder {
    fn drop(&mut self) {
        // It may have been ended before.
        let _ended = self.0.kill().and_then(|()| self.0.wait());
    }
}

#[test]
fn a_killed_process_gives_its_connections_back() {
    let world = World::new(Topology::builder().servers(3).build().unwrap()).unwrap();
    world.publish("web", &world.service("web", 1)).unwrap();
    let agent = world.agent().unwrap();
    let [v4, v6] = frontends(1, TCP);
    // Three connections to each, greeted, and then a wait for input that never comes.
    let mut script = String::new();
    for (descriptor, to) in (10..).zip([v4, v4, v4, v6, v6, v6]) {
        script += &format!(
            "exec {descriptor}<>/dev/tcp/{}/{}; read -r line <&{descriptor}; echo \"$line\"\n",
            to.ip(),
            to.port()
        );
    }
    let mut bash = Command::new("bash");
    bash.args(["-c", &format!("{script}read -r line")]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut holder = Holder(world.topology.node.namespace.spawn(&mut bash).unwrap());
    let lines = BufReader::new(holder.0.stdout.take().unwrap()).lines();
    let greeted: Vec<_> = lines.take(6).map(|line| line.unwrap()).collect();
    assert!(greeted.len() == 6 && greeted.iter().all(|line| line.starts_with("server ")), "{greeted:?}");
    let active = || {
        let list = Listing::read(&agent).unwrap();
        [v4, v6].map(|to| list.service("TCP", to).unwrap().counts())
    };
    assert_eq!(active(), [(3, 0), (3, 0)]);
    let shown = agent.command(&["connections"]).unwrap();
    assert_eq!(shown.lines().filter(|line| line.contains("socket#")).count(), 6, "{shown}");

    holder.0.kill().unwrap();
    holder.0.wait().unwrap();
    let none = || Ok((active() == [(0, 0), (0, 0)]).then_some(()));
    wait_for("release of the sockets", DEADLINE, none, || format!("{:?}", active())).unwrap();
    assert!(!agent.command(&["connections"]).unwrap().contains("socket#"));
}
