//! Since when a service's scheduler runs: lblc and lblcr use what they remember from then on only.

use lb_common::{layout::Service, scheduler::Scheduler};

use super::{
    super::{Limits, MapStore, Plan, Writer, store::memory::MemoryStore},
    applied, one, service,
};
use Scheduler::{LocalityLeastConnection, RoundRobin};

fn entry(writer: &Writer<MemoryStore>) -> Service {
    writer.store().service(&super::key(1)).expect("the service is published")
}

#[test]
fn edits_and_flags_leave_the_start_and_a_switch_moves_it() {
    let mut writer = applied([&one(LocalityLeastConnection, &[(1, 1)])]);
    let first = entry(&writer);
    assert_eq!((first.version, first.started), (1, 1));
    let mut flagged = service(LocalityLeastConnection, &[(1, 2), (2, 1)]);
    flagged.hash_port = true;
    let plans = [
        (super::plan([(1, flagged)]), (2, 1)),
        (one(RoundRobin, &[(1, 2), (2, 1)]), (3, 3)),
        (one(LocalityLeastConnection, &[(1, 2), (2, 1)]), (4, 4)),
    ];
    for (plan, expected) in plans {
        writer.apply(&plan, std::time::Instant::now()).unwrap();
        let entry = entry(&writer);
        assert_eq!((entry.version, entry.started), expected);
    }
    let capacity = writer.store().capacity();
    let mut restored = Writer::restore(writer.store().clone(), Limits::of(capacity)).unwrap();
    restored.apply(&one(LocalityLeastConnection, &[(1, 9)]), std::time::Instant::now()).unwrap();
    assert_eq!((entry(&restored).version, entry(&restored).started), (5, 4));
}

#[test]
fn a_service_that_comes_back_starts_in_a_version_that_it_never_had() {
    let mut writer = applied([&one(LocalityLeastConnection, &[(1, 1)])]);
    let id = entry(&writer).id;
    for expected in [2, 3] {
        writer.apply(&Plan::default(), std::time::Instant::now()).unwrap();
        writer.apply(&one(LocalityLeastConnection, &[(1, 1)]), std::time::Instant::now()).unwrap();
        let entry = entry(&writer);
        assert_eq!((entry.id, entry.version, entry.started), (id, expected, expected));
    }
}
