//! What a client sees of the double, in plain HTTP.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::net::TcpStream;

use super::ApiServer;

const DEADLINE: Duration = Duration::from_secs(20);
const SERVICES: &str = "/api/v1/namespaces/demo/services";

fn service(name: &str, label: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Service", "spec": {"clusterIP": "10.96.0.1"},
           "metadata": {"name": name, "namespace": "demo", "labels": {"app": label}}})
}

async fn send(server: &ApiServer, method: &str, path: &str, body: &str) -> TcpStream {
    let mut stream = TcpStream::connect(server.address()).await.unwrap();
    let length = body.len();
    let request = format!(
        "{method} {path} HTTP/1.1\r\nHost: double\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}"
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    stream
}

async fn ask(server: &ApiServer, method: &str, path: &str, body: &Value) -> (u16, Value) {
    let mut answer = String::new();
    let body = if body.is_null() { String::new() } else { body.to_string() };
    send(server, method, path, &body).await.read_to_string(&mut answer).await.unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), serde_json::from_str(body).unwrap())
}

async fn get(server: &ApiServer, path: &str) -> (u16, Value) {
    ask(server, "GET", path, &Value::Null).await
}

fn names(list: &Value) -> Vec<&str> {
    list["items"].as_array().unwrap().iter().map(|item| item["metadata"]["name"].as_str().unwrap()).collect()
}

/// Reads the events of a watch.
struct Events(Lines<BufReader<TcpStream>>);

impl Events {
    async fn open(server: &ApiServer, query: &str) -> Self {
        let stream = send(server, "GET", &format!("{SERVICES}?watch=true&{query}"), "").await;
        Self(BufReader::new(stream).lines())
    }

    /// `TYPE name version`; lines that are no JSON belong to HTTP.
    async fn next(&mut self) -> String {
        let event = async {
            loop {
                let line = self.0.next_line().await.unwrap().expect("the watch goes on");
                if let Ok(event @ Value::Object(_)) = serde_json::from_str(&line) {
                    let metadata = &event["object"]["metadata"];
                    let text = |value: &Value| value.as_str().unwrap_or("-").to_owned();
                    return format!(
                        "{} {} {}",
                        text(&event["type"]),
                        text(&metadata["name"]),
                        text(&metadata["resourceVersion"])
                    );
                }
            }
        };
        tokio::time::timeout(DEADLINE, event).await.expect("an event in time")
    }
}

#[tokio::test]
async fn pages_show_the_version_at_which_the_list_began() {
    let server = ApiServer::start().await.unwrap();
    for name in ["a", "b", "c", "d"] {
        server.apply(service(name, "web"));
    }
    let (status, first) = get(&server, &format!("{SERVICES}?limit=2")).await;
    assert_eq!((status, names(&first)), (200, vec!["a", "b"]));
    assert_eq!(first["metadata"]["remainingItemCount"], 2);
    server.delete("Service", "demo", "c");
    server.apply(service("e", "web"));
    let token = first["metadata"]["continue"].as_str().unwrap().replace('"', "%22");
    let (_, second) = get(&server, &format!("{SERVICES}?limit=2&continue={token}")).await;
    assert_eq!((names(&second), &second["metadata"]["continue"]), (vec!["c", "d"], &Value::Null));
    assert_eq!(second["metadata"]["resourceVersion"], "4");
    server.compact();
    assert_eq!(get(&server, &format!("{SERVICES}?limit=2&continue={token}")).await.0, 410);
    assert_eq!(server.count("list", "services"), 2);
}

#[tokio::test]
async fn a_watch_sees_objects_enter_and_leave_its_selection() {
    let server = ApiServer::start().await.unwrap();
    server.apply(service("a", "db"));
    let mut events = Events::open(&server, "resourceVersion=1&labelSelector=app=web&allowWatchBookmarks=true").await;
    server.apply(service("a", "web"));
    assert_eq!(events.next().await, "ADDED a 2");
    let mut changed = service("a", "web");
    changed["spec"]["clusterIP"] = json!("10.96.0.2");
    server.apply(changed.clone());
    server.apply(changed);
    assert_eq!(events.next().await, "MODIFIED a 3");
    server.apply(service("a", "db"));
    assert_eq!(events.next().await, "DELETED a 4");
    server.apply(service("b", "web"));
    assert_eq!(events.next().await, "ADDED b 5");
    server.delete("Service", "demo", "b");
    assert_eq!(events.next().await, "DELETED b 6");
    server.apply(service("c", "db"));
    server.bookmark();
    assert_eq!(events.next().await, "BOOKMARK - 7");
    assert_eq!(server.watching("services"), 1);
    drop(events);
    server.wait("the watch is closed", DEADLINE, |server| server.watching("services") == 0).await.unwrap();
}

#[tokio::test]
async fn a_watch_can_begin_with_everything() {
    let server = ApiServer::start().await.unwrap();
    server.apply(service("a", "web"));
    let query = "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true";
    let mut events = Events::open(&server, query).await;
    assert_eq!([events.next().await, events.next().await], ["ADDED a 1", "BOOKMARK - 1"]);
    let (status, _) = get(&server, &format!("{SERVICES}?watch=true&sendInitialEvents=true")).await;
    assert_eq!(status, 422);
}

#[tokio::test]
async fn versions_that_are_gone_or_yet_to_come_are_refused() {
    let server = ApiServer::start().await.unwrap();
    server.apply(service("a", "web"));
    server.apply(service("a", "db"));
    server.compact();
    let watch = |version: u64| format!("{SERVICES}?watch=true&resourceVersion={version}&timeoutSeconds=0");
    let (status, body) = get(&server, &watch(1)).await;
    assert_eq!((status, &body["code"], &body["reason"]), (410, &json!(410), &json!("Expired")));
    assert_eq!(get(&server, &watch(99)).await.0, 504);
    assert_eq!(get(&server, &format!("{SERVICES}?resourceVersion=99")).await.0, 504);
    assert_eq!(get(&server, &format!("{SERVICES}?resourceVersion=1&resourceVersionMatch=Exact")).await.0, 410);
    assert_eq!(get(&server, &format!("{SERVICES}?fieldSelector=spec.ports=1")).await.0, 400);
    assert_eq!(get(&server, "/apis/apps/v1/deployments").await.0, 404);
    server.tell_gone_in_stream(true);
    let mut events = Events::open(&server, "resourceVersion=1").await;
    assert_eq!(events.next().await, "ERROR - -");
}

#[tokio::test]
async fn writes_conflict_as_they_should() {
    let server = ApiServer::start().await.unwrap();
    let (status, created) = ask(&server, "POST", SERVICES, &service("a", "web")).await;
    assert_eq!((status, &created["metadata"]["resourceVersion"]), (201, &json!("1")));
    assert_eq!(ask(&server, "POST", SERVICES, &service("a", "web")).await.1["reason"], "AlreadyExists");
    let path = format!("{SERVICES}/a");
    let mut changed = created.clone();
    changed["metadata"]["labels"]["app"] = json!("db");
    let (status, stored) = ask(&server, "PUT", &path, &changed).await;
    assert_eq!((status, &stored["metadata"]["resourceVersion"]), (200, &json!("2")));
    assert_eq!(ask(&server, "PUT", &path, &created).await.1["reason"], "Conflict");
    assert_eq!(get(&server, &path).await.1, stored);
    assert_eq!(ask(&server, "DELETE", &path, &Value::Null).await.0, 200);
    assert_eq!(get(&server, &path).await.0, 404);
}

#[tokio::test]
async fn faults_come_on_demand_and_the_port_stays() {
    let mut server = ApiServer::start().await.unwrap();
    server.fail_next(1, 503);
    assert_eq!(get(&server, SERVICES).await.0, 503);
    assert_eq!(get(&server, SERVICES).await.0, 200);
    server.refuse("services", Some(429));
    assert_eq!([get(&server, SERVICES).await.0, get(&server, SERVICES).await.0], [429, 429]);
    assert_eq!(get(&server, "/api/v1/nodes").await.0, 200);
    server.refuse("services", None);
    assert_eq!(get(&server, SERVICES).await.0, 200);
    let address = server.address();
    server.stop().await;
    assert!(TcpStream::connect(address).await.is_err());
    server.apply(service("a", "web"));
    server.restart().await.unwrap();
    assert_eq!((server.address(), names(&get(&server, SERVICES).await.1)), (address, vec!["a"]));
}
