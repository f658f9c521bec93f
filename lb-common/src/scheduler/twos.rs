//! twos: of two servers drawn at random by weight, the one with less to do (`ip_vs_twos.c`, spec 3.14).
//!
//! Two scans: [`Total`] sums the weights, then [`TwoChoices`] finds whom two random numbers fall on. A function of those
//! numbers, which the caller draws.

use super::scan::{Candidate, Flow};
use crate::layout::DestinationSlot;

/// First scan: the weights of usable destinations together.
///
/// IPVS sums them in 32 bits; beyond 2147483647 that overflows there, and is right here.
#[derive(Clone, Copy, Debug, Default)]
pub struct Total(u64);

impl Total {
    /// Shows the next destination in list order.
    #[inline(always)]
    pub const fn step(&mut self, slot: DestinationSlot, overloaded: bool) {
        if slot.weight > 0 && !overloaded {
            self.0 = self.0.wrapping_add(slot.weight as u64);
        }
    }

    /// True if no destination is usable.
    #[inline(always)]
    pub const fn is_zero(self) -> bool {
        self.0 == 0
    }
}

/// Second scan: whom the draws fall on.
#[derive(Clone, Copy, Debug)]
pub struct TwoChoices {
    draws: [u64; 2],
    passed: u64,
    chosen: [DestinationSlot; 2],
}

impl TwoChoices {
    /// A scan that has seen nothing. `random` is any two numbers: each draw is one of them modulo the total + 1, so from
    /// 0 to the total with both ends, as in IPVS. The first destination therefore has one chance more than its weight.
    #[inline(always)]
    pub const fn new(total: Total, random: [u64; 2]) -> Self {
        let bound = total.0.wrapping_add(1);
        // Totals are below 2^46: the remainder of 64 random bits is uniform to one part in 2^18 or better.
        let draws = if bound == 0 { [0; 2] } else { [random[0] % bound, random[1] % bound] };
        let none = DestinationSlot { destination: 0, weight: 0 };
        Self { draws, passed: 0, chosen: [none; 2] }
    }

    /// Shows the next destination in list order.
    #[inline(always)]
    pub const fn step(&mut self, slot: DestinationSlot, overloaded: bool) -> Flow {
        if slot.weight <= 0 || overloaded {
            return Flow::Continue;
        }
        self.passed = self.passed.wrapping_add(slot.weight as u64);
        if self.chosen[0].destination == 0 && self.draws[0] <= self.passed {
            self.chosen[0] = slot;
        }
        if self.chosen[1].destination == 0 && self.draws[1] <= self.passed {
            self.chosen[1] = slot;
        }
        if self.chosen[0].destination != 0 && self.chosen[1].destination != 0 { Flow::Stop } else { Flow::Continue }
    }

    /// The two, which may be one. A slot without destination stands for none.
    #[inline(always)]
    pub const fn chosen(&self) -> [DestinationSlot; 2] {
        self.chosen
    }
}

/// The one of the two to connect to: the first, unless the second has less to do for its weight. Products are IPVS's, in
/// 32 bits.
#[inline(always)]
pub const fn better(first: &Candidate, second: &Candidate) -> u32 {
    let second_is_better = second.destination != 0
        && (first.destination == 0
            || second.weight.wrapping_mul(first.overhead()) > first.weight.wrapping_mul(second.overhead()));
    if second_is_better { second.destination } else { first.destination }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::DestinationLoad;

    fn chosen(weights: &[i32], random: [u64; 2]) -> [u32; 2] {
        let slots = || (1..).zip(weights).map(|(destination, &weight)| DestinationSlot { destination, weight });
        let mut total = Total::default();
        slots().for_each(|slot| total.step(slot, false));
        let mut choices = TwoChoices::new(total, random);
        for slot in slots() {
            if choices.step(slot, false) == Flow::Stop {
                break;
            }
        }
        choices.chosen().map(|slot| slot.destination)
    }

    #[test]
    fn each_draw_falls_on_a_destination_by_weight() {
        // Draws 0 to 6: one chance more for the first.
        let expected = [1, 1, 3, 3, 4, 4, 4];
        for (draw, server) in (0..).zip(expected) {
            assert_eq!(chosen(&[1, 0, 2, 3], [draw, draw + 7]), [server; 2], "draw {draw}");
            assert_eq!(chosen(&[1, 0, 2, 3], [draw, 6]), [server, 4]);
        }
        assert_eq!(chosen(&[0, 0], [5, 6]), [0, 0]);
        assert_eq!(chosen(&[i32::MAX; 3], [3 * i32::MAX as u64, i32::MAX as u64 + 1]), [3, 2]);
    }

    fn candidate(destination: u32, weight: i32, active: u64, inactive: u64) -> Candidate {
        let load = DestinationLoad { connections: active << 32 | inactive, ..DestinationLoad::default() };
        Candidate::new(destination, weight, &load)
    }

    #[test]
    fn the_second_must_have_strictly_less_to_do_for_its_weight() {
        let first = candidate(1, 2, 2, 0);
        assert_eq!(better(&first, &candidate(2, 1, 1, 0)), 1);
        assert_eq!(better(&first, &candidate(2, 1, 0, 255)), 2);
        assert_eq!(better(&first, &candidate(2, 3, 3, 1)), 1);
        assert_eq!(better(&first, &first), 1);
        let none = Candidate::default();
        assert_eq!([better(&none, &first), better(&first, &none), better(&none, &none)], [1, 1, 0]);
        // 2^24 active connections times 256 do not fit 32 bits: the overhead is 0.
        assert_eq!(better(&candidate(1, 1, 1 << 24, 0), &candidate(2, 1, 0, 1)), 1);
    }
}
