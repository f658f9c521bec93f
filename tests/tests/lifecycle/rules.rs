//! Rules as `ipvsadm -S -n` writes them: served, saved as they were, followed, and what else `ipvsadm` has a command for.

use std::fs;
use std::net::SocketAddr;

use bpvs_tests::agent::Agent;
use bpvs_tests::topology::Topology;
use bpvs_tests::traffic::{Dial, Servers};
use bpvs_tests::world::{CHANGE, wait_for};

/// In the order of ipvsadm's listing.
const RULES: &str = "\
-A -t 10.96.0.1:80 -s rr
-a -t 10.96.0.1:80 -r 10.1.1.1:8080 -m -w 1
-a -t 10.96.0.1:80 -r 10.1.1.2:8080 -m -w 1
-A -t 10.96.0.2:0 -s wlc -p 360 -M 255.255.255.0
-a -t 10.96.0.2:0 -r 10.1.1.1:0 -m -w 0
-A -t 10.96.0.3:80 -s rr
-a -t 10.96.0.3:80 -r [fd00:1::1]:80 -i -w 1 --tun-type ipip
-a -t 10.96.0.3:80 -r 10.1.1.1:80 -g -w 1
-a -t 10.96.0.3:80 -r 10.1.1.2:80 -i -w 1 --tun-type ipip
-a -t 10.96.0.3:80 -r 10.9.0.1:80 -i -w 1 --tun-type ipip
-A -u 10.96.0.1:53 -s sh -o -b sh-fallback,sh-port
-a -u 10.96.0.1:53 -r 10.1.1.2:5353 -m -w 2147483647 -x 100 -y 80
-A -u 10.97.0.0/16:53 -s dh
-a -u 10.97.0.0/16:53 -r 10.1.1.1:5353 -m -w 1
-A --sctp-service 10.96.0.1:9 -s mh -b mh-port
-A -t [fd00:96::1]:80 -s lblc -p 60 -M 64
-a -t [fd00:96::1]:80 -r [fd00:1::1]:8080 -m -w 3
-A -f 7 -s rr
-a -f 7 -r 10.1.1.2:0 -m -w 1
-A -f 8 -6 -s nq -p 5
";

struct World {
    topology: Topology,
    _servers: Servers,
    folder: tempfile::TempDir,
}

impl World {
    fn new(rules: &str) -> Self {
        let topology = Topology::builder().servers(2).build().unwrap();
        let servers = Servers::everywhere(&topology, 8080, 5353).unwrap();
        let world = Self { topology, _servers: servers, folder: tempfile::tempdir().unwrap() };
        world.write(rules);
        world
    }

    fn write(&self, rules: &str) {
        fs::write(self.folder.path().join("rules"), rules).unwrap();
    }

    fn start(&self) -> Agent<'_> {
        Agent::builder(&self.topology.node.namespace).rules(&self.folder.path().join("rules")).start().unwrap()
    }

    fn dial(&self, to: &str) -> u16 {
        let to: SocketAddr = to.parse().unwrap();
        Dial::new(&self.topology.clients[0].namespace, to).open().unwrap_or_else(|error| panic!("{to}: {error}")).server
    }
}

fn until_saved(agent: &Agent<'_>, rules: &str) {
    let saved = || agent.command(&["save"]);
    let same = || Ok((saved()? == rules).then_some(()));
    wait_for(&format!("bpvs save to print\n{rules}"), CHANGE, same, || saved().unwrap()).unwrap();
}

#[test]
fn rules_are_served_saved_as_they_were_and_followed() {
    let world = World::new(RULES);
    let agent = world.start();
    assert_eq!(agent.command(&["save"]).unwrap(), RULES);
    let mut servers = [world.dial("10.96.0.1:80"), world.dial("10.96.0.1:80")];
    // rr begins with the newest.
    assert_eq!(servers, [2, 1]);
    servers.sort_unstable();

    // What was saved is a file of rules too; comments and order are not saved.
    world.write(&format!("# as it was\n{}", agent.command(&["save"]).unwrap()));
    agent.kill().unwrap();
    agent.start().unwrap();
    assert_eq!(agent.command(&["save"]).unwrap(), RULES);

    let edited = RULES
        .replace("-a -t 10.96.0.1:80 -r 10.1.1.2:8080 -m -w 1\n", "")
        .replace("-A -f 7 -s rr\n-a -f 7 -r 10.1.1.2:0 -m -w 1\n", "")
        .replace("-s lblc -p 60 -M 64", "-s sed");
    world.write(&edited);
    until_saved(&agent, &edited);
    assert_eq!([world.dial("10.96.0.1:80"), world.dial("10.96.0.1:80")], [1, 1]);

    // Half a file takes nothing away, and the half line is named.
    let (mark, half) = (agent.log().len(), &edited[..edited.find("10.96.0.2").unwrap() + 4]);
    world.write(half);
    agent.wait_for_log(mark, "the half line", CHANGE, |line| line.contains("may be half written")).unwrap();
    assert_eq!(agent.command(&["save"]).unwrap(), edited);
    world.write("-C\n");
    until_saved(&agent, "");
    agent.cleanup().unwrap();
}

#[test]
fn new_servers_are_added_in_the_order_of_their_lines() {
    let server = |last: u8| format!("-a -t 10.96.0.1:80 -r 10.1.1.{last}:8080 -m -w 1\n");
    let world = World::new(&format!("-A -t 10.96.0.1:80 -s rr\n{}{}", server(2), server(1)));
    let agent = world.start();
    let list = agent.command(&["list", "--nosort"]).unwrap();
    let first = list.lines().find(|line| line.starts_with("  -> 10.")).unwrap();
    assert!(first.contains("10.1.1.1:8080"), "the newest comes first:\n{list}");
    assert_eq!([world.dial("10.96.0.1:80"), world.dial("10.96.0.1:80")], [1, 2]);
    agent.cleanup().unwrap();
}

#[test]
fn timeouts_are_set_at_run_time_and_outlive_the_agent() {
    let world = World::new("-A -t 10.96.0.1:80\n");
    let agent = world.start();
    let shown = || agent.command(&["list", "--timeout"]).unwrap();
    assert_eq!(shown(), "Timeout (tcp tcpfin udp): 900 120 300\n");
    agent.command(&["set-timeouts", "20", "0", "7"]).unwrap();
    assert_eq!(shown(), "Timeout (tcp tcpfin udp): 20 120 7\n");
    for wrong in [["1", "2", "4294968"], ["1", "-1", "2"], ["x", "1", "2"]] {
        let output = agent.output(&["set-timeouts", "--", wrong[0], wrong[1], wrong[2]]).unwrap();
        assert_ne!(output.status.code(), Some(0));
    }
    assert_eq!(shown(), "Timeout (tcp tcpfin udp): 20 120 7\n");
    agent.stop().unwrap();
    agent.command(&["set-timeouts", "0", "4294967", "0"]).unwrap();
    agent.start().unwrap();
    assert_eq!(shown(), "Timeout (tcp tcpfin udp): 20 4294967 7\n");
    agent.cleanup().unwrap();
    let output = agent.output(&["set-timeouts", "1", "1", "1"]).unwrap();
    assert!(String::from_utf8_lossy(&output.stderr).contains("start `bpvs run`"));
}
