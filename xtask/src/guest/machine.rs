//! A virtual machine, and what its console says.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::ValueEnum;

use super::emulator::Emulator;
use crate::process;

/// Emulated, not virtualized: the same everywhere, in a container and on a machine that is a guest itself. Without
/// firmware tables, disks and network, a kernel is at its first process within two seconds.
const MACHINE: [&str; 13] = [
    "-machine",
    "microvm,acpi=off",
    "-cpu",
    "qemu64,+rdrand,+ssse3,+sse4.1,+sse4.2",
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

/// What a guest's clock counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Clock {
    /// Time as it passes here
    Time,
    /// Instructions, a nanosecond each; a guest that waits need not be waited for. Runs repeat exactly
    Instructions,
}

impl Clock {
    fn arguments(self) -> &'static [&'static str] {
        match self {
            Self::Time => &["-accel", "tcg,thread=multi"],
            // The date and the seed of random numbers are part of what a run repeats.
            Self::Instructions => &[
                "-accel",
                "tcg,thread=single",
                "-icount",
                "shift=0,sleep=off",
                "-rtc",
                "base=2026-01-01,clock=vm",
                "-seed",
                "1",
            ],
        }
    }
}

/// What is booted.
pub(crate) struct Guest<'a> {
    /// The kernel's file.
    pub(crate) kernel: &'a Path,
    /// The first file system's file.
    pub(crate) initramfs: &'a Path,
    /// Where to keep what the console says.
    pub(crate) console: PathBuf,
    /// What its clock counts.
    pub(crate) clock: Clock,
    /// The longest that it may take.
    pub(crate) limit: Duration,
}

/// How a guest ended.
pub(crate) struct Ended {
    /// Exit code of its script; none if the guest ended before it.
    pub(crate) code: Option<i32>,
    /// How long it took.
    pub(crate) took: Duration,
    /// All that the console said.
    pub(crate) console: PathBuf,
}

impl Ended {
    /// The end of the console.
    pub(crate) fn tail(&self) -> String {
        let text = fs::read(&self.console).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<_> = text.lines().collect();
        lines[lines.len().saturating_sub(TAIL)..].join("\n")
    }

    /// How it ended, in a few words.
    pub(crate) fn how(&self) -> String {
        match self.code {
            Some(code) => format!("its script ended with {code}"),
            None => format!("the guest ended, or was ended, after {:.0} s", self.took.as_secs_f64()),
        }
    }
}

/// Boots a guest and waits for its end. `hear` is told each line of the console, and how long after the start.
pub(crate) fn run(guest: Guest<'_>, mut hear: impl FnMut(Duration, &str)) -> Result<Ended> {
    let started = Instant::now();
    // `timeout` ends the guest also when this process is ended before it.
    let mut command = Command::new("timeout");
    command.args(["--foreground", "--kill-after=5", &guest.limit.as_secs().to_string()]);
    Emulator::find()?.append(&mut command);
    command.args(MACHINE);
    command.args(guest.clock.arguments()).arg("-kernel").arg(guest.kernel).arg("-initrd").arg(guest.initramfs);
    command.args(["-append", KERNEL_ARGUMENTS]);
    let line = process::line(&command);
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot start `{line}`"))?;
    let cannot_write = || format!("cannot write {}", guest.console.display());
    let mut copy = File::create(&guest.console).with_context(cannot_write)?;
    let mut output = BufReader::new(child.stdout.take().context("QEMU's output is not piped")?);
    let (mut code, mut bytes) = (None, Vec::new());
    // Bytes, since a console is no text until it is proved to be.
    while output.read_until(b'\n', &mut bytes).with_context(|| format!("cannot read the output of `{line}`"))? > 0 {
        copy.write_all(&bytes).with_context(cannot_write)?;
        let text = String::from_utf8_lossy(&bytes);
        let text = text.trim_end();
        code = code.or(ended(text));
        hear(started.elapsed(), text);
        bytes.clear();
    }
    // Its exit status says how the machine ended, which is always by a reset; what counts is what the guest said.
    child.wait().with_context(|| format!("cannot wait for `{line}`"))?;
    Ok(Ended { code, took: started.elapsed(), console: guest.console })
}

/// The exit code in the last line of `init.sh`.
fn ended(line: &str) -> Option<i32> {
    line.strip_prefix("ended ")?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_line_has_the_exit_code() {
        assert_eq!(ended("ended 0"), Some(0));
        assert_eq!(ended("ended 101"), Some(101));
        for other in ["ended", "ended well", "step x ended 0", ""] {
            assert_eq!(ended(other), None, "{other}");
        }
    }
}
