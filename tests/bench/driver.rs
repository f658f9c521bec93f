//! The programs of `bench.o`: the driver, and how long a program takes behind it.

use std::{env, fs, path::PathBuf};

use anyhow::{Context, Result, ensure};
use aya::{
    Ebpf, EbpfLoader,
    maps::{Array, MapData, ProgramArray},
    programs::{ProgramFd, SchedClassifier, TestRun, TestRunOptions},
};

use crate::control::Control;

// SAFETY: integers only, without padding: every bit pattern is a value.
unsafe impl aya::Pod for Control {}

/// Loads `bench.o`; `sizes` are the entries of maps that are not as shipped.
pub(crate) fn open(sizes: &[(&str, u32)]) -> Result<Ebpf> {
    let path = match env::var_os("BPVS_BENCH_OBJECT") {
        Some(path) if !path.is_empty() => PathBuf::from(path),
        _ => PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../target/bpf/bench.o"),
    };
    let bytes = fs::read(&path).with_context(|| {
        format!(
            "reading {}: build it with `cargo xtask build-ebpf`, or name another in BPVS_BENCH_OBJECT",
            path.display()
        )
    })?;
    let mut loader = EbpfLoader::new();
    for &(map, entries) in sizes {
        loader.map_max_entries(map, entries);
    }
    loader.load(&bytes).with_context(|| format!("creating the maps of {}; this needs root", path.display()))
}

/// Loads one program.
pub(crate) fn load<'a>(object: &'a mut Ebpf, name: &str) -> Result<&'a SchedClassifier> {
    let program: &mut SchedClassifier = object
        .program_mut(name)
        .with_context(|| format!("bench.o has no program {name}"))?
        .try_into()
        .with_context(|| format!("{name} is no tc program"))?;
    program.load().with_context(|| format!("the kernel refuses program {name}"))?;
    Ok(program)
}

/// A loaded program.
pub(crate) fn program<'a>(object: &'a Ebpf, name: &str) -> Result<&'a SchedClassifier> {
    let program = object.program(name).with_context(|| format!("there is no program {name}"))?;
    program.try_into().with_context(|| format!("{name} is no tc program"))
}

/// Makes a program a target of the driver.
pub(crate) fn set_target(object: &mut Ebpf, target: u32, program: &ProgramFd) -> Result<()> {
    let map = object.map_mut("bench_targets").context("bench.o has no map bench_targets")?;
    let mut targets: ProgramArray<&mut MapData> = map.try_into().context("map bench_targets")?;
    targets.set(target, program, 0).with_context(|| format!("setting target {target} of the driver"))
}

/// Tells the programs what to do next.
pub(crate) fn set_control(object: &mut Ebpf, control: &Control) -> Result<()> {
    let map = object.map_mut("bench_control").context("bench.o has no map bench_control")?;
    let mut array: Array<&mut MapData, Control> = map.try_into().context("map bench_control")?;
    array.set(0, control, 0).context("writing map bench_control")
}

/// Runs a program; the mean time of a run in nanoseconds. `verdict` is what the last run must return.
pub(crate) fn time(object: &Ebpf, name: &str, frame: &[u8], runs: u32, verdict: i32) -> Result<f64> {
    let options = TestRunOptions { data_in: Some(frame), repeat: runs, ..TestRunOptions::new() };
    let result = program(object, name)?.test_run(options).with_context(|| format!("BPF_PROG_TEST_RUN of {name}"))?;
    let found = result.return_value as i32;
    ensure!(found == verdict, "{name} ended with {found}, not {verdict}: it did not do what was to be measured");
    Ok(result.duration.as_nanos() as f64)
}

/// The middle of figures.
pub(crate) fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures.get(figures.len() / 2).copied().unwrap_or(f64::NAN)
}
