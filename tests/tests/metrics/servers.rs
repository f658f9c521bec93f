//! The servers themselves: what they answer, and that no client and no neighbour stops the agent.

use std::io::Write as _;
use std::net::{SocketAddr, TcpListener};
use std::time::Duration;

use bpvs_tests::agent::Agent;
use bpvs_tests::exposition;
use bpvs_tests::http::{self, connect, send};
use bpvs_tests::topology::Topology;
use bpvs_tests::traffic::Dial;
use bpvs_tests::world::{TCP, World, frontends, wait_for, wait_listed};

use super::{HEALTHZ, HERE, METRICS, agent, get, scrape};

/// An address that is taken is tried again every 5 s.
const RETRIED: Duration = Duration::from_secs(15);
/// From a start to its end: loading and verifying all programs on a busy machine.
const STARTED: Duration = Duration::from_secs(60);

fn world() -> World {
    let world = World::new(Topology::builder().servers(2).build().unwrap()).unwrap();
    world.publish("web", &world.service("web", 1)).unwrap();
    world
}

#[test]
fn the_paths_of_kube_proxys_metrics_server_are_there() {
    let world = world();
    let _agent = agent(&world, &[]);
    for (at, path, status, body) in [
        (METRICS, "/healthz", 200, Some("ok")),
        (METRICS, "/proxyMode", 200, Some("ipvs")),
        (METRICS, "/", 404, None),
        (METRICS, "/livez", 404, None),
        (METRICS, "/metrics/", 404, None),
        (HEALTHZ, "/readyz", 200, Some("ok")),
        (HEALTHZ, "/metrics", 404, None),
    ] {
        let answer = get(&world, at, path);
        assert_eq!(answer.status, status, "{at}{path}");
        if let Some(body) = body {
            assert_eq!(answer.body, body, "{at}{path}");
            assert!(answer.headers.contains("content-type: text/plain; charset=utf-8"), "{}", answer.headers);
            assert!(answer.headers.contains("x-content-type-options: nosniff"), "{}", answer.headers);
        }
    }
}

/// As Go's servers, and so kube-proxy's: of all addresses, those of IPv4 are some.
#[test]
fn servers_at_all_addresses_of_ipv6_take_ipv4_too_and_those_at_one_address_do_not() {
    let world = world();
    let builder = Agent::builder(&world.topology.node.namespace).manifests(&world.manifests);
    let arguments = ["--metrics-bind-address", "[::]:10249", "--healthz-bind-address", "[::1]:10256"];
    let _agent = arguments.iter().fold(builder, |builder, argument| builder.argument(*argument)).start().unwrap();
    let node = &world.topology.node;
    for at in ["127.0.0.1:10249", "[::1]:10249"] {
        assert_eq!(get(&world, at, "/healthz").status, 200, "{at}");
    }
    for at in node.at(10_249) {
        assert_eq!(http::get(&world.topology.external.namespace, at, "/healthz").unwrap().status, 200, "{at}");
    }
    assert_eq!(get(&world, "[::1]:10256", "/livez").status, 200);
    http::get(&node.namespace, "127.0.0.1:10256".parse().unwrap(), "/livez").unwrap_err();
}

#[test]
fn the_configuration_in_force_is_shown_and_whether_the_server_was_well() {
    let world = world();
    let _agent = agent(&world, &["--scheduler=wlc", "--cluster-cidr=10.1.0.0/16", "--tcp-timeout=90s"]);
    let shown = get(&world, METRICS, "/configz");
    assert!(shown.headers.contains("content-type: application/json"), "{}", shown.headers);
    let configuration = &shown.json()["kubeproxy.config.k8s.io"];
    for (pointer, value) in [
        ("/kind", "KubeProxyConfiguration"),
        ("/apiVersion", "kubeproxy.config.k8s.io/v1alpha1"),
        ("/mode", "ipvs"),
        ("/ipvs/scheduler", "wlc"),
        ("/ipvs/tcpTimeout", "1m30s"),
        ("/clusterCIDR", "10.1.0.0/16"),
        ("/hostnameOverride", HERE),
        ("/healthzBindAddress", HEALTHZ),
        ("/metricsBindAddress", METRICS),
    ] {
        assert_eq!(configuration.pointer(pointer), Some(&value.into()), "{pointer}: {configuration}");
    }
    let slis = || get(&world, METRICS, "/metrics/slis").body;
    assert_eq!(slis(), "", "nobody has asked");
    for count in 1..=2 {
        get(&world, METRICS, "/healthz");
        let told = exposition::parse(&slis()).unwrap();
        let labels = [("name", "ping"), ("type", "healthz")];
        assert_eq!(told["kubernetes_healthcheck"].value(&labels), Some(1.0));
        let labels = [labels[0], ("status", "success"), labels[1]];
        assert_eq!(told["kubernetes_healthchecks_total"].value(&labels), Some(f64::from(count)));
    }
}

#[test]
fn an_address_that_is_taken_is_told_once_and_answered_when_it_is_free() {
    let world = world();
    let taken: Vec<_> =
        world.topology.node.namespace.enter(|| [METRICS, HEALTHZ].map(|at| TcpListener::bind(at).unwrap()).into());
    let agent = agent(&world, &[]);
    Dial::new(&world.topology.clients[0].namespace, frontends(1, TCP)[0]).open().unwrap().close().unwrap();
    drop(taken);
    for at in [METRICS, HEALTHZ] {
        let answered = |line: &str| line.contains(&format!("answering at http://{at}"));
        agent.wait_for_log(0, "the server to answer", RETRIED, answered).unwrap();
        let text = agent.log().text(0);
        let told = text.lines().filter(|line| line.contains(&format!("bind-address {at}: cannot listen"))).count();
        assert_eq!(told, 1, "{text}");
    }
    assert!(agent.log().text(0).contains("trying again every 5s"), "{}", agent.log().text(0));
    assert_eq!(get(&world, HEALTHZ, "/healthz").status, 200);
    scrape(&world);
}

#[test]
fn an_address_that_is_taken_ends_the_agent_if_that_is_asked_for_and_what_is_programmed_stays() {
    let world = world();
    let agent = agent(&world, &["--bind-address-hard-fail"]);
    agent.stop().unwrap();
    for at in [METRICS, HEALTHZ] {
        let taken = world.topology.node.namespace.enter(|| TcpListener::bind(at).unwrap());
        let mark = agent.launch().unwrap();
        let ended = || agent.exit_status();
        let status = wait_for("end", STARTED, ended, || agent.log().text(mark)).unwrap();
        assert_eq!(status.code(), Some(1));
        let text = agent.log().text(mark);
        assert!(text.contains(&format!("{at}: cannot listen: Address already in use")), "{text}");
        drop(taken);
        Dial::new(&world.topology.clients[0].namespace, frontends(1, TCP)[0]).open().unwrap().close().unwrap();
    }
    agent.start().unwrap();
}

#[test]
fn odd_requests_are_answered_or_cut_off_and_the_agent_works_on() {
    let world = world();
    let agent = agent(&world, &[]);
    let node = &world.topology.node.namespace;
    let huge =
        [b"GET /metrics HTTP/1.1\r\nhost: node\r\nx: ".to_vec(), vec![b'a'; 1 << 20], b"\r\n\r\n".to_vec()].concat();
    let many = format!("GET /metrics HTTP/1.1\r\n{}\r\n", "x: y\r\n".repeat(1000));
    let long = format!("GET /{} HTTP/1.1\r\nhost: node\r\n\r\n", "a".repeat(70_000));
    let body = format!("POST /healthz HTTP/1.1\r\nhost: n\r\nconnection: close\r\ncontent-length: {}\r\n\r\n", 1 << 30);
    for at in [METRICS, HEALTHZ].map(|at| at.parse::<SocketAddr>().unwrap()) {
        let refused = [431, 414, 400];
        for (what, bytes) in
            [("a huge header", &huge[..]), ("many headers", many.as_bytes()), ("a long path", long.as_bytes())]
        {
            // Cut off while it is still sent, the answer may be lost on the way.
            if let Ok(answer) = send(node, at, bytes) {
                assert!(refused.contains(&answer.status), "{at}: {what}: {answer:?}");
            }
        }
        for (what, bytes) in [
            ("no HTTP", &b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n"[..]),
            ("HTTP/2", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
            ("zeroes", &[0; 4096]),
            ("no version", b"GET /metrics\r\n\r\n"),
        ] {
            if let Ok(answer) = send(node, at, bytes) {
                assert_eq!(answer.status, 400, "{at}: {what}");
            }
        }
        for method in ["POST", "PUT", "DELETE", "HEAD", "OPTIONS", "BREW"] {
            let text = format!("{method} /healthz HTTP/1.1\r\nhost: node\r\nconnection: close\r\n\r\n");
            assert_eq!(send(node, at, text.as_bytes()).unwrap().status, 200, "{at}: {method}");
        }
        // More is announced than ever comes.
        if let Ok(answer) = send(node, at, body.as_bytes()) {
            assert_eq!(answer.status, 200);
        }
    }
    assert_eq!(agent.exit_status().unwrap(), None);
    scrape(&world);
}

#[test]
fn clients_that_say_nothing_neither_stop_the_agent_nor_keep_others_out_for_long() {
    let world = world();
    let agent = agent(&world, &[]);
    let node = &world.topology.node.namespace;
    let mut silent = Vec::new();
    for at in [METRICS, HEALTHZ].map(|at| at.parse().unwrap()) {
        for number in 0..120 {
            let mut stream = connect(node, at).unwrap();
            // Some begin, and never end.
            if number % 2 == 0 {
                stream.write_all(b"GET /metrics HTTP/1.1\r\nhost: ").unwrap();
            }
            silent.push(stream);
        }
    }
    world.publish("web", &world.service("web", 1).without(1)).unwrap();
    wait_listed(&agent, "a change", |list| list.services.iter().all(|service| service.servers.len() == 1)).unwrap();
    // Each has 10 s; 64 are served at a time, at the metrics server 16.
    let at: SocketAddr = HEALTHZ.parse().unwrap();
    let answer = || Ok(http::get(node, at, "/livez").ok());
    let answer = wait_for("answer", Duration::from_secs(60), answer, || agent.log().text(0)).unwrap();
    assert_eq!(answer.status, 200);
    drop(silent);
    assert_eq!(get(&world, METRICS, "/healthz").status, 200);
}
