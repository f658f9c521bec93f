//! Building bpf-linker once per version and LLVM, in a folder that all clones share.

use std::env;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::process;
use crate::workspace;

/// The version that the project is built and tested with, and the oldest one taken from PATH.
pub(crate) const VERSION: &str = "0.13.0";

/// The LLVM versions that this bpf-linker can be built against.
pub(crate) const LLVM_MAJORS: [u32; 3] = [21, 22, 23];

/// The folder that clones share: `BPVS_TOOLS` if set, else one below the user's cache.
pub(crate) fn folder(llvm: u32) -> Result<PathBuf> {
    match set("BPVS_TOOLS") {
        Some(folder) => Ok(folder),
        None => shared(&format!("tools-{VERSION}-llvm{llvm}")),
    }
}

/// A folder of this name in the place that clones share.
pub(crate) fn shared(name: &str) -> Result<PathBuf> {
    if let Some(folder) = set("BPVS_TOOLS") {
        return Ok(folder.join(name));
    }
    let cache = set("XDG_CACHE_HOME").or_else(|| Some(set("HOME")?.join(".cache")));
    let cache = cache.context("none of BPVS_TOOLS, XDG_CACHE_HOME and HOME is set: no place for tools")?;
    Ok(cache.join("bpvs").join(name))
}

/// Every place where a bpf-linker of ours may be.
pub(crate) fn built() -> Vec<PathBuf> {
    let folders = LLVM_MAJORS.iter().filter_map(|llvm| folder(*llvm).ok());
    let mut files: Vec<_> = folders.map(|folder| folder.join("bin/bpf-linker")).collect();
    files.dedup();
    files
}

/// Build bpf-linker against the LLVM under `prefix`, unless another clone does so meanwhile.
pub(crate) fn build(llvm: u32, prefix: &Path) -> Result<()> {
    let folder = folder(llvm)?;
    let parent = folder.parent().context("the folder for bpf-linker cannot be /")?;
    fs::create_dir_all(parent).with_context(|| format!("cannot create {}", parent.display()))?;
    let lock_path = beside(&folder, "lock");
    let lock = File::create(&lock_path).with_context(|| format!("cannot create {}", lock_path.display()))?;
    if lock.try_lock().is_err() {
        eprintln!("      waiting for another build of bpf-linker ({})", lock_path.display());
        lock.lock().with_context(|| format!("cannot lock {}", lock_path.display()))?;
    }
    if workspace::is_executable(&folder.join("bin/bpf-linker")) {
        return Ok(());
    }
    let cargo = env::var_os("CARGO").map(PathBuf::from).or_else(|| workspace::find_program("cargo"));
    let cargo = cargo.context("no cargo on PATH to build bpf-linker with")?;
    eprintln!("      building bpf-linker {VERSION} against LLVM {llvm} into {} (1 to 4 minutes)", folder.display());
    // Beside the final place, so that an interrupted build is never taken for a finished one.
    let partial = beside(&folder, "partial");
    let mut command = process::isolated(&cargo);
    command
        .args(["install", "bpf-linker", "--version", VERSION, "--locked", "--no-default-features", "--features"])
        .arg(format!("llvm-{llvm}"))
        .arg("--root")
        .arg(&partial)
        .current_dir(parent)
        .env("LLVM_PREFIX", prefix)
        // Nobody debugs it, and debug information is half of the build.
        .env("CARGO_PROFILE_RELEASE_DEBUG", "false")
        // cargo warns of a place outside of PATH, which would mislead: this one is looked up by its path.
        .env("PATH", process::path_with(&[&partial.join("bin")])?);
    process::run(&mut command)?;
    let made = partial.join("bin/bpf-linker");
    if !workspace::is_executable(&made) {
        bail!("cargo install ended well but left no {}", made.display());
    }
    fs::create_dir_all(folder.join("bin")).with_context(|| format!("cannot create {}", folder.display()))?;
    let place = folder.join("bin/bpf-linker");
    fs::rename(&made, &place).with_context(|| format!("cannot put bpf-linker at {}", place.display()))?;
    fs::remove_dir_all(&partial).with_context(|| format!("cannot remove {}", partial.display()))?;
    Ok(())
}

/// `tools-0.13.0-llvm22.lock` for `tools-0.13.0-llvm22`: `with_extension` would take `0-llvm22` for an extension.
fn beside(folder: &Path, suffix: &str) -> PathBuf {
    let mut name = folder.as_os_str().to_owned();
    name.push(".");
    name.push(suffix);
    PathBuf::from(name)
}

fn set(name: &str) -> Option<PathBuf> {
    env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lock_and_partial_build_are_named_after_the_whole_folder() {
        let folder = Path::new("/c/tools-0.13.0-llvm22");
        assert_eq!(beside(folder, "lock"), Path::new("/c/tools-0.13.0-llvm22.lock"));
    }
}
