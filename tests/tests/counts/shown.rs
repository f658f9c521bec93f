//! Text and JSON say the same, and name every connection with its state.

use bpvs_tests::agent::Listing;
use bpvs_tests::topology::Topology;
use bpvs_tests::traffic::{DEADLINE, Dial, UdpClient};
use bpvs_tests::world::{TCP, UDP, World, frontends};
use serde_json::Value;

#[test]
fn text_and_json_agree_and_states_are_named() {
    let world = World::new(Topology::builder().servers(3).build().unwrap()).unwrap();
    world.publish("web", &world.service("web", 1)).unwrap();
    let agent = world.agent().unwrap();
    let (mut expected, mut open) = (Vec::new(), Vec::new());
    let mut datagrams = Vec::new();
    for (who, client) in &world.clients()[..2] {
        for to in frontends(1, TCP) {
            let held = Dial::new(&client.namespace, to).open().unwrap_or_else(|error| panic!("{who} to {to}: {error}"));
            expected.push(["TCP".to_owned(), "ESTABLISHED".into(), held.local().unwrap().to_string(), to.to_string()]);
            open.push(held);
            let held = Dial::new(&client.namespace, to).open().unwrap();
            expected.push(["TCP".to_owned(), "TIME_WAIT".into(), held.local().unwrap().to_string(), to.to_string()]);
            held.close().unwrap();
            let held = Dial::new(&client.namespace, to).open().unwrap();
            expected.push(["TCP".to_owned(), "CLOSE".into(), held.local().unwrap().to_string(), to.to_string()]);
            held.reset().unwrap();
        }
        for to in frontends(1, UDP) {
            let udp = UdpClient::connected(&client.namespace, None, to).unwrap();
            udp.request(10, DEADLINE).unwrap();
            expected.push(["UDP".to_owned(), "UDP".into(), udp.local().unwrap().to_string(), to.to_string()]);
            datagrams.push(udp);
        }
    }
    let json: Value = serde_json::from_str(&agent.command(&["connections", "-o", "json"]).unwrap()).unwrap();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let mut found: Vec<_> = json["connections"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| {
            [
                text(&row["protocol"]),
                text(&row["state"]),
                text(&row["source"]["address"]),
                text(&row["virtual_address"]),
            ]
        })
        .collect();
    found.sort();
    expected.sort();
    assert_eq!(found, expected);
    let shown = agent.command(&["connections"]).unwrap();
    for row in &expected {
        let with_all = |line: &&str| {
            let words: Vec<_> = line.split_whitespace().collect();
            row.iter().all(|part| words.contains(&part.as_str()))
        };
        assert_eq!(shown.lines().filter(with_all).count(), 1, "{row:?} in\n{shown}");
    }
    assert_eq!(shown.lines().count(), expected.len() + 2, "{shown}");

    // `list`: protocol and address of services, then weight and counts of servers.
    let list = Listing::read(&agent).unwrap();
    let shown = agent.command(&["list"]).unwrap();
    let mut lines = shown.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    for service in &list.services {
        let head =
            [service.protocol.as_str(), &service.address.to_string(), service.scheduler.as_str()].map(str::to_owned);
        assert!(lines.any(|words| words == head), "{head:?} in order in\n{shown}");
        for server in &service.servers {
            let row = [
                "->".to_owned(),
                server.address.to_string(),
                "Masq".into(),
                server.weight.to_string(),
                server.active.to_string(),
                server.inactive.to_string(),
            ];
            assert_eq!(lines.next().unwrap_or_default(), row, "in\n{shown}");
        }
    }
    let counted: (u64, u64) = list.services.iter().fold((0, 0), |sum, service| {
        let counts = service.counts();
        (sum.0 + counts.0, sum.1 + counts.1)
    });
    assert_eq!(counted, (4, 12), "4 established; 4 in TIME_WAIT, 4 in CLOSE and 4 of UDP");
}
