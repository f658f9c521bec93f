//! Names that many objects state - namespaces, nodes, zones, ports - kept once.

use std::collections::HashSet;
use std::sync::Arc;

/// So many are kept before anybody looks which of them are still in use.
const FEW: usize = 1024;

/// The names that are in use, and some that were.
#[derive(Debug)]
pub(super) struct Names {
    known: HashSet<Arc<str>>,
    /// With so many, those that nobody uses any more are forgotten.
    full: usize,
}

impl Default for Names {
    fn default() -> Self {
        Self { known: HashSet::new(), full: FEW }
    }
}

impl Names {
    /// Puts the name that is known in place of one that reads the same.
    pub(super) fn share(&mut self, name: &mut Arc<str>) {
        if let Some(known) = self.known.get(name) {
            name.clone_from(known);
            return;
        }
        if self.known.len() >= self.full {
            self.known.retain(|name| Arc::strong_count(name) > 1);
            self.known.shrink_to(2 * self.known.len());
            self.full = FEW.max(2 * self.known.len());
        }
        self.known.insert(name.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shared(names: &mut Names, text: &str) -> Arc<str> {
        let mut name = Arc::from(text);
        names.share(&mut name);
        name
    }

    #[test]
    fn what_reads_the_same_is_kept_once() {
        let mut names = Names::default();
        let [first, again, other] = ["eu-1", "eu-1", "eu-2"].map(|text| shared(&mut names, text));
        assert!(Arc::ptr_eq(&first, &again));
        assert_eq!((&*first, &*other), ("eu-1", "eu-2"));
    }

    #[test]
    fn what_nobody_uses_any_more_is_forgotten() {
        let mut names = Names::default();
        let used = shared(&mut names, "used");
        for number in 0..10 * FEW {
            shared(&mut names, &number.to_string());
        }
        assert!(names.known.len() <= 2 * FEW, "{}", names.known.len());
        assert!(Arc::ptr_eq(&used, &shared(&mut names, "used")));
    }
}
