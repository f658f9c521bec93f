//! Who can be asked: a director with packets through it, a model, a record of answers.

use anyhow::Result;

use super::script::{Answer, Event, Script};

/// One who answers scripts, event by event.
pub trait Subject {
    /// What to call it.
    fn name(&self) -> &str;

    /// Begins a script: its service is there afterwards, without servers.
    fn begin(&mut self, script: &Script) -> Result<()>;

    /// One event. [`Answer::Void`] for a packet that cannot be sent or says nothing.
    fn event(&mut self, event: &Event) -> Result<Answer>;

    /// Lets time pass ([`Event::Wait`]). `passed`: it did, while another subject waited. True if it did now.
    fn wait(&mut self, milliseconds: u32, passed: bool) -> Result<bool>;

    /// Ends the script: nothing of it can be seen by later ones.
    fn end(&mut self) -> Result<()>;
}
