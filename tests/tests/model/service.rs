//! What holds for every scheduler: servers that come, go and return, switches, refusals.

use bpvs_tests::model::{Refusal, SCHEDULERS};
use proptest::prelude::*;

use crate::{NONE, address, director, open, picks, usual};

#[test]
fn the_same_scheduler_again_keeps_its_state() {
    let mut rr = director("rr", &[1, 1, 1]);
    assert_eq!(picks(&mut rr, 2), "3 2");
    rr.switch("rr", NONE).unwrap();
    assert_eq!(picks(&mut rr, 1), "1");
    rr.switch("lc", NONE).unwrap();
    rr.switch("rr", NONE).unwrap();
    assert_eq!(picks(&mut rr, 1), "3");
}

#[test]
fn connections_without_a_life_leave_the_counts_to_the_order_of_the_list() {
    // One-packet scheduling (spec 17).
    for (scheduler, expected) in [
        ("lc", "3 3 3"),
        ("wlc", "3 3 3"),
        ("nq", "3 3 3"),
        ("sed", "2 2 2"),
        ("fo", "2 2 2"),
        ("ovf", "2 2 2"),
        ("rr", "3 2 1"),
        ("wrr", "3 2 1"),
    ] {
        assert_eq!(picks(&mut director(scheduler, &[1, 4, 2]), 3), expected, "{scheduler}");
    }
}

#[test]
fn a_server_added_again_brings_its_connections_back() {
    let mut lc = director("lc", &[1, 1]);
    assert_eq!(open(&mut lc, usual(), 0), Some(2));
    lc.delete(2).unwrap();
    assert_eq!(lc.counts(2), (1, 0));
    lc.deactivate(2);
    lc.add(2, address(2), 80, 1).unwrap();
    assert_eq!(lc.counts(2), (0, 1));
    assert_eq!(picks(&mut lc, 1), "1");
    lc.closed(2, false);
    assert_eq!(picks(&mut lc, 1), "2");
}

#[test]
fn refusals_name_the_reason() {
    let mut rr = director("rr", &[1]);
    assert_eq!(rr.add(1, address(1), 80, 1), Err(Refusal::Exists));
    assert_eq!(rr.add(2, address(1), 80, 1), Err(Refusal::Exists));
    assert_eq!(rr.add(2, address(2), 80, -1), Err(Refusal::WeightOutOfRange));
    assert_eq!(rr.edit(2, 1), Err(Refusal::Missing));
    assert_eq!(rr.delete(2), Err(Refusal::Missing));
    assert_eq!(rr.switch("fastest", NONE), Err(Refusal::UnknownScheduler));
    assert_eq!(picks(&mut rr, 1), "1");
}

proptest! {
    /// (server, number): from 0 adds it with that weight or sets the weight, -1 deletes it, -2 to -9 opens so many
    /// connections, each 50 minutes after the event before.
    #[test]
    fn only_listed_servers_with_weight_are_chosen(
        scheduler in proptest::sample::select(&SCHEDULERS[..]),
        events in proptest::collection::vec((1..6u32, prop_oneof![-9..8i32, Just(i32::MAX)]), 1..80),
    ) {
        let mut director = director(scheduler, &[]);
        for (now, &(server, weight)) in (0..).step_by(3000).zip(&events) {
            match weight {
                -1 => drop(director.delete(server)),
                0.. => drop(director.add(server, address(server), 80, weight).or_else(|_| director.edit(server, weight))),
                _ => for _ in 0..-weight {
                    let usable: Vec<_> = director.list().into_iter().filter(|s| s.weight > 0).map(|s| s.id).collect();
                    match open(&mut director, usual(), now) {
                        Some(chosen) => prop_assert!(usable.contains(&chosen), "{scheduler} chose {chosen}"),
                        None => prop_assert!(usable.is_empty() || ["dh", "sh", "mh", "ovf"].contains(&scheduler), "{scheduler} refused"),
                    }
                },
            }
        }
    }
}
