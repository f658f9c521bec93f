//! rr's and wrr's place in the list as IPVS moves it (specification 3.1, 3.2, 4.4).

use std::time::Instant;

use Scheduler::{LeastConnection, RoundRobin, WeightedRoundRobin};
use lb_common::scheduler::{
    Scheduler,
    cursor::{RoundRobinWalk, WeightSteps, WeightedStep, WeightedWalk},
    word::SchedulerWord,
};

use super::{
    super::{
        DesiredDestination, MapStore, Plan, Writer,
        store::{
            faulty::{Faults, FaultyStore},
            memory::MemoryStore,
        },
    },
    applied, key, one,
};

/// Picks as BPF does: the last part of the chosen server's address.
fn pick(store: &mut MemoryStore) -> Option<u8> {
    let service = store.service(&key(1))?;
    let packed = store.word(service.id).unwrap();
    let word = SchedulerWord::unpack(packed);
    let set = store.slots(service.set_base, service.set_length).unwrap();
    let version = service.version;
    let (next, chosen) = match Scheduler::from_number(service.scheduler)? {
        RoundRobin => {
            let walk = RoundRobinWalk::new(word, service.set_length);
            let chosen = (0..service.set_length)
                .map(|attempt| walk.position(attempt))
                .find(|position| set[*position as usize].weight > 0)?;
            (SchedulerWord { version, cursor: chosen as u16 + 1, ..word }, Some(chosen))
        }
        WeightedRoundRobin => {
            let steps = WeightSteps { max_weight: service.max_weight, step: service.weight_step };
            let mut walk = WeightedWalk::new(word, steps, service.set_length);
            loop {
                match walk.step(version) {
                    WeightedStep::Nothing(word) => break (word, None),
                    WeightedStep::Look(position) => {
                        if let Some((word, picked)) = walk.offer(set[position as usize].weight, false, version) {
                            break (word, picked.then_some(position));
                        }
                    }
                }
            }
        }
        _ => return None,
    };
    store.exchange_word(service.id, packed, next.pack()).unwrap().unwrap();
    let record = store.destination(set[chosen? as usize].destination).unwrap();
    Some(record.address.words[3].to_ne_bytes()[3])
}

fn picks(writer: &mut Writer<MemoryStore>, count: usize) -> Vec<u8> {
    (0..count).map(|_| pick(writer.store_mut()).unwrap_or(0)).collect()
}

fn word(writer: &Writer<MemoryStore>) -> SchedulerWord {
    SchedulerWord::unpack(writer.store().word(1).unwrap())
}

fn weighted(weights: &[i32]) -> Plan {
    let destinations: Vec<(u8, i32)> = (1..).zip(weights.iter().copied()).collect();
    one(WeightedRoundRobin, &destinations)
}

#[test]
fn wrr_built_up_from_nothing_starts_with_the_lowest_pass() {
    for (weights, cw, expected) in [
        (&[1, 2, 4][..], 1, &[3, 2, 1, 3, 3, 3, 2, 3, 2, 1, 3, 3, 3, 2, 3, 2][..]),
        (&[4, 2, 1], 1, &[3, 2, 1, 1, 1, 2, 1, 3, 2, 1, 1, 1, 2, 1, 3, 2]),
        (&[2, 4, 6], 1, &[3, 2, 1, 3, 3, 2, 3, 2, 1, 3, 3, 2, 3, 2, 1, 3]),
        (&[3, 1], 1, &[2, 1, 1, 1, 2, 1, 1, 1]),
        (&[5, 0, 10], 1, &[3, 1, 3, 3, 1, 3, 3, 1]),
    ] {
        let mut writer = applied([&weighted(weights)]);
        assert_eq!(word(&writer).current_weight, cw, "{weights:?}");
        assert_eq!(picks(&mut writer, expected.len()), expected, "{weights:?}");
    }
}

#[test]
fn built_up_one_by_one_is_built_up_at_once() {
    let mut writer = applied([&weighted(&[]), &weighted(&[1]), &weighted(&[1, 2]), &weighted(&[1, 2, 4])]);
    assert_eq!(picks(&mut writer, 10), [3, 2, 1, 3, 3, 3, 2, 3, 2, 1]);
}

#[test]
fn a_switch_to_wrr_starts_with_the_highest_pass() {
    for before in [RoundRobin, LeastConnection] {
        let mut writer = applied([&one(before, &[(1, 1), (2, 2), (3, 4)]), &weighted(&[1, 2, 4])]);
        assert_eq!(word(&writer).current_weight, 4);
        assert_eq!(picks(&mut writer, 7), [3, 3, 3, 2, 3, 2, 1]);
    }
    let mut writer = applied([&one(LeastConnection, &[(1, 5), (2, 0), (3, 10)]), &weighted(&[5, 0, 10])]);
    assert_eq!(picks(&mut writer, 6), [3, 3, 1, 3, 3, 1]);
}

#[test]
fn a_switch_comes_before_the_edits_of_the_same_apply() {
    // Init on (1, 2): cw 2. Then the add of weight 4 keeps it.
    let mut writer = applied([&one(LeastConnection, &[(1, 1), (2, 2)]), &weighted(&[1, 2, 4])]);
    assert_eq!(word(&writer).current_weight, 2);
    assert_eq!(picks(&mut writer, 3), [3, 2, 3]);
}

#[test]
fn a_wrr_edit_goes_back_before_the_head_and_keeps_the_pass() {
    let mut writer = applied([&one(LeastConnection, &[(1, 1), (2, 2), (3, 4)]), &weighted(&[1, 2, 4])]);
    assert_eq!(picks(&mut writer, 3), [3, 3, 3]);
    assert_eq!(word(&writer), SchedulerWord { version: 2, cursor: 1, current_weight: 2 });
    writer.apply(&weighted(&[1, 3, 4]), Instant::now()).unwrap();
    assert_eq!(word(&writer), SchedulerWord { version: 3, cursor: 0, current_weight: 2 });
    assert_eq!(picks(&mut writer, 2), [3, 2]);
}

#[test]
fn rr_goes_on_behind_a_deleted_destination_and_serves_new_ones_after_the_wrap() {
    let mut writer = applied([&one(RoundRobin, &[(1, 1), (2, 1), (3, 1), (4, 1)])]);
    assert_eq!(picks(&mut writer, 2), [4, 3]);
    writer.apply(&one(RoundRobin, &[(1, 1), (2, 1), (4, 1)]), Instant::now()).unwrap();
    writer.apply(&one(RoundRobin, &[(1, 1), (2, 1), (4, 1), (5, 1)]), Instant::now()).unwrap();
    assert_eq!(picks(&mut writer, 5), [2, 1, 5, 4, 2]);
}

#[test]
fn rr_keeps_its_place_through_weights_and_several_edits_at_once() {
    let mut writer = applied([&one(RoundRobin, &[(1, 1), (2, 1), (3, 1), (4, 1)])]);
    assert_eq!(picks(&mut writer, 3), [4, 3, 2]);
    writer.apply(&one(RoundRobin, &[(1, 7), (2, 1), (5, 1), (6, 1)]), Instant::now()).unwrap();
    assert_eq!(picks(&mut writer, 5), [1, 6, 5, 2, 1]);
}

#[test]
fn another_scheduler_in_between_starts_rr_at_the_head() {
    let full = one(RoundRobin, &[(1, 1), (2, 1), (3, 1)]);
    let mut writer = applied([&full]);
    assert_eq!(picks(&mut writer, 2), [3, 2]);
    writer.apply(&one(LeastConnection, &[(1, 1), (2, 1), (3, 1)]), Instant::now()).unwrap();
    writer.apply(&full, Instant::now()).unwrap();
    assert_eq!(picks(&mut writer, 3), [3, 2, 1]);
}

#[test]
fn the_same_scheduler_with_other_flags_keeps_its_place() {
    let mut plan = one(RoundRobin, &[(1, 1), (2, 1), (3, 1)]);
    let mut writer = applied([&plan]);
    assert_eq!(picks(&mut writer, 1), [3]);
    plan.services.values_mut().for_each(|service| service.hash_port = true);
    writer.apply(&plan, Instant::now()).unwrap();
    assert_eq!(picks(&mut writer, 2), [2, 1]);
}

#[test]
fn versions_go_round_without_losing_the_place() {
    let mut writer = applied([&one(RoundRobin, &[(1, 1), (2, 1), (3, 1)])]);
    let mut expected = [3, 2, 1].into_iter().cycle();
    for weight in 0..70_000 {
        let address = "10.1.0.1".parse().unwrap();
        let mut plan = one(RoundRobin, &[(2, 1), (3, 1)]);
        let first = DesiredDestination::new(address, 8080, 1 + weight % 2);
        plan.services.values_mut().for_each(|service| service.destinations.insert(0, first));
        let now = Instant::now() + std::time::Duration::from_secs(2 * weight as u64);
        writer.apply(&plan, now).unwrap();
        if weight % 1000 == 0 {
            assert_eq!(pick(writer.store_mut()), expected.next());
        }
    }
}

#[test]
fn a_word_that_lagged_behind_for_half_the_versions_starts_at_the_head_all_the_same() {
    let set = [(1, 1), (2, 1), (3, 1)];
    let mut writer = applied([&one(RoundRobin, &set)]);
    assert_eq!(picks(&mut writer, 1), [3]);
    let start = Instant::now();
    for version in 0..40_001u32 {
        let plan = one(LeastConnection, &[(1, 1 + (version % 2) as i32), (2, 1), (3, 1)]);
        writer.apply(&plan, start + std::time::Duration::from_secs(2 * u64::from(version))).unwrap();
    }
    writer.apply(&one(RoundRobin, &set), start).unwrap();
    assert_eq!(picks(&mut writer, 3), [3, 2, 1]);
}

#[test]
fn a_pick_wherever_the_writer_stops_never_takes_a_destination_of_weight_0() {
    let weight_0 = |scheduler| one(scheduler, &[(1, 0), (2, 0)]);
    for before in [weight_0(RoundRobin), weight_0(LeastConnection), weight_0(WeightedRoundRobin), Plan::default()] {
        let start = applied([&before]).store().clone();
        for writes in 0..12 {
            let faulty = FaultyStore::new(start.clone(), Faults::After { writes }, 0);
            let mut writer = super::writer(faulty);
            let result = writer.apply(&one(WeightedRoundRobin, &[(1, 3), (2, 0)]), Instant::now());
            let chosen = pick(writer.store_mut().inner_mut());
            assert_ne!(chosen, Some(2), "after {writes} writes on {before:?}");
            assert!(result.is_err() || chosen == Some(1), "{chosen:?} after {writes} writes on {before:?}");
        }
    }
}
