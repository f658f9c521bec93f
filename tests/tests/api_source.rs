//! The API source against the double: what the node would do follows what the cluster states, through every trouble.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use bpvs_tests::api_server::{ApiServer, write_kubeconfig};
use lb_userspace::model::{Change, Model, SourceId};
use lb_userspace::plan::{Defaults, plan};
use lb_userspace::source::api::{ApiSource, ConnectError, Pace, RequestLimit};
use lb_userspace::source::{Update, channel};
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt as _;
use tokio::sync::mpsc::Receiver;

const DEADLINE: Duration = Duration::from_secs(30);

/// Soon again after trouble; no lists but those that are needed.
const PACE: Pace = Pace {
    relist: Duration::from_secs(3600),
    shortest_delay: Duration::from_millis(10),
    longest_delay: Duration::from_millis(100),
};

fn service(name: &str, address: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "namespace": "demo"},
           "spec": {"clusterIP": address, "clusterIPs": [address], "ipFamilies": ["IPv4"],
                    "ports": [{"name": "p", "port": 80, "protocol": "TCP"}]}})
}

fn slice(name: &str, service: &str, endpoints: &[&str]) -> Value {
    let endpoints: Vec<Value> = endpoints.iter().map(|address| json!({"addresses": [address]})).collect();
    json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4", "endpoints": endpoints,
           "metadata": {"name": name, "namespace": "demo", "labels": {"kubernetes.io/service-name": service}},
           "ports": [{"name": "p", "port": 8080, "protocol": "TCP"}]})
}

fn labelled(mut object: Value, label: &str) -> Value {
    object["metadata"]["labels"][label] = json!("");
    object
}

/// A running source, and the model that it feeds as the agent would.
struct Agent {
    model: Model,
    updates: Receiver<Update>,
}

impl Agent {
    async fn start(server: &ApiServer) -> Self {
        Self::start_at(server, PACE).await
    }

    async fn start_at(server: &ApiServer, pace: Pace) -> Self {
        Self::start_with(server, pace, RequestLimit::default()).await
    }

    async fn start_with(server: &ApiServer, pace: Pace, limit: RequestLimit) -> Self {
        let source = ApiSource::connect(Some(&server.kubeconfig()), None, "n0", limit).await.unwrap().with_pace(pace);
        let (sender, updates) = channel();
        tokio::spawn(source.run(sender));
        let mut model = Model::new();
        ApiSource::SOURCES.into_iter().for_each(|source| model.expect(source));
        Self { model, updates }
    }

    async fn take(&mut self) -> Update {
        let update = tokio::time::timeout(DEADLINE, self.updates.recv()).await;
        let update = update.expect("an update in time").expect("the source runs");
        self.model.change(update.source, update.change.clone());
        update
    }

    /// `10.96.0.1:80 -> 10.1.0.1:8080`, sorted; nothing before the model is complete, as the agent programs nothing.
    fn lines(&self) -> Vec<String> {
        if !self.model.is_complete() {
            return vec!["incomplete".to_owned()];
        }
        let plan = plan(&self.model, &self.model.node("n0"), &Defaults::default());
        let line = |(frontend, service): (&lb_userspace::plan::Frontend, &lb_userspace::plan::DesiredService)| {
            let servers: Vec<String> = service
                .destinations
                .iter()
                .map(|server| SocketAddr::new(server.address, server.port).to_string())
                .collect();
            format!("{} -> {}", SocketAddr::new(frontend.address, frontend.port), servers.join(" "))
        };
        plan.services.iter().map(|(frontend, service)| (frontend, &**service)).map(line).collect()
    }

    /// Takes updates until the plan is this.
    async fn expect(&mut self, lines: &[&str]) {
        let mut seen = vec![self.lines()];
        while self.lines() != lines {
            match tokio::time::timeout(DEADLINE, self.updates.recv()).await {
                Ok(Some(update)) => drop(self.model.change(update.source, update.change)),
                _ => panic!("wanted {lines:?}, saw {seen:?}; problems {:?}", self.model.problems()),
            }
            seen.push(self.lines());
        }
    }

    /// Takes everything up to the next list of this source.
    async fn list(&mut self, source: SourceId) {
        loop {
            let update = self.take().await;
            if update.source == source && matches!(update.change, Change::Replace(_)) {
                return;
            }
        }
    }
}

/// A server with service `a` at 10.96.0.1 and these endpoints, and an agent that follows it with open watches.
async fn followed(endpoints: &[&str]) -> (ApiServer, Agent) {
    let server = ApiServer::start().await.unwrap();
    server.apply(service("a", "10.96.0.1"));
    server.apply(slice("a-1", "a", endpoints));
    let mut agent = Agent::start(&server).await;
    let servers: Vec<String> = endpoints.iter().map(|address| format!("{address}:8080")).collect();
    agent.expect(&[&format!("10.96.0.1:80 -> {}", servers.join(" "))]).await;
    watching(&server).await;
    (server, agent)
}

async fn watching(server: &ApiServer) {
    let open = |server: &ApiServer| ["services", "endpointslices", "nodes"].iter().all(|of| server.watching(of) == 1);
    server.wait("three watches are open", DEADLINE, open).await.unwrap();
}

#[tokio::test]
async fn objects_that_come_change_and_go_are_followed() {
    let (server, mut agent) = followed(&["10.1.0.1"]).await;
    server.apply(slice("b-1", "b", &["10.1.0.9"]));
    server.apply(service("b", "10.96.0.2"));
    agent.expect(&["10.96.0.1:80 -> 10.1.0.1:8080", "10.96.0.2:80 -> 10.1.0.9:8080"]).await;
    server.apply(slice("a-1", "a", &["10.1.0.2", "10.1.0.3"]));
    agent.expect(&["10.96.0.1:80 -> 10.1.0.2:8080 10.1.0.3:8080", "10.96.0.2:80 -> 10.1.0.9:8080"]).await;
    server.delete("EndpointSlice", "demo", "a-1");
    agent.expect(&["10.96.0.1:80 -> ", "10.96.0.2:80 -> 10.1.0.9:8080"]).await;
    server.delete("Service", "demo", "b");
    agent.expect(&["10.96.0.1:80 -> "]).await;
    assert_eq!(["services", "endpointslices", "nodes"].map(|of| server.count("list", of)), [1, 1, 1]);
}

#[tokio::test]
async fn the_own_node_is_followed_and_no_other() {
    let node = |name: &str, zone: &str| {
        json!({"apiVersion": "v1", "kind": "Node",
               "metadata": {"name": name, "labels": {"topology.kubernetes.io/zone": zone}}})
    };
    let (server, mut agent) = followed(&["10.1.0.1"]).await;
    server.apply(node("n1", "other"));
    server.apply(node("n0", "eu-1"));
    // Lists of other collections may come first.
    while agent.model.node("n0").zone.is_none() {
        agent.take().await;
    }
    assert_eq!(agent.model.node("n0").zone.as_deref(), Some("eu-1"));
    assert_eq!(agent.model.node("n1").zone, None);
}

#[tokio::test]
async fn a_long_list_comes_in_pages_and_is_one_list() {
    let server = ApiServer::start().await.unwrap();
    for number in 0..1201u32 {
        server.apply(service(&format!("s{number}"), &format!("10.96.{}.{}", number / 250, 1 + number % 250)));
    }
    let mut agent = Agent::start(&server).await;
    agent.list(SourceId::API_SERVICES).await;
    assert_eq!((agent.model.services().count(), server.count("list", "services")), (1201, 3));
}

#[tokio::test]
async fn labels_that_hide_objects_work_in_both_directions() {
    let (server, mut agent) = followed(&["10.1.0.1"]).await;
    server.apply(labelled(service("a", "10.96.0.1"), "service.kubernetes.io/service-proxy-name"));
    agent.expect(&[]).await;
    server.apply(service("a", "10.96.0.1"));
    agent.expect(&["10.96.0.1:80 -> 10.1.0.1:8080"]).await;
    server.apply(labelled(slice("a-1", "a", &["10.1.0.1"]), "service.kubernetes.io/headless"));
    agent.expect(&["10.96.0.1:80 -> "]).await;
    server.apply(slice("a-1", "a", &["10.1.0.1"]));
    agent.expect(&["10.96.0.1:80 -> 10.1.0.1:8080"]).await;
    server.apply(service("a", "None"));
    agent.expect(&[]).await;
}

#[tokio::test]
async fn nothing_is_complete_before_every_first_list() {
    let mut server = ApiServer::start().await.unwrap();
    server.apply(service("a", "10.96.0.1"));
    server.stop().await;
    let mut agent = Agent::start(&server).await;
    assert_eq!(agent.lines(), ["incomplete"]);
    server.fail_next(5, 500);
    server.restart().await.unwrap();
    agent.expect(&["10.96.0.1:80 -> "]).await;
    let failed = server.requests().iter().filter(|request| request.status == 500).count();
    assert_eq!(failed, 5);
}

/// kube 5.0 asks for the same version again and again: left to it, this would hang for ever.
#[tokio::test]
async fn a_410_at_the_start_of_a_watch_leads_to_a_new_list() {
    for in_stream in [false, true] {
        let (server, mut agent) = followed(&["10.1.0.1"]).await;
        server.tell_gone_in_stream(in_stream);
        // Moves the version on without any of the watches seeing it.
        server.apply(json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n7"}}));
        server.compact();
        server.end_watches();
        agent.list(SourceId::API_SLICES).await;
        watching(&server).await;
        assert_eq!(server.count("list", "endpointslices"), 2);
        let gone = server.requests().iter().any(|request| request.verb == "watch" && request.status == 410);
        assert_eq!(gone, !in_stream);
        server.apply(slice("a-1", "a", &["10.1.0.2"]));
        agent.expect(&["10.96.0.1:80 -> 10.1.0.2:8080"]).await;
    }
}

#[tokio::test]
async fn a_watch_that_ends_in_good_order_goes_on_without_a_list() {
    let (server, mut agent) = followed(&["10.1.0.1"]).await;
    server.apply(json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n7"}}));
    server.bookmark();
    server.apply(slice("a-1", "a", &["10.1.0.2"]));
    server.end_watches();
    server.apply(slice("a-1", "a", &["10.1.0.3"]));
    agent.expect(&["10.96.0.1:80 -> 10.1.0.3:8080"]).await;
    assert_eq!(server.count("list", "endpointslices"), 1);
}

#[tokio::test]
async fn what_is_deleted_during_an_outage_goes_when_the_server_returns_and_not_before() {
    let (mut server, mut agent) = followed(&["10.1.0.1", "10.1.0.2"]).await;
    server.apply(service("b", "10.96.0.2"));
    let before = ["10.96.0.1:80 -> 10.1.0.1:8080 10.1.0.2:8080", "10.96.0.2:80 -> "];
    agent.expect(&before).await;
    server.stop().await;
    server.delete("Service", "demo", "b");
    server.apply(slice("a-1", "a", &["10.1.0.2"]));
    server.compact();
    assert!(agent.updates.try_recv().is_err());
    assert_eq!(agent.lines(), before);
    server.restart().await.unwrap();
    agent.expect(&["10.96.0.1:80 -> 10.1.0.2:8080"]).await;
}

/// Traps 16, first: the list after the break shows nothing new, the first event after it does.
#[tokio::test]
async fn a_removal_in_the_first_event_after_a_break_is_not_lost() {
    let (server, mut agent) = followed(&["10.1.0.1"]).await;
    server.apply(json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n7"}}));
    server.compact();
    server.drop_watches();
    agent.list(SourceId::API_SLICES).await;
    assert_eq!(agent.lines(), ["10.96.0.1:80 -> 10.1.0.1:8080"]);
    watching(&server).await;
    server.apply(slice("a-1", "a", &["10.1.0.2"]));
    agent.expect(&["10.96.0.1:80 -> 10.1.0.2:8080"]).await;
}

/// The same where the watch can go on from the version at which it broke.
#[tokio::test]
async fn a_removal_right_after_a_cut_watch_is_not_lost() {
    let (server, mut agent) = followed(&["10.1.0.1"]).await;
    let watches = server.count("watch", "endpointslices");
    server.drop_watches();
    let again = |server: &ApiServer| server.count("watch", "endpointslices") > watches;
    server.wait("the watch is opened again", DEADLINE, again).await.unwrap();
    server.apply(slice("a-1", "a", &["10.1.0.2"]));
    agent.expect(&["10.96.0.1:80 -> 10.1.0.2:8080"]).await;
}

/// Traps 16, second: the list after the break holds the change. Without `compact` a watch that asks again only when the
/// server is back would go on from where it was, and need no list.
#[tokio::test]
async fn a_removal_in_the_list_after_a_break_is_not_lost() {
    let (mut server, mut agent) = followed(&["10.1.0.1"]).await;
    server.stop().await;
    server.apply(slice("a-1", "a", &["10.1.0.2"]));
    server.compact();
    server.restart().await.unwrap();
    agent.list(SourceId::API_SLICES).await;
    assert_eq!(agent.lines(), ["10.96.0.1:80 -> 10.1.0.2:8080"]);
}

/// As after a restore of etcd: no event tells of this, only listing again finds it.
#[tokio::test]
async fn versions_that_went_backwards_are_healed_by_the_slow_list() {
    let server = ApiServer::start().await.unwrap();
    server.apply(service("a", "10.96.0.1"));
    for last in 1..20 {
        server.apply(slice("a-1", "a", &[&format!("10.1.0.{last}")]));
    }
    let mut agent = Agent::start_at(&server, Pace { relist: Duration::from_millis(500), ..PACE }).await;
    agent.expect(&["10.96.0.1:80 -> 10.1.0.19:8080"]).await;
    watching(&server).await;
    server.rewind_version(3);
    server.apply(slice("a-1", "a", &["10.1.0.99"]));
    agent.expect(&["10.96.0.1:80 -> 10.1.0.99:8080"]).await;
}

#[tokio::test]
async fn an_odd_object_costs_only_itself() {
    let server = ApiServer::start().await.unwrap();
    let mut odd = service("odd", "10.96.0.9");
    odd["spec"]["ports"] = json!("none");
    odd["metadata"]["annotations"] = json!(["not", "a", "map"]);
    server.apply(odd.clone());
    server.apply(service("a", "10.96.0.1"));
    let mut agent = Agent::start(&server).await;
    agent.expect(&["10.96.0.1:80 -> "]).await;
    let problems = agent.model.problems();
    let texts: Vec<String> = problems.iter().map(ToString::to_string).collect();
    assert_eq!(texts.len(), 2, "{texts:?}");
    assert!(texts[0].starts_with("Service demo/odd: metadata.annotations: a list of 3: must be a map"), "{texts:?}");
    assert!(texts[1].starts_with("Service demo/odd: spec.ports: \"none\": must be a list"), "{texts:?}");
    server.apply(service("odd", "10.96.0.9"));
    agent.expect(&["10.96.0.1:80 -> ", "10.96.0.9:80 -> "]).await;
    server.apply(odd);
    agent.take().await;
    assert_eq!((agent.lines().len(), agent.model.problems().len()), (2, 2));
}

/// As the kubelet replaces a token and the server forgets the old one: the file is looked at when the server says so.
#[tokio::test]
async fn credentials_that_are_replaced_are_used_once_the_old_ones_are_not_taken() {
    let server = ApiServer::start().await.unwrap();
    let token = server.kubeconfig().with_file_name("token");
    let text = std::fs::read_to_string(server.kubeconfig()).unwrap();
    let user = format!("user: {{tokenFile: {}}}", token.display());
    assert!(text.contains("user: {}"), "{text}");
    std::fs::write(server.kubeconfig(), text.replace("user: {}", &user)).unwrap();
    std::fs::write(&token, "first").unwrap();
    server.know_only("first");
    server.apply(service("web", "10.96.0.1"));
    server.apply(slice("web-1", "web", &["10.1.0.1"]));
    let mut agent = Agent::start(&server).await;
    agent.expect(&["10.96.0.1:80 -> 10.1.0.1:8080"]).await;
    server.know_only("second");
    server.drop_watches();
    let refused = |server: &ApiServer| server.requests().iter().filter(|request| request.status == 401).count();
    server.wait("the first token is refused", DEADLINE, |server| refused(server) > 3).await.unwrap();
    server.apply(slice("web-1", "web", &["10.1.0.2"]));
    // Longer than a minute would be too late.
    std::fs::write(&token, "second").unwrap();
    agent.expect(&["10.96.0.1:80 -> 10.1.0.2:8080"]).await;
}

/// An API server that has just started does not know its roles yet.
#[tokio::test]
async fn what_is_forbidden_for_a_moment_is_asked_for_again_even_if_it_is_not_needed() {
    let server = ApiServer::start().await.unwrap();
    server.refuse("servicecidrs", Some(403));
    let _agent = Agent::start(&server).await;
    let asked = |server: &ApiServer| server.requests().iter().filter(|it| it.collection == "servicecidrs").count();
    server.wait("it is refused twice", DEADLINE, |server| asked(server) == 2).await.unwrap();
    server.refuse("servicecidrs", None);
    server.wait("it is watched", DEADLINE, |server| server.watching("servicecidrs") == 1).await.unwrap();
    // For good: no more than now and then.
    server.refuse("servicecidrs", Some(403));
    server.drop_watches();
    let before = asked(&server);
    server.wait("it is refused", DEADLINE, |server| asked(server) >= before + 7).await.unwrap();
    tokio::time::sleep(10 * PACE.longest_delay).await;
    assert_eq!(asked(&server), before + 7);
}

#[tokio::test]
async fn the_server_is_told_who_asks() {
    let server = ApiServer::start().await.unwrap();
    let _agent = Agent::start(&server).await;
    watching(&server).await;
    let wanted = concat!("bpvs/", env!("CARGO_PKG_VERSION"));
    let others: Vec<_> = server.requests().into_iter().filter(|request| request.agent != wanted).collect();
    assert!(others.is_empty(), "{others:?}");
}

#[tokio::test]
async fn a_kubeconfig_that_cannot_be_used_is_named() {
    let folder = tempfile::TempDir::new().unwrap();
    let path = folder.path().join("kubeconfig");
    for text in [None, Some("clusters: 7"), Some("apiVersion: v1\nkind: Config\ncurrent-context: nowhere\n")] {
        if let Some(text) = text {
            std::fs::write(&path, text).unwrap();
        }
        let Err(error) = ApiSource::connect(Some(&path), None, "n0", RequestLimit::default()).await else {
            panic!("{text:?} was taken")
        };
        assert!(matches!(error, ConnectError::Kubeconfig { .. }));
        assert!(error.to_string().contains(&path.display().to_string()), "{error}");
    }
}

/// Whatever answers there: the source neither ends nor panics, and nothing is complete.
#[tokio::test]
async fn a_server_that_speaks_something_else_is_asked_again() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let folder = tempfile::TempDir::new().unwrap();
    let path = folder.path().join("kubeconfig");
    for scheme in ["http", "https"] {
        write_kubeconfig(&path, &format!("{scheme}://{}", listener.local_addr().unwrap())).unwrap();
        let source =
            ApiSource::connect(Some(&path), None, "n0", RequestLimit::default()).await.unwrap().with_pace(PACE);
        let (sender, mut updates) = channel();
        let running = tokio::spawn(source.run(sender));
        for _ in 0..12 {
            let (mut connection, _) = tokio::time::timeout(DEADLINE, listener.accept()).await.unwrap().unwrap();
            let _ = connection.write_all(b"220 mail.example.org ESMTP\r\n").await;
        }
        assert!(!running.is_finished() && updates.try_recv().is_err());
        drop(updates);
        tokio::time::timeout(DEADLINE, running).await.unwrap().unwrap();
    }
}

/// IN-8.
#[tokio::test]
async fn the_server_is_asked_no_more_often_than_the_limit_says() {
    let server = ApiServer::start().await.unwrap();
    let begin = Instant::now();
    let limit = RequestLimit { per_thousand_seconds: 2_000, burst: 1 };
    let mut agent = Agent::start_with(&server, PACE, limit).await;
    while !agent.model.is_complete() {
        agent.take().await;
    }
    // Three lists at least; the first at once, and each of the others half a second after the one before.
    let took = begin.elapsed();
    assert!(took >= Duration::from_millis(990), "{took:?}");
}
