//! A folder of manifests that a running agent watches.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, Result, ensure};

use crate::cleanup::{self, Guard};
use crate::namespace::is_alive;

const PREFIX: &str = "bpvs-manifests-";

static NUMBER: AtomicU32 = AtomicU32::new(0);

/// A temporary folder. Files appear and change in one step, as `kubectl` or an editor that renames would do it.
#[derive(Debug)]
pub struct Manifests {
    folder: PathBuf,
    live: PathBuf,
    _guard: Guard,
}

impl Manifests {
    /// An empty folder. Folders of killed runs are removed first.
    pub fn new() -> Result<Self> {
        reap_leftovers();
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("{PREFIX}{}-{number}", std::process::id()));
        let live = folder.join("live");
        let gone = folder.clone();
        let ((), guard) = cleanup::create(
            format!("manifests in {}", folder.display()),
            || fs::create_dir_all(&live).with_context(|| format!("creating {}", live.display())),
            // A folder that is gone already is fine, and a temporary one that stays harms nobody.
            move || drop(fs::remove_dir_all(&gone)),
        )?;
        Ok(Self { folder, live, _guard: guard })
    }

    /// A copy of the YAML files of a folder, or of one file.
    pub fn copy_of(source: &Path) -> Result<Self> {
        let manifests = Self::new()?;
        let context = || format!("copying manifests from {}", source.display());
        let files = match source.is_dir() {
            false => vec![source.to_owned()],
            true => {
                let entries = fs::read_dir(source).with_context(context)?;
                entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?
            }
        };
        let mut copied = 0;
        for file in files {
            let yaml = file.extension().is_some_and(|end| end == "yaml" || end == "yml");
            let Some(name) = file.file_name().and_then(|name| name.to_str()).filter(|_| yaml) else {
                continue;
            };
            manifests.write(name, &fs::read_to_string(&file).with_context(context)?)?;
            copied += 1;
        }
        ensure!(copied > 0, "no .yaml file in {}", source.display());
        Ok(manifests)
    }

    /// The folder to give to `--manifests`.
    pub fn path(&self) -> &Path {
        &self.live
    }

    /// Names of its files, sorted.
    pub fn names(&self) -> Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(&self.live)? {
            names.push(entry?.file_name().to_string_lossy().into_owned());
        }
        names.sort();
        Ok(names)
    }

    /// Writes or replaces a file.
    pub fn write(&self, name: &str, text: &str) -> Result<()> {
        // Written outside the watched folder, then renamed into it: nobody sees half a file.
        let staged = self.folder.join("staged");
        fs::write(&staged, text)?;
        fs::rename(&staged, self.live.join(name)).with_context(|| format!("writing manifest {name}"))
    }

    /// Reads a file.
    pub fn read(&self, name: &str) -> Result<String> {
        fs::read_to_string(self.live.join(name)).with_context(|| format!("reading manifest {name}"))
    }

    /// Changes a file; a change that changes nothing is an error.
    pub fn edit(&self, name: &str, change: impl FnOnce(&str) -> String) -> Result<()> {
        let before = self.read(name)?;
        let after = change(&before);
        ensure!(after != before, "the edit of manifest {name} changed nothing");
        self.write(name, &after)
    }

    /// Removes a file.
    pub fn remove(&self, name: &str) -> Result<()> {
        fs::remove_file(self.live.join(name)).with_context(|| format!("removing manifest {name}"))
    }
}

/// Removes the folders of dead owners.
fn reap_leftovers() {
    for entry in fs::read_dir(std::env::temp_dir()).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let owner = name.to_str().and_then(|name| name.strip_prefix(PREFIX)?.split_once('-')?.0.parse().ok());
        if owner.is_some_and(|owner| !is_alive(owner)) {
            // Another run may remove it at the same time.
            let _gone = fs::remove_dir_all(entry.path());
        }
    }
}
