//! The real agent in a namespace of its own, that follows the double of an API server there.

use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use bpvs_tests::agent::Agent;
use bpvs_tests::api_server::ApiServer;
use bpvs_tests::namespace::Namespace;
use nix::unistd::{SysconfVar, sysconf};
use serde_json::{Value, json};

use super::objects::Shape;
use crate::report;

/// Longest time for a start and for a change to be seen.
const DEADLINE: Duration = Duration::from_secs(300);
/// Changes a second, and for how long.
const RATE: u32 = 100;
const SECONDS: u32 = 10;

/// Measures, prints, and returns the figures.
pub(super) fn run(shapes: &[Shape]) -> Result<Vec<Value>> {
    let node = Namespace::new("n0")?;
    let empty = one(&node, Shape { services: 0, endpoints: 0 })?;
    let mut rows = vec![empty.row(&empty)];
    let mut figures = Vec::new();
    for shape in shapes {
        let found = one(&node, *shape).with_context(|| format!("{shape}"))?;
        rows.push(found.row(&empty));
        figures.push(found.json(&empty));
    }
    println!(
        "\nThe agent that follows an API server (of this machine, which costs CPU too); memory beyond an empty start"
    );
    let head = [
        "services x endpoints",
        "start s",
        "restart s",
        "CPU s",
        "MiB",
        "peak MiB",
        "bytes/service",
        "100 changes/s: CPU %",
    ];
    report::print(&head.map(str::to_owned), &rows);
    Ok(figures)
}

struct Found {
    shape: Shape,
    start: Duration,
    restart: Duration,
    /// CPU time until then.
    restart_cpu: Duration,
    memory: u64,
    peak: u64,
    /// Of one CPU.
    busy: f64,
}

fn one(node: &Namespace, shape: Shape) -> Result<Found> {
    let api = node.block_on(ApiServer::start)?;
    for number in 0..shape.services {
        api.apply(shape.service(number));
        api.apply(shape.slice(number, 0));
    }
    let agent = Agent::builder(node).kubeconfig(&api.kubeconfig()).argument("--node-name").argument("n0").build()?;
    let ready = |what: &str| -> Result<Duration> {
        let begin = Instant::now();
        let mark = agent.launch()?;
        agent.wait_for_log(mark, what, DEADLINE, |line| line.contains("ready:"))?;
        Ok(begin.elapsed())
    };
    let start = ready("the first start")?;
    agent.stop()?;
    let restart = ready("the restart")?;
    let process = agent.process().context("the agent runs")?;
    let restart_cpu = cpu(process)?;
    let mut busy = 0.0;
    if shape.services == 0 {
        // What only the start needed goes back to the system within seconds, and is not there to compare with.
        std::thread::sleep(Duration::from_secs(SECONDS.into()));
    } else {
        let before = cpu(process)?;
        let begin = Instant::now();
        for number in 0..RATE * SECONDS {
            api.apply(shape.slice(shape.spread(number), 1 + number));
            let next = begin + Duration::from_secs(1) * (number + 1) / RATE;
            std::thread::sleep(next.saturating_duration_since(Instant::now()));
        }
        busy = (cpu(process)? - before).as_secs_f64() / begin.elapsed().as_secs_f64();
    }
    let memory = status(process, "VmRSS:")?;
    let peak = status(process, "VmHWM:")?;
    agent.stop()?;
    Ok(Found { shape, start, restart, restart_cpu, memory, peak, busy })
}

/// CPU time of a process.
fn cpu(process: u32) -> Result<Duration> {
    let path = format!("/proc/{process}/stat");
    let text = fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
    // After the name in parentheses: state, then numbers; utime and stime are the 12th and 13th.
    let fields: Vec<&str> = text.rsplit_once(')').context("no name")?.1.split_whitespace().collect();
    let ticks = |index: usize| -> Result<u64> { Ok(fields.get(index).context("too few fields")?.parse()?) };
    let per_second = sysconf(SysconfVar::CLK_TCK)?.context("no clock tick")? as f64;
    Ok(Duration::from_secs_f64((ticks(11)? + ticks(12)?) as f64 / per_second))
}

/// A number of bytes of /proc/PID/status.
fn status(process: u32, name: &str) -> Result<u64> {
    let path = format!("/proc/{process}/status");
    let text = fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
    let line =
        text.lines().find_map(|line| line.strip_prefix(name)).with_context(|| format!("{path} has no {name}"))?;
    let kib: u64 = line.trim().trim_end_matches("kB").trim().parse()?;
    Ok(kib * 1024)
}

impl Found {
    fn bytes_per_service(&self, empty: &Self) -> u64 {
        self.memory.saturating_sub(empty.memory).checked_div(u64::from(self.shape.services)).unwrap_or(0)
    }

    fn row(&self, empty: &Self) -> Vec<String> {
        let mib = |bytes: u64| format!("{:.1}", bytes as f64 / f64::from(1 << 20));
        vec![
            self.shape.to_string(),
            format!("{:.2}", self.start.as_secs_f64()),
            format!("{:.2}", self.restart.as_secs_f64()),
            format!("{:.2}", self.restart_cpu.as_secs_f64()),
            mib(self.memory.saturating_sub(empty.memory)),
            mib(self.peak),
            self.bytes_per_service(empty).to_string(),
            format!("{:.1}", 100.0 * self.busy),
        ]
    }

    fn json(&self, empty: &Self) -> Value {
        json!({
            "case": "agent", "services": self.shape.services, "endpoints": self.shape.endpoints,
            "start_s": self.start.as_secs_f64(), "restart_s": self.restart.as_secs_f64(), "restart_cpu_s": self.restart_cpu.as_secs_f64(),
            "memory_bytes": self.memory.saturating_sub(empty.memory), "peak_bytes": self.peak,
            "bytes_per_service": self.bytes_per_service(empty), "cpu_at_100_changes": self.busy,
        })
    }
}
