//! Scenarios: plan in, dump out.

mod compare;
pub(crate) mod histories;
mod kernel;
mod maglev;
mod methods;
mod networks;
mod prefixes;
mod restore;
mod scenarios;
mod scopes;
mod started;
mod templates;
mod thresholds;
mod words;

use std::{net::IpAddr, time::Instant};

use lb_common::{address::Protocol, layout::ServiceKey, scheduler::Scheduler};

use super::{
    Capacity, DesiredDestination, DesiredService, Frontend, Key, Limits, MapStore, Plan, Virtual, Writer,
    store::memory::MemoryStore,
};

/// Sizes that tests fill without trouble.
const CAPACITY: Capacity =
    Capacity { services: 16, prefixes: 8, networks: 32, service_ids: 33, destinations: 257, slots: 8192 };

fn memory() -> MemoryStore {
    MemoryStore::new(CAPACITY)
}

/// Maps with room for many of mh's tables, which take half of the others' slots each.
fn roomy(slots: u32) -> MemoryStore {
    MemoryStore::new(Capacity { slots, ..CAPACITY })
}

fn writer<S: MapStore>(store: S) -> Writer<S> {
    let limits = Limits::of(store.capacity());
    Writer::restore(store, limits).expect("a store that can be read")
}

/// A frontend 10.96.0.`last`:80.
fn frontend(last: u8) -> Frontend {
    Frontend::new(IpAddr::from([10, 96, 0, last]), 80, Protocol::Tcp)
}

/// Its key.
fn key(last: u8) -> ServiceKey {
    match Virtual::from(&frontend(last)).key() {
        Key::Service(key) => key,
        Key::Prefix(key) => panic!("{key:?}"),
    }
}

/// A service with destinations 10.1.0.x:8080, given as (x, weight).
fn service(scheduler: Scheduler, destinations: &[(u8, i32)]) -> DesiredService {
    let mut destinations: Vec<DesiredDestination> = destinations
        .iter()
        .map(|&(last, weight)| DesiredDestination::new(IpAddr::from([10, 1, 0, last]), 8080, weight))
        .collect();
    destinations.sort();
    DesiredService::new("Service default/web", scheduler, destinations)
}

fn plan(services: impl IntoIterator<Item = (u8, DesiredService)>) -> Plan {
    let mut plan = Plan::default();
    plan.services.extend(services.into_iter().map(|(last, service)| (frontend(last), service)));
    plan
}

/// A plan of one service, 10.96.0.1:80.
fn one(scheduler: Scheduler, destinations: &[(u8, i32)]) -> Plan {
    plan([(1, service(scheduler, destinations))])
}

/// A writer over empty maps that has applied these plans, a moment apart.
fn applied<'a>(plans: impl IntoIterator<Item = &'a Plan>) -> Writer<MemoryStore> {
    let mut writer = writer(memory());
    for plan in plans {
        writer.apply(plan, Instant::now()).expect("room for all");
    }
    writer
}

/// Compares text with an expectation that is indented as the test is.
#[track_caller]
fn assert_text(actual: &str, expected: &str) {
    let expected: Vec<&str> = expected.trim().lines().map(str::trim).collect();
    let actual: Vec<&str> = actual.trim().lines().collect();
    assert_eq!(actual, expected, "\n{}", actual.join("\n"));
}
