//! A kernel's modules: all that its package has, and which ones a module needs before itself.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::{process, workspace};

/// Where depmod and modprobe look for modules, below any folder.
const PLACE: &str = "lib/modules";
/// Where packages have them.
const PLACES: [&str; 2] = [PLACE, "usr/lib/modules"];

/// The modules of one kernel.
pub(crate) struct Modules {
    /// The folder that stands for `/`.
    root: PathBuf,
    /// The kernel's version as `uname -r` says it.
    release: String,
}

/// A module's file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Module {
    /// Its name: `ip_vs_rr`.
    pub(crate) name: String,
    /// Where it is, compressed or not.
    file: PathBuf,
}

impl Modules {
    /// Moves the modules of an unpacked package to `kept`, and writes down who needs whom.
    pub(crate) fn keep(unpacked: &Path, kept: &Path) -> Result<()> {
        let from = PLACES.map(|place| unpacked.join(place)).into_iter().find(|folder| folder.is_dir());
        let (from, to) = (from.context("there is no folder of modules")?, kept.join(PLACE));
        fs::create_dir_all(kept.join("lib")).with_context(|| format!("cannot create {}", kept.display()))?;
        fs::rename(&from, &to).with_context(|| format!("cannot move {} to {}", from.display(), to.display()))?;
        let modules = Self::below(kept)?;
        process::capture(command("depmod")?.arg("--basedir").arg(kept).arg(&modules.release)).map(drop)
    }

    /// The modules that were kept in a folder.
    pub(crate) fn below(root: &Path) -> Result<Self> {
        let folder = root.join(PLACE);
        let mut entries = fs::read_dir(&folder).with_context(|| format!("cannot list {}", folder.display()))?;
        let entry = entries.next().with_context(|| format!("{} is empty", folder.display()))?;
        let release = entry.with_context(|| format!("cannot list {}", folder.display()))?.file_name();
        Ok(Self { root: root.to_owned(), release: release.to_string_lossy().into_owned() })
    }

    /// Whether there is a module of this name.
    pub(crate) fn has(&self, name: &str) -> Result<bool> {
        let list = self.root.join(PLACE).join(&self.release).join("modules.dep");
        let text = fs::read_to_string(&list).with_context(|| format!("cannot read {}", list.display()))?;
        // A line is `kernel/net/x.ko.xz: kernel/lib/y.ko.xz`.
        Ok(text.lines().filter_map(|line| module(line.split(':').next()?)).any(|module| module.name == name))
    }

    /// These modules and all that they need, each once and after those that it needs.
    pub(crate) fn in_order(&self, names: &[&str]) -> Result<Vec<Module>> {
        let mut found: Vec<Module> = Vec::new();
        for name in names {
            for module in self.needed(name)? {
                if !found.contains(&module) {
                    found.push(module);
                }
            }
        }
        Ok(found)
    }

    /// A module, and before it those that it needs. The user's own configuration of modules is none of a guest's.
    fn needed(&self, name: &str) -> Result<Vec<Module>> {
        let mut modprobe = command("modprobe")?;
        modprobe.args(["--config", "/dev/null", "--set-version", &self.release, "--dirname"]).arg(&self.root);
        let said = process::capture(modprobe.args(["--show-depends", name]))
            .with_context(|| format!("Linux {} has no module {name}", self.release))?;
        Ok(parse(&said))
    }
}

impl Module {
    /// What is to be loaded.
    pub(crate) fn content(&self) -> Result<Vec<u8>> {
        if self.file.extension().is_some_and(|kind| kind == "xz") {
            return process::output(command("xz")?.args(["--decompress", "--stdout"]).arg(&self.file));
        }
        fs::read(&self.file).with_context(|| format!("cannot read {}", self.file.display()))
    }
}

/// The modules in what `modprobe --show-depends` prints: `insmod FILE`, or `builtin NAME` for what is no module.
fn parse(said: &str) -> Vec<Module> {
    said.lines().filter_map(|line| module(line.trim().strip_prefix("insmod ")?)).collect()
}

/// The module in a file.
fn module(file: &str) -> Option<Module> {
    let file = PathBuf::from(file.trim());
    let name = file.file_name()?.to_string_lossy().split('.').next()?.to_owned();
    Some(Module { name, file })
}

/// A program that may be where only root's PATH leads.
fn command(name: &str) -> Result<Command> {
    Ok(Command::new(workspace::find_program(name).with_context(|| format!("no program `{name}` on PATH"))?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_are_read_from_what_modprobe_prints() {
        let said = "builtin crc32c\ninsmod /k/lib/modules/6.12/kernel/lib/libcrc32c.ko.xz \ninsmod /k/ip_vs.ko \n";
        let found = parse(said);
        assert_eq!(found.iter().map(|module| module.name.as_str()).collect::<Vec<_>>(), ["libcrc32c", "ip_vs"]);
        assert_eq!(found[1].file, PathBuf::from("/k/ip_vs.ko"));
    }
}
