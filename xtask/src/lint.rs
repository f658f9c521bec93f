//! `cargo xtask lint`: what can be checked without running bpvs.

mod architecture;
mod files;
mod licences;
mod links;

use std::path::Path;

use anyhow::{Result, bail};

use crate::progress::Progress;
use crate::setup::{self, Need};
use crate::toolchain::{Chain, apt};
use crate::{build_ebpf, host, process, workspace};

/// The task: cheap checks first.
pub(crate) fn run() -> Result<()> {
    let mut progress = Progress::new(6);
    progress.step("checking licences, file sizes and documents");
    check_files()?;
    progress.step("checking formatting");
    check_formatting()?;
    let chain = setup::prepare(&mut progress, Need::Build)?;
    // User space embeds the object, so that clippy, too, needs it.
    build_ebpf::build(&mut progress, &chain, "release")?;
    progress.step("clippy on the workspace");
    let mut clippy = host::cargo();
    process::run(clippy.args(["clippy", "--workspace", "--all-targets", "--locked", "--", "-D", "warnings"]))?;
    progress.step("clippy on the BPF programs");
    clippy_ebpf(&chain)?;
    progress.finish("nothing to complain about");
    Ok(())
}

/// Everything that is found by reading the files of this clone; all findings at once.
pub(crate) fn check_files() -> Result<()> {
    let files = files::read(workspace::root())?;
    let findings: Vec<String> = [
        files::whitespace(&files),
        files::sizes(&files),
        licences::check(&files),
        links::check(&files),
        architecture::check(&files),
    ]
    .concat();
    for finding in &findings {
        eprintln!("      {finding}");
    }
    match findings.len() {
        0 => Ok(()),
        count => bail!("{count} finding(s) above; `cargo xtask lint` repeats these checks"),
    }
}

/// rustfmt over both workspaces.
pub(crate) fn check_formatting() -> Result<()> {
    process::run(host::cargo().args(["fmt", "--all", "--check"]))?;
    let manifest = workspace::ebpf_folder().join("Cargo.toml");
    process::run(host::cargo().args(["fmt", "--all", "--check", "--manifest-path"]).arg(manifest))
}

/// Clippy must be that of the compiler which builds the programs.
fn clippy_ebpf(chain: &Chain) -> Result<()> {
    let clippy = chain.compiler.cargo.with_file_name("cargo-clippy");
    if !workspace::is_executable(&clippy) {
        if chain.compiler.name != "system" {
            bail!("clippy is missing; run\n  rustup component add clippy --toolchain {}", chain.compiler.name);
        }
        install_system_clippy(&clippy)?;
    }
    let folder = workspace::ebpf_folder();
    let mut command = chain.command(&clippy)?;
    command
        .args(["clippy", "--locked", "--target", build_ebpf::TARGET, "-Z", "build-std=core", "--release"])
        .arg("--target-dir")
        .arg(folder.join("target"))
        .args(["--", "-D", "warnings"])
        .current_dir(&folder);
    process::run(&mut command)
}

fn install_system_clippy(clippy: &Path) -> Result<()> {
    if !apt::is_debian() {
        bail!("{} is missing: install your distribution's clippy", clippy.display());
    }
    // Named after the compiler's package, of which there are two.
    let web = process::capture(std::process::Command::new("dpkg").args(["--status", "rustc-web"])).is_ok();
    apt::install(&[if web { "rust-web-clippy" } else { "rust-clippy" }.to_owned()])
}
