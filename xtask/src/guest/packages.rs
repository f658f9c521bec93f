//! Debian's kernel packages: downloaded and unpacked, never installed. What a guest needs of them is kept beside
//! bpf-linker, for all clones.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::str::FromStr;

use anyhow::{Context, Result, bail};

use super::bzimage;
use super::emulator::Emulator;
use super::modules::Modules;
use crate::toolchain::{apt, linker};
use crate::{process, workspace};

/// Programs that make guests, and Debian's packages of them.
const PROGRAMS: [(&str, &str); 8] = [
    ("busybox", "busybox-static"),
    ("dpkg-deb", "dpkg"),
    ("xz", "xz-utils"),
    ("zstd", "zstd"),
    ("lz4", "lz4"),
    ("depmod", "kmod"),
    ("strip", "binutils"),
    ("timeout", "coreutils"),
];

/// Debian's small kernels: those for clouds boot in two seconds and lack nothing that bpvs uses.
const FLAVOURS: [&str; 2] = ["-cloud-amd64", "-cloud-amd64-unsigned"];
const PREFIX: &str = "linux-image-";
/// The kernel among what is kept of a package.
const IMAGE: &str = "vmlinux";

/// A series of kernels: `6.1`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Series(u32, u32);

impl FromStr for Series {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parsed =
            text.split_once('.').and_then(|(major, minor)| Some(Self(major.parse().ok()?, minor.parse().ok()?)));
        parsed.ok_or_else(|| format!("`{text}` is no series of kernels; 6.1 is one"))
    }
}

impl fmt::Display for Series {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}.{}", self.0, self.1)
    }
}

/// A kernel that was unpacked.
#[derive(Clone)]
pub(crate) struct Kernel {
    /// Its version, as its package has it: `6.1.0-57`.
    pub(crate) release: String,
    folder: PathBuf,
}

impl Kernel {
    /// The file to boot.
    pub(crate) fn image(&self) -> PathBuf {
        self.folder.join(IMAGE)
    }

    /// Its modules.
    pub(crate) fn modules(&self) -> Result<Modules> {
        Modules::below(&self.folder)
    }

    /// Everything of it was kept: what is written last is there.
    fn is_complete(&self) -> bool {
        self.image().is_file()
    }
}

/// Installs what is missing of the programs that make guests and of `more` (program, Debian's package), or says how.
pub(crate) fn require_programs(more: &[(&str, &str)]) -> Result<()> {
    if std::env::consts::ARCH != "x86_64" {
        bail!(
            "the guests are made of this machine's programs and kernels for x86-64, and this is {}",
            std::env::consts::ARCH
        );
    }
    let all = PROGRAMS.iter().chain(more);
    let missing = all.filter(|(program, _)| workspace::find_program(program).is_none());
    let packages: Vec<String> = missing.map(|(_, package)| (*package).to_owned()).collect();
    if !apt::is_debian() {
        bail!(
            "the kernels are Debian's packages, which take Debian's apt-get to find and fetch, and this is {}",
            apt::distribution()
        );
    }
    if !packages.is_empty() {
        apt::install(&packages)?;
    }
    Emulator::require()
}

/// The newest kernel of a series: of those fetched before, or with `refresh` of those that Debian has.
pub(crate) fn kernel(series: Series, refresh: bool) -> Result<Kernel> {
    let shared = linker::shared("guests")?;
    fs::create_dir_all(&shared).with_context(|| format!("cannot create {}", shared.display()))?;
    let at = |release: String| Kernel { folder: shared.join(&release), release };
    if !refresh && let Some(release) = newest(fetched(&shared)?, series) {
        let kernel = at(release);
        if kernel.is_complete() {
            return Ok(kernel);
        }
    }
    let mut found = offered(series)?;
    if (found.is_none() || refresh) && workspace::is_root() {
        apt::refresh()?;
        found = offered(series)?;
    }
    let Some((package, release)) = found else {
        bail!(
            "apt knows no package {PREFIX}{series}.*{}; `apt-get update` fetches its lists, --kernels names other series",
            FLAVOURS[0]
        );
    };
    let kernel = at(release);
    if !kernel.is_complete() {
        fetch(&package, &kernel)?;
    }
    Ok(kernel)
}

/// Releases of the kernels that were fetched before.
fn fetched(shared: &Path) -> Result<Vec<String>> {
    let entries = fs::read_dir(shared).with_context(|| format!("cannot list {}", shared.display()))?;
    let names = entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
    names.collect::<std::io::Result<_>>().with_context(|| format!("cannot list {}", shared.display()))
}

/// Package and release of the newest kernel of a series that apt offers.
fn offered(series: Series) -> Result<Option<(String, String)>> {
    let pattern = format!("^{PREFIX}{}\\.{}\\.", series.0, series.1);
    let list =
        process::capture(Command::new("apt-cache").args(["search", "--names-only", &pattern]).env("LC_ALL", "C"))?;
    let names: Vec<&str> = list.lines().filter_map(|line| line.split(' ').next()).collect();
    let Some(release) = newest(names.iter().filter_map(|name| release_of(name)).collect(), series) else {
        return Ok(None);
    };
    // The signed package where there is one, which is where installations get theirs from.
    let package = FLAVOURS.iter().map(|flavour| format!("{PREFIX}{release}{flavour}"));
    Ok(package.into_iter().find(|name| names.contains(&name.as_str())).map(|name| (name, release)))
}

/// The release in a package's name; none for packages of other things.
fn release_of(package: &str) -> Option<String> {
    let rest = package.strip_prefix(PREFIX)?;
    FLAVOURS.iter().find_map(|flavour| rest.strip_suffix(flavour)).map(str::to_owned)
}

/// The newest release of a series.
fn newest(releases: Vec<String>, series: Series) -> Option<String> {
    let numbers = |release: &String| -> Vec<u32> {
        release.split(|c: char| !c.is_ascii_digit()).filter_map(|number| number.parse().ok()).collect()
    };
    let of_series = releases.into_iter().filter(|release| release.starts_with(&format!("{series}.")));
    of_series.filter(|release| !release.contains("partial")).max_by_key(numbers)
}

/// Downloads and unpacks a package, and keeps the kernel and the modules of it.
fn fetch(package: &str, kernel: &Kernel) -> Result<()> {
    // Beside the final place, so that an interrupted run leaves nothing that is taken for a kernel.
    let mut partial = kernel.folder.as_os_str().to_owned();
    partial.push(format!(".partial-{}", std::process::id()));
    let partial = PathBuf::from(partial);
    let (download, unpacked, kept) = (partial.join("download"), partial.join("unpacked"), partial.join("kept"));
    fs::create_dir_all(&kept).with_context(|| format!("cannot create {}", kept.display()))?;
    let fetched = unpack(package, &download, &unpacked, &kept, &kernel.release);
    let moved = fetched.and_then(|()| {
        // An incomplete one of another version of this task.
        if kernel.folder.exists() {
            fs::remove_dir_all(&kernel.folder).with_context(|| format!("cannot remove {}", kernel.folder.display()))?;
        }
        fs::rename(&kept, &kernel.folder).with_context(|| format!("cannot make {}", kernel.folder.display()))
    });
    fs::remove_dir_all(&partial).with_context(|| format!("cannot remove {}", partial.display()))?;
    moved
}

fn unpack(package: &str, download: &Path, unpacked: &Path, kept: &Path, release: &str) -> Result<()> {
    eprintln!("      fetching {package}");
    extract(&[package.to_owned()], download, unpacked)?;
    let lacks = |what: &str| format!("{package} has no {what} for {release}");
    Modules::keep(unpacked, kept).with_context(|| lacks("modules"))?;
    let packed = find(unpacked, &|name| name.starts_with("vmlinuz-"))?.with_context(|| lacks("vmlinuz"))?;
    bzimage::unpack(&packed, &kept.join(IMAGE))
}

/// Downloads packages into one folder and unpacks them into another; installs nothing.
pub(super) fn extract(packages: &[String], download: &Path, unpacked: &Path) -> Result<()> {
    fs::create_dir_all(download).with_context(|| format!("cannot create {}", download.display()))?;
    let mut apt = Command::new("apt-get");
    // As this user: apt's own may not write here, and warns of it.
    apt.args(["-q", "-o", "APT::Sandbox::User=root", "download"]).args(packages).current_dir(download);
    let names = packages.join(" ");
    process::run(&mut apt).with_context(|| format!("cannot fetch {names}; `apt-get update` may help"))?;
    let files = fs::read_dir(download).with_context(|| format!("cannot list {}", download.display()))?;
    for file in files {
        let file = file.with_context(|| format!("cannot list {}", download.display()))?.path();
        process::run(Command::new("dpkg-deb").arg("--extract").arg(&file).arg(unpacked))?;
    }
    Ok(())
}

/// The first file below `folder` whose name is `wanted`.
fn find(folder: &Path, wanted: &dyn Fn(&str) -> bool) -> Result<Option<PathBuf>> {
    for entry in fs::read_dir(folder).with_context(|| format!("cannot list {}", folder.display()))? {
        let entry = entry.with_context(|| format!("cannot list {}", folder.display()))?;
        let kind = entry.file_type().with_context(|| format!("cannot look at {}", entry.path().display()))?;
        if kind.is_dir() {
            if let Some(found) = find(&entry.path(), wanted)? {
                return Ok(Some(found));
            }
        } else if kind.is_file() && wanted(&entry.file_name().to_string_lossy()) {
            return Ok(Some(entry.path()));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_release_of_a_series_is_told_by_its_numbers() {
        let names = [
            "linux-image-6.1.0-9-cloud-amd64",
            "linux-image-6.1.0-57-cloud-amd64",
            "linux-image-6.1.0-57-cloud-amd64-dbg",
            "linux-image-6.1.0-58-amd64",
            "linux-image-6.12.117+deb12-cloud-amd64-unsigned",
        ];
        let releases: Vec<_> = names.iter().filter_map(|name| release_of(name)).collect();
        assert_eq!(newest(releases.clone(), Series(6, 1)).as_deref(), Some("6.1.0-57"));
        assert_eq!(newest(releases.clone(), Series(6, 12)).as_deref(), Some("6.12.117+deb12"));
        assert_eq!(newest(releases, Series(6, 6)), None);
    }

    #[test]
    fn a_series_is_two_numbers() {
        assert_eq!("6.12".parse(), Ok(Series(6, 12)));
        for wrong in ["", "6", "6.", "6.1.0", "six.one"] {
            assert!(wrong.parse::<Series>().unwrap_err().contains(wrong), "{wrong}");
        }
    }
}
