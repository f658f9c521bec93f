//! Scheduler by scheduler, script by script.

use std::collections::BTreeMap;
use std::io::Write as _;

use anyhow::{Context as _, Result};
use bpvs_tests::namespace;
use bpvs_tests::oracle::compare::{Compared, compare};
use bpvs_tests::oracle::generate;
use bpvs_tests::oracle::modelled;
use bpvs_tests::oracle::network;
use bpvs_tests::oracle::script::Script;
use bpvs_tests::oracle::subject::Subject;
use bpvs_tests::oracle::text::scripts;
use lb_common::scheduler::Scheduler;

use crate::options::{Against, Options};
use crate::{subjects, twos};

/// The fixed scripts, without answers.
const FIXED: &str = include_str!("../data/oracle-scripts.txt");

/// Histories that are printed of each scheduler; the others are counted.
const SHOWN: u64 = 5;
/// Scripts on one network of the reference: IPVS keeps what is over in its table.
const ON_ONE_NETWORK: u64 = 1_000;
/// A script that was played too slowly to say something of timeouts is played again, with other addresses.
const OTHER_ADDRESSES: u32 = 1 << 21;

/// Who is compared, and what was found.
struct Run<'a> {
    options: &'a Options,
    reference: Box<dyn Subject>,
    tested: Box<dyn Subject>,
    played: u64,
}

#[derive(Default)]
struct Row {
    scripts: u64,
    decisions: u64,
    differences: u64,
}

/// Runs all that was asked for; how many differences there were.
pub(crate) fn run(options: &Options) -> Result<u64> {
    network::pin()?;
    for name in namespace::reap_leftovers()? {
        eprintln!("removed {name}, left behind by a killed run");
    }
    let (reference, tested) = (subjects::reference(options.against)?, subjects::tested()?);
    let mut run = Run { options, reference, tested, played: 0 };
    if let Some(text) = &options.script {
        let all = scripts(text)?;
        let scheduler = all.first().context("--script names no script")?.choice.scheduler;
        return run.rows(scheduler, &all);
    }
    let mut fixed = BTreeMap::<Scheduler, Vec<Script>>::new();
    for (place, script) in (0..).zip(scripts(FIXED)?) {
        let script = Script { number: generate::FIXED + place, ..script };
        fixed.entry(script.choice.scheduler).or_default().push(script);
    }
    let mut differences = 0;
    for &scheduler in &options.schedulers {
        differences += run.rows(scheduler, fixed.get(&scheduler).map_or(&[], Vec::as_slice))?;
    }
    Ok(differences)
}

impl Run<'_> {
    /// One scheduler.
    fn rows(&mut self, scheduler: Scheduler, fixed: &[Script]) -> Result<u64> {
        let mut row = Row::default();
        // The model does not draw.
        let playable = scheduler != Scheduler::TwoChoices || self.options.against != Against::Model;
        let known = |script: &Script| self.options.against != Against::Model || modelled::knows(script);
        let fixed: Vec<&Script> = fixed.iter().filter(|script| playable && known(script)).collect();
        for script in fixed {
            self.one(script, "fixed", &mut row)?;
        }
        if playable && !self.options.only_fixed && self.options.script.is_none() {
            for case in 0..self.options.cases {
                let script = generate::script(scheduler, self.options.seed, case);
                if self.options.against != Against::Model || modelled::knows(&script) {
                    self.one(&script, "record", &mut row)?;
                }
                if (case + 1) % 100 == 0 {
                    say(&format!("at {} {}", scheduler.name(), row.scripts));
                }
            }
        }
        if scheduler == Scheduler::TwoChoices && self.options.script.is_none() {
            let found = twos::distribution(self.options.seed, self.reference.as_mut(), self.tested.as_mut())?;
            row.scripts += found.scripts;
            row.decisions += found.decisions;
            row.differences += found.wrong.len() as u64;
            found.wrong.iter().for_each(|wrong| show(wrong));
        }
        let Row { scripts, decisions, differences } = row;
        say(&format!("row {} {scripts} {decisions} {differences}", scheduler.name()));
        Ok(differences)
    }

    fn one(&mut self, script: &Script, kept: &str, row: &mut Row) -> Result<()> {
        let mut script = script.clone();
        let mut compared = self.compare(&script)?;
        if compared.late && compared.difference.is_some() {
            script.number ^= OTHER_ADDRESSES;
            compared = self.compare(&script)?;
        }
        row.scripts += 1;
        row.decisions += compared.decisions;
        match &compared.difference {
            Some(history) => {
                row.differences += 1;
                if row.differences <= SHOWN {
                    show(history);
                }
            }
            None if self.options.record => {
                if !script.title.is_empty() {
                    say(&format!("{kept} # {}", script.title));
                }
                say(&format!("{kept} {}", script.answered(&compared.answers)));
            }
            None => {}
        }
        Ok(())
    }

    fn compare(&mut self, script: &Script) -> Result<Compared> {
        self.played += 1;
        if self.played.is_multiple_of(ON_ONE_NETWORK) {
            self.reference = subjects::reference(self.options.against)?;
        }
        compare(script, self.reference.as_mut(), self.tested.as_mut())
    }
}

fn show(history: &str) {
    history.lines().for_each(|line| say(&format!("| {line}")));
}

/// A line, at once: whoever reads it follows the run.
fn say(line: &str) {
    let mut output = std::io::stdout().lock();
    // Without a reader there is nobody to tell.
    let _ = writeln!(output, "{line}").and_then(|()| output.flush());
}
