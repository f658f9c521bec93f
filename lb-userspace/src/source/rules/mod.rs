//! A file of rules as `ipvsadm -S -n` writes it, watched.
//!
//! | module | idea |
//! |---|---|
//! | `words` | a line's words -> options |
//! | `command` | options -> what the line does |
//! | `table` | what all lines come to |
//! | `parse` | a file, and what is wrong with it |
//!
//! Any change leads to reading the whole file again. While some line of it is wrong, what the file held before and lacks
//! now stays: it may be what is wrong. Lines that are right hold at once.

mod command;
mod parse;
mod table;
mod words;

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tracing::{error, info};

use super::Sender;
use super::file::{Fingerprint, read_bytes, shown};
use super::follow::{self, POLL, follow};
use crate::model::{Change, Problem, RuleService, Rules, SourceId};

/// A source of rules.
#[derive(Clone, Debug)]
pub struct RulesFile {
    path: PathBuf,
    poll: Duration,
}

impl RulesFile {
    /// A source for a file.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), poll: POLL }
    }

    /// The same, looked at this often.
    pub fn poll_every(mut self, poll: Duration) -> Self {
        self.poll = poll;
        self
    }

    /// Checks that the file can be read, for a clear end at the start of the program.
    pub fn check(&self) -> io::Result<()> {
        read_bytes(&self.path).map(drop).map_err(io::Error::other)
    }

    /// Reads once, without watching.
    pub fn read_once(&self) -> io::Result<Rules> {
        let bytes = read_bytes(&self.path).map_err(io::Error::other)?;
        let parsed = parse::parse(&shown(&self.path), &bytes, &[]);
        Ok(Rules { services: parsed.services, problems: parsed.problems, gaps: !parsed.whole })
    }

    /// Sends the rules now and after each change, until nobody listens. The first ones come as soon as the file can be
    /// read.
    pub async fn run(self, sender: Sender) {
        follow(SourceId::RULES, self.path.clone(), self.poll, Reader::new(&self.path), sender).await;
    }
}

struct Reader {
    path: PathBuf,
    /// What holds now.
    held: Vec<RuleService>,
    /// True once the file was right as a whole.
    known: bool,
    delivered: bool,
    failing: bool,
}

/// A file of no bytes is one that is about to be written, or that a full disk ate.
const EMPTIED: &str = "is empty; what it held last stays: write -C into it to take everything away";

impl Reader {
    fn new(path: &Path) -> Self {
        Self { path: path.to_owned(), held: Vec::new(), known: false, delivered: false, failing: false }
    }

    fn rules(&self, problems: Vec<Problem>) -> Rules {
        Rules { services: self.held.clone(), problems, gaps: !self.known }
    }

    fn problem(&self, message: String) -> Problem {
        Problem {
            object: "rules".to_owned(),
            location: Some(self.path.display().to_string()),
            field: String::new(),
            value: String::new(),
            message,
        }
    }
}

impl follow::Reader for Reader {
    fn read(&mut self) -> Option<Change> {
        let bytes = match read_bytes(&self.path) {
            Ok(bytes) => bytes,
            Err(message) => {
                let failing = std::mem::replace(&mut self.failing, true);
                if !self.delivered {
                    if !failing {
                        error!("{}; nothing is programmed until it can be read", self.problem(message));
                    }
                    return None;
                }
                let problem = self.problem(format!("{message}; what it held last stays"));
                return Some(Change::Rules(self.rules(vec![problem])));
            }
        };
        if std::mem::replace(&mut self.failing, false) {
            info!("{}: can be read again", self.path.display());
        }
        self.delivered = true;
        if bytes.is_empty() && !self.held.is_empty() {
            return Some(Change::Rules(self.rules(vec![self.problem(EMPTIED.to_owned())])));
        }
        let parsed = parse::parse(&shown(&self.path), &bytes, &self.held);
        self.held = parsed.services;
        self.known |= parsed.whole;
        Some(Change::Rules(self.rules(parsed.problems)))
    }

    fn fingerprint(&self) -> io::Result<Fingerprint> {
        // An error, as for a folder that is gone, so that its coming back is a change.
        self.path.metadata().map(|_| Fingerprint::of([self.path.clone()]))
    }
}

#[cfg(test)]
mod tests;
