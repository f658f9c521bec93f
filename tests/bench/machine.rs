//! The machine that figures are of.

use std::{
    fs,
    os::fd::{AsFd, AsRawFd},
};

use anyhow::{Context, Result, bail};
use aya::{Ebpf, maps::Map};
use nix::{
    errno::Errno,
    libc,
    sched::{CpuSet, sched_getaffinity, sched_setaffinity},
    unistd::Pid,
};

/// Keeps this process on one of its CPUs: per-CPU lists and caches stay the same ones.
pub(crate) fn stay_on_one_cpu() -> Result<()> {
    let this = Pid::from_raw(0);
    let allowed = sched_getaffinity(this).context("asking which CPUs this process may use")?;
    let last = (0..CpuSet::count()).rev().find(|&cpu| allowed.is_set(cpu).unwrap_or(false));
    let mut one = CpuSet::new();
    one.set(last.context("this process may use no CPU at all")?).context("choosing a CPU")?;
    sched_setaffinity(this, &one).context("staying on one CPU")
}

/// Lets the calling thread go before other work of the machine (nice -20), as far as that can be had by asking.
pub(crate) fn go_first() -> Result<()> {
    // SAFETY: the call takes numbers alone; 0 is the calling thread.
    let result = unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, -20) };
    Errno::result(result).map(drop).context("asking to go before other processes; this needs root")
}

/// Kernel, CPU, load: what a reader has to know before comparing.
pub(crate) fn describe() -> Result<String> {
    let read = |path: &str| fs::read_to_string(path).with_context(|| format!("cannot read {path}"));
    let kernel = read("/proc/sys/kernel/osrelease")?;
    let cpus = read("/proc/cpuinfo")?;
    let model = cpus.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": ")).map(|(_, name)| name);
    let load = read("/proc/loadavg")?;
    Ok(format!(
        "kernel {}, CPU {}, load {}\nOther work on a machine shows in every figure: compare ratios, and runs of one session.",
        kernel.trim(),
        model.unwrap_or("of no name").trim(),
        load.split(' ').next().unwrap_or("unknown"),
    ))
}

/// Name, entries and bytes of each map, by name. The kernel says what it takes in /proc/self/fdinfo.
pub(crate) fn map_memory(object: &Ebpf) -> Result<Vec<(String, u32, u64)>> {
    let mut maps = Vec::new();
    // Names with a dot are sections of constants, which the loader keeps as maps.
    for (name, map) in object.maps().filter(|(name, _)| !name.contains('.')) {
        let data = match map {
            Map::Array(data)
            | Map::HashMap(data)
            | Map::LruHashMap(data)
            | Map::LpmTrie(data)
            | Map::PerCpuArray(data) => data,
            _ => bail!("map {name} is of a type that is not known here: add it"),
        };
        let path = format!("/proc/self/fdinfo/{}", data.fd().as_fd().as_raw_fd());
        let text = fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
        let memory = text.lines().find_map(|line| line.strip_prefix("memlock:")).map(str::trim);
        let bytes = memory.with_context(|| format!("{path} does not tell memlock"))?.parse()?;
        maps.push((name.to_owned(), data.info()?.max_entries(), bytes));
    }
    maps.sort();
    Ok(maps)
}
