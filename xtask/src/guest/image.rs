//! What a guest is made of: bpvs, a program that tries it, the programs that this one calls, with their libraries, and
//! kernel modules.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::archive::Archive;
use super::modules::Module;
use crate::{process, workspace};

/// Programs that the test kit calls.
const CALLED: [&str; 5] = ["ip", "tc", "bpftool", "ethtool", "nsenter"];
/// Folders that file systems are mounted on, and what programs expect.
const FOLDERS: [&str; 6] = ["/proc", "/sys", "/dev", "/run", "/tmp", "/var"];

const INIT: &str = include_str!("init.sh");

/// Files of every guest, whatever its kernel: place in the guest, content.
pub(crate) struct Programs(Vec<(String, Vec<u8>)>);

/// Collects programs: those that cargo built, by their name in the guest, and besides those that every guest has `called`
/// ones of this machine. `folder` is for copies without symbols, a tenth of the size.
pub(crate) fn programs(built: &[(&str, &Path)], called: &[&str], folder: &Path) -> Result<Programs> {
    let mut files = Vec::new();
    for (name, program) in built {
        let stripped = folder.join(name);
        process::capture(Command::new("strip").arg("-o").arg(&stripped).arg(program))?;
        add_program(&mut files, &stripped, &format!("/bin/{name}"))?;
    }
    for name in CALLED.iter().chain(called) {
        let program = workspace::find_program(name).with_context(|| format!("no program `{name}` on PATH"))?;
        add_program(&mut files, &program, &format!("/usr/sbin/{name}"))?;
    }
    let busybox = workspace::find_program("busybox").context("no program `busybox` on PATH")?;
    add_program(&mut files, &busybox, "/bin/busybox")?;
    files.push(("/bpvs.o".to_owned(), read(&workspace::bpf_object())?));
    Ok(Programs(files))
}

impl Programs {
    /// Adds the files of a folder, at the same place: what a program loads when it runs.
    pub(crate) fn add_folder(&mut self, folder: &Path) -> Result<()> {
        let cannot_list = || format!("cannot list {}", folder.display());
        for entry in fs::read_dir(folder).with_context(cannot_list)? {
            let file = entry.with_context(cannot_list)?.path();
            self.0.push((file.to_string_lossy().into_owned(), read(&file)?));
        }
        Ok(())
    }
}

fn add_program(files: &mut Vec<(String, Vec<u8>)>, program: &Path, place: &str) -> Result<()> {
    files.push((place.to_owned(), read(program)?));
    for library in libraries(program)? {
        let place = library.to_string_lossy().into_owned();
        if !files.iter().any(|(known, _)| *known == place) {
            files.push((place, read(&library)?));
        }
    }
    Ok(())
}

/// The libraries and the loader of a program.
fn libraries(program: &Path) -> Result<Vec<PathBuf>> {
    let output = Command::new("ldd").arg(program).env("LC_ALL", "C").output().context("cannot start `ldd`")?;
    let text = String::from_utf8_lossy(&output.stdout);
    if !output.status.success() {
        // A program that is linked statically has none, and ldd calls that a failure.
        let said = String::from_utf8_lossy(&output.stderr);
        if text.contains("statically linked") || said.contains("not a dynamic executable") {
            return Ok(Vec::new());
        }
        bail!("`ldd {}` failed: {}", program.display(), said.trim_end());
    }
    parse_libraries(&text).with_context(|| format!("a library of {} is missing", program.display()))
}

/// The paths in what `ldd` prints; an error names a library that was not found.
fn parse_libraries(text: &str) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for line in text.lines().map(str::trim) {
        let (name, place) = line.split_once(" => ").unwrap_or((line, line));
        if place.starts_with("not found") {
            bail!("{name}");
        }
        if place.starts_with('/') {
            found.push(PathBuf::from(place.split_whitespace().next().unwrap_or(place)));
        }
    }
    Ok(found)
}

/// The first file system of a guest: with these programs and modules, loaded in this order, it runs `script` and ends with
/// its exit code.
pub(crate) fn initramfs(programs: &Programs, modules: &[Module], script: &str) -> Result<Vec<u8>> {
    let mut archive = Archive::default();
    for folder in FOLDERS {
        archive.folder(folder);
    }
    archive.file("/init", INIT.as_bytes(), true);
    archive.file("/script", script.as_bytes(), false);
    for (number, module) in modules.iter().enumerate() {
        archive.file(&format!("/modules/{number:03}-{}.ko", module.name), &module.content()?, false);
    }
    for (place, content) in &programs.0 {
        archive.file(place, content, true);
    }
    // A loader is asked for by the place that is written in each program; Debian's /lib64 is a link where /usr is merged.
    if !archive.has("/lib64") {
        archive.link("/lib64", "/usr/lib64");
    }
    Ok(archive.finish())
}

fn read(file: &Path) -> Result<Vec<u8>> {
    fs::read(file).with_context(|| format!("cannot read {}", file.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_are_read_from_what_ldd_prints() {
        let text = "\tlinux-vdso.so.1 (0x00007ffd)\n\tlibm.so.6 => /lib/x86_64-linux-gnu/libm.so.6 (0x00007f)\n\
                    \t/lib64/ld-linux-x86-64.so.2 (0x00007f)\n";
        let found = parse_libraries(text).unwrap();
        assert_eq!(found, ["/lib/x86_64-linux-gnu/libm.so.6", "/lib64/ld-linux-x86-64.so.2"].map(PathBuf::from));
        assert_eq!(parse_libraries("\tlibx.so.1 => not found\n").unwrap_err().to_string(), "libx.so.1");
    }
}
