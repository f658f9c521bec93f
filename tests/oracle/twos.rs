//! twos draws: what can be compared is how often each server is chosen.
//!
//! The rule of `ip_vs_twos.c` says for each pick, from weights and connections, how likely each server is. Over many picks
//! a server's count then has a mean and a variance, and their distance is bounded.

use std::collections::BTreeMap;

use anyhow::{Result, ensure};
use bpvs_tests::oracle::random::Random;
use bpvs_tests::oracle::script::{Answer, CLIENTS, Choice, Event, Flow, PORTS, Script, Server, Share, Side, Signal};
use bpvs_tests::oracle::subject::Subject;
use bpvs_tests::oracle::{control::Switches, generate};
use lb_common::{address::Protocol, scheduler::Scheduler};

/// Scripts, and connections that each opens.
const SCRIPTS: u32 = 24;
const PICKS: u32 = 1_200;
/// Standard deviations between a count and its mean: one in 10^9 right runs is beyond.
const MOST: f64 = 6.2;

/// What was found.
#[derive(Default)]
pub(crate) struct Found {
    pub(crate) scripts: u64,
    pub(crate) decisions: u64,
    pub(crate) wrong: Vec<String>,
}

/// A server as the rule sees it: weight and connections, all active.
#[derive(Clone, Copy)]
struct Seen {
    server: Server,
    weight: i64,
    active: i64,
}

/// Opens many connections at both and holds the counts against the rule.
pub(crate) fn distribution(seed: u64, one: &mut dyn Subject, other: &mut dyn Subject) -> Result<Found> {
    let mut found = Found::default();
    for number in 0..SCRIPTS {
        let script = script(seed, number);
        for first in [true, false] {
            let subject: &mut dyn Subject = if first { &mut *one } else { &mut *other };
            if subject.name() == "model" {
                // The model does not draw.
                continue;
            }
            let wrong = play(&script, subject)?;
            found.decisions += u64::from(PICKS);
            found.wrong.extend(wrong.map(|wrong| format!("{}: {wrong}\n{script}", subject.name())));
        }
        found.scripts += 1;
    }
    Ok(found)
}

/// A service and its servers; what is opened follows from [`PICKS`].
fn script(seed: u64, number: u32) -> Script {
    let mut random = Random::new(seed ^ (u64::from(number) << 40));
    let servers = random.between(2, 6) as Server;
    let share = |weight: usize| Share { weight: weight as i32, ..Share::default() };
    let adds = (1..=servers).map(|server| (Event::Add(server, share(random.below(8))), None)).collect();
    Script {
        title: String::new(),
        number: 2 * generate::CASES * Scheduler::ALL.len() as u32 - 1 - number,
        protocol: Protocol::Tcp,
        v6: number % 2 == 1,
        places: 0,
        choice: Choice::plain(Scheduler::TwoChoices, number % 2 == 1),
        switches: Switches::default(),
        steps: adds,
    }
}

/// Plays a script; what is wrong, if it is.
fn play(script: &Script, subject: &mut dyn Subject) -> Result<Option<String>> {
    subject.begin(script)?;
    let mut list: Vec<Seen> = Vec::new();
    for (event, _) in &script.steps {
        subject.event(event)?;
        if let &Event::Add(server, share) = event {
            list.insert(0, Seen { server, weight: share.weight.into(), active: 0 });
        }
    }
    let mut sums = BTreeMap::<Server, [f64; 3]>::new();
    let mut wrong = None;
    for pick in 0..PICKS {
        let likely = probabilities(&list);
        let flow = Flow { client: (pick % u32::from(CLIENTS)) as u8, port: (pick / u32::from(CLIENTS)) as u16 };
        ensure!(flow.port < PORTS, "more picks than connections of a script");
        let answer = subject.event(&Event::Packet { flow, from: Side::Client, signal: Signal::Open })?;
        let chosen = match answer {
            Answer::Server(server) => Some(server),
            _ => None,
        };
        let is_right = match chosen {
            Some(chosen) => likely.iter().any(|(server, chance)| *server == chosen && *chance > 0.0),
            None => likely.is_empty() && answer == Answer::Unreachable,
        };
        if !is_right {
            wrong = Some(format!("pick {pick}: {answer}, where the rule has {likely:?}"));
            break;
        }
        for (server, chance) in likely {
            let [count, mean, variance] = sums.entry(server).or_default();
            *count += f64::from(u8::from(Some(server) == chosen));
            *mean += chance;
            *variance += chance * (1.0 - chance);
        }
        list.iter_mut().filter(|seen| Some(seen.server) == chosen).for_each(|seen| seen.active += 1);
    }
    subject.end()?;
    for (server, [count, mean, variance]) in sums {
        let distance = (count - mean).abs();
        // Small variances: a count is a whole number.
        if distance > MOST * variance.sqrt() + 1.0 {
            wrong.get_or_insert(format!("server {server} was chosen {count} times, where the rule has {mean:.1}"));
        }
    }
    Ok(wrong)
}

/// How likely each usable server is for the next pick: both draws, then the comparison of the two.
fn probabilities(list: &[Seen]) -> Vec<(Server, f64)> {
    let usable: Vec<Seen> = list.iter().copied().filter(|seen| seen.weight > 0).collect();
    let total: i64 = usable.iter().map(|seen| seen.weight).sum();
    // 0 to the total are drawn, all included: the first of the list has one more than its weight.
    let share = |place: usize| (usable[place].weight + i64::from(place == 0)) as f64 / (total + 1) as f64;
    let mut chances = vec![0.0; usable.len()];
    for first in 0..usable.len() {
        for second in 0..usable.len() {
            let (one, two) = (usable[first], usable[second]);
            // The load is the same number for each active connection.
            let second_is_better = two.weight * one.active > one.weight * two.active;
            chances[if second_is_better { second } else { first }] += share(first) * share(second);
        }
    }
    usable.iter().zip(chances).map(|(seen, chance)| (seen.server, chance)).collect()
}
