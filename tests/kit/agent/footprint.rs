//! What an agent has in the kernel, asked of the kernel and not of the agent.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use aya::programs::{SchedClassifier, TcAttachType, loaded_programs};
use serde_json::Value;

use crate::namespace::{self, Namespace};

/// Beginning of the names of all our programs.
const PROGRAMS: &str = "bpvs_";
/// The kernel frees programs and maps some time after their last user: after a grace period, by a work queue.
const FREED: Duration = Duration::from_secs(10);

/// Ids of the kernel's objects that live by the pins of one folder.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Footprint {
    /// Programs that are pinned or that a pinned link attaches.
    pub programs: BTreeSet<u64>,
    /// Pinned maps.
    pub maps: BTreeSet<u64>,
    /// Pinned links.
    pub links: BTreeSet<u64>,
}

impl Footprint {
    /// Reads what is pinned in a folder and below.
    pub fn read(pin_path: &Path) -> Result<Self> {
        let pinned = |kind| -> Result<Vec<Value>> {
            let mut objects = bpftool(&["-j", "-f", kind, "show"])?;
            objects.retain(|object| {
                let paths = object["pinned"].as_array().into_iter().flatten();
                paths.filter_map(Value::as_str).any(|path| Path::new(path).starts_with(pin_path))
            });
            Ok(objects)
        };
        let ids = |objects: &[Value], key: &str| objects.iter().filter_map(|object| object[key].as_u64()).collect();
        let links = pinned("link")?;
        let mut programs: BTreeSet<u64> = ids(&pinned("prog")?, "id");
        programs.extend(ids(&links, "prog_id"));
        Ok(Self { programs, maps: ids(&pinned("map")?, "id"), links: ids(&links, "id") })
    }

    /// True if there is nothing.
    pub fn is_empty(&self) -> bool {
        self == &Self::default()
    }

    /// The part of it that the kernel still has.
    pub fn remaining(&self) -> Result<Self> {
        let alive = |kind, wanted: &BTreeSet<u64>| -> Result<BTreeSet<u64>> {
            let objects = bpftool(&["-j", kind, "show"])?;
            Ok(objects.iter().filter_map(|object| object["id"].as_u64()).filter(|id| wanted.contains(id)).collect())
        };
        Ok(Self {
            programs: alive("prog", &self.programs)?,
            maps: alive("map", &self.maps)?,
            links: alive("link", &self.links)?,
        })
    }
}

/// Panics unless [`check_clean`] is content.
#[track_caller]
pub fn assert_clean(pin_path: &Path, namespace: &Namespace, before: &Footprint) {
    if let Err(error) = check_clean(pin_path, namespace, before) {
        panic!("{error:#}");
    }
}

/// Fails unless the pin folder is gone or empty, no program of ours is on an interface of the namespace, and nothing
/// of `before`, the footprint read earlier, is left in the kernel: attachments to the cgroup among it.
pub fn check_clean(pin_path: &Path, namespace: &Namespace, before: &Footprint) -> Result<()> {
    if let Ok(mut entries) = std::fs::read_dir(pin_path)
        && let Some(entry) = entries.next()
    {
        bail!("{} is still pinned", entry?.path().display());
    }
    let attached = attached(namespace)?;
    if !attached.is_empty() {
        bail!("still attached in {}: {}", namespace.name(), attached.join(", "));
    }
    let end = Instant::now() + FREED;
    loop {
        let remaining = before.remaining()?;
        if remaining.is_empty() {
            return Ok(());
        }
        if Instant::now() >= end {
            bail!("still in the kernel {FREED:?} later: {remaining:?}");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Our programs on the interfaces of a namespace: `up0 tcx ingress bpvs_x`, `up0 xdp bpvs_uplink`.
pub fn attached(namespace: &Namespace) -> Result<Vec<String>> {
    namespace.enter(|| {
        let links: Vec<Value> = json(Command::new("ip").args(["-j", "link", "show"]))?;
        let names: Vec<_> = links.iter().filter_map(|link| link["ifname"].as_str()).collect();
        let mut found = Vec::new();
        for link in &links {
            let Some(id) = link["xdp"]["prog"]["id"].as_u64() else { continue };
            let program = loaded_programs().filter_map(Result::ok).find(|program| u64::from(program.id()) == id);
            let name = program.and_then(|program| program.name_as_str().map(str::to_owned)).unwrap_or_default();
            if name.starts_with(PROGRAMS) {
                found.push(format!("{} xdp {name}", link["ifname"].as_str().unwrap_or_default()));
            }
        }
        for name in names {
            for (direction, hook) in [("ingress", TcAttachType::Ingress), ("egress", TcAttachType::Egress)] {
                // An older kernel has no TCX, and bpftool may be older than TCX: ask directly.
                let programs = SchedClassifier::query_tcx(name, hook).map(|(_, programs)| programs).unwrap_or_default();
                let ours = programs.iter().filter_map(|program| program.name_as_str());
                found.extend(ours.filter(|n| n.starts_with(PROGRAMS)).map(|n| format!("{name} tcx {direction} {n}")));
                let filters = namespace::run(Command::new("tc").args(["filter", "show", "dev", name, direction]))?;
                let text = String::from_utf8_lossy(&filters.stdout).into_owned();
                // `... handle 0xb9 NAME direct-action ...`; newer ones also print the name of the program.
                let words: Vec<_> = text.split_whitespace().collect();
                let filters = words.windows(3).filter(|words| words[0] == "handle").map(|words| words[2]);
                let ours = filters.filter(|name| name.starts_with(PROGRAMS));
                found.extend(ours.map(|program| format!("{name} clsact {direction} {program}")));
            }
        }
        Ok(found)
    })
}

fn bpftool(arguments: &[&str]) -> Result<Vec<Value>> {
    json(Command::new("bpftool").args(arguments))
}

fn json(command: &mut Command) -> Result<Vec<Value>> {
    let output = namespace::run(command)?;
    match serde_json::from_slice(&output.stdout).with_context(|| format!("reading the output of {command:?}"))? {
        Value::Array(objects) => Ok(objects),
        other => bail!("{command:?} printed {other}, not a list"),
    }
}
