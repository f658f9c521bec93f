//! twos: of two servers drawn at random by weight, the one with less to do (`ip_vs_twos.c`, spec 3.14).
//!
//! Two scans: [`Total`] sums the weights, then [`TwoChoices`] finds whom two random numbers fall on. A function of those
//! numbers, which the caller draws.

use super::scan::{Candidate, Flow};
use crate::layout::DestinationSlot;

/// First scan: the weights of usable destinations together.
///
/// IPVS sums them in 32 bits; beyond 2147483647 that overflows there, and is right here.
#[derive(Clone, Copy, Debug)]
pub struct Total {
    start: u64,
    sum: u64,
}

impl Total {
    /// A scan that has seen nothing. It counts up from `start`, which is any number: from one that a verifier does not
    /// know, all states of a loop look alike to it; from 0 it would walk every step of the loop for itself.
    #[inline(always)]
    pub const fn new(start: u64) -> Self {
        Self { start, sum: start }
    }

    /// Shows the next destination in list order.
    #[inline(always)]
    pub const fn step(&mut self, slot: DestinationSlot, overloaded: bool) {
        if slot.weight > 0 && !overloaded {
            self.sum = self.sum.wrapping_add(slot.weight as u64);
        }
    }

    /// The weights together; 0 if no destination is usable.
    #[inline(always)]
    pub const fn get(&self) -> u64 {
        self.sum.wrapping_sub(self.start)
    }
}

/// Second scan: whom the draws fall on.
#[derive(Clone, Copy, Debug)]
pub struct TwoChoices {
    /// What is left of each draw when the weights of all that were shown are taken off.
    rest: [i64; 2],
    chosen: [DestinationSlot; 2],
}

impl TwoChoices {
    /// A scan that has seen nothing. `total` is [`Total::get`], from 1; `random` is any two numbers: each draw is one of them modulo the total + 1, so from
    /// 0 to the total with both ends, as in IPVS. The first destination therefore has one chance more than its weight.
    #[inline(always)]
    pub const fn new(total: u64, random: [u64; 2]) -> Self {
        // Totals are below 2^46: the remainder of 64 random bits is uniform to one part in 2^18 or better.
        let bound = total.saturating_add(1);
        let none = DestinationSlot { destination: 0, weight: 0 };
        Self { rest: [(random[0] % bound) as i64, (random[1] % bound) as i64], chosen: [none; 2] }
    }

    /// Shows the next destination in list order.
    #[inline(always)]
    pub const fn step(&mut self, slot: DestinationSlot, overloaded: bool) -> Flow {
        if slot.weight <= 0 || overloaded {
            return Flow::Continue;
        }
        let weight = slot.weight as i64;
        self.rest = [self.rest[0].wrapping_sub(weight), self.rest[1].wrapping_sub(weight)];
        if self.chosen[0].destination == 0 && self.rest[0] <= 0 {
            self.chosen[0] = slot;
        }
        if self.chosen[1].destination == 0 && self.rest[1] <= 0 {
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
        let mut total = Total::new(u64::MAX - 1);
        slots().for_each(|slot| total.step(slot, false));
        assert_eq!(total.get(), weights.iter().map(|&weight| weight as u64).sum());
        let mut choices = TwoChoices::new(total.get(), random);
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
        // 2^24 active connections times 256 do not fit 32 bits: what is left is their number.
        assert_eq!(better(&candidate(1, 1, 1 << 24, 0), &candidate(2, 1, 0, 1 << 24 | 1)), 1);
    }
}
