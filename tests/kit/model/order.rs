//! rr and wrr: whose turn it is (spec 3.1, 3.2).

use super::{Id, Servers};

/// rr: the server that was chosen last; none is the list's head.
#[derive(Clone, Debug, Default)]
pub(super) struct Rr {
    current: Option<Id>,
}

impl Rr {
    pub(super) fn deleted(&mut self, id: Id, predecessor: Option<Id>) {
        if self.current == Some(id) {
            self.current = predecessor;
        }
    }

    pub(super) fn pick(&mut self, servers: &Servers) -> Option<Id> {
        let mut list = servers.list();
        if let Some(current) = self.current {
            // One round that ends with the current server itself.
            let place = list.iter().position(|s| s.id == current).expect("current is in the list");
            list.rotate_left(place + 1);
        }
        let chosen = list.iter().find(|s| s.weight > 0)?;
        self.current = Some(chosen.id);
        self.current
    }
}

/// wrr: IPVS's interleaved rounds. `current_weight`, `max_weight` and `step` are its `cw`, `mw` and `di`.
#[derive(Clone, Debug)]
pub(super) struct Wrr {
    current: Option<Id>,
    current_weight: i64,
    max_weight: i64,
    step: i64,
}

impl Wrr {
    pub(super) fn start(servers: &Servers) -> Self {
        let mut wrr = Self { current: None, current_weight: 0, max_weight: 0, step: 1 };
        wrr.recalculate(servers);
        wrr.current_weight = wrr.max_weight;
        wrr
    }

    fn recalculate(&mut self, servers: &Servers) {
        let weights: Vec<i64> = servers.list().iter().map(|s| i64::from(s.weight)).collect();
        let divisor = weights.iter().copied().filter(|&w| w > 0).fold(0, greatest_common_divisor);
        self.step = if divisor == 0 { 1 } else { divisor };
        self.max_weight = weights.iter().copied().max().unwrap_or(0) - (self.step - 1);
    }

    /// A server was added, edited or deleted.
    pub(super) fn changed(&mut self, servers: &Servers) {
        self.current = None;
        self.recalculate(servers);
        if self.current_weight > self.max_weight || self.current_weight == 0 {
            self.current_weight = self.max_weight;
        } else if self.step > 1 {
            self.current_weight = self.current_weight / self.step * self.step + 1;
        }
    }

    pub(super) fn pick(&mut self, servers: &Servers) -> Option<Id> {
        if self.max_weight == 0 {
            return None;
        }
        let list = servers.list();
        let last = self.current;
        let mut from = last.map_or(0, |id| 1 + list.iter().position(|s| s.id == id).expect("current is in the list"));
        let (mut stop, mut last_pass, mut restarted) = (None, false, false);
        loop {
            for server in &list[from..] {
                if i64::from(server.weight) >= self.current_weight {
                    self.current = Some(server.id);
                    return self.current;
                }
                if Some(server.id) == stop {
                    self.current = stop;
                    return None;
                }
            }
            self.current_weight -= self.step;
            if self.current_weight <= 0 {
                self.current_weight = self.max_weight;
                if last_pass || last.is_none() {
                    self.current = None;
                    return None;
                }
                restarted = true;
            }
            last_pass = self.current_weight <= self.step;
            if last_pass && restarted && last.is_some() {
                stop = last;
            }
            from = 0;
        }
    }
}

fn greatest_common_divisor(a: i64, b: i64) -> i64 {
    if b == 0 { a } else { greatest_common_divisor(b, a % b) }
}
