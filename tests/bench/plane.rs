//! The control plane: from objects in memory to the kernel's maps, and what a change costs at any size.
//!
//! | module | what |
//! |---|---|
//! | [`objects`] | Services and slices, as many as wanted |
//! | [`agent`] | the real agent that follows an API server |

mod agent;
mod objects;

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bpvs_tests::datapath::{Sizes, open};
use lb_userspace::agent::programming::Programming;
use lb_userspace::agent::restored::Restored;
use lb_userspace::datapath::store::kernel::{KernelMaps, KernelStore};
use lb_userspace::datapath::{ApplyError, Limits, MapStore, Summary, Writer};
use lb_userspace::model::{Change, List, Model, Node, SourceId};
use lb_userspace::plan::{Defaults, Planner};
use serde_json::{Value, json};

use crate::report;
use objects::Shape;

const SHAPES: [Shape; 4] = [
    Shape { services: 1_000, endpoints: 10 },
    Shape { services: 10_000, endpoints: 10 },
    Shape { services: 50_000, endpoints: 2 },
    Shape { services: 50_000, endpoints: 5 },
];
/// Changes of one slice that are timed.
const CHANGES: u32 = 1_000;
/// Entries of the maps: the shapes fit, with what they replace.
const SIZES: Sizes = Sizes {
    services: 65_536,
    service_ids: 131_072,
    slots: 1_048_576,
    destinations: 524_288,
    connections: 4_096,
    locality: 4_096,
    fragments: 1_024,
    sockets: 256,
};

/// Measures, prints, and returns the figures.
pub(crate) fn run(quick: bool) -> Result<Value> {
    let shapes = if quick { &SHAPES[..1] } else { &SHAPES[..] };
    let mut figures = Vec::new();
    let mut rows = Vec::new();
    for shape in shapes {
        let of_shape = in_memory(*shape).with_context(|| format!("{shape}"))?;
        rows.push(of_shape.row(*shape));
        figures.push(of_shape.json(*shape));
    }
    let head = [
        "services x endpoints",
        "read ms",
        "plan ms",
        "plan+maps ms",
        "writes",
        "a change us",
        "p99",
        "longest",
        "writes/change",
        "1000 changes ms",
        "restart ms",
    ];
    println!("\nFrom objects in memory to the kernel's maps; a change is one slice with another endpoint");
    report::print(&head.map(str::to_owned), &rows);
    let of_agent = agent::run(shapes)?;
    figures.extend(of_agent);
    Ok(json!(figures))
}

#[derive(Debug)]
struct Figures {
    read: Duration,
    plan: Duration,
    programmed: Duration,
    writes: u64,
    /// Sorted.
    changes: Vec<Duration>,
    writes_of_changes: u64,
    restart: Duration,
}

fn in_memory(shape: Shape) -> Result<Figures> {
    let object = open(&SIZES)?;
    let store = || -> Result<KernelStore> { Ok(KernelStore::new(KernelMaps::of(&object)?)?) };
    let writer = || -> Result<Writer<KernelStore>> {
        let store = store()?;
        let limits = Limits::of(store.capacity());
        Ok(Writer::restore(store, limits)?)
    };
    let defaults = Defaults::default();
    let (services, slices) = shape.objects()?;
    let mut model = Model::new();
    let begin = Instant::now();
    let list = |objects| Change::Replace(List { objects, ..List::default() });
    model.change(SourceId::API_SERVICES, list(services));
    model.change(SourceId::API_SLICES, list(slices));
    let read = begin.elapsed();
    ensure!(model.problems().is_empty(), "{:?}", model.problems());

    let node = Node::named("n0");
    let begin = Instant::now();
    let alone = lb_userspace::plan::plan(&model, &node, &defaults);
    let plan = begin.elapsed();
    ensure!(alone.services.len() == shape.services as usize && alone.problems.is_empty(), "{:?}", alone.problems);
    drop(alone);

    let mut programming = Programming::new(Planner::new(defaults.clone()), writer()?);
    let mut restored = Restored::default();
    let begin = Instant::now();
    let first = whole(programming.follow(&mut model, &node, &mut restored, begin))?;
    let programmed = begin.elapsed();
    ensure!(first.created == shape.services, "{first:?}");

    let mut changes = Vec::new();
    let mut writes_of_changes = 0;
    for number in 0..CHANGES {
        let changed = shape.changed(number)?;
        let begin = Instant::now();
        model.change(SourceId::API_SLICES, Change::Upsert(changed));
        let summary = whole(programming.follow(&mut model, &node, &mut restored, begin))?;
        changes.push(begin.elapsed());
        ensure!(summary.changed == 1 && summary.unchanged == 0, "{summary:?}");
        writes_of_changes += summary.writes;
    }
    changes.sort();
    drop(programming);

    let begin = Instant::now();
    let mut programming = Programming::new(Planner::new(defaults), writer()?);
    let again = whole(programming.follow(&mut model, &node, &mut restored, begin))?;
    let restart = begin.elapsed();
    ensure!(again.writes == 0 && again.unchanged == shape.services, "a restart changes nothing: {again:?}");
    Ok(Figures { read, plan, programmed, writes: first.writes, changes, writes_of_changes, restart })
}

fn whole(result: Result<Summary, Vec<ApplyError>>) -> Result<Summary> {
    result.map_err(|errors| anyhow::anyhow!("{} errors, the first: {}", errors.len(), errors[0]))
}

impl Figures {
    fn at(&self, percent: usize) -> Duration {
        self.changes[(self.changes.len() - 1) * percent / 100]
    }

    fn row(&self, shape: Shape) -> Vec<String> {
        let ms = |time: Duration| format!("{:.1}", time.as_secs_f64() * 1e3);
        let us = |time: Duration| format!("{:.0}", time.as_secs_f64() * 1e6);
        vec![
            shape.to_string(),
            ms(self.read),
            ms(self.plan),
            ms(self.programmed),
            self.writes.to_string(),
            us(self.at(50)),
            us(self.at(99)),
            us(self.at(100)),
            format!("{:.1}", self.writes_of_changes as f64 / f64::from(CHANGES)),
            ms(self.changes.iter().sum()),
            ms(self.restart),
        ]
    }

    fn json(&self, shape: Shape) -> Value {
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        json!({
            "case": "in memory", "services": shape.services, "endpoints": shape.endpoints,
            "read_ms": ms(self.read), "plan_ms": ms(self.plan), "plan_and_maps_ms": ms(self.programmed),
            "writes": self.writes, "change_ms": ms(self.at(50)), "change_p99_ms": ms(self.at(99)),
            "change_longest_ms": ms(self.at(100)), "changes_ms": ms(self.changes.iter().sum()),
            "restart_ms": ms(self.restart),
        })
    }
}
