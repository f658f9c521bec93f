//! The kit proves itself, without bpvs: what it builds works, what it checks can fail, what it makes goes away.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use bpvs_tests::namespace::{End, Namespace, reap_leftovers, veth};
use bpvs_tests::topology::Topology;
use bpvs_tests::traffic::{DEADLINE, Dial, DialError, Fault, Hammer, Servers, Stream, UdpClient};

const TCP: u16 = 8080;
const UDP: u16 = 5353;

fn path_of(namespace: &Namespace) -> PathBuf {
    namespace.path()
}

fn at(address: impl Into<IpAddr>, port: u16) -> SocketAddr {
    SocketAddr::new(address.into(), port)
}

#[test]
fn two_namespaces_joined_by_veth_reach_each_other() {
    let (a, b) = (Namespace::new("a").unwrap(), Namespace::new("b").unwrap());
    let end = |namespace, last| End { namespace, interface: "eth0", mac: [2, 0, 0, 0, 0, last] };
    veth(end(&a, 1), end(&b, 2), 1500).unwrap();
    a.ip(&["link set eth0 up".into(), "addr add 10.7.0.1/24 dev eth0".into()]).unwrap();
    b.ip(&["link set eth0 up".into(), "addr add 10.7.0.2/24 dev eth0".into()]).unwrap();
    let servers = Servers::new().unwrap();
    servers.tcp(&b, 7, TCP).unwrap();
    let held = Dial::new(&a, "10.7.0.2:8080".parse().unwrap()).open().unwrap();
    assert_eq!(held.server, 7);
    held.close().unwrap();
}

#[test]
fn every_client_reaches_every_server_in_both_families() {
    let topology = Topology::builder().servers(2).clients(2).build().unwrap();
    let servers = Servers::everywhere(&topology, TCP, UDP).unwrap();
    let clients = topology.clients.iter().chain([&topology.node, &topology.external]);
    let mut connections = 0;
    for (client, server) in clients.flat_map(|client| topology.servers.iter().map(move |server| (client, server))) {
        for address in [IpAddr::from(server.v4), IpAddr::from(server.v6)] {
            let what = format!("{} to {address}", client.namespace.name());
            let own = client.address_like(address);
            let mut held = Dial::new(&client.namespace, at(address, TCP))
                .source(at(own, 4000 + server.id))
                .open()
                .unwrap_or_else(|error| panic!("{what}: {error}"));
            assert_eq!(held.server, server.id, "{what}");
            assert_eq!(held.seen_peer, at(own, 4000 + server.id), "{what}");
            held.exchange(&[7; 100_000]).unwrap();
            held.close().unwrap();

            for udp in [UdpClient::connected, UdpClient::unconnected] {
                let udp = udp(&client.namespace, Some(at(own, 0)), at(address, UDP)).unwrap();
                let answer = udp.request(10, DEADLINE).unwrap_or_else(|error| panic!("{what}: {error}"));
                assert_eq!((answer.server, answer.seen_peer), (server.id, udp.local().unwrap()), "{what}");
            }
            connections += 3;
        }
    }
    // Four clients, two servers, two families, three connections each.
    assert_eq!(connections, 48);
    assert_eq!(servers.served(1) + servers.served(2), connections);
}

#[test]
fn datagrams_of_8_kilobytes_pass_in_fragments() {
    for offload in [false, true] {
        let topology = Topology::builder().servers(1).checksum_offload(offload).build().unwrap();
        let _servers = Servers::everywhere(&topology, TCP, UDP).unwrap();
        let (client, server) = (&topology.clients[0].namespace, &topology.servers[0]);
        for address in [IpAddr::from(server.v4), IpAddr::from(server.v6)] {
            let udp = UdpClient::connected(client, None, at(address, UDP)).unwrap();
            for length in [1, 1472, 1473, 3000, 8192] {
                udp.request(length, DEADLINE).unwrap_or_else(|error| panic!("{length} to {address}: {error}"));
            }
        }
        let fragments = server.namespace.enter(|| std::fs::read_to_string("/proc/thread-self/net/snmp")).unwrap();
        let ip: Vec<_> = fragments.lines().filter(|line| line.starts_with("Ip:")).collect();
        let column = ip[0].split(' ').position(|name| name == "ReasmOKs").unwrap();
        let reassembled: u32 = ip[1].split(' ').nth(column).unwrap().parse().unwrap();
        assert_eq!(reassembled, 3, "three of the requests were larger than the MTU");
    }
}

#[test]
fn refusal_and_silence_are_told_apart() {
    let topology = Topology::builder().servers(1).build().unwrap();
    let (client, server) = (&topology.clients[0].namespace, &topology.servers[0]);
    for address in [IpAddr::from(server.v4), IpAddr::from(server.v6)] {
        let error = Dial::new(client, at(address, TCP)).open().unwrap_err();
        assert!(error.is_refused(), "{error}");
        let udp = UdpClient::connected(client, None, at(address, UDP)).unwrap();
        let error = udp.request(1, DEADLINE).unwrap_err();
        assert!(error.is_refused(), "{error}");
    }
    // Nobody has this address; the external host drops what is not its own.
    let silent = Dial::new(client, "10.96.0.1:80".parse().unwrap()).deadline(Duration::from_millis(300));
    let error = silent.open().unwrap_err();
    assert!(matches!(error, DialError::Silent(after) if after >= Duration::from_millis(300)), "{error}");
}

#[test]
fn a_reset_reaches_the_server_and_a_close_is_complete() {
    let topology = Topology::builder().servers(1).build().unwrap();
    let _servers = Servers::everywhere(&topology, TCP, UDP).unwrap();
    let (client, server) = (&topology.clients[0].namespace, &topology.servers[0]);
    let to = at(server.v4, TCP);
    let state_of = |port: u16| {
        let mut ss = Command::new("ss");
        let output = client.run(ss.args(["-Htan", "sport", "=", &format!(":{port}")])).unwrap();
        String::from_utf8(output.stdout).unwrap().split_whitespace().next().map(str::to_owned)
    };
    let open = |port| Dial::new(client, to).source(at(topology.clients[0].v4, port)).open().unwrap();
    let (closed, reset) = (open(5001), open(5002));
    assert_eq!(state_of(5001).as_deref(), Some("ESTAB"));
    closed.close().unwrap();
    assert_eq!(state_of(5001).as_deref(), Some("TIME-WAIT"));
    reset.reset().unwrap();
    assert_eq!(state_of(5002), None);
}

#[test]
fn a_stream_through_a_faithful_server_is_whole() {
    let topology = Topology::builder().servers(1).build().unwrap();
    let _servers = Servers::everywhere(&topology, TCP, UDP).unwrap();
    let (client, server) = (&topology.clients[0].namespace, &topology.servers[0]);
    for address in [IpAddr::from(server.v4), IpAddr::from(server.v6)] {
        let limit = Duration::from_secs(20);
        let stream = Stream::start(client, None, at(address, TCP), 20_000_000, limit).unwrap();
        stream.advance(2_000_000, DEADLINE).unwrap();
        let report = stream.finish().unwrap();
        assert!(report.bytes >= 2_000_000, "{report:?}");
    }
}

#[test]
fn a_stream_notices_one_lost_and_one_swapped_byte() {
    let topology = Topology::builder().servers(1).build().unwrap();
    let servers = Servers::new().unwrap();
    let (client, server) = (&topology.clients[0].namespace, &topology.servers[0]);
    for (port, fault) in [(1, Fault::Lose(100_000)), (2, Fault::Swap(200_000))] {
        servers.tcp_with(&server.namespace, 1, port, Some(fault)).unwrap();
        let limit = Duration::from_secs(20);
        let stream = Stream::start(client, None, at(server.v4, port), 20_000_000, limit).unwrap();
        // It breaks underway or, when the machine is slow, at the end.
        let _broken = stream.advance(1_000_000, DEADLINE);
        let error = stream.finish().unwrap_err().to_string();
        let place = if port == 1 { "byte 100000:" } else { "byte 200000:" };
        assert!(error.contains(place), "{fault:?}: {error}");
    }
}

#[test]
fn a_hammer_counts_what_fails_and_who_answered() {
    let topology = Topology::builder().servers(1).build().unwrap();
    let servers = Servers::new().unwrap();
    let (client, server) = (&topology.clients[0].namespace, &topology.servers[0]);
    servers.tcp(&server.namespace, 1, TCP).unwrap();
    let hammer = Hammer::start(client, at(server.v4, TCP), 500, Duration::from_secs(20)).unwrap();
    hammer.advance(50, DEADLINE).unwrap();
    assert_eq!(hammer.report().failed, 0);
    servers.stop(1);
    hammer.advance(20, DEADLINE).unwrap();
    let report = hammer.stop().unwrap();
    assert!(report.per_server[&1] >= 50 && report.failed >= 19, "{report:?}");
    assert_eq!(report.attempts, report.per_server[&1] + report.failed);
    // The first may have been in the listener's queue when it closed, and be reset.
    assert!(report.failures.iter().skip(1).all(|(_, what)| what.starts_with("refused")), "{report:?}");
}

#[test]
fn namespaces_are_gone_after_drop_and_after_a_panic() {
    let topology = Topology::builder().servers(1).build().unwrap();
    let paths: Vec<_> = topology.ends().map(|host| path_of(&host.namespace)).collect();
    assert!(paths.iter().all(|path| path.exists()));
    drop(topology);
    assert!(!paths.iter().any(|path| path.exists()));

    let (send, receive) = std::sync::mpsc::channel();
    let panicked = std::thread::spawn(move || {
        let topology = Topology::builder().servers(1).build().unwrap();
        send.send(path_of(&topology.node.namespace)).unwrap();
        topology.node.namespace.enter(|| panic!("on purpose"))
    });
    assert!(panicked.join().is_err());
    let path = receive.recv().unwrap();
    assert!(path.to_str().unwrap().contains("-node") && !path.exists());
}

#[test]
fn leftovers_of_a_dead_run_are_reaped_with_their_processes() {
    let mut owner = Command::new("sleep").arg("1000").spawn().unwrap();
    let name = format!("bpvs-{}-0-left", owner.id());
    bpvs_tests::namespace::run(Command::new("ip").args(["netns", "add", &name])).unwrap();
    let mut left = Command::new("nsenter")
        .arg(format!("--net=/run/netns/{name}"))
        .args(["sleep", "1000"])
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let inside = std::fs::metadata(format!("/run/netns/{name}")).unwrap();
    let deadline = std::time::Instant::now() + DEADLINE;
    while !same_namespace(left.id(), &inside) {
        assert!(std::time::Instant::now() < deadline, "nsenter did not enter");
        std::thread::yield_now();
    }
    assert!(!reap_leftovers().unwrap().contains(&name), "its owner lives");
    owner.kill().unwrap();
    owner.wait().unwrap();
    // A test beside this one may reap it first.
    reap_leftovers().unwrap();
    assert!(!PathBuf::from(format!("/run/netns/{name}")).exists());
    assert!(!left.wait().unwrap().success(), "the process was ended by a signal");
}

fn same_namespace(process: u32, namespace: &std::fs::Metadata) -> bool {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata(format!("/proc/{process}/ns/net")).is_ok_and(|net| net.ino() == namespace.ino())
}
