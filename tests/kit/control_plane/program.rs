//! A program that runs until it is dropped, with what it says in a file.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result};

use crate::cleanup::{self, Guard};
use crate::namespace::Namespace;

/// So many lines of its log say what is wrong.
const LINES: usize = 40;

/// A running program. Dropping it ends it.
#[derive(Debug)]
pub struct Program {
    log: PathBuf,
    child: Arc<Mutex<Option<Child>>>,
    _guard: Guard,
}

impl Program {
    /// Starts it in a namespace. What it says is in `<name>.log` of the folder, after what it said before.
    pub(super) fn start(name: &str, namespace: &Namespace, mut command: Command, folder: &Path) -> Result<Self> {
        let log = folder.join(format!("{name}.log"));
        let said = OpenOptions::new().create(true).append(true).open(&log)?;
        // Its own process group: Ctrl-C in a terminal is for us.
        command.stdin(Stdio::null()).stdout(said.try_clone()?).stderr(said).process_group(0);
        let child: Arc<Mutex<Option<Child>>> = Arc::default();
        let running = Arc::clone(&child);
        let start = || {
            let started = namespace.spawn(&mut command).with_context(|| format!("starting {command:?}"))?;
            *child.lock().unwrap_or_else(PoisonError::into_inner) = Some(started);
            Ok(())
        };
        let end = move || {
            if let Some(mut child) = running.lock().unwrap_or_else(PoisonError::into_inner).take()
                && let Err(error) = child.kill().and_then(|()| child.wait())
            {
                eprintln!("could not end process {}: {error}", child.id());
            }
        };
        let ((), guard) = cleanup::create(name, start, end)?;
        Ok(Self { log, child, _guard: guard })
    }

    /// True if it has ended by itself.
    pub(super) fn has_ended(&self) -> Result<bool> {
        let mut child = self.child.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(child.as_mut().map(Child::try_wait).transpose()?.flatten().is_some())
    }

    /// The end of what it said.
    pub fn said(&self) -> String {
        let text = File::open(&self.log).and_then(io::read_to_string);
        let text = text.unwrap_or_else(|error| format!("{}: {error}", self.log.display()));
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(LINES)..].join("\n")
    }
}
