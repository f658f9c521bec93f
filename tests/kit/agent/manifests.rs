//! A folder of manifests that a running agent watches.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use tempfile::TempDir;

/// A temporary folder. Files appear and change in one step, as `kubectl` or an editor that renames would do it.
#[derive(Debug)]
pub struct Manifests {
    folder: TempDir,
    live: PathBuf,
}

impl Manifests {
    /// An empty folder.
    pub fn new() -> Result<Self> {
        let folder = tempfile::Builder::new().prefix("bpvs-manifests-").tempdir()?;
        let live = folder.path().join("live");
        fs::create_dir(&live)?;
        Ok(Self { folder, live })
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
        let staged = self.folder.path().join("staged");
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
