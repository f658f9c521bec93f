//! One script, two subjects: the first event that they answer differently.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use lb_common::scheduler::Scheduler;

use super::script::{Answer, Event, Flow, Listed, Script, Server, Side};
use super::subject::Subject;

/// Between two waits: the shortest timeout that scripts set is 2 s.
const HURRY: Duration = Duration::from_millis(1_500);

/// Milliseconds between two sweeps of bpvs, as its agent makes them: whether a template runs out before its connections
/// shows only then.
const SWEEP: u32 = 1_000;

/// What a comparison found.
#[derive(Clone, Debug)]
pub struct Compared {
    /// Answers that were compared: where packets went, and lists.
    pub decisions: u64,
    /// The first difference, with its history.
    pub difference: Option<String>,
    /// The reference's answers, up to the difference.
    pub answers: Vec<Answer>,
    /// The machine was so slow that a timeout may have passed where none should have.
    pub late: bool,
}

/// Plays a script to both. An error is a failure to play it, not a difference.
pub fn compare(script: &Script, reference: &mut dyn Subject, tested: &mut dyn Subject) -> Result<Compared> {
    let shown = || format!("script `{script}`");
    reference.begin(script).with_context(shown)?;
    tested.begin(script).with_context(shown)?;
    let mut compared = Compared { decisions: 0, difference: None, answers: Vec::new(), late: false };
    let (mut rule, mut last, waits) = (Rule::new(script), Instant::now(), has_waits(script));
    for (place, (event, _)) in script.steps.iter().enumerate() {
        let at = |subject: &dyn Subject| {
            format!("{}, event {place} `{}` of `{script}`", subject.name(), event.text(script.v6))
        };
        let (wanted, found) = if let Event::Wait(milliseconds) = *event {
            compared.late |= waits && last.elapsed() > HURRY;
            let (mut left, most) = (milliseconds, if script.is_persistent() { SWEEP } else { milliseconds });
            while left > 0 {
                let part = left.min(most);
                let passed = reference.wait(part, false).with_context(|| at(reference))?;
                tested.wait(part, passed).with_context(|| at(tested))?;
                left -= part;
            }
            last = Instant::now();
            (Answer::Done, Answer::Done)
        } else {
            let wanted = reference.event(event).with_context(|| at(reference))?;
            (wanted, tested.event(event).with_context(|| at(tested))?)
        };
        compared.answers.push(wanted.clone());
        compared.decisions += u64::from(!matches!(wanted, Answer::Done | Answer::Void));
        if let Some(why) = rule.differs(event, &wanted, &found) {
            let names = (reference.name(), tested.name());
            compared.late |= waits && last.elapsed() > HURRY;
            compared.difference = Some(history(script, place, names, &compared.answers, &found, &why));
            break;
        }
    }
    reference.end().with_context(shown)?;
    tested.end().with_context(shown)?;
    Ok(compared)
}

fn has_waits(script: &Script) -> bool {
    script.steps.iter().any(|(event, _)| matches!(event, Event::Wait(_)))
}

fn history(
    script: &Script,
    place: usize,
    (reference, tested): (&str, &str),
    answers: &[Answer],
    found: &Answer,
    why: &str,
) -> String {
    let event = script.steps[place].0.text(script.v6);
    let title = if script.title.is_empty() { String::new() } else { format!("{}\n", script.title) };
    let wanted = script.answered(answers);
    let mut other = answers.to_vec();
    if let Some(last) = other.last_mut() {
        last.clone_from(found);
    }
    let other = script.answered(&other);
    format!("{title}event {place} `{event}`: {why}\n{reference}: {wanted}\n{tested}: {other}")
}

/// What counts as the same answer. For all but twos, the same answer.
struct Rule {
    random: bool,
    scheduler: Scheduler,
    weights: BTreeMap<Server, i32>,
    /// Servers of connections, as the tested subject chose them.
    flows: BTreeMap<Flow, Server>,
}

impl Rule {
    fn new(script: &Script) -> Self {
        let scheduler = script.choice.scheduler;
        let random = scheduler == Scheduler::TwoChoices;
        Self { random, scheduler, weights: BTreeMap::new(), flows: BTreeMap::new() }
    }

    /// Why two answers are not the same.
    fn differs(&mut self, event: &Event, wanted: &Answer, found: &Answer) -> Option<String> {
        if !self.random {
            return (wanted != found).then(|| format!("{}, not {}", shown(found), shown(wanted)));
        }
        match *event {
            Event::Add(server, share) | Event::Edit(server, share) => drop(self.weights.insert(server, share.weight)),
            Event::Remove(server) => drop(self.weights.remove(&server)),
            Event::Renew => self.weights.clear(),
            Event::Service(choice) => self.scheduler = choice.scheduler,
            _ => {}
        }
        match (event, wanted, found) {
            (&Event::Packet { flow, from: Side::Client, .. }, Answer::Server(_), &Answer::Server(server)) => {
                let old = self.flows.insert(flow, server);
                let usable = self.weights.get(&server).is_some_and(|weight| *weight > 0);
                (!usable && old != Some(server)).then(|| format!("{server} is not usable"))
            }
            (_, Answer::List(wanted), Answer::List(found)) => {
                let order = |list: &[Listed]| list.iter().map(|listed| listed.server).collect::<Vec<_>>();
                let sums = |list: &[Listed]| {
                    let sum = |of: fn(&Listed) -> u32| list.iter().map(of).sum::<u32>();
                    (sum(|listed| listed.active), sum(|listed| listed.inactive))
                };
                let same = order(wanted) == order(found) && sums(wanted) == sums(found);
                (!same).then(|| format!("{:?} and {:?} connections, or another order", sums(found), sums(wanted)))
            }
            _ => (wanted != found).then(|| format!("{}, not {}", shown(found), shown(wanted))),
        }
    }
}

fn shown(answer: &Answer) -> String {
    match answer {
        Answer::Done => "done".to_owned(),
        Answer::Reply => "translated".to_owned(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::oracle::{modelled::Modelled, recorded::Recorded};

    fn difference(text: &str) -> Option<String> {
        let script: Script = text.parse().unwrap();
        compare(&script, &mut Recorded::default(), &mut Modelled::default()).unwrap().difference
    }

    #[test]
    fn every_kind_of_answer_is_compared() {
        for (right, wrong) in [
            ("rr tcp4 : +1:1 +2:1 a0s=2 b0s=1", "rr tcp4 : +1:1 +2:1 a0s=2 b0s=2"),
            ("rr tcp4 : a0s=R", "rr tcp4 : a0s=-"),
            ("rr tcp4 : +1:1 a0a=T", "rr tcp4 : +1:1 a0a=R"),
            ("rr tcp4 : +1:1 a0s=1 a0S a0d=1", "rr tcp4 : +1:1 a0s=1 a0S=u"),
            ("rr tcp4 : +1:1 a0s=1 ?=1:1/0", "rr tcp4 : +1:1 a0s=1 ?=1:0/1"),
            ("rr udp6 : +1:1 +2:0 a0d=1 ?=2:0/0,1:0/1", "rr udp6 : +1:1 +2:0 a0d=1 ?=1:0/1,2:0/0"),
        ] {
            assert_eq!(difference(right), None);
            let found = difference(wrong).unwrap_or_else(|| panic!("no difference in {wrong}"));
            assert!(found.contains("recorded: rr ") && found.contains("model: rr "), "{found}");
        }
    }

    #[test]
    fn a_difference_ends_its_script_and_shows_both_answers() {
        let found = difference("lc tcp4 vip=9 : +1:1 +2:1 a0s=2 b0s=2 c0s=1").unwrap();
        let lines: Vec<_> = found.lines().collect();
        assert_eq!(lines[0], "event 3 `b0s`: 1, not 2");
        assert_eq!(lines[1], "recorded: lc tcp4 vip=9 : +1:1 +2:1 a0s=2 b0s=2");
        assert_eq!(lines[2], "model: lc tcp4 vip=9 : +1:1 +2:1 a0s=2 b0s=1");
    }

    #[test]
    fn twos_may_choose_any_usable_server_and_no_other() {
        let script: Script = "twos tcp4 : +1:1 +2:0 +3:1 a0s".parse().unwrap();
        let mut rule = Rule::new(&script);
        for (event, _) in &script.steps[..3] {
            assert_eq!(rule.differs(event, &Answer::Done, &Answer::Done), None);
        }
        let open = &script.steps[3].0;
        assert_eq!(rule.differs(open, &Answer::Server(3), &Answer::Server(1)), None);
        assert!(rule.differs(open, &Answer::Server(3), &Answer::Server(2)).is_some());
        assert!(rule.differs(open, &Answer::Unreachable, &Answer::Server(1)).is_some());
        let list = |one, two| {
            let listed = |(server, active)| Listed { server, active, inactive: 0, persistent: 0 };
            Answer::List([(3, one), (2, 0), (1, two)].map(listed).to_vec())
        };
        assert_eq!(rule.differs(&Event::Look, &list(1, 2), &list(2, 1)), None);
        assert!(rule.differs(&Event::Look, &list(1, 2), &list(2, 2)).is_some());
    }
}
