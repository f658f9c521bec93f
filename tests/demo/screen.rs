//! What the demo prints: notes with the time, and lines that are right or wrong.

use std::time::Instant;

use bpvs_tests::cleanup;

/// The terminal, and the count of right and wrong lines.
pub(crate) struct Screen {
    begin: Instant,
    right: u32,
    wrong: Vec<String>,
}

impl Screen {
    pub(crate) fn new() -> Self {
        Self { begin: Instant::now(), right: 0, wrong: Vec::new() }
    }

    /// What happens now.
    pub(crate) fn note(&self, text: &str) {
        println!("{:6.1} s  {text}", self.begin.elapsed().as_secs_f64());
    }

    /// A heading above a table.
    pub(crate) fn heading(&self, text: &str) {
        println!("\n{:6.1} s  {text}", self.begin.elapsed().as_secs_f64());
    }

    /// A line of a table that is no result.
    pub(crate) fn plain(&self, text: &str) {
        println!("          {text}");
    }

    /// A result.
    pub(crate) fn check(&mut self, right: bool, text: &str) {
        cleanup::wait_if_closing();
        println!("  {}  {}", if right { "right " } else { "WRONG " }, text.trim_end());
        if right {
            self.right += 1;
        } else {
            self.wrong.push(text.trim().to_owned());
        }
    }

    /// Prints the sum; true if every line is right.
    pub(crate) fn finish(&self) -> bool {
        let took = self.begin.elapsed().as_secs_f64();
        if self.wrong.is_empty() {
            println!("\nall {} lines are right ({took:.1} s)", self.right);
        } else {
            println!("\n{} lines are right, {} are WRONG ({took:.1} s):", self.right, self.wrong.len());
            for line in &self.wrong {
                println!("  {line}");
            }
        }
        self.wrong.is_empty()
    }
}
