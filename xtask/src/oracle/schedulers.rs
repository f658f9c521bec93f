//! Which schedulers are asked, and in which guest.

use std::str::FromStr;

use lb_common::scheduler::Scheduler;

/// Schedulers asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    /// All that a kernel has.
    All,
    /// These.
    Named(Vec<Scheduler>),
}

impl FromStr for Asked {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "all" {
            return Ok(Self::All);
        }
        let scheduler = |name: &str| {
            Scheduler::from_name(name).ok_or_else(|| {
                let known: Vec<_> = Scheduler::ALL.iter().map(|scheduler| scheduler.name()).collect();
                format!("`{name}` is no scheduler; they are {}, or all", known.join(" "))
            })
        };
        text.split(',').map(scheduler).collect::<Result<_, _>>().map(Self::Named)
    }
}

impl Asked {
    /// Those asked for.
    pub(crate) fn schedulers(&self) -> Vec<Scheduler> {
        match self {
            Self::All => Scheduler::ALL.to_vec(),
            Self::Named(names) => names.clone(),
        }
    }
}

/// The kernel module of a scheduler.
pub(crate) fn module(scheduler: Scheduler) -> String {
    format!("ip_vs_{}", scheduler.name())
}

/// Deals schedulers to at most `guests`, in turn: neighbours cost alike.
pub(crate) fn deal(schedulers: &[Scheduler], guests: usize) -> Vec<Vec<Scheduler>> {
    let guests = guests.clamp(1, schedulers.len().max(1));
    (0..guests).map(|first| schedulers.iter().skip(first).step_by(guests).copied().collect()).collect()
}

/// Names, with commas.
pub(crate) fn names(schedulers: &[Scheduler]) -> String {
    schedulers.iter().map(|scheduler| scheduler.name()).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schedulers_are_named_or_all() {
        assert_eq!("all".parse::<Asked>().unwrap().schedulers().len(), Scheduler::ALL.len());
        let named = "wlc,rr".parse::<Asked>().unwrap().schedulers();
        assert_eq!(named, [Scheduler::WeightedLeastConnection, Scheduler::RoundRobin]);
        assert!("rr,best".parse::<Asked>().unwrap_err().starts_with("`best` is no scheduler; they are rr wrr "));
    }

    #[test]
    fn every_scheduler_is_dealt_once() {
        for guests in 0..20 {
            let dealt = deal(&Scheduler::ALL, guests);
            assert!(dealt.len() <= guests.max(1) && dealt.iter().all(|hand| !hand.is_empty()));
            let mut all = dealt.concat();
            all.sort_unstable();
            assert_eq!(all, Scheduler::ALL);
        }
        assert_eq!(names(&deal(&Scheduler::ALL[..3], 2)[0]), "rr,lc");
    }
}
