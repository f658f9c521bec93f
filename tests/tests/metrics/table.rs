//! `docs/metrics.md` has every metric, and none that there is not.

use std::collections::{BTreeMap, BTreeSet};

use bpvs_tests::topology::Topology;
use bpvs_tests::traffic::Dial;
use bpvs_tests::world::{CHANGE, TCP, World, frontends, wait_for};

use super::programming::dated;
use super::{HEALTHZ, agent, get, scrape};

const DOCUMENT: &str = include_str!("../../../docs/metrics.md");

const HEAD: &str = "| metric | type | labels | meaning | values |";

/// Type and labels of each metric, as the tables of the document with this head have them.
fn documented() -> BTreeMap<String, (String, BTreeSet<String>)> {
    let mut found = BTreeMap::new();
    let mut inside = false;
    for line in DOCUMENT.lines() {
        inside = line == HEAD || (inside && line.starts_with('|'));
        if !inside || !line.starts_with("| `") {
            continue;
        }
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        let [name, kind, labels, meaning, values] = cells[..] else { panic!("five cells in {line}") };
        assert!(!meaning.is_empty() && !values.is_empty(), "{line}");
        let labels = labels.split('`').skip(1).step_by(2).map(str::to_owned).collect();
        let twice = found.insert(name.trim_matches('`').to_owned(), (kind.to_owned(), labels));
        assert_eq!(twice, None, "{name}");
    }
    found
}

#[test]
fn the_document_and_a_scrape_have_the_same_metrics() {
    let world = World::new(Topology::builder().servers(2).build().unwrap()).unwrap();
    world.manifests.write("web.yaml", &dated(&world.service("web", 1))).unwrap();
    let agent = agent(&world, &[]);
    // Some have no line before the first time that something happens.
    for path in ["/healthz", "/livez"] {
        assert_eq!(get(&world, HEALTHZ, path).status, 200);
    }
    Dial::new(&world.topology.clients[0].namespace, frontends(1, TCP)[0]).open().unwrap().close().unwrap();
    world.manifests.write("web.yaml", &dated(&world.service("web", 1).without(1))).unwrap();
    let programmed =
        || Ok(Some(scrape(&world)).filter(|all| all.contains_key("kubeproxy_network_programming_duration_seconds")));
    let families = wait_for("measured change", CHANGE, programmed, || agent.log().text(0)).unwrap();
    let shown: BTreeMap<String, (String, BTreeSet<String>)> = families
        .iter()
        .map(|(name, family)| {
            let labels = family.label_names().into_iter().map(str::to_owned).collect();
            (name.clone(), (family.kind.clone(), labels))
        })
        .collect();
    let documented = documented();
    let missing: Vec<_> = shown.iter().filter(|(name, what)| documented.get(*name) != Some(what)).collect();
    let gone: Vec<_> = documented.iter().filter(|(name, what)| shown.get(*name) != Some(what)).collect();
    assert!(missing.is_empty() && gone.is_empty(), "only in a scrape: {missing:#?}\nonly in the document: {gone:#?}");
}
