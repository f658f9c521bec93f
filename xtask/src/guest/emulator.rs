//! QEMU: the installed one, else Debian's packages of it, unpacked beside the kernels. Installing them may cost the user
//! other packages (another release's `qemu-utils` is one), and needs root.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::packages::extract;
use crate::toolchain::{apt, linker};
use crate::{process, workspace};

const PROGRAM: &str = "qemu-system-x86_64";
const PACKAGE: &str = "qemu-system-x86";
/// Where the unpacked one finds its libraries, in either place as packages are older or newer than merged `/usr`, its modules,
/// and its firmware.
const LIBRARIES: [&str; 2] = ["usr/lib/x86_64-linux-gnu", "lib/x86_64-linux-gnu"];
const MODULES: &str = "usr/lib/x86_64-linux-gnu/qemu";
const FIRMWARE: [&str; 2] = ["usr/share/qemu", "usr/share/seabios"];

/// A QEMU that can be started.
pub(crate) struct Emulator {
    /// Where its packages were unpacked; none if it is installed.
    root: Option<PathBuf>,
}

impl Emulator {
    /// The installed one, else the unpacked one.
    pub(crate) fn find() -> Result<Self> {
        if workspace::find_program(PROGRAM).is_some() {
            return Ok(Self { root: None });
        }
        let root = linker::shared("qemu")?;
        if !program(&root).is_file() {
            bail!("there is no {PROGRAM}; run this command again, which fetches it");
        }
        Ok(Self { root: Some(root) })
    }

    /// Fetches what is missing.
    pub(crate) fn require() -> Result<()> {
        if Self::find().is_ok() {
            return Ok(());
        }
        let mut packages = needed()?;
        if packages.is_empty() && workspace::is_root() {
            apt::refresh()?;
            packages = needed()?;
        }
        if packages.is_empty() {
            bail!("apt knows no package {PACKAGE}; `apt-get update` fetches its lists");
        }
        let root = linker::shared("qemu")?;
        let partial = root.with_extension(format!("partial-{}", std::process::id()));
        fs::create_dir_all(&partial).with_context(|| format!("cannot create {}", partial.display()))?;
        let result = unpack(&packages, &partial, &root);
        if partial.exists() {
            fs::remove_dir_all(&partial).with_context(|| format!("cannot remove {}", partial.display()))?;
        }
        result
    }

    /// Makes `command`, which starts programs, ready for it, and appends it.
    pub(crate) fn append(&self, command: &mut Command) {
        let Some(root) = &self.root else {
            command.arg(PROGRAM);
            return;
        };
        let libraries = LIBRARIES.map(|folder| root.join(folder).display().to_string()).join(":");
        command.env("QEMU_MODULE_DIR", root.join(MODULES)).env("LD_LIBRARY_PATH", libraries);
        command.arg(program(root));
        for folder in FIRMWARE {
            command.arg("-L").arg(root.join(folder));
        }
    }
}

fn program(root: &Path) -> PathBuf {
    root.join("usr/bin").join(PROGRAM)
}

/// What would be installed, as apt-get takes it: `name=version`. What the machine has is not among it.
fn needed() -> Result<Vec<String>> {
    let mut apt = Command::new("apt-get");
    apt.args(["--simulate", "--no-install-recommends", "install", PACKAGE]).env("LC_ALL", "C");
    // Fails where apt has never heard of it.
    Ok(process::capture(&mut apt).map(|said| said.lines().filter_map(installed).collect()).unwrap_or_default())
}

/// `Inst name [old] (version origin [architecture])`, as `name=version`.
fn installed(line: &str) -> Option<String> {
    let rest = line.strip_prefix("Inst ")?;
    let name = rest.split(' ').next()?;
    let version = rest.split_once('(')?.1.split(' ').next()?;
    Some(format!("{name}={version}"))
}

fn unpack(packages: &[String], partial: &Path, root: &Path) -> Result<()> {
    eprintln!("      fetching {PACKAGE} and {} packages that it needs", packages.len() - 1);
    let (download, unpacked) = (partial.join("download"), partial.join("unpacked"));
    extract(packages, &download, &unpacked)?;
    if !program(&unpacked).is_file() {
        bail!("{PACKAGE} has no {PROGRAM}");
    }
    // An incomplete one of another version of this task.
    if root.exists() {
        fs::remove_dir_all(root).with_context(|| format!("cannot remove {}", root.display()))?;
    }
    fs::rename(&unpacked, root).with_context(|| format!("cannot make {}", root.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_apt_would_install_is_named_with_its_version() {
        let line = "Inst qemu-system-x86 (1:7.2+dfsg-7+deb12u18+b3 Debian:12.12/oldstable [amd64]) []";
        assert_eq!(installed(line).as_deref(), Some("qemu-system-x86=1:7.2+dfsg-7+deb12u18+b3"));
        let newer = "Inst libslirp0 [4.7.0-1] (4.7.0-1+deb12u1 Debian:12.12/oldstable [amd64])";
        assert_eq!(installed(newer).as_deref(), Some("libslirp0=4.7.0-1+deb12u1"));
        for other in ["Remv qemu-utils [1:10.0.2]", "Conf libslirp0 (4.7.0-1 Debian)", "Inst ", "Inst x", ""] {
            assert_eq!(installed(other), None, "{other}");
        }
    }
}
