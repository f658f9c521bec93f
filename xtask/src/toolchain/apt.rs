//! Debian's package manager: what it offers, and installing.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::choice;
use super::facts::{self, Packages};
use crate::{process, workspace};

/// What apt offers of all that we could use. `refreshed` says that the lists were fetched by this run.
pub(crate) fn offers(refreshed: bool) -> Result<Packages> {
    if !is_debian() {
        return Ok(Packages::Unknown);
    }
    let names = choice::interesting_packages();
    let policy = process::capture(Command::new("apt-cache").arg("policy").args(&names).env("LC_ALL", "C"))?;
    let candidates = facts::parse_policy(&policy);
    let compiler_llvm = compiler_llvm(&candidates);
    Ok(Packages::Offered { candidates, compiler_llvm, refreshed })
}

/// Fetch the package lists. A source of the user's that does not answer is no reason to stop: the packages needed come
/// from Debian's own, and installing them says what is wrong if they cannot be had.
pub(crate) fn refresh() -> Result<()> {
    if !workspace::is_root() {
        bail!(
            "the package lists know no compiler with the sources of `core`; run\n  sudo apt-get update\nand then this \
             command again, which will name the packages to install"
        );
    }
    if let Err(error) = process::run(&mut apt_get(&["update"])) {
        eprintln!("      {error:#}; going on with the lists that could be fetched");
    }
    Ok(())
}

/// Install `packages`, or say how when we may not.
pub(crate) fn install(packages: &[String]) -> Result<()> {
    let list = packages.join(" ");
    if !workspace::is_root() {
        bail!("packages are missing and only root may install them; run\n  sudo apt-get install -y {list}");
    }
    eprintln!("      installing {list}");
    // --no-remove: never trade a package of the user's for ours.
    let mut command = apt_get(&["install", "-y", "--no-install-recommends", "--no-remove"]);
    process::run(command.args(packages)).context(
        "apt-get could not install what is needed (above is its reason); if it does not find a package, \
         `apt-get update` may help",
    )
}

fn apt_get(arguments: &[&str]) -> Command {
    let mut command = Command::new("apt-get");
    command
        .args(["-q", "-o", "DPkg::Lock::Timeout=300", "-o", "DPkg::Use-Pty=0"])
        .args(arguments)
        .env("DEBIAN_FRONTEND", "noninteractive");
    command
}

/// Whether this system installs packages with apt-get.
pub(crate) fn is_debian() -> bool {
    Path::new("/etc/debian_version").exists() && workspace::find_program("apt-get").is_some()
}

/// Which LLVM the packaged compiler brings: it stands in the dependencies of its library package, whose name carries the
/// version. Unknown is no error: after the compiler is installed, it tells itself.
fn compiler_llvm(candidates: &BTreeMap<String, String>) -> Option<u32> {
    let version = facts::Version::parse(candidates.get("rustc-web")?)?;
    let library = format!("libstd-rust-web-{}.{}", version.0, version.1);
    let depends = process::capture(Command::new("apt-cache").args(["depends", &library]).env("LC_ALL", "C")).ok()?;
    facts::parse_llvm_dependency(&depends)
}

/// The distribution's name for messages.
pub(crate) fn distribution() -> String {
    let release = fs::read_to_string("/etc/os-release").unwrap_or_default();
    let name = release.lines().find_map(|line| line.strip_prefix("PRETTY_NAME="));
    name.map_or_else(|| "this system".to_owned(), |name| name.trim_matches('"').to_owned())
}
