//! `cargo xtask build-ebpf`: the BPF programs, from `lb-ebpf` to target/bpf/bpvs.o.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::progress::Progress;
use crate::setup::{self, Need};
use crate::toolchain::Chain;
use crate::{process, workspace};

/// The target of every object we make: little-endian BPF without an operating system.
pub(crate) const TARGET: &str = "bpfel-unknown-none";

/// What can be chosen about the build.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Cargo profile; an unoptimized BPF program rarely passes the verifier
    #[arg(long, default_value = "release")]
    profile: String,
    /// The same as --profile release, which is the default
    #[arg(long, conflicts_with = "profile")]
    release: bool,
}

/// The task.
pub(crate) fn run(options: &Options) -> Result<()> {
    let mut progress = Progress::new(2);
    let chain = setup::prepare(&mut progress, Need::Build)?;
    let object = build(&mut progress, &chain, &options.profile)?;
    progress.finish(&format!("built {}", object.display()));
    Ok(())
}

/// One step of a task: build, and put the object where `lb-userspace` embeds it from.
pub(crate) fn build(progress: &mut Progress, chain: &Chain, profile: &str) -> Result<PathBuf> {
    progress.step("building the BPF programs");
    let folder = workspace::ebpf_folder();
    if !folder.join("Cargo.toml").exists() {
        bail!("{} is missing: this clone is incomplete", folder.join("Cargo.toml").display());
    }
    let mut command = chain.cargo()?;
    command
        .args(["build", "--locked", "--target", TARGET, "-Z", "build-std=core", "--profile", profile, "--target-dir"])
        .arg(folder.join("target"))
        .current_dir(&folder);
    process::run(&mut command).with_context(|| {
        format!("the BPF programs do not build with {}; the compiler's own words are above", chain.describe())
    })?;
    let profile_folder = if profile == "dev" { "debug" } else { profile };
    let made = folder.join("target").join(TARGET).join(profile_folder);
    let object = workspace::bpf_object();
    for (name, object) in [("bpvs", &object), ("bench", &workspace::bench_object())] {
        let bytes = publish(&made.join(name), object)?;
        progress.note(&format!("{} ({bytes} bytes)", object.display()));
    }
    Ok(object)
}

/// Copies what was built to where it is looked for; returns its size.
fn publish(made: &Path, object: &Path) -> Result<usize> {
    let bytes = fs::read(made).with_context(|| format!("the build ended well but left no {}", made.display()))?;
    // Written only when it differs: its time stamp decides whether user space is built again.
    if fs::read(object).ok().as_deref() != Some(&bytes) {
        let parent = object.parent().context("the object's path has no folder")?;
        fs::create_dir_all(parent).with_context(|| format!("cannot create {}", parent.display()))?;
        // A rename, so that nobody embeds half an object.
        let partial = object.with_extension("o.partial");
        fs::write(&partial, &bytes).with_context(|| format!("cannot write {}", partial.display()))?;
        fs::rename(&partial, object).with_context(|| format!("cannot write {}", object.display()))?;
    }
    Ok(bytes.len())
}
