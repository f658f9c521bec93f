//! lc, wlc, sed and nq; most of their cases are among the recorded sequences.

use crate::{director, picks};

#[test]
fn an_active_connection_weighs_256_inactive_ones() {
    for scheduler in ["lc", "wlc"] {
        let mut director = director(scheduler, &[1, 1]);
        director.connected(1);
        director.activate(1);
        (0..255).for_each(|_| director.connected(2));
        assert_eq!(picks(&mut director, 1), "2", "{scheduler}, 255");
        (0..2).for_each(|_| director.connected(2));
        assert_eq!(picks(&mut director, 1), "1", "{scheduler}, 257");
    }
}
