//! Figures, for people and for programs.

use serde_json::{Value, json};

/// One figure.
#[derive(Clone, Debug)]
pub(crate) struct Figure {
    /// What was measured.
    pub(crate) case: String,
    /// `IPv4`, `IPv6`, or nothing where that makes no difference.
    pub(crate) family: Option<&'static str>,
    /// For new connections: who chose.
    pub(crate) scheduler: Option<&'static str>,
    /// For new connections: among how many.
    pub(crate) destinations: Option<u32>,
    /// Nanoseconds, net of an empty program.
    pub(crate) ns: f64,
    /// Instructions that the verifier went through for the program.
    pub(crate) verified_insns: u32,
}

/// Figures as one array of objects.
pub(crate) fn json(figures: &[Figure]) -> Value {
    let object = |figure: &Figure| {
        json!({
            "case": figure.case,
            "family": figure.family,
            "scheduler": figure.scheduler,
            "destinations": figure.destinations,
            "ns": figure.ns,
            "verified_insns": figure.verified_insns,
        })
    };
    figures.iter().map(object).collect()
}

/// Prints a table; the first column is left-aligned, the others are right-aligned.
pub(crate) fn print(head: &[String], rows: &[Vec<String>]) {
    let width = |column: usize| {
        rows.iter().chain([&head.to_vec()]).filter_map(|row| row.get(column)).map(String::len).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..head.len()).map(width).collect();
    println!();
    for row in [&head.to_vec()].into_iter().chain(rows) {
        let cells = row.iter().zip(&widths).enumerate().map(|(column, (cell, &width))| {
            if column == 0 { format!("{cell:<width$}") } else { format!("{cell:>width$}") }
        });
        println!("{}", cells.collect::<Vec<_>>().join("  ").trim_end());
    }
}

/// A figure in a cell.
pub(crate) fn cell(ns: f64) -> String {
    format!("{ns:.0}")
}

/// Prints what maps take.
pub(crate) fn print_memory(maps: &[(String, u32, u64)]) {
    let head = ["map", "entries", "KiB"].map(str::to_owned);
    let rows: Vec<Vec<String>> = maps
        .iter()
        .map(|(name, entries, bytes)| vec![name.clone(), entries.to_string(), (bytes / 1024).to_string()])
        .collect();
    print(&head, &rows);
    println!("(sizes of this run; all but the arrays shrink and grow with the limits given to `bpvs run`)");
}
