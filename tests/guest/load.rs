//! What the kernel has, says, and refuses.

use std::process::Command;

use anyhow::{Context, Result, ensure};
use bpvs_tests::agent::binary;
use bpvs_tests::datapath::{Sizes, load_programs, open};
use bpvs_tests::namespace;
use serde_json::Value;

/// The first kernel with TCX.
const TCX: (u32, u32) = (6, 6);
/// Lines of the verifier's log that are printed of a program that it refuses: what it says comes last.
const LOG_TAIL: usize = 30;

/// Major and minor number of the running kernel.
pub(crate) fn kernel() -> Result<(u32, u32)> {
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

/// This kernel takes every program of the object, those too that an agent loads only if it is asked to; what its verifier
/// looked at. Prints the end of the verifier's log of those that it refuses.
pub(crate) fn verified() -> Result<String> {
    let mut object = open(&Sizes::default())?;
    let names: Vec<String> = object.programs().map(|(name, _)| name.to_owned()).collect();
    let (mut refused, mut most) = (Vec::new(), (0, String::new()));
    for name in &names {
        match load_programs(&mut object, |other| other == name) {
            Ok(()) => {
                let program = object.program(name).context("the object has no such program")?.info()?;
                let count = program.verified_instruction_count().context("the kernel counts no instructions (5.16)")?;
                most = most.max((count, name.clone()));
            }
            Err(error) => {
                let text = format!("{error:#}");
                let lines: Vec<_> = text.lines().collect();
                println!("{name} is refused:\n{}", lines[lines.len().saturating_sub(LOG_TAIL)..].join("\n"));
                refused.push(name.clone());
            }
        }
    }
    ensure!(refused.is_empty(), "{} of {} programs are refused: {}", refused.len(), names.len(), refused.join(" "));
    Ok(format!("{} programs; {}: {} instructions verified", names.len(), most.1, most.0))
}
