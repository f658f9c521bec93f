//! rr and wrr.

use crate::{NONE, director, picks};

#[test]
fn wrr_orders_are_the_specifications() {
    for (weights, expected) in [
        (&[1, 2, 4][..], "3 2 1 3 3 3 2 3 2 1 3 3 3 2 3 2"),
        (&[4, 2, 1], "3 2 1 1 1 2 1 3 2 1 1 1 2 1 3 2"),
        (&[2, 4, 6], "3 2 1 3 3 2 3 2 1 3 3 2 3 2 1 3"),
        (&[3, 1], "2 1 1 1 2 1 1 1"),
        (&[5, 0, 10], "3 1 3 3 1 3 3 1"),
    ] {
        let count = expected.split(' ').count();
        assert_eq!(picks(&mut director("wrr", weights), count), expected, "{weights:?}");
    }
    for (weights, expected) in [([1, 2, 4], "3 3 3 2 3 2 1"), ([5, 0, 10], "3 3 1 3 3 1")] {
        let mut director = director("rr", &weights);
        director.switch("wrr", NONE).unwrap();
        assert_eq!(picks(&mut director, expected.split(' ').count()), expected, "{weights:?}, switched to");
    }
}

#[test]
fn an_edit_that_changes_nothing_restarts_wrrs_round_and_not_rrs() {
    let mut wrr = director("wrr", &[1, 2, 4]);
    assert_eq!(picks(&mut wrr, 2), "3 2");
    wrr.edit(1, 1).unwrap();
    assert_eq!(picks(&mut wrr, 6), "3 2 1 3 3 3");
    let mut rr = director("rr", &[1, 1, 1]);
    assert_eq!(picks(&mut rr, 2), "3 2");
    rr.edit(1, 1).unwrap();
    assert_eq!(picks(&mut rr, 6), "1 3 2 1 3 2");
}

#[test]
fn rr_goes_on_behind_a_deleted_server() {
    for (before, gone, after) in [("3 2", 2, "1 3 1"), ("3", 3, "2 1 2"), ("3 2 1", 1, "3 2 3")] {
        let mut rr = director("rr", &[1, 1, 1]);
        assert_eq!(picks(&mut rr, before.split(' ').count()), before);
        rr.delete(gone).unwrap();
        assert_eq!(picks(&mut rr, 3), after, "without {gone}");
    }
}
