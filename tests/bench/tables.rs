//! Candidates for the connection table: what an operation costs in each.

use anyhow::Result;
use aya::Ebpf;

use crate::{
    control::{AT_RANDOM, Control, IN_ORDER, TEMPLATE},
    driver::{self, median},
    report::{self, Figure, cell},
};

/// Connections in the table while lookups and deletes are measured.
const CONNECTIONS: u32 = 262_144;
/// Room for two entries each, and as much again: hash tables like to be half full.
const ENTRIES: u32 = 4 * CONNECTIONS;

/// Maps of `bench.o`, and what they are.
const CANDIDATES: [(&str, &str); 6] = [
    ("full", "hash, 40-byte key, 64-byte value"),
    ("full_small", "hash, 40-byte key, 32-byte value"),
    ("full_lru", "LRU hash, 40-byte key, 64-byte value"),
    ("full_dynamic", "hash not preallocated, 40-byte key, 64-byte value"),
    ("client", "hash, 20-byte key, 64-byte value"),
    ("family", "hash, 16-byte key, 64-byte value"),
];

/// Measures and prints all candidates.
pub(crate) fn run(quick: bool) -> Result<Vec<Figure>> {
    let connections = if quick { CONNECTIONS / 16 } else { CONNECTIONS };
    let mut figures = Vec::new();
    let mut rows = Vec::new();
    for (map, title) in CANDIDATES {
        let mut bench = Candidate::load(map, title, connections)?;
        let costs = [
            bench.measure("insert one", &format!("{map}_one"), Access::Fill)?,
            bench.measure("lookup, one entry", &format!("{map}_lookup"), Access::Hot)?,
            bench.measure("lookup, any", &format!("{map}_lookup"), Access::Random)?,
            bench.measure("delete one", &format!("{map}_delete"), Access::Fill)?,
            bench.measure("insert two", &format!("{map}_two"), Access::Fill)?,
        ];
        let [one, hot, any, delete, two] = costs.each_ref().map(|figure| cell(figure.ns));
        rows.push(vec![title.to_owned(), one, two, hot, any, delete]);
        figures.extend(costs);
    }
    let head = ["ns per operation, net", "insert one", "insert two", "lookup hot", "lookup any", "delete"];
    report::print(&head.map(str::to_owned), &rows);
    println!("(lookup any: over {connections} entries in random order; inserts and deletes in order of the flows)");
    Ok(figures)
}

#[derive(Clone, Copy)]
enum Access {
    /// Each flow once, in order.
    Fill,
    /// One flow again and again.
    Hot,
    /// Flows at random.
    Random,
}

struct Candidate {
    object: Ebpf,
    title: &'static str,
    connections: u32,
}

/// Batches of a measurement, of which the median counts.
const BATCHES: u32 = 32;

impl Candidate {
    fn load(map: &str, title: &'static str, connections: u32) -> Result<Self> {
        let mut object = driver::open(&[(map, ENTRIES)])?;
        driver::load(&mut object, "table_none")?;
        for operation in ["one", "two", "lookup", "delete"] {
            driver::load(&mut object, &format!("{map}_{operation}"))?;
        }
        Ok(Self { object, title, connections })
    }

    /// The median cost of an operation over batches, each beside a batch that does nothing.
    fn measure(&mut self, operation: &str, program: &str, access: Access) -> Result<Figure> {
        let runs = self.connections / BATCHES;
        let (mut empty, mut full) = (Vec::new(), Vec::new());
        for batch in 0..BATCHES {
            empty.push(self.batch("table_none", access, batch * runs, runs)?);
            full.push(self.batch(program, access, batch * runs, runs)?);
        }
        Ok(Figure {
            case: format!("{operation}: {}", self.title),
            family: None,
            scheduler: None,
            destinations: None,
            ns: median(full) - median(empty),
            verified_insns: driver::verified(&self.object, program)?,
        })
    }

    fn batch(&mut self, program: &str, access: Access, first: u32, runs: u32) -> Result<f64> {
        let (order, flows) = match access {
            Access::Fill => (IN_ORDER, 1),
            Access::Hot => (AT_RANDOM, 1),
            Access::Random => (AT_RANDOM, self.connections),
        };
        let control = Control {
            next: first.into(),
            template: [0; TEMPLATE],
            length: 0,
            address_at: 0,
            port_at: 0,
            order,
            flows,
            target: 0,
        };
        driver::set_control(&mut self.object, &control)?;
        driver::time(&self.object, program, &[0; 64], runs, 0, 1)
    }
}
