//! A virtual machine, and what its console says.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::packages::Kernel;
use crate::process;

/// Emulated, not virtualized: the same everywhere, in a container and on a machine that is a guest itself. Without
/// firmware tables, disks and network, a kernel is at its first process within two seconds.
const QEMU: [&str; 16] = [
    "qemu-system-x86_64",
    "-machine",
    "microvm,acpi=off",
    "-accel",
    "tcg,thread=multi",
    "-cpu",
    "qemu64,+rdrand",
    "-m",
    "512",
    "-nodefaults",
    "-no-user-config",
    "-no-reboot",
    "-display",
    "none",
    "-serial",
    "stdio",
];
/// What is not to be tested, and costs an emulated machine seconds, is off.
const KERNEL_ARGUMENTS: &str = "console=ttyS0 quiet panic=-1 reboot=t nokaslr mitigations=off audit=0 tsc=reliable \
                                cryptomgr.notests rcupdate.rcu_expedited=1 nowatchdog init_on_alloc=0";
/// Lines of a console that are shown of a run that went wrong.
const TAIL: usize = 60;

/// What became of a step.
pub(crate) struct Step {
    /// Its name.
    pub(crate) name: String,
    /// Whether it was right.
    pub(crate) right: bool,
}

/// What became of a run.
pub(crate) struct Outcome {
    /// The kernel's version, as its package has it.
    pub(crate) release: String,
    /// Names of the steps that there are.
    pub(crate) steps: Vec<String>,
    /// Those that were done.
    pub(crate) done: Vec<Step>,
    /// Exit code of the guest's program; none if the guest ended before it.
    pub(crate) code: Option<i32>,
    /// How long it took.
    pub(crate) took: Duration,
    /// All that the console said.
    pub(crate) console: PathBuf,
}

impl Outcome {
    /// Every step was done, and right.
    pub(crate) fn is_right(&self) -> bool {
        let done = |name: &String| self.done.iter().any(|step| step.right && step.name == *name);
        self.code == Some(0) && !self.steps.is_empty() && self.steps.iter().all(done)
    }

    /// What was wrong, in a few words.
    pub(crate) fn verdict(&self) -> String {
        match (self.done.iter().find(|step| !step.right), self.code) {
            (Some(step), _) => format!("step `{}` is wrong", step.name),
            (None, Some(code)) => format!("bpvs-guest ended with {code}"),
            (None, None) => format!("the guest ended, or was ended, after {:.0} s", self.took.as_secs_f64()),
        }
    }

    /// The end of the console.
    pub(crate) fn tail(&self) -> String {
        let text = fs::read(&self.console).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<_> = text.lines().collect();
        lines[lines.len().saturating_sub(TAIL)..].join("\n")
    }

    fn read(&mut self, line: &str) {
        let mut words = line.splitn(4, ' ');
        match (words.next(), words.next(), words.next()) {
            (Some("steps"), ..) => self.steps = line.split(' ').skip(1).map(str::to_owned).collect(),
            (Some("step"), Some(name), Some(result @ ("ok" | "wrong"))) => {
                self.done.push(Step { name: name.to_owned(), right: result == "ok" });
                let found = words.next().unwrap_or_default();
                let release = &self.release;
                eprintln!("      {:5.1} s  {release}  {result:5}  {name}: {found}", self.took.as_secs_f64());
            }
            (Some("ended"), Some(code), None) => self.code = code.parse().ok(),
            _ => {}
        }
    }
}

/// Boots a kernel and waits for the end of the guest, at most for `limit`.
pub(crate) fn run(kernel: &Kernel, initramfs: &Path, console: &Path, limit: Duration) -> Result<Outcome> {
    let started = Instant::now();
    // `timeout` ends the guest also when this process is ended before it.
    let mut command = Command::new("timeout");
    command.args(["--foreground", "--kill-after=5", &limit.as_secs().to_string()]).args(QEMU);
    command.arg("-kernel").arg(kernel.image()).arg("-initrd").arg(initramfs).args(["-append", KERNEL_ARGUMENTS]);
    let line = process::line(&command);
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot start `{line}`"))?;
    let mut outcome = Outcome {
        release: kernel.release.clone(),
        steps: Vec::new(),
        done: Vec::new(),
        code: None,
        took: Duration::ZERO,
        console: console.to_owned(),
    };
    let mut copy = File::create(console).with_context(|| format!("cannot create {}", console.display()))?;
    let mut output = BufReader::new(child.stdout.take().context("QEMU's output is not piped")?);
    let mut bytes = Vec::new();
    // Bytes, since a console is no text until it is proved to be.
    while output.read_until(b'\n', &mut bytes).with_context(|| format!("cannot read the output of `{line}`"))? > 0 {
        copy.write_all(&bytes).with_context(|| format!("cannot write {}", console.display()))?;
        outcome.took = started.elapsed();
        outcome.read(String::from_utf8_lossy(&bytes).trim_end());
        bytes.clear();
    }
    // Its exit status says how the machine ended, which is always by a reset; what counts is what the guest said.
    child.wait().with_context(|| format!("cannot wait for `{line}`"))?;
    outcome.took = started.elapsed();
    Ok(outcome)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(lines: &[&str]) -> Outcome {
        let (release, took, console) = ("6.1.0-57".to_owned(), Duration::ZERO, PathBuf::new());
        let mut outcome = Outcome { release, steps: Vec::new(), done: Vec::new(), code: None, took, console };
        lines.iter().for_each(|line| outcome.read(line));
        outcome
    }

    #[test]
    fn a_run_is_right_only_if_every_step_was_right_and_the_program_ended_well() {
        let all = ["steps a b", "step a ok found", "noise", "step b ok", "ended 0"];
        assert!(outcome(&all).is_right());
        assert!(!outcome(&all[..4]).is_right());
        assert!(!outcome(&[all[0], all[1], all[4]]).is_right());
        assert!(!outcome(&all[1..]).is_right());
        let wrong = outcome(&["steps a b", "step a wrong why", "ended 1"]);
        assert!(!wrong.is_right());
        assert_eq!(wrong.verdict(), "step `a` is wrong");
        assert_eq!(outcome(&["ended 101"]).verdict(), "bpvs-guest ended with 101");
    }
}
