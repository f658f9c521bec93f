//! lblc and lblcr.

use crate::{address, director, open, picks, usual};

#[test]
fn lblc_stays_until_the_server_is_busy_and_another_idle() {
    let mut lblc = director("lblc", &[4, 4]);
    let opened: Vec<_> = (0..8).map(|_| open(&mut lblc, usual(), 0).unwrap()).collect();
    assert_eq!(opened, [2, 2, 2, 2, 2, 1, 1, 1]);
    lblc.delete(1).unwrap();
    assert_eq!(picks(&mut lblc, 1), "2");
    lblc.add(1, address(1), 80, 4).unwrap();
    assert_eq!(picks(&mut lblc, 1), "2", "the cache holds what was chosen meanwhile");
}

#[test]
fn lblc_takes_back_a_server_that_returns() {
    let mut lblc = director("lblc", &[1, 1]);
    assert_eq!(picks(&mut lblc, 1), "2");
    lblc.delete(2).unwrap();
    lblc.add(2, address(2), 80, 1).unwrap();
    lblc.connected(2);
    assert_eq!(picks(&mut lblc, 1), "2", "though wlc would choose 1");
}

#[test]
fn lblc_forgets_a_destination_a_day_after_its_last_use() {
    let mut lblc = director("lblc", &[1, 1]);
    assert_eq!(picks(&mut lblc, 1), "2");
    lblc.connected(2);
    for (now, expected) in [(86_399, Some(2)), (86_399 + 86_400, Some(1))] {
        (0..30).for_each(|_| lblc.sweep(now));
        assert_eq!(lblc.pick(usual(), now), expected, "at {now}");
    }
}

#[test]
fn a_server_at_half_its_weight_is_not_idle_enough_to_relieve_another() {
    let mut lblc = director("lblc", &[4, 1]);
    assert_eq!(open(&mut lblc, usual(), 0), Some(2));
    (0..2).for_each(|_| lblc.connected(1));
    (0..2).for_each(|_| lblc.activate(1));
    assert_eq!(open(&mut lblc, usual(), 0), Some(2), "1 active of weight 1");
    assert_eq!(open(&mut lblc, usual(), 0), Some(2), "2 active, but the other has 2 of 4");
    lblc.closed(1, true);
    assert_eq!(open(&mut lblc, usual(), 0), Some(1), "the other has 1 of 4");
}

#[test]
fn of_equals_in_lblcrs_set_the_newest_member_is_chosen() {
    let mut lblcr = director("lblcr", &[1, 1]);
    let opened: Vec<_> = (0..5).map(|_| open(&mut lblcr, usual(), 0).unwrap()).collect();
    assert_eq!(opened, [2, 2, 1, 1, 1], "at 2 and 2 the newer member, 1");
}

#[test]
fn lblcrs_set_loses_its_heaviest_after_a_day_without_change() {
    let mut lblcr = director("lblcr", &[9, 9]);
    assert_eq!(open(&mut lblcr, usual(), 0), Some(2));
    lblcr.edit(2, 0).unwrap();
    let opened: Vec<_> = (0..3).map(|_| open(&mut lblcr, usual(), 0).unwrap()).collect();
    assert_eq!(opened, [1, 1, 1], "1 joins the set");
    lblcr.edit(2, 9).unwrap();
    let mut at = |now| (0..3).map(|_| open(&mut lblcr, usual(), now).unwrap()).collect::<Vec<_>>();
    assert_eq!(at(86_400), [2, 2, 1], "2 until both have three");
    assert_eq!(at(86_401), [2, 2, 2], "1, the heaviest with four, has left");
}
