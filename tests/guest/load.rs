//! What the kernel has, says, and refuses.

use std::process::Command;

use anyhow::{Context, Result, ensure};
use aya::programs::loaded_programs;
use bpvs_tests::agent::binary;
use bpvs_tests::datapath::{Sizes, load_programs, open};
use bpvs_tests::namespace;
use serde_json::Value;

/// The first kernel with TCX.
const TCX: (u32, u32) = (6, 6);
/// Lines of the verifier's log that are printed of a program that it refuses: what it says comes last.
const LOG_TAIL: usize = 30;

/// Major and minor number of the running kernel.
fn kernel() -> Result<(u32, u32)> {
    let release = nix::sys::utsname::uname()?.release().to_string_lossy().into_owned();
    let mut numbers = release.split(['.', '-']).map(str::parse);
    let mut number = || numbers.next()?.ok();
    let version = (|| Some((number()?, number()?)))();
    version.with_context(|| format!("the kernel calls itself `{release}`, which begins with no version"))
}

/// How programs are to be attached to interfaces here.
pub(crate) fn expected_hook() -> Result<&'static str> {
    Ok(if kernel()? >= TCX { "tcx" } else { "clsact" })
}

/// `bpvs check` finds what bpvs needs, and says rightly whether TCX is there.
pub(crate) fn check() -> Result<String> {
    let output = namespace::run(Command::new(binary()?).args(["check", "-o", "json"]))?;
    let answer: Value = serde_json::from_slice(&output.stdout).context("reading what `bpvs check -o json` printed")?;
    let features = answer["features"].as_array().context("`bpvs check` printed no list of features")?;
    let tcx = if expected_hook()? == "tcx" { "ok" } else { "absent" };
    let mut absent = Vec::new();
    for feature in features {
        let (name, status) = (feature["feature"].as_str().unwrap_or_default(), &feature["status"]);
        let wanted = if name == "TCX" { tcx } else { "ok" };
        ensure!(status == wanted, "`bpvs check` says {status} of {name}, not \"{wanted}\": {}", feature["detail"]);
        if wanted != "ok" {
            absent.push(name);
        }
    }
    let without = if absent.is_empty() { String::new() } else { format!(", without {}", absent.join(", ")) };
    Ok(format!("{} features{without}", features.len() - absent.len()))
}

/// Programs that the kernel has of a running agent, and what its verifier looked at.
pub(crate) fn verified() -> Result<String> {
    let (mut count, mut most) = (0, (0, String::new()));
    for program in loaded_programs() {
        let program = program.context("listing the kernel's programs")?;
        let Some(name) = program.name_as_str().filter(|name| name.starts_with("bpvs_")) else { continue };
        let instructions = program.verified_instruction_count().context("the kernel counts no instructions (5.16)")?;
        count += 1;
        most = most.max((instructions, name.to_owned()));
    }
    ensure!(count > 0, "the agent is ready, and the kernel has no program of it");
    Ok(format!("{count} programs; {}: {} instructions verified", most.1, most.0))
}

/// Prints the end of the verifier's log of every program of the object that this kernel refuses.
pub(crate) fn print_refusals() -> Result<()> {
    let mut object = open(&Sizes::default())?;
    let names: Vec<String> = object.programs().map(|(name, _)| name.to_owned()).collect();
    for name in &names {
        if let Err(error) = load_programs(&mut object, |other| other == name) {
            let text = format!("{error:#}");
            let lines: Vec<_> = text.lines().collect();
            println!("{name} is refused:\n{}", lines[lines.len().saturating_sub(LOG_TAIL)..].join("\n"));
        }
    }
    Ok(())
}
