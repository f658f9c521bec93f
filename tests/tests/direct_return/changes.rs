//! What changes while connections are open.

use std::net::SocketAddr;

use bpvs_tests::agent::Agent;
use bpvs_tests::traffic::Dial;
use bpvs_tests::world::{CHANGE, wait_for};

use crate::lan::{Lan, VIRTUAL, tunnelled};
use crate::rules::Rules;

const TCP: u16 = 80;

#[test]
fn connections_outlive_the_agents_and_keep_the_method_that_they_were_opened_with() {
    let lan = Lan::new(true);
    // With the virtual addresses too, so that it can be a server of direct routing.
    let [v4, v6] = VIRTUAL;
    let own = [format!("addr add {v4}/32 dev lo"), format!("addr add {v6}/128 dev lo nodad")];
    lan.node.namespace.ip(&own).unwrap();
    lan.servers.tcp(&lan.node.namespace, lan.node.number, TCP).unwrap();
    let [of_director, of_node] = [Rules::new(&lan.node, "-i"), Rules::new(&lan.node, "-i")];
    let director = Agent::builder(&lan.director.namespace).rules(&of_director.file()).start().unwrap();
    let node = Agent::builder(&lan.node.namespace).rules(&of_node.file()).start().unwrap();
    let open = || {
        VIRTUAL.map(|address| {
            let to = SocketAddr::new(address, TCP);
            Dial::new(&lan.client.namespace, to).open().unwrap_or_else(|error| panic!("{to}: {error}"))
        })
    };
    let mut first = open();
    for agent in [&director, &node] {
        agent.kill().unwrap();
        first.iter_mut().for_each(|held| held.exchange(b"nobody is there, and the programs are").unwrap());
        agent.start().unwrap();
        first.iter_mut().for_each(|held| held.exchange(b"as before").unwrap());
    }

    let watch = lan.node.listen();
    of_director.write(&lan.node, "-g");
    let routed = || Ok((director.command(&["list"])?.matches(" Route   1 ").count() == 4).then_some(()));
    wait_for("-g servers", CHANGE, routed, || director.command(&["list"]).unwrap()).unwrap();
    let old = first.each_ref().map(|held| held.local().unwrap().port());
    let mut second = open();
    // Late acknowledgements of the others may come meanwhile.
    let [is_old, is_new] = [true, false].map(|wanted| move |port| old.contains(&port) == wanted);
    assert_eq!(tunnelled(&watch, is_new), [false].into(), "a new connection is routed");
    first.iter_mut().for_each(|held| held.exchange(b"still in the tunnel").unwrap());
    assert_eq!(tunnelled(&watch, is_old), [true].into(), "an old one stays in the tunnel");
    director.kill().unwrap();
    director.start().unwrap();
    second.iter_mut().for_each(|held| held.exchange(b"still routed").unwrap());
    assert_eq!(tunnelled(&watch, is_new), [false].into());
    let list = director.command(&["list"]).unwrap();
    assert_eq!(list.matches(" Route   1      2          0         ").count(), 2, "{list}");
    for agent in [director, node] {
        agent.cleanup().unwrap();
    }
}
