//! Whose sockets are balanced when they connect, by real traffic with both paths on: `--socket-lb on`, `host-only` and
//! `off`, cgroups that are left out, and connected UDP sockets whose server goes.
//!
//! Each test is in a cgroup of its own: with `on` an agent balances the sockets of every namespace, and other tests' too.

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use bpvs_tests::agent::{Agent, Builder};
use bpvs_tests::topology::{Host, Topology};
use bpvs_tests::traffic::{DEADLINE, Dial, Held, UdpClient};
use bpvs_tests::world::{CHANGE, TCP, UDP, World, frontends, wait_for};
use lb_common::scheduler::Scheduler;
use lb_userspace::kernel::probe::find_cgroup2;
use nix::libc;
use serde_json::Value;

/// A cgroup with this process in it.
struct Cgroup(PathBuf);

impl Cgroup {
    fn enter() -> Self {
        let path = find_cgroup2().unwrap().join(format!("bpvs-test-{}", std::process::id()));
        fs::create_dir(&path).unwrap();
        fs::write(path.join("cgroup.procs"), std::process::id().to_string()).unwrap();
        Self(path)
    }

    /// One below it, of nobody yet.
    fn below(&self, name: &str) -> PathBuf {
        let path = self.0.join(name);
        fs::create_dir_all(&path).unwrap();
        path
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        let parent = self.0.parent().unwrap_or(Path::new("/"));
        // Whatever fails here leaves an empty cgroup behind, which hurts nobody.
        let _moved = fs::write(parent.join("cgroup.procs"), std::process::id().to_string());
        remove(&self.0);
    }
}

/// Removes a cgroup and all below it, as far as they are empty.
fn remove(path: &Path) {
    let below = fs::read_dir(path).into_iter().flatten().flatten().map(|entry| entry.path());
    below.filter(|path| path.is_dir()).for_each(|path| remove(&path));
    let _removed = fs::remove_dir(path);
}

fn world() -> World {
    let world = World::new(Topology::builder().servers(3).build().unwrap()).unwrap();
    world.publish("web", &world.service("web", 1).scheduler("rr")).unwrap();
    world
}

fn agent<'a>(world: &'a World, cgroup: &Cgroup, scope: &str) -> Builder<'a> {
    Agent::builder(&world.topology.node.namespace)
        .manifests(&world.manifests)
        .argument("--cgroup")
        .argument(&cgroup.0)
        .argument("--socket-lb")
        .argument(scope)
}

/// How many connections to a frontend were made at sockets, and how many by packets.
fn shown(agent: &Agent<'_>, to: SocketAddr) -> (usize, usize) {
    let text = agent.command(&["connections", "-o", "json"]).unwrap();
    let all: Value = serde_json::from_str(&text).unwrap();
    let rows = all["connections"].as_array().unwrap();
    let of = |kind: &str| {
        let is = |row: &&Value| row["virtual_address"] == to.to_string() && row["source"].get(kind).is_some();
        rows.iter().filter(is).filter(|row| row["expires_seconds"] != 0).count()
    };
    (of("socket"), of("address"))
}

/// Open connections of a host to both frontends.
fn dial(host: &Host) -> Vec<Held> {
    frontends(1, TCP).map(|to| Dial::new(&host.namespace, to).open().unwrap()).into()
}

#[test]
fn each_scope_takes_its_sockets_and_packets_serve_the_rest() {
    let cgroup = Cgroup::enter();
    let world = world();
    let (pod, node) = (&world.topology.clients[0], &world.topology.node);
    // Whose connections are made at the socket: the pod's, the node's.
    for (scope, of_pod, of_node) in [("on", true, true), ("host-only", false, true), ("off", false, false)] {
        let agent = agent(&world, &cgroup, scope).start().unwrap();
        let mut held = dial(pod);
        for to in frontends(1, TCP) {
            assert_eq!(shown(&agent, to), if of_pod { (1, 0) } else { (0, 1) }, "{scope}, pod to {to}");
        }
        if of_node {
            held.extend(dial(node));
            for to in frontends(1, TCP) {
                assert_eq!(shown(&agent, to), if of_pod { (2, 0) } else { (1, 1) }, "{scope}, node to {to}");
            }
        } else {
            let to = frontends(1, TCP)[0];
            Dial::new(&node.namespace, to)
                .deadline(std::time::Duration::from_secs(1))
                .open()
                .expect_err("nobody serves it");
        }
        for to in frontends(1, UDP) {
            // An unconnected socket of a pod is served where it sends; a connected one by packets, which follow the servers.
            let open = UdpClient::unconnected(&pod.namespace, None, to).unwrap();
            open.request(20, DEADLINE).unwrap();
            assert_eq!(shown(&agent, to), if of_pod { (1, 0) } else { (0, 1) }, "{scope}, datagrams of a pod to {to}");
            let connected = UdpClient::connected(&pod.namespace, None, to).unwrap();
            connected.request(20, DEADLINE).unwrap();
            connected.socket().set_nonblocking(false).unwrap();
            connected.socket().send_to(b"?", to).unwrap();
            let (_, from) =
                connected.socket().recv_from(&mut [0; 100]).unwrap_or_else(|error| panic!("{scope}: {error}"));
            assert_eq!(from, to, "{scope}");
            assert_eq!(shown(&agent, to), if of_pod { (1, 1) } else { (0, 2) }, "{scope}, a connected socket to {to}");
        }
        // Another agent, with what is open: bytes go on, and the count is that of before.
        agent.stop().unwrap();
        agent.start().unwrap();
        for one in &mut held {
            one.exchange(b"still here").unwrap();
        }
        let counted = || {
            let list = bpvs_tests::agent::Listing::read(&agent).unwrap();
            frontends(1, TCP).map(|to| list.service("TCP", to).unwrap().counts().0)
        };
        let open = 1 + u64::from(of_node);
        assert_eq!(counted().map(u64::from), [open; 2], "{scope}: {:?}", agent.command(&["list"]));
        drop(held);
        let none = || Ok((counted().map(u64::from) == [0; 2]).then_some(()));
        wait_for("end of the connections", DEADLINE, none, || format!("{:?}", counted())).unwrap();
        agent.cleanup().unwrap();
    }
}

#[test]
fn pods_are_served_with_every_scheduler_and_by_packets_where_their_address_decides() {
    let cgroup = Cgroup::enter();
    let world = world();
    let agent = agent(&world, &cgroup, "on").start().unwrap();
    let pod = &world.topology.clients[0];
    let service = world.service("web", 1);
    let sticky = service.clone().scheduler("rr").spec("sessionAffinity: ClientIP");
    let mut cases = vec![("session affinity".to_owned(), sticky, "rr persistent 10800".to_owned(), false)];
    for scheduler in Scheduler::ALL {
        let by_client = matches!(scheduler, Scheduler::SourceHash | Scheduler::Maglev);
        let name = scheduler.name();
        cases.push((name.to_owned(), service.clone().scheduler(name), name.to_owned(), !by_client));
    }
    for (what, service, listed, at_socket) in cases {
        world.publish("web", &service).unwrap();
        let [v4, _] = frontends(1, TCP);
        let line = || {
            let list = agent.command(&["list", "-n"]).unwrap();
            Ok(list.contains(&format!("TCP  {v4} {listed}\n")).then_some(()))
        };
        wait_for(&what, CHANGE, line, || agent.log().text(0)).unwrap();
        for to in frontends(1, TCP) {
            let before = shown(&agent, to);
            let held = Dial::new(&pod.namespace, to).open().unwrap();
            let after = shown(&agent, to);
            assert_eq!(after.0 - before.0, usize::from(at_socket), "{what}, {to}");
            drop(held);
        }
    }
    // Without a server it is packets that say so.
    world.publish("web", &world.empty_service("web", 1)).unwrap();
    for to in frontends(1, TCP) {
        let refused = || Ok(Dial::new(&pod.namespace, to).open().err().filter(|error| error.is_refused()));
        wait_for("refusal", CHANGE, refused, || agent.log().text(0)).unwrap();
    }
}

#[test]
fn processes_of_a_cgroup_that_is_left_out_are_served_by_packets() {
    let cgroup = Cgroup::enter();
    let world = world();
    let (mesh, inside) = (cgroup.below("mesh"), cgroup.below("mesh/container"));
    let later = cgroup.0.join("later");
    let agent = agent(&world, &cgroup, "on")
        .argument("--socket-lb-exclude-cgroup")
        .argument(&mesh)
        .argument("--socket-lb-exclude-cgroup")
        .argument(&later)
        .start()
        .unwrap();
    assert!(agent.log().text(0).contains("later: it is not there yet"), "{}", agent.log().text(0));
    let [to, _] = frontends(1, TCP);
    let connect = |place: &Path| {
        let script = format!(
            "echo $$ > {}/cgroup.procs; exec 3<>/dev/tcp/{}/{}; read -r line <&3; echo \"$line\"; read -r line",
            place.display(),
            to.ip(),
            to.port()
        );
        let mut bash = Command::new("bash");
        bash.args(["-c", &script]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = world.topology.clients[0].namespace.spawn(&mut bash).unwrap();
        let line = BufReader::new(child.stdout.take().unwrap()).lines().next().unwrap().unwrap();
        assert!(line.starts_with("server "), "{line}");
        let found = shown(&agent, to);
        child.kill().unwrap();
        child.wait().unwrap();
        found
    };
    // In order: those before are over, and time out as packets have it.
    let (sockets, packets) = connect(&cgroup.0);
    assert_eq!((sockets, packets), (1, 0), "not left out");
    for (place, known) in [(&mesh, 1), (&inside, 2)] {
        assert_eq!(connect(place), (0, known), "{}", place.display());
    }
    fs::remove_dir(&inside).unwrap();
}

/// `socket` is connected and its server is gone: its process learns it, and is served when it connects anew.
#[track_caller]
fn learns(agent: &Agent<'_>, client: &UdpClient, to: SocketAddr, servers: &[u16]) {
    let socket = client.socket();
    let told = || Ok(socket.take_error().unwrap());
    let error = wait_for("an error of the socket", CHANGE, told, || agent.log().text(0)).unwrap();
    assert_eq!(error.raw_os_error(), Some(libc::ECONNABORTED), "{to}: {error}");
    // Even if it does not look: nothing goes to the old server.
    assert_eq!(socket.send(b"?").unwrap_err().raw_os_error(), Some(libc::EDESTADDRREQ), "{to}");
    socket.connect(to).unwrap();
    let answer = client.request(20, DEADLINE).unwrap();
    assert!(servers.contains(&answer.server), "{to}: {answer:?}");
}

#[test]
fn a_connected_socket_of_the_node_learns_that_its_server_is_gone() {
    let cgroup = Cgroup::enter();
    let world = world();
    let agent = agent(&world, &cgroup, "host-only").start().unwrap();
    let node = &world.topology.node.namespace;
    let service = world.service("web", 1).scheduler("rr");
    for to in frontends(1, UDP) {
        for restart in [false, true] {
            world.publish("web", &service).unwrap();
            bpvs_tests::world::wait_listed(&agent, "all servers", |list| {
                list.service("UDP", to).is_some_and(|service| service.servers.len() == 3)
            })
            .unwrap();
            let open: Vec<(u16, UdpClient)> = (0..6)
                .map(|_| {
                    let client = UdpClient::connected(node, None, to).unwrap();
                    (client.request(20, DEADLINE).unwrap().server, client)
                })
                .collect();
            if restart {
                agent.kill().unwrap();
            }
            world.publish("web", &service.clone().without(2)).unwrap();
            if restart {
                agent.start().unwrap();
            }
            let mut lost = 0;
            for (_, client) in open.iter().filter(|(server, _)| *server == 2) {
                learns(&agent, client, to, &[1, 3]);
                lost += 1;
            }
            assert_eq!(lost, 2, "of six with three servers");
            for (server, client) in open.iter().filter(|(server, _)| *server != 2) {
                assert_eq!(client.request(20, DEADLINE).unwrap().server, *server, "{to}: the others stay");
            }
        }
    }
}
