//! One service: from the published list to the desired set, as IPVS edits one by one.
//!
//! Order: deletes as they stand in the list, edits ascending by address, adds as they are desired, each
//! at the head. A change of scheduler comes before all of them, as `ipvsadm -E` before `-d`, `-e` and `-a`.

use std::collections::{BTreeMap, btree_map::Entry};

use lb_common::scheduler::{Scheduler, cursor::WeightSteps};

use super::{
    DesiredDestination, DesiredService,
    state::{Member, Server},
    word::WordEdit,
};

/// One edit as `ipvsadm` would make it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Edit {
    /// `-d`: by its position at that moment.
    Delete { position: u32, weight: i32 },
    /// `-e`: a new weight, or the same one with new thresholds or another method.
    Change { from: i32, to: i32 },
    /// `-a`: at the head.
    Add { weight: i32 },
}

/// The difference between a published list and a desired set.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Diff {
    /// The new list, head first. Members that are added have id 0 as yet.
    pub(super) list: Vec<Member>,
    /// How it comes about.
    pub(super) edits: Vec<Edit>,
    /// Members that left, in list order.
    pub(super) removed: Vec<Member>,
    /// How many are added; they stand first in the list.
    pub(super) added: usize,
}

/// Compares a published list with a desired set. A destination named twice counts once, as first named.
pub(super) fn diff(published: &[Member], desired: &DesiredService) -> Diff {
    let mut wanted: BTreeMap<Server, &DesiredDestination> = BTreeMap::new();
    for destination in &desired.destinations {
        wanted.entry(Server::from(destination)).or_insert(destination);
    }
    let mut result = Diff::default();
    let mut changed: BTreeMap<Server, (i32, i32)> = BTreeMap::new();
    let mut kept = Vec::with_capacity(published.len());
    for member in published {
        match wanted.remove(&member.server) {
            Some(desired) => {
                let edited = member.edited(desired);
                if edited != *member {
                    changed.insert(member.server, (member.weight, edited.weight));
                }
                kept.push(edited);
            }
            None => {
                result.edits.push(Edit::Delete { position: kept.len() as u32, weight: member.weight });
                result.removed.push(*member);
            }
        }
    }
    result.edits.extend(changed.into_values().map(|(from, to)| Edit::Change { from, to }));
    let mut added = Vec::with_capacity(wanted.len());
    for destination in &desired.destinations {
        if let Some(desired) = wanted.remove(&Server::from(destination)) {
            result.edits.push(Edit::Add { weight: desired.weight });
            added.push(Member::added(desired));
        }
    }
    result.added = added.len();
    result.list = added.into_iter().rev().collect();
    result.list.append(&mut kept);
    result
}

/// What the edits do to the scheduler word. `before` is the scheduler that the service had, `None` for a new one.
pub(super) fn word_edits(
    before: Option<Scheduler>,
    after: Scheduler,
    published: &[Member],
    edits: &[Edit],
) -> Vec<WordEdit> {
    let mut word = Vec::new();
    match after {
        Scheduler::RoundRobin => {
            if before != Some(after) {
                word.push(WordEdit::Start { current_weight: 0 });
            }
            word.extend(edits.iter().filter_map(|edit| match *edit {
                Edit::Delete { position, .. } => Some(WordEdit::RoundRobinDelete { position }),
                Edit::Change { .. } => None,
                Edit::Add { .. } => Some(WordEdit::RoundRobinAdd),
            }));
        }
        Scheduler::WeightedRoundRobin => {
            let mut weights = Weights::of(published);
            if before != Some(after) {
                word.push(WordEdit::Start { current_weight: weights.steps.max_weight });
            }
            for edit in edits {
                match *edit {
                    Edit::Delete { weight, .. } => weights.remove(weight),
                    Edit::Change { from, to } => {
                        weights.remove(from);
                        weights.add(to);
                    }
                    Edit::Add { weight } => weights.add(weight),
                }
                word.push(WordEdit::WeightedChange(weights.steps));
            }
        }
        _ => {}
    }
    word
}

/// The weights of a list, with wrr's steps kept up to date edit by edit: a gcd over the whole list after each of
/// thousands of edits would be quadratic.
struct Weights {
    counts: BTreeMap<i32, u32>,
    steps: WeightSteps,
}

impl Weights {
    fn of(list: &[Member]) -> Self {
        let mut counts = BTreeMap::new();
        for member in list {
            *counts.entry(member.weight).or_insert(0) += 1;
        }
        let steps = WeightSteps::of(counts.keys().copied());
        Self { counts, steps }
    }

    fn add(&mut self, weight: i32) {
        let highest = self.counts.last_key_value().map_or(0, |(&highest, _)| highest);
        match self.counts.entry(weight) {
            Entry::Occupied(mut entry) => *entry.get_mut() += 1,
            Entry::Vacant(entry) => {
                entry.insert(1);
                // The old divisor and the highest weight stand for all that were there.
                let divisor = if highest > 0 { self.steps.step } else { 0 };
                self.steps = WeightSteps::of([divisor, highest, weight]);
            }
        }
    }

    fn remove(&mut self, weight: i32) {
        let Entry::Occupied(mut entry) = self.counts.entry(weight) else { return };
        *entry.get_mut() -= 1;
        if *entry.get() > 0 {
            return;
        }
        entry.remove();
        // The old divisor divides all that is left: no need to look further once it is reached.
        let mut divisor = 0;
        for &weight in self.counts.keys().filter(|weight| **weight > 0) {
            divisor = WeightSteps::of([divisor, weight]).step;
            if divisor == self.steps.step {
                break;
            }
        }
        let highest = self.counts.last_key_value().map_or(0, |(&highest, _)| highest);
        self.steps = WeightSteps::of([divisor, highest]);
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use proptest::prelude::*;

    use super::*;
    use crate::datapath::{Method, Thresholds};

    fn server(last: u8) -> Server {
        Server { address: IpAddr::V4(Ipv4Addr::new(10, 0, 0, last)), port: 80 }
    }

    fn list(members: &[(u8, i32)]) -> Vec<Member> {
        let desired = desired(members);
        let member = |(wish, &(last, _)): (_, &(u8, i32))| Member { id: last.into(), ..Member::added(wish) };
        desired.destinations.iter().zip(members).map(member).collect()
    }

    fn desired(members: &[(u8, i32)]) -> DesiredService {
        let destination = |&(last, weight): &(u8, i32)| DesiredDestination::new(server(last).address, 80, weight);
        DesiredService::new(String::new(), Scheduler::RoundRobin, members.iter().map(destination).collect())
    }

    #[test]
    fn edits_come_in_the_order_of_ipvsadm() {
        let diff = diff(&list(&[(5, 1), (1, 1), (4, 1), (2, 1)]), &desired(&[(1, 1), (2, 7), (3, 3), (4, 6), (6, 6)]));
        assert_eq!(
            diff.edits,
            [
                Edit::Delete { position: 0, weight: 1 },
                Edit::Change { from: 1, to: 7 },
                Edit::Change { from: 1, to: 6 },
                Edit::Add { weight: 3 },
                Edit::Add { weight: 6 },
            ]
        );
        let order: Vec<_> = diff.list.iter().map(|member| (member.server, member.id, member.weight)).collect();
        let expected = [(6, 0, 6), (3, 0, 3), (1, 1, 1), (4, 4, 6), (2, 2, 7)];
        assert_eq!(order, expected.map(|(last, id, weight)| (server(last), id, weight)));
        assert_eq!((diff.removed, diff.added), (list(&[(5, 1)]), 2));
    }

    #[test]
    fn adds_come_in_the_order_in_which_they_are_desired() {
        let diff = diff(&list(&[(5, 1), (2, 1)]), &desired(&[(9, 1), (2, 1), (4, 2), (7, 3), (5, 1), (4, 8)]));
        assert_eq!(diff.edits, [Edit::Add { weight: 1 }, Edit::Add { weight: 2 }, Edit::Add { weight: 3 }]);
        let servers: Vec<Server> = diff.list.iter().map(|member| member.server).collect();
        assert_eq!(servers, [7, 4, 9, 5, 2].map(server));
        assert_eq!(diff.added, 3);
    }

    #[test]
    fn new_thresholds_alone_are_an_edit_too() {
        let mut wish = desired(&[(1, 3), (2, 3)]);
        wish.destinations[1].thresholds = Thresholds { upper: 9, lower: 0 };
        let diff = diff(&list(&[(2, 3), (1, 3)]), &wish);
        assert_eq!(diff.edits, [Edit::Change { from: 3, to: 3 }]);
        assert_eq!(diff.list[0].thresholds.upper, 9);
        let steps = WeightSteps::of([3, 3]);
        let wrr = Scheduler::WeightedRoundRobin;
        let words = |scheduler| word_edits(Some(scheduler), scheduler, &list(&[(2, 3), (1, 3)]), &diff.edits);
        assert_eq!(words(wrr), [WordEdit::WeightedChange(steps)]);
        assert_eq!(words(Scheduler::RoundRobin), []);
    }

    #[test]
    fn another_method_alone_is_an_edit_too() {
        let mut wish = desired(&[(1, 3), (2, 3)]);
        wish.destinations[0].method = Method::Tunnel;
        let diff = diff(&list(&[(2, 3), (1, 3)]), &wish);
        assert_eq!(diff.edits, [Edit::Change { from: 3, to: 3 }]);
        assert_eq!((diff.list[0].method, diff.list[1].method), (Method::Nat, Method::Tunnel));
        assert_eq!(diff.list[1].id, 1);
    }

    #[test]
    fn the_last_weight_above_0_stays_until_a_destination_is_added_anew() {
        let mut published = list(&[(1, 3), (2, 0)]);
        let mut step = |weights: &[(u8, i32)]| {
            published = diff(&published, &desired(weights)).list;
            published.iter().map(|member| (member.weight, member.last_weight)).collect::<Vec<_>>()
        };
        assert_eq!(step(&[(1, 0), (2, 0)]), [(0, 3), (0, 0)]);
        assert_eq!(step(&[(1, 0), (2, 5)]), [(0, 3), (5, 5)]);
        assert_eq!(step(&[(2, 0)]), [(0, 5)]);
        assert_eq!(step(&[(1, 0), (2, 0)]), [(0, 0), (0, 5)]);
    }

    #[test]
    fn a_destination_named_twice_counts_once() {
        let diff = diff(&[], &desired(&[(1, 4), (1, 5)]));
        assert_eq!(diff.edits, [Edit::Add { weight: 4 }]);
    }

    proptest! {
        #[test]
        fn steps_kept_up_to_date_are_those_of_the_whole_list(
            edits in prop::collection::vec((any::<bool>(), 0i32..40), 1..60)
        ) {
            let mut model: Vec<i32> = Vec::new();
            let mut weights = Weights::of(&[]);
            for (add, number) in edits {
                if add || model.is_empty() {
                    model.push(number);
                    weights.add(number);
                } else {
                    weights.remove(model.swap_remove(number as usize % model.len()));
                }
                prop_assert_eq!(weights.steps, WeightSteps::of(model.iter().copied()));
            }
        }
    }
}
