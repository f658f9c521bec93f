//! Answers that were recorded, as a subject.

use anyhow::{Context, Result, bail, ensure};

use super::script::{Answer, Event, Script};
use super::subject::Subject;

/// What IPVS answered.
#[derive(Clone, Debug, Default)]
pub struct Recorded {
    script: Option<Script>,
    place: usize,
    /// Milliseconds of the wait that is under way.
    waited: u32,
}

impl Recorded {
    fn next(&mut self) -> Result<(Event, Answer)> {
        let script = self.script.as_ref().context("no script has begun")?;
        let (event, answer) = script.steps.get(self.place).context("the script is over")?;
        self.place += 1;
        let text = event.text(script.v6);
        Ok((event.clone(), answer.clone().with_context(|| format!("no answer to `{text}` was recorded"))?))
    }
}

impl Subject for Recorded {
    fn name(&self) -> &str {
        "recorded"
    }

    fn begin(&mut self, script: &Script) -> Result<()> {
        *self = Self { script: Some(script.clone()), place: 0, waited: 0 };
        Ok(())
    }

    fn event(&mut self, event: &Event) -> Result<Answer> {
        let (recorded, answer) = self.next()?;
        ensure!(recorded == *event, "asked for {event:?} where {recorded:?} was recorded");
        Ok(answer)
    }

    fn wait(&mut self, milliseconds: u32, _passed: bool) -> Result<bool> {
        self.waited += milliseconds;
        let place = self.script.as_ref().and_then(|script| script.steps.get(self.place));
        let Some((Event::Wait(all), _)) = place else { bail!("no wait was recorded here") };
        ensure!(self.waited <= *all, "a wait of {all} ms was recorded, not {} ms", self.waited);
        if self.waited == *all {
            self.waited = 0;
            self.next()?;
        }
        // No time passes here.
        Ok(false)
    }

    fn end(&mut self) -> Result<()> {
        self.script = None;
        Ok(())
    }
}
