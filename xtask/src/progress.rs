//! Saying what is done and how far it is: `[2/4] building the BPF programs`, then `[2/4] done in 3.1 s`.

use std::time::Instant;

/// The numbered steps of one task. Everything goes to stderr, so that stdout stays the task's own output.
pub(crate) struct Progress {
    total: usize,
    current: usize,
    started: Instant,
    step_started: Instant,
}

impl Progress {
    /// A task of `total` steps, none of which has begun.
    pub(crate) fn new(total: usize) -> Self {
        let now = Instant::now();
        Self { total, current: 0, started: now, step_started: now }
    }

    /// Close the step before, if any, and begin the next one.
    pub(crate) fn step(&mut self, what: &str) {
        self.close();
        self.current += 1;
        self.step_started = Instant::now();
        eprintln!("[{}/{}] {what} ...", self.current, self.total);
    }

    /// A line of detail inside the current step.
    pub(crate) fn note(&self, what: &str) {
        eprintln!("[{}/{}]   {what}", self.current, self.total);
    }

    /// Close the last step and say how long the whole task took.
    pub(crate) fn finish(mut self, what: &str) {
        self.close();
        self.current = 0;
        eprintln!("{what} ({:.1} s)", self.started.elapsed().as_secs_f64());
    }

    /// Close the current step without closing the task: what follows speaks for itself (a test runner's summary).
    pub(crate) fn close(&mut self) {
        if self.current > 0 {
            let seconds = self.step_started.elapsed().as_secs_f64();
            eprintln!("[{}/{}]   done in {seconds:.1} s", self.current, self.total);
        }
    }
}
