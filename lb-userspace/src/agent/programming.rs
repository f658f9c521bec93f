//! Model -> plan -> maps: a change costs what it touches; after an error everything is looked at.

use std::collections::BTreeSet;
use std::time::Instant;

use super::restored::Restored;
use crate::datapath::compare::Differences;
use crate::datapath::{ApplyError, MapStore, StoreError, Summary, Writer};
use crate::model::{Model, Node};
use crate::plan::{Frontend, Planner};

/// A plan, and maps that follow it.
#[derive(Debug)]
pub struct Programming<S> {
    /// The plan.
    pub planner: Planner,
    /// The maps.
    pub writer: Writer<S>,
    /// Virtual services of the plan that the last round made others, or that are gone since.
    pub touched: BTreeSet<Frontend>,
    /// The maps may lack more than what the next change says (SY-5).
    behind: bool,
    /// What the maps hold must be read before anything is written.
    unread: bool,
}

impl<S: MapStore> Programming<S> {
    /// What the maps hold is known to the writer alone: the first time, everything is looked at.
    pub fn new(planner: Planner, writer: Writer<S>) -> Self {
        Self { planner, writer, touched: BTreeSet::new(), behind: true, unread: false }
    }

    /// Looks whether somebody else has changed the maps (SY-6). If so, the next round reads what they hold and looks at
    /// everything.
    pub fn compare(&mut self) -> Result<Differences, StoreError> {
        let found = self.writer.compare()?;
        if found.count > 0 {
            (self.behind, self.unread) = (true, true);
        }
        Ok(found)
    }

    /// Reads what the maps hold, if that is not what the writer knows. True if it was read.
    pub fn read(&mut self) -> Result<bool, StoreError> {
        if self.unread {
            self.writer.reread()?;
        }
        Ok(std::mem::take(&mut self.unread))
    }

    /// Brings plan and maps to what the model says, which must be complete. While it has gaps, what was programmed by an
    /// earlier agent and is not stated stays.
    pub fn follow(
        &mut self,
        model: &mut Model,
        node: &Node,
        restored: &mut Restored,
        now: Instant,
    ) -> Result<Summary, Vec<ApplyError>> {
        let changes = model.take_changes();
        self.touched = self.planner.update(model, node, &changes);
        if model.has_gaps() {
            self.behind = true;
            let mut plan = self.planner.plan().clone();
            restored.fill(&mut plan);
            return self.writer.apply(&plan, now);
        }
        restored.forget();
        let plan = self.planner.plan();
        let result = match self.behind {
            true => self.writer.apply(plan, now),
            false => self.writer.apply_changes(plan, &self.touched, now),
        };
        self.behind = result.is_err();
        result
    }
}

#[cfg(test)]
mod tests;
