//! The SCTP state machine against the text of spec 5.4.

use lb_common::sctp::{Direction::*, *};
use proptest::prelude::*;

/// The table of spec 5.4 as it is printed there: state (number, name, timeout), then next states on
/// d/i/ia/ce/ca/s/sa/sc/er/ab for IN, OUT and IN-ONLY.
const SPECIFIED: &str = "
    | NO (0, NONE, 2) | ES I1 CW CR ES SR CL CL CL CL | ES CW CS CE ES SS SA CL CL CL | ES I1 CE ES ES SR CL CL CL CL |
    | I1 (1, INIT1, 4) | I1 IN CW IN I1 I1 IN CL I1 CL | I1 CW CS CE ES SS SA I1 CL RJ | I1 IN CE ES I1 I1 IN CL I1 CL |
    | IN (2, INIT, 61) | IN IN CW IN IN IN IN CL IN CL | IN CW CS CE ES SS SA IN CL CL | IN IN CE ES IN IN IN CL IN CL |
    | CS (3, C-SENT, 61) | CS CS CS CR CS CS CS CS CS CL | CS CW CS CE ES SS SA CS CL CL | CS IN CE ES ES CS CS CL CS CL |
    | CR (4, C-REPLIED, 61) | CR CR CR CR CR CR CR CR CR CL | CR CW CR CE ES SS SA CR CL CL | CR IN CE ES ES CR CR CL CR CL |
    | CW (5, C-WAIT, 61) | CW CW CO CW CW CW CW CW CW RJ | CW CW CW CE ES SS CW CW CW CL | ES IN CE ES CW CW CW CW CW RJ |
    | CO (6, COOKIE, 61) | CO CO CO CO CO CO CO CO CO CL | CO CW CO CE ES SS CO CO CO CL | CO CO CO CO ES CO CO CO CO CL |
    | CE (7, C-ECHOED, 61) | CE CE CE CE ES CE CE CE CL CL | CE CW CE CE ES SS CE CE CE CL | CE CE CE CE ES CE CE CE CE CL |
    | ES (8, ESTABLISHED, 900) | ES ES ES ES ES SR ES ES ES CL | ES ES ES ES ES SS ES ES ES CL | ES ES ES ES ES SR CL ES ES CL |
    | SS (9, S-SENT, 61) | SS SS SS SS SS SS CL SS SS CL | SS CW SS SS SS SS SA SS SS CL | SS SS SS SS SS SS CL SS SS CL |
    | SR (10, S-RECEIVED, 61) | SR SR SR SR SR SR SR SR SR CL | SR CW SR SR SR SR SA SR SR CL | SR SR SR SR SR SR SR CL SR CL |
    | SA (11, S-ACK-SENT, 61) | SA SA SA SA SA SA CL CL SA CL | SA CW SA SA SA SA SA SA SA CL | SA SA SA SA SA SA CL CL SA CL |
    | RJ (12, REJECTED, 4) | RJ IN RJ RJ RJ RJ RJ RJ RJ CL | RJ CW RJ RJ RJ RJ RJ RJ RJ CL | RJ IN RJ RJ RJ RJ RJ RJ RJ CL |
    | CL (13, CLOSED, 61) | CL IN CL CL CL CL CL CL CL CL | CL CW CL CL CL CL CL CL CL CL | CL IN CL CL CL CL CL CL CL CL |";

/// The specification's rows, split at their bars.
fn specified() -> Vec<Vec<&'static str>> {
    SPECIFIED.trim().lines().map(|l| l.trim().trim_matches('|').split('|').map(str::trim).collect()).collect()
}

/// Number of the state that the specification abbreviates so.
fn number(abbreviation: &str) -> u8 {
    specified().iter().position(|row| row[0].starts_with(abbreviation)).expect("known abbreviation") as u8
}

/// Chunk types in the order of the specification's columns.
const COLUMNS: [u8; 10] = [0, 1, 2, 10, 11, 7, 8, 14, 9, 6];

#[test]
fn every_cell_is_the_specifications() {
    let mut cells = 0;
    for (state, row) in specified().iter().enumerate() {
        for (direction, cell) in [In, Out, InOnly].into_iter().zip(&row[1..]) {
            for (chunk, expected) in COLUMNS.into_iter().zip(cell.split(' ')) {
                let found = next(state as u8, event(chunk, None), direction);
                assert_eq!(found, number(expected), "{} {direction:?} chunk {chunk}", row[0]);
                cells += 1;
            }
        }
    }
    assert_eq!(cells, 420);
}

#[test]
fn names_timeouts_and_activity_are_the_specifications() {
    for (state, row) in specified().iter().enumerate() {
        let found = State::from_number(state as u8);
        assert_eq!(found as usize, state);
        assert_eq!(row[0][3..], format!("({state}, {}, {})", found.name(), TIMEOUTS_MS[state] / 1000));
        assert_eq!(found.is_active(), found.name() == "ESTABLISHED");
    }
    assert_eq!(TIMEOUTS_MS[14..], [2000; 2]);
}

#[test]
fn every_other_chunk_type_counts_as_data() {
    for chunk in 0..=255 {
        let column = COLUMNS.iter().position(|&c| c == chunk).unwrap_or(0);
        assert_eq!(usize::from(event(chunk, None)), column, "chunk {chunk}");
    }
}

#[test]
fn a_second_chunk_counts_only_as_abort_after_a_cookie() {
    for first in 0..=255 {
        for second in 0..=255 {
            let expected = if matches!(first, 10 | 11) && second == 6 { 9 } else { event(first, None) };
            assert_eq!(event(first, Some(second)), expected, "chunks {first}, {second}");
        }
    }
}

#[test]
fn only_init_opens_an_association() {
    for chunk in 0..=255 {
        assert_eq!(opens_association(chunk), chunk == 1, "chunk {chunk}");
    }
}

#[test]
fn a_whole_life_under_nat() {
    let life = [
        (In, 1, "INIT1"),
        (Out, 2, "C-SENT"),
        (In, 10, "C-REPLIED"),
        (Out, 11, "ESTABLISHED"),
        (In, 0, "ESTABLISHED"),
        (Out, 3, "ESTABLISHED"),
        (In, 7, "S-RECEIVED"),
        (Out, 8, "S-ACK-SENT"),
        (In, 14, "CLOSED"),
    ];
    let mut state = 0;
    for (direction, chunk, name) in life {
        state = next(state, event(chunk, None), direction);
        assert_eq!(State::from_number(state).name(), name, "after chunk {chunk} {direction:?}");
    }
}

proptest! {
    #[test]
    fn any_packet_in_any_state_leads_to_a_valid_state(
        state: u8, first: u8, second: Option<u8>, raw: u8, direction in 0..3usize
    ) {
        let direction = [In, Out, InOnly][direction];
        let after = next(state, event(first, second), direction);
        prop_assert!(usize::from(after) < State::ALL.len());
        prop_assert_eq!(State::from_number(after).is_active(), is_active(after));
        prop_assert!(usize::from(next(state, raw, direction)) < State::ALL.len());
        let unknown = if state & 15 > 13 { 0 } else { state & 15 };
        prop_assert_eq!(after, next(unknown, event(first, second), direction));
    }
}
