//! The programs of `bench.o`: the driver, and how long a program takes behind it.

use std::{env, fs, path::PathBuf};

use anyhow::{Context, Result, bail, ensure};
use aya::{
    Ebpf, EbpfLoader,
    maps::{Array, MapData, ProgramArray},
    programs::{Program, ProgramFd, TestRun, TestRunOptions},
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
pub(crate) fn load<'a>(object: &'a mut Ebpf, name: &str) -> Result<&'a ProgramFd> {
    let program = object.program_mut(name).with_context(|| format!("bench.o has no program {name}"))?;
    let refused = || format!("the kernel refuses program {name}");
    match program {
        Program::SchedClassifier(program) => {
            program.load().with_context(refused)?;
            Ok(program.fd()?)
        }
        Program::Xdp(program) => {
            program.load().with_context(refused)?;
            Ok(program.fd()?)
        }
        _ => bail!("{name} is neither of tc nor of XDP"),
    }
}

/// A program.
fn program<'a>(object: &'a Ebpf, name: &str) -> Result<&'a Program> {
    object.program(name).with_context(|| format!("there is no program {name}"))
}

/// A loaded program's descriptor.
pub(crate) fn descriptor<'a>(object: &'a Ebpf, name: &str) -> Result<&'a ProgramFd> {
    match program(object, name)? {
        Program::SchedClassifier(program) => Ok(program.fd()?),
        Program::Xdp(program) => Ok(program.fd()?),
        _ => bail!("{name} is neither of tc nor of XDP"),
    }
}

/// Instructions that the verifier went through for a loaded program.
pub(crate) fn verified(object: &Ebpf, name: &str) -> Result<u32> {
    program(object, name)?.info()?.verified_instruction_count().context("needs Linux 5.16 to tell")
}

/// Makes a program a target of the driver, by the map that its kind of programs has.
pub(crate) fn set_target(object: &mut Ebpf, map: &str, target: u32, program: &ProgramFd) -> Result<()> {
    let map = object.map_mut(map).with_context(|| format!("bench.o has no map {map}"))?;
    let mut targets: ProgramArray<&mut MapData> = map.try_into().context("the driver's map of targets")?;
    targets.set(target, program, 0).with_context(|| format!("setting target {target} of the driver"))
}

/// Tells the programs what to do next.
pub(crate) fn set_control(object: &mut Ebpf, control: &Control) -> Result<()> {
    let map = object.map_mut("bench_control").context("bench.o has no map bench_control")?;
    let mut array: Array<&mut MapData, Control> = map.try_into().context("map bench_control")?;
    array.set(0, control, 0).context("writing map bench_control")
}

/// Runs a program; the mean time of a run in nanoseconds. `verdict` is what the last run must return. XDP: the packet came
/// by `interface`, of the caller's network namespace.
pub(crate) fn time(object: &Ebpf, name: &str, frame: &[u8], runs: u32, verdict: i32, interface: u32) -> Result<f64> {
    // `struct xdp_md`.
    let context = [0, frame.len() as u32, 0, interface, 0, 0];
    let options = TestRunOptions { data_in: Some(frame), repeat: runs, ..TestRunOptions::new() };
    let result = match program(object, name)? {
        Program::SchedClassifier(program) => program.test_run(options),
        Program::Xdp(program) => {
            program.test_run(TestRunOptions { ctx_in: Some(bytemuck::bytes_of(&context)), ..options })
        }
        _ => bail!("{name} is neither of tc nor of XDP"),
    };
    let result = result.with_context(|| format!("BPF_PROG_TEST_RUN of {name}"))?;
    let found = result.return_value as i32;
    ensure!(found == verdict, "{name} ended with {found}, not {verdict}: it did not do what was to be measured");
    Ok(result.duration.as_nanos() as f64)
}

/// The middle of figures.
pub(crate) fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures.get(figures.len() / 2).copied().unwrap_or(f64::NAN)
}
