//! What Linux IPVS answered to the scripts of `bpvs-oracle`, replayed through the BPF programs with packets on wires.
//!
//! `cargo xtask oracle --record` writes the files: each script that IPVS and bpvs answered alike in the guest.

use std::collections::BTreeSet;

use anyhow::{Context, Result, bail, ensure};
use bpvs_tests::oracle::bpvs::Bpvs;
use bpvs_tests::oracle::compare::compare;
use bpvs_tests::oracle::modelled::{self, Modelled};
use bpvs_tests::oracle::network::{self, Network};
use bpvs_tests::oracle::played::Played;
use bpvs_tests::oracle::recorded::Recorded;
use bpvs_tests::oracle::script::Script;
use bpvs_tests::oracle::text::scripts;
use lb_common::scheduler::Scheduler;

/// Plays scripts whose answers are known; an error is the first difference with its history.
fn replay(role: &str, scripts: &[Script]) -> Result<()> {
    replay_with(role, scripts, |_, _| {})
}

/// [`replay`], with something done before each script.
fn replay_with(role: &str, scripts: &[Script], before: impl Fn(&mut Bpvs, &Script)) -> Result<()> {
    // A thread of its own: it stays on one CPU.
    network::pin()?;
    let network = Network::new(role)?;
    let mut bpvs = Played::new(Bpvs::new(&network)?, network);
    for script in scripts {
        before(bpvs.director(), script);
        let compared = compare(script, &mut Recorded::default(), &mut bpvs)?;
        ensure!(compared.difference.is_none(), "{}", compared.difference.unwrap_or_default());
    }
    Ok(())
}

/// Every scheduler has at least so many scripts with at least so many answers.
fn ensure_complete(scripts: &[Script], least: usize) -> Result<()> {
    for scheduler in Scheduler::ALL {
        let of_it = || scripts.iter().filter(|script| script.choice.scheduler == scheduler);
        let count = of_it().count();
        ensure!(count >= least, "{} has {count} recorded scripts, not {least}", scheduler.name());
        if let Some(script) = of_it().find(|script| script.steps.iter().any(|(_, answer)| answer.is_none())) {
            bail!("an event without an answer was recorded: {script}");
        }
    }
    Ok(())
}

#[test]
fn bpvs_answers_every_fixed_script_as_ipvs_did() -> Result<()> {
    let recorded = scripts(include_str!("../data/ipvs-fixed.txt"))?;
    ensure_complete(&recorded, 2)?;
    // What was recorded is what would be asked today.
    let asked = scripts(include_str!("../data/oracle-scripts.txt"))?;
    let titles = |scripts: &[Script]| scripts.iter().map(|script| script.title.clone()).collect::<BTreeSet<_>>();
    let missing: Vec<_> = titles(&asked).difference(&titles(&recorded)).cloned().collect();
    ensure!(missing.is_empty(), "not recorded: {missing:#?}; run `cargo xtask oracle --record`");
    replay("fixed", &recorded).context("tests/data/ipvs-fixed.txt")
}

#[test]
fn bpvs_answers_every_random_script_as_ipvs_did() -> Result<()> {
    let recorded = scripts(include_str!("../data/ipvs-random.txt"))?;
    ensure_complete(&recorded, 20)?;
    replay("random", &recorded).context("tests/data/ipvs-random.txt")
}

/// IPVS has no services of networks. One is a service by mark whose clients all ask for addresses of the network.
#[test]
fn bpvs_answers_for_a_network_as_ipvs_did_for_a_mark() -> Result<()> {
    let files = [include_str!("../data/ipvs-fixed.txt"), include_str!("../data/ipvs-random.txt")];
    let mut recorded = files.into_iter().map(scripts).collect::<Result<Vec<_>>>()?.concat();
    // Templates are of a mark as a whole, but of each address of a network.
    recorded.retain(|script| script.is_marked() && !script.is_persistent());
    ensure_complete(&recorded, 1)?;
    replay_with("nets", &recorded, |bpvs, script| bpvs.serve_networks(script.protocol))
}

#[test]
fn the_model_answers_as_ipvs_did() -> Result<()> {
    let files = [include_str!("../data/ipvs-fixed.txt"), include_str!("../data/ipvs-random.txt")];
    for script in files.into_iter().map(scripts).collect::<Result<Vec<_>>>()?.concat() {
        // The model does not draw.
        if script.choice.scheduler != Scheduler::TwoChoices && modelled::knows(&script) {
            let compared = compare(&script, &mut Recorded::default(), &mut Modelled::default())?;
            ensure!(compared.difference.is_none(), "{}", compared.difference.unwrap_or_default());
        }
    }
    Ok(())
}
