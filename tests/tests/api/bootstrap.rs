//! A node whose only proxy is bpvs reaches the API server by the cluster address of the Service `kubernetes`: after a restart
//! at once, by what is programmed; on a first start the kubeconfig has to name the API server's own address (FE-11).

use std::net::IpAddr;
use std::time::Duration;

use bpvs_tests::agent::Agent;
use bpvs_tests::api_server::{ApiServer, write_kubeconfig};
use bpvs_tests::topology::Topology;
use bpvs_tests::traffic::{Dial, Servers};
use serde_json::{Value, json};

use super::objects::{endpoint, ready, service, slice};
use super::{DEADLINE, address, until};

const VIRTUAL: &str = "http://10.96.0.1:443";

fn kubernetes() -> Value {
    let mut object = service("kubernetes", &["10.96.0.1"]);
    object["spec"]["ports"] = json!([{"name": "https", "port": 443, "protocol": "TCP"}]);
    object
}

fn its_slice(api: &ApiServer) -> Value {
    let mut object =
        slice("kubernetes", "kubernetes", &[endpoint(&api.address().ip().to_string(), json!({"ready": true}))]);
    object["ports"] = json!([{"name": "https", "port": api.address().port(), "protocol": "TCP"}]);
    object
}

#[test]
fn a_restarted_agent_reaches_the_api_server_by_its_virtual_address_before_it_has_heard_of_it() {
    let topology = Topology::builder().servers(2).build().unwrap();
    let _servers = Servers::everywhere(&topology, 8080, 5353).unwrap();
    let own: IpAddr = topology.external.v4.into();
    let api = topology.external.namespace.block_on(|| ApiServer::start_at(own)).unwrap();
    api.apply(kubernetes());
    api.apply(its_slice(&api));
    api.apply(service("a", &["10.96.0.2"]));
    api.apply(slice("a-1", "a", &ready(&[1])));
    let reached =
        || Dial::new(&topology.clients[0].namespace, address("10.96.0.2:80")).open().ok().map(|held| held.server);

    // By its own address, as on a first start.
    let agent =
        Agent::builder(&topology.node.namespace).kubeconfig(&api.kubeconfig()).argument("--node-name").argument("n0");
    let agent = agent.start().unwrap();
    assert_eq!(reached(), Some(1));
    agent.kill().unwrap();

    // Everything that is not in the maps now knows the virtual address alone.
    write_kubeconfig(&api.kubeconfig(), VIRTUAL).unwrap();
    api.apply(slice("a-1", "a", &ready(&[2])));
    agent.start().unwrap();
    assert_eq!(reached(), Some(2), "it has listed by the virtual address");
    api.apply(slice("a-1", "a", &ready(&[1])));
    until("it watches by the virtual address", || reached() == Some(1));
    agent.stop().unwrap();

    // Nobody else serves that address here: without what was programmed it says so, and goes on trying.
    agent.cleanup().unwrap();
    let mark = agent.launch().unwrap();
    agent.wait_for_log(mark, "that it cannot reach it", DEADLINE, |line| line.contains("API server: ")).unwrap();
    std::thread::sleep(Duration::from_millis(500));
    assert!(!agent.log().text(mark).contains("ready:"), "{}", agent.log().text(mark));
    agent.stop().unwrap();
}
