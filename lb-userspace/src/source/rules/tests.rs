//! A file that comes, changes, breaks and goes. Nothing waits for a fixed time: each step waits for what it expects.

use std::fs;
use std::path::Path;
use std::time::Duration;

use tokio::sync::mpsc::Receiver;

use super::RulesFile;
use crate::model::{Model, SourceId};
use crate::source::{Update, channel};

const DEADLINE: Duration = Duration::from_secs(20);

struct Watched {
    model: Model,
    updates: Receiver<Update>,
}

impl Watched {
    /// Polls slowly, so that what is seen in time was seen by inotify.
    fn start(path: &Path) -> Self {
        let (sender, updates) = channel();
        tokio::spawn(RulesFile::new(path).poll_every(Duration::from_secs(600)).run(sender));
        let mut model = Model::new();
        model.expect(SourceId::RULES);
        Self { model, updates }
    }

    /// Feeds the model until it is complete and has exactly these services, this many problems, and gaps or not.
    async fn expect(&mut self, services: &[&str], problems: usize, gaps: bool) {
        let reached = async {
            while !self.model.is_complete()
                || self.services() != services
                || self.model.problems().len() != problems
                || self.model.has_gaps() != gaps
            {
                let update = self.updates.recv().await.expect("the source runs");
                self.model.change(update.source, update.change);
            }
        };
        if tokio::time::timeout(DEADLINE, reached).await.is_err() {
            panic!("wanted {services:?}; have {:?} and {:?}", self.services(), self.model.problems());
        }
    }

    fn services(&self) -> Vec<String> {
        self.model.rules().map(|rule| format!("{} {}", rule.frontend, rule.servers.len())).collect()
    }
}

const TWO: &str = "-A -t 10.0.0.1:80\n-a -t 10.0.0.1:80 -r 10.1.0.1 -m\n-A -f 1\n";

#[tokio::test]
async fn a_changed_file_is_read_again_and_a_broken_one_takes_nothing_away() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rules");
    fs::write(&path, TWO).unwrap();
    let mut watched = Watched::start(&path);
    watched.expect(&["TCP 10.0.0.1:80 1", "FWM 1 0"], 0, false).await;
    fs::write(&path, "-A -t 10.0.0.1:80\n-A -f 2\n-A -f\n").unwrap();
    watched.expect(&["TCP 10.0.0.1:80 1", "FWM 2 0", "FWM 1 0"], 1, false).await;
    fs::write(&path, "").unwrap();
    watched.expect(&["TCP 10.0.0.1:80 1", "FWM 2 0", "FWM 1 0"], 1, false).await;
    fs::remove_file(&path).unwrap();
    watched.expect(&["TCP 10.0.0.1:80 1", "FWM 2 0", "FWM 1 0"], 1, false).await;
    let other = folder.path().join("other");
    fs::write(&other, "-A -f 3\n").unwrap();
    fs::rename(&other, &path).unwrap();
    watched.expect(&["FWM 3 0"], 0, false).await;
    fs::write(&path, "-C\n").unwrap();
    watched.expect(&[], 0, false).await;
}

#[tokio::test]
async fn a_file_that_was_never_right_has_gaps_until_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rules");
    fs::write(&path, "-A -f 1\n-A -t web:80\n").unwrap();
    let mut watched = Watched::start(&path);
    watched.expect(&["FWM 1 0"], 1, true).await;
    fs::write(&path, "-A -f 1\n").unwrap();
    watched.expect(&["FWM 1 0"], 0, false).await;
}

#[tokio::test]
async fn nothing_is_told_of_a_file_that_is_not_there_yet() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rules");
    assert!(RulesFile::new(&path).check().is_err());
    assert!(RulesFile::new(folder.path()).check().unwrap_err().to_string().contains("regular file"));
    let mut watched = Watched::start(&path);
    tokio::task::yield_now().await;
    assert!(!watched.model.is_complete());
    fs::write(&path, TWO).unwrap();
    watched.expect(&["TCP 10.0.0.1:80 1", "FWM 1 0"], 0, false).await;
}

#[test]
fn a_file_is_read_once_for_a_check() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rules");
    fs::write(&path, "-A -f 1\n-A -f 1\n").unwrap();
    let rules = RulesFile::new(&path).read_once().unwrap();
    assert_eq!((rules.services.len(), rules.problems.len(), rules.gaps), (1, 1, true));
}
