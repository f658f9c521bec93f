//! The answers of IPVS, kept as data for tests that need no guest.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};
use lb_common::scheduler::Scheduler;

use super::console::Answers;

/// Where the answers to random and to fixed scripts are kept.
const FILES: [&str; 2] = ["tests/data/ipvs-random.txt", "tests/data/ipvs-fixed.txt"];

/// Writes the answers, in the order of the schedulers, below a line that says where they come from. A kind of which there
/// is none leaves its file as it was. Returns what was written.
pub(crate) fn write(root: &Path, head: &str, answers: &[(Scheduler, &Answers)]) -> Result<Vec<String>> {
    let mut written = Vec::new();
    for (number, file) in FILES.iter().enumerate() {
        let of_kind = |answers: &'_ Answers| [answers.random.clone(), answers.fixed.clone()][number].clone();
        let lines: Vec<String> = answers.iter().flat_map(|(_, answers)| of_kind(answers)).collect();
        if lines.is_empty() {
            continue;
        }
        let text = format!("# {head}\n{}\n", lines.join("\n"));
        let path = root.join(file);
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
        written.push(format!("{file}: {} lines", lines.len()));
    }
    if written.is_empty() {
        bail!("bpvs-oracle gave no answers to keep");
    }
    Ok(written)
}
