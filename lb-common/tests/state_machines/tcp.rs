//! The TCP state machine against the text of spec 5.2 and the sequences seen on a kernel.

use lb_common::tcp::{Direction::*, *};
use proptest::prelude::*;

/// The table of spec 5.2 as it is printed there: state (number, name, timeout, active), then next states on
/// syn/fin/ack/rst for IN, OUT and IN-ONLY.
const SPECIFIED: &str = "
    | NO (0, NONE, 2, -) | SR CL ES CL | SS TW ES CL | SR CL ES CL |
    | ES (1, ESTABLISHED, 900, active) | ES CW ES CL | ES FW ES CL | ES FW ES CL |
    | SS (2, SYN_SENT, 120, active) | ES SS SS CL | SS SS SS SS | ES SS SS CL |
    | SR (3, SYN_RECV, 60, active) | SR TW ES SR | SR TW ES CL | SR TW ES SR |
    | FW (4, FIN_WAIT, 120, -) | SR TW FW CL | SS FW FW CL | SR FW FW CL |
    | TW (5, TIME_WAIT, 120, -) | SR TW TW CL | SS TW TW TW | SR TW TW CL |
    | CL (6, CLOSE, 10, -) | SR CL CL CL | SS CL CL CL | SR CL CL CL |
    | CW (7, CLOSE_WAIT, 60, -) | SR CW CW CL | SS TW CW CL | SR CW CW CL |
    | LA (8, LAST_ACK, 30, -) | SR LA CL LA | SS LA LA CL | SR LA CL LA |
    | LI (9, LISTEN, 120, -) | SR LI LI LI | LI LI ES CL | SR LI LI LI |
    | SA (10, SYNACK, 120, active) | SR TW ES SR | SR TW ES CL | SR TW ES CL |";

/// The specification's rows, split at their bars.
fn specified() -> Vec<Vec<&'static str>> {
    SPECIFIED.trim().lines().map(|l| l.trim().trim_matches('|').split('|').map(str::trim).collect()).collect()
}

/// Number of the state that the specification abbreviates so.
fn number(abbreviation: &str) -> u8 {
    specified().iter().position(|row| row[0].starts_with(abbreviation)).expect("known abbreviation") as u8
}

#[test]
fn every_cell_is_the_specifications() {
    let mut cells = 0;
    for (state, row) in specified().iter().enumerate() {
        for (direction, cell) in [In, Out, InOnly].into_iter().zip(&row[1..]) {
            for (flag, expected) in [FLAG_SYN, FLAG_FIN, FLAG_ACK, FLAG_RST].into_iter().zip(cell.split(' ')) {
                let found = next(state as u8, flag, direction);
                assert_eq!(found, number(expected), "{} {direction:?} flags {flag:#x}", row[0]);
                cells += 1;
            }
        }
    }
    assert_eq!(cells, 132);
}

#[test]
fn names_timeouts_and_activity_are_the_specifications() {
    for (state, row) in specified().iter().enumerate() {
        let found = State::from_number(state as u8);
        assert_eq!(found as usize, state);
        let seconds = TIMEOUTS_MS[state] / 1000;
        let active = if found.is_active() { "active" } else { "-" };
        assert_eq!(row[0][3..], format!("({state}, {}, {seconds}, {active})", found.name()));
    }
    assert_eq!(TIMEOUTS_MS[11..], [2000; 5]);
}

#[test]
fn the_first_of_rst_syn_fin_ack_decides_for_every_flag_byte() {
    for flags in 0..=255u8 {
        let first = [FLAG_RST, FLAG_SYN, FLAG_FIN, FLAG_ACK].into_iter().find(|f| flags & f != 0);
        for state in 0..11 {
            for direction in [In, Out, InOnly] {
                let expected = first.map_or(State::Close as u8, |f| next(state, f, direction));
                assert_eq!(next(state, flags, direction), expected, "state {state} {direction:?} flags {flags:#x}");
            }
        }
    }
}

#[test]
fn only_syn_without_rst_opens_a_connection() {
    for flags in 0..=255u8 {
        assert_eq!(opens_connection(flags), flags & 2 != 0 && flags & 4 == 0, "flags {flags:#x}");
    }
}

/// Walks packets from [`State::None`]; checks the name and the timeout after each.
fn walk(steps: &[(Direction, u8, &str, u32)]) {
    let mut state = 0;
    for (at, &(direction, flags, name, seconds)) in steps.iter().enumerate() {
        state = next(state, flags, direction);
        let found = (State::from_number(state).name(), TIMEOUTS_MS[state as usize] / 1000);
        assert_eq!(found, (name, seconds), "packet {at}");
    }
}

const SYN_ACK: u8 = FLAG_SYN | FLAG_ACK;
const FIN_ACK: u8 = FLAG_FIN | FLAG_ACK;
const RST_ACK: u8 = FLAG_RST | FLAG_ACK;
const OPEN: [(Direction, u8, &str, u32); 3] =
    [(In, FLAG_SYN, "SYN_RECV", 60), (Out, SYN_ACK, "SYN_RECV", 60), (In, FLAG_ACK, "ESTABLISHED", 900)];

#[test]
fn nat_sequences_observed_on_a_kernel() {
    let then = |steps: &[(Direction, u8, &'static str, u32)]| walk(&[&OPEN[..], steps].concat());
    then(&[(In, FIN_ACK, "CLOSE_WAIT", 60), (Out, FIN_ACK, "TIME_WAIT", 120)]);
    then(&[(Out, FIN_ACK, "FIN_WAIT", 120), (In, FIN_ACK, "TIME_WAIT", 120)]);
    then(&[(Out, RST_ACK, "CLOSE", 10)]);
    then(&[(In, FLAG_SYN, "ESTABLISHED", 900)]);
    then(&[(In, 0x08, "CLOSE", 10)]);
    walk(&[(In, FLAG_SYN, "SYN_RECV", 60), (In, FLAG_RST, "SYN_RECV", 60)]);
}

#[test]
fn direct_routing_sequences_observed_on_a_kernel() {
    let open = [(InOnly, FLAG_SYN, "SYN_RECV", 60), (InOnly, FLAG_ACK, "ESTABLISHED", 900)];
    let then = |steps: &[(Direction, u8, &'static str, u32)]| walk(&[&open[..], steps].concat());
    then(&[(InOnly, FIN_ACK, "FIN_WAIT", 120), (InOnly, FLAG_SYN, "SYN_RECV", 60)]);
    then(&[(InOnly, FLAG_RST, "CLOSE", 10)]);
}

proptest! {
    #[test]
    fn any_packet_in_any_state_leads_to_a_valid_state(state: u8, flags: u8, direction in 0..3usize) {
        let direction = [In, Out, InOnly][direction];
        let after = next(state, flags, direction);
        prop_assert!(usize::from(after) < State::ALL.len());
        prop_assert_eq!(State::from_number(after).is_active(), is_active(after));
        let unknown = if state & 15 > 10 { 0 } else { state & 15 };
        prop_assert_eq!(after, next(unknown, flags, direction));
    }
}
