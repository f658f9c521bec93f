//! What a process says on stderr, kept as lines and waited for.

use std::io::{BufRead, BufReader};
use std::process::ChildStderr;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Result;

/// Lines kept; a process that says more is broken, and its first lines tell most.
const KEPT: usize = 100_000;

/// A growing log, without terminal colours.
#[derive(Debug, Clone, Default)]
pub struct Log {
    shared: Arc<(Mutex<Vec<String>>, Condvar)>,
}

impl Log {
    /// Number of lines so far: a mark for [`Self::wait`] and [`Self::text`].
    pub fn len(&self) -> usize {
        self.lines().len()
    }

    /// True if nothing was said.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The lines from `mark` on, as one text.
    pub fn text(&self, mark: usize) -> String {
        let lines = self.lines();
        lines[mark.min(lines.len())..].join("\n")
    }

    /// Waits until a line from `mark` on is `wanted`; false at the deadline.
    pub fn wait(&self, mark: usize, deadline: Duration, wanted: impl Fn(&str) -> bool) -> bool {
        let end = Instant::now() + deadline;
        let mut lines = self.lines();
        loop {
            if lines[mark.min(lines.len())..].iter().any(|line| wanted(line)) {
                return true;
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            let waited = self.shared.1.wait_timeout(lines, left);
            lines = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Reads a process's stderr to its end, on a thread.
    pub(super) fn follow(&self, stderr: ChildStderr) -> Result<()> {
        let log = self.clone();
        std::thread::Builder::new().name("agent log".into()).spawn(move || {
            for line in BufReader::new(stderr).split(b'\n').map_while(Result::ok) {
                let mut lines = log.lines();
                if lines.len() < KEPT {
                    lines.push(without_colours(&String::from_utf8_lossy(&line)));
                }
                drop(lines);
                log.shared.1.notify_all();
            }
        })?;
        Ok(())
    }

    fn lines(&self) -> MutexGuard<'_, Vec<String>> {
        self.shared.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// True if the line holds the word `ready`, and not as `not ready`. (`already` holds the letters.)
pub(super) fn says_ready(line: &str) -> bool {
    let words: Vec<_> = line.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty()).collect();
    let place = words.iter().position(|word| word.eq_ignore_ascii_case("ready"));
    place.is_some_and(|place| place == 0 || !words[place - 1].eq_ignore_ascii_case("not"))
}

/// Removes escape sequences of the form `ESC [ ... letter`.
fn without_colours(line: &str) -> String {
    let mut clean = String::with_capacity(line.len());
    let mut rest = line;
    while let Some((before, after)) = rest.split_once("\u{1b}[") {
        clean.push_str(before);
        let end = after.find(|c: char| c.is_ascii_alphabetic()).map_or(after.len(), |at| at + 1);
        rest = &after[end..];
    }
    clean + rest
}

#[cfg(test)]
mod tests {
    use super::{says_ready, without_colours};

    #[test]
    fn only_the_word_ready_counts() {
        for line in ["ready", "INFO bpvs: ready: 10 services", "bpvs is READY."] {
            assert!(says_ready(line), "{line}");
        }
        for line in ["already attached", "endpoint not ready", "", "readying"] {
            assert!(!says_ready(line), "{line}");
        }
    }

    #[test]
    fn colours_are_removed() {
        assert_eq!(without_colours("\u{1b}[2m12:00\u{1b}[0m \u{1b}[32m INFO\u{1b}[0m ready"), "12:00  INFO ready");
        assert_eq!(without_colours("cut \u{1b}[3"), "cut ");
    }
}
