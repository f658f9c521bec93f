//! Histories of objects: whatever came before and whatever failed, plan and maps end where a fresh start with the last
//! objects ends.

use std::net::IpAddr;
use std::time::Duration;

use lb_common::address::Protocol;
use lb_common::layout::LOOKUP_TUNNELS;
use lb_common::scheduler::Scheduler;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use serde_json::{Value, json};

use super::*;
use crate::datapath::compare::Differences;
use crate::datapath::store::faulty::{Faults, FaultyStore};
use crate::datapath::store::memory::MemoryStore;
use crate::datapath::tests::histories::{assert_consistent, unordered};
use crate::datapath::{Capacity, Limits};
use crate::model::{
    Change, Frontend, Kind, List, Method, Object, ObjectKey, Origin, RuleOptions, RuleOrigin, RuleServer, RuleService,
    Rules, Scope, SourceId, Thresholds,
};
use crate::plan::{Defaults, Detector, Options, Plan, plan};

/// Every history ends with as many virtual services as this at most, and may be stopped by it.
const MOST: [usize; 2] = [64, 6];
const CAPACITY: Capacity =
    Capacity { services: 96, prefixes: 32, networks: 128, service_ids: 512, destinations: 4096, slots: 1 << 16 };
const SERVICES: usize = 5;
const SLICES: usize = 6;

/// What happens. Numbers choose objects and what stands in them.
#[derive(Clone, Debug)]
enum Step {
    Service {
        manifest: bool,
        index: usize,
        bits: u32,
    },
    Slice {
        manifest: bool,
        index: usize,
        bits: u32,
    },
    Node(u32),
    Delete {
        manifest: bool,
        slice: bool,
        index: usize,
    },
    /// All objects of a source at a time.
    Relist {
        manifest: bool,
        slices: bool,
        bits: Vec<(usize, u32)>,
    },
    Rules(u32),
    /// Whether the node has the address of a server.
    Addresses(bool),
    /// Whether map writes fail from now on.
    Fail(bool),
    Wait,
}

fn any_step() -> impl Strategy<Value = Step> {
    let source = || prop::bool::weighted(0.3);
    let objects = prop::collection::vec((0..SERVICES, any::<u32>()), 0..4);
    prop_oneof![
        6 => (source(), 0..SERVICES, any::<u32>()).prop_map(|(manifest, index, bits)| Step::Service { manifest, index, bits }),
        8 => (source(), 0..SLICES, any::<u32>()).prop_map(|(manifest, index, bits)| Step::Slice { manifest, index, bits }),
        1 => any::<u32>().prop_map(Step::Node),
        4 => (source(), any::<bool>(), 0..SLICES).prop_map(|(manifest, slice, index)| Step::Delete { manifest, slice, index }),
        2 => (source(), any::<bool>(), objects).prop_map(|(manifest, slices, bits)| Step::Relist { manifest, slices, bits }),
        2 => any::<u32>().prop_map(Step::Rules),
        1 => any::<bool>().prop_map(Step::Addresses),
        2 => any::<bool>().prop_map(Step::Fail),
        1 => Just(Step::Wait),
    ]
}

/// One of several, by some bits.
fn one_of<'a, T: ?Sized>(bits: &mut u32, choices: &[&'a T]) -> &'a T {
    let chosen = choices[*bits as usize % choices.len()];
    *bits = bits.rotate_right(3).wrapping_mul(0x9e37_79b1);
    chosen
}

/// Services of one number are of one age, and no two others.
fn service(index: usize, mut bits: u32) -> Value {
    let bits = &mut bits;
    let port = |name: &str, number: u16, protocol: &str, node_port: Option<u16>| match node_port {
        Some(node_port) => json!({"name": name, "port": number, "protocol": protocol, "nodePort": node_port}),
        None => json!({"name": name, "port": number, "protocol": protocol}),
    };
    let ports = match *one_of(bits, &[&0, &1, &2, &3]) {
        0 => vec![port("p", 80, "TCP", None)],
        1 => vec![port("p", 80, "TCP", Some(30_080)), port("q", 80, "UDP", None)],
        2 => vec![port("q", 80, "TCP", Some(30_081))],
        _ => vec![port("p", 80, "TCP", None), port("q", 81, "TCP", Some(30_080))],
    };
    json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {
            "namespace": "demo", "name": format!("s{index}"),
            "creationTimestamp": format!("2026-01-0{}T00:00:00Z", 9 - index),
            "annotations": {
                "bpvs.io/scheduler": one_of(bits, &["rr", "wlc", "sh", "dh"]),
                "bpvs.io/forwarding": one_of(bits, &["nat", "dsr"]),
            },
        },
        "spec": {
            "type": one_of(bits, &["NodePort", "LoadBalancer"]),
            "clusterIP": one_of(bits, &["10.96.0.1", "10.96.0.2", "10.96.0.3", "None"]),
            "externalIPs": one_of(bits, &[&json!([]), &json!(["198.51.100.9"]), &json!(["10.96.0.1"])]),
            "externalTrafficPolicy": one_of(bits, &["Local", "Cluster"]),
            "internalTrafficPolicy": one_of(bits, &["Local", "Cluster", "Cluster"]),
            "sessionAffinity": one_of(bits, &["None", "ClientIP"]),
            "healthCheckNodePort": 31_000 + index,
            "loadBalancerSourceRanges": one_of(bits, &[&json!([]), &json!(["192.0.2.0/24"]), &json!(["192.0.2.0/24", "10.0.0.0/8"])]),
            "ports": ports,
        },
        "status": {"loadBalancer": {"ingress": one_of(bits, &[&json!([]), &json!([{"ip": "203.0.113.7"}])])}},
    })
}

fn slice(index: usize, mut bits: u32) -> Value {
    let bits = &mut bits;
    let endpoint = |last: usize, bits: &mut u32| {
        let ready = *one_of(bits, &[&true, &true, &false]);
        json!({"addresses": [format!("10.1.0.{last}")], "nodeName": one_of(bits, &["n0", "n1"]),
               "conditions": {"ready": ready, "serving": true, "terminating": !ready},
               "hints": {"forZones": [{"name": one_of(bits, &["a", "b"])}]}})
    };
    let count = *one_of(bits, &[&0, &1, &2, &4]);
    let endpoints: Vec<Value> = (0..count).map(|place| endpoint(1 + (index + place) % 7, bits)).collect();
    json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": {"namespace": "demo", "name": format!("e{index}"),
                     "labels": {"kubernetes.io/service-name": one_of(bits, &["s0", "s1", "s2", "s3", "s4", "nobody"])}},
        "ports": [{"name": "p", "port": 8080, "protocol": "TCP"}, {"name": "q", "port": 8081, "protocol": "TCP"}],
        "endpoints": endpoints,
    })
}

fn node(mut bits: u32) -> Value {
    let bits = &mut bits;
    json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {"name": "n0", "labels": {"topology.kubernetes.io/zone": one_of(bits, &["a", "b"])}},
        "spec": {"podCIDRs": one_of(bits, &[&json!([]), &json!(["10.1.0.0/16"])])},
    })
}

/// Address, port, scope, scheduler and servers.
type Rule = (&'static str, u16, Scope, Scheduler, &'static [u8]);

const RULES: [&[Rule]; 4] = [
    &[],
    &[("10.96.0.1", 80, Scope::Address, Scheduler::SourceHash, &[1])],
    &[
        ("10.96.0.9", 80, Scope::Address, Scheduler::RoundRobin, &[1, 2]),
        ("0.0.0.0", 0, Scope::Mark(7), Scheduler::RoundRobin, &[]),
    ],
    &[
        ("10.96.0.0", 80, Scope::Prefix(16), Scheduler::SourceHash, &[3]),
        ("10.96.0.2", 80, Scope::Address, Scheduler::RoundRobin, &[4]),
    ],
];

fn rules(bits: u32) -> Rules {
    let service = |(&(address, port, scope, scheduler, servers), line): (&Rule, u32)| RuleService {
        frontend: Frontend { scope, ..Frontend::new(address.parse().unwrap(), port, Protocol::Tcp) },
        origin: RuleOrigin { file: "rules".into(), line },
        options: RuleOptions {
            scheduler,
            hash_port: false,
            hash_fallback: false,
            persistence: None,
            one_packet: false,
        },
        servers: servers
            .iter()
            .map(|last| RuleServer {
                address: [10, 1, 0, *last].into(),
                port: 1,
                weight: 1,
                thresholds: Thresholds::default(),
                method: Method::ALL[usize::from(*last) % 3],
            })
            .collect(),
    };
    let stated = RULES[bits as usize % RULES.len()];
    Rules { services: stated.iter().zip(1..).map(service).collect(), ..Rules::default() }
}

fn object(json: Value, manifest: bool) -> Object {
    let kind = Kind::of(json["apiVersion"].as_str().unwrap(), json["kind"].as_str().unwrap()).unwrap();
    let file = Origin { file: Some("a.yaml".into()), document: 1, first_line: 1, line: 1 };
    Object::identify(kind, json.into(), if manifest { file } else { Origin::default() }).unwrap()
}

fn change(model: &mut Model, step: &Step) {
    let of_manifests = |manifest, other| if manifest { SourceId::MANIFESTS } else { other };
    let slices = |manifest| of_manifests(manifest, SourceId::API_SLICES);
    let services = |manifest| of_manifests(manifest, SourceId::API_SERVICES);
    let (source, change) = match step {
        Step::Service { manifest, index, bits } => {
            (services(*manifest), Change::Upsert(object(service(*index, *bits), *manifest)))
        }
        Step::Slice { manifest, index, bits } => {
            (slices(*manifest), Change::Upsert(object(slice(*index, *bits), *manifest)))
        }
        Step::Node(bits) => (SourceId::API_NODE, Change::Upsert(object(node(*bits), false))),
        Step::Delete { manifest, slice, index } => {
            let (kind, name, source) = match slice {
                true => (Kind::EndpointSlice, format!("e{index}"), slices(*manifest)),
                false => (Kind::Service, format!("s{index}"), services(*manifest)),
            };
            (source, Change::Delete(ObjectKey { kind, namespace: "demo".into(), name: name.into() }))
        }
        Step::Relist { manifest, slices: true, bits } => {
            let objects = bits.iter().map(|(index, bits)| object(slice(*index, *bits), *manifest)).collect();
            (slices(*manifest), Change::Replace(List { objects, ..List::default() }))
        }
        Step::Relist { manifest, slices: false, bits } => {
            let objects = bits.iter().map(|(index, bits)| object(service(*index, *bits), *manifest)).collect();
            (services(*manifest), Change::Replace(List { objects, ..List::default() }))
        }
        Step::Rules(bits) => (SourceId::RULES, Change::Rules(rules(*bits))),
        Step::Addresses(_) | Step::Fail(_) | Step::Wait => return,
    };
    model.change(source, change);
}

/// Those of the node, and perhaps of the server that a rule has in a tunnel.
fn addresses(servers: bool) -> Vec<IpAddr> {
    let all = [[192, 0, 2, 10], [10, 1, 0, 2]].map(IpAddr::from);
    all[..1 + usize::from(servers)].to_vec()
}

fn defaults(max_services: usize) -> Defaults {
    let options = Options { detector: Detector::NodeNetworks, addresses: addresses(false), ..Options::default() };
    Defaults { max_services, options, ..Defaults::default() }
}

/// Two plans are one but for the order of problems.
fn assert_same(found: &Plan, expected: &Plan) -> Result<(), TestCaseError> {
    let problems = |plan: &Plan| {
        let mut lines: Vec<String> = plan.problems.iter().map(ToString::to_string).collect();
        lines.sort();
        lines
    };
    prop_assert_eq!(problems(found), problems(expected));
    let frontends = found.services.keys().chain(expected.services.keys());
    for frontend in frontends {
        prop_assert_eq!(
            found.services.get(frontend),
            expected.services.get(frontend),
            "{} {:?}",
            frontend,
            frontend.scope
        );
    }
    prop_assert_eq!(
        &Plan { problems: Vec::new(), ..found.clone() },
        &Plan { problems: Vec::new(), ..expected.clone() }
    );
    Ok(())
}

fn writer<S: MapStore>(store: S) -> Writer<S> {
    let limits = Limits::of(store.capacity());
    Writer::restore(store, limits).unwrap()
}

fn history(steps: &[Step], max_services: usize, seed: u64) -> Result<(), TestCaseError> {
    let mut now = Instant::now();
    let mut defaults = defaults(max_services);
    let mut model = Model::new();
    let store = FaultyStore::new(MemoryStore::new(CAPACITY), Faults::Never, seed);
    let mut programming = Programming::new(Planner::new(defaults.clone()), writer(store));
    let mut restored = Restored::default();
    let mut programmed = true;
    for step in steps {
        change(&mut model, step);
        match step {
            Step::Fail(true) => programming.writer.store_mut().set_faults(Faults::Random { percent: 20 }),
            Step::Fail(false) => programming.writer.store_mut().set_faults(Faults::Never),
            Step::Wait => now += Duration::from_secs(2),
            Step::Addresses(servers) => {
                defaults.options.addresses = addresses(*servers);
                programming.planner.set_addresses(addresses(*servers));
            }
            _ => {}
        }
        let node = model.node("n0");
        programmed = programming.follow(&mut model, &node, &mut restored, now).is_ok();
        assert_consistent(programming.writer.store().inner());
        assert_same(programming.planner.plan(), &plan(&model, &node, &defaults))?;
        prop_assert_eq!(programming.planner.no_local(), programming.planner.plan().no_local());
    }
    let node = model.node("n0");
    programming.writer.store_mut().set_faults(Faults::Never);
    if !programmed {
        prop_assert!(programming.follow(&mut model, &node, &mut restored, now).is_ok());
    }
    let mut fresh = writer(MemoryStore::new(CAPACITY));
    fresh.apply(&plan(&model, &node, &defaults), now).unwrap();
    prop_assert_eq!(unordered(programming.writer.store()), unordered(fresh.store()));
    prop_assert_eq!(programming.writer.store().networks().unwrap().len(), fresh.store().networks().unwrap().len());
    // Tunnels are looked for once there were any.
    let (found, expected) = (programming.writer.store().lookups().unwrap(), fresh.store().lookups().unwrap());
    prop_assert_eq!(found | LOOKUP_TUNNELS, expected | LOOKUP_TUNNELS);
    prop_assert_eq!(expected & !found, 0);
    prop_assert_eq!(programming.compare().unwrap(), Differences::default());
    // Nothing is left to write, for a change and for all.
    let last = programming.planner.plan().clone();
    prop_assert_eq!(programming.follow(&mut model, &node, &mut restored, now).unwrap().writes, 0);
    prop_assert_eq!(programming.writer.apply(&last, now).unwrap().writes, 0);
    Ok(())
}

/// Ten thousand, in parts that run beside each other. A failure prints the shortest history that fails.
fn histories(part: u8) {
    let config = Config { cases: 2500, failure_persistence: None, ..Config::default() };
    let steps = prop::collection::vec(any_step(), 1..14);
    let rng = proptest::test_runner::TestRng::from_seed(proptest::test_runner::RngAlgorithm::ChaCha, &[part; 32]);
    let result = TestRunner::new_with_rng(config, rng)
        .run(&(steps, prop::sample::select(&MOST[..]), any::<u64>()), |(steps, most, seed)| {
            history(&steps, most, seed)
        });
    if let Err(error) = result {
        panic!("{error}");
    }
}

#[test]
fn histories_of_objects_end_where_a_fresh_start_ends_1() {
    histories(1);
}

#[test]
fn histories_of_objects_end_where_a_fresh_start_ends_2() {
    histories(2);
}

#[test]
fn histories_of_objects_end_where_a_fresh_start_ends_3() {
    histories(3);
}

#[test]
fn histories_of_objects_end_where_a_fresh_start_ends_4() {
    histories(4);
}
