//! lc, wlc, sed, nq, fo and ovf; most of their cases are among the recorded sequences.

use crate::{director, open, picks, usual};

#[test]
fn an_active_connection_weighs_257_inactive_ones() {
    for scheduler in ["lc", "wlc"] {
        let mut director = director(scheduler, &[1, 1]);
        director.connected(1);
        director.activate(1);
        (0..256).for_each(|_| director.connected(2));
        assert_eq!(picks(&mut director, 1), "2", "{scheduler}, 256");
        (0..2).for_each(|_| director.connected(2));
        assert_eq!(picks(&mut director, 1), "1", "{scheduler}, 258");
    }
}

#[test]
fn fo_takes_the_newest_of_the_heaviest_whatever_its_load() {
    let mut fo = director("fo", &[7, 3, 7, 5]);
    (0..100).for_each(|_| assert_eq!(open(&mut fo, usual(), 0), Some(3)));
    fo.edit(3, 0).unwrap();
    assert_eq!(picks(&mut fo, 2), "1 1");
    fo.delete(1).unwrap();
    assert_eq!(picks(&mut fo, 1), "4");
    for server in [2, 4] {
        fo.edit(server, 0).unwrap();
    }
    assert_eq!(picks(&mut fo, 1), "R");
}

#[test]
fn ovf_fills_a_server_to_one_more_than_its_weight_and_counts_active_connections_only() {
    let mut ovf = director("ovf", &[1, 2, 0]);
    let servers: Vec<_> = (0..6).map(|_| open(&mut ovf, usual(), 0)).collect();
    assert_eq!(servers, [Some(2), Some(2), Some(2), Some(1), Some(1), None]);
    ovf.deactivate(2);
    assert_eq!(picks(&mut ovf, 1), "2");
    (0..1000).for_each(|_| ovf.connected(2));
    assert_eq!(picks(&mut ovf, 1), "2");
}
