//! What a machine offers, as plain values, and the parsers of the outputs they are read from.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

/// A compiler's or program's version, without its suffix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Version(pub(crate) u32, pub(crate) u32, pub(crate) u32);

impl Version {
    /// The first three numbers of `1.96.0`, `1.97.0-nightly`, `1.96.0+dfsg1-1~deb12u2` or `22.1`; a missing one is 0.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let text = text.split_once(':').map_or(text, |(_epoch, rest)| rest);
        let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        let mut numbers = text[..end].split('.').map(|number| number.parse::<u32>().ok());
        let first = numbers.next()??;
        Some(Self(first, numbers.next().flatten().unwrap_or(0), numbers.next().flatten().unwrap_or(0)))
    }
}

impl fmt::Display for Version {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}.{}.{}", self.0, self.1, self.2)
    }
}

/// A Rust compiler with the cargo beside it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Compiler {
    /// How a person calls it: a rustup toolchain's name, or `system`.
    pub(crate) name: String,
    /// The compiler itself, never a rustup shim.
    pub(crate) rustc: PathBuf,
    /// The cargo of the same folder.
    pub(crate) cargo: PathBuf,
    /// Its version.
    pub(crate) version: Version,
    /// Major version of the LLVM inside it: bpf-linker's must be able to read what this one writes.
    pub(crate) llvm: u32,
    /// Whether the sources of `core` are installed beside it.
    pub(crate) has_source: bool,
}

impl Compiler {
    /// One line for people.
    pub(crate) fn describe(&self) -> String {
        format!("rustc {} ({}, LLVM {})", self.version, self.name, self.llvm)
    }
}

/// A bpf-linker, and which of the compilers' bitcode it was seen to read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Linker {
    /// Where it is.
    pub(crate) path: PathBuf,
    /// Names of the compilers whose output it links.
    pub(crate) reads: Vec<String>,
}

/// LLVM's development files, to build bpf-linker against.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Llvm {
    /// Major version.
    pub(crate) major: u32,
    /// The folder that holds `lib` and `bin/llvm-config`.
    pub(crate) prefix: PathBuf,
}

/// What the package manager can install.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Packages {
    /// Not asked yet: asking costs time, and a prepared machine needs no answer.
    NotAsked,
    /// This is no Debian: we know no command to install with.
    Unknown,
    /// Candidate version of each package we asked for and apt offers.
    Offered {
        /// Package name to candidate version.
        candidates: BTreeMap<String, String>,
        /// Major version of the LLVM that the packaged compiler brings, where known.
        compiler_llvm: Option<u32>,
        /// Whether the package lists were fetched by this run.
        refreshed: bool,
    },
}

/// Everything that the choice is made from.
#[derive(Clone, Debug)]
pub(crate) struct Facts {
    /// In order of preference among equals: rustup's default toolchain first, the system's compiler last.
    pub(crate) compilers: Vec<Compiler>,
    /// In order of preference: ours, then the one on PATH.
    pub(crate) linkers: Vec<Linker>,
    /// Installed LLVM development files.
    pub(crate) llvms: Vec<Llvm>,
    /// Packages of the programs that are needed and missing.
    pub(crate) missing_tools: Vec<&'static str>,
    /// What can be installed.
    pub(crate) packages: Packages,
}

/// Version and LLVM major version from `rustc -vV`.
pub(crate) fn parse_rustc(verbose: &str) -> Option<(Version, u32)> {
    let field = |name: &str| verbose.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
    Some((Version::parse(field("release")?)?, Version::parse(field("LLVM version")?)?.0))
}

/// (name, folder) of every toolchain of `rustup toolchain list -v`, the default one first, a linked copy only once.
pub(crate) fn parse_toolchains(list: &str) -> Vec<(String, PathBuf)> {
    let mut found: Vec<(bool, String, PathBuf)> = Vec::new();
    for line in list.lines() {
        let Some((name, rest)) = line.split_once(char::is_whitespace) else { continue };
        let Some(at) = rest.find('/') else { continue };
        let default = rest[..at].contains("default") || rest[..at].contains("active");
        let folder = PathBuf::from(rest[at..].trim_end());
        if !found.iter().any(|(_, _, known)| *known == folder) {
            found.push((default, name.to_owned(), folder));
        }
    }
    found.sort_by_key(|(default, _, _)| !default);
    found.into_iter().map(|(_, name, folder)| (name, folder)).collect()
}

/// Package name to candidate version from `apt-cache policy a b c`; one without a candidate is left out.
pub(crate) fn parse_policy(policy: &str) -> BTreeMap<String, String> {
    let mut candidates = BTreeMap::new();
    let mut package = "";
    for line in policy.lines() {
        if let Some(name) = line.strip_suffix(':').filter(|name| !name.starts_with(' ')) {
            package = name;
        } else if let Some(version) = line.trim().strip_prefix("Candidate: ").filter(|version| *version != "(none)") {
            candidates.insert(package.to_owned(), version.to_owned());
        }
    }
    candidates
}

/// The N of the `libllvmN` (or `libLLVMN`) among the dependencies that `apt-cache depends` prints.
pub(crate) fn parse_llvm_dependency(depends: &str) -> Option<u32> {
    depends.lines().find_map(|line| {
        let package = line.trim().strip_prefix("Depends: ")?.to_ascii_lowercase();
        package.strip_prefix("libllvm")?.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_of_every_source_are_read() {
        assert_eq!(Version::parse("1.96.0"), Some(Version(1, 96, 0)));
        assert_eq!(Version::parse("1.97.0-nightly"), Some(Version(1, 97, 0)));
        assert_eq!(Version::parse("1.96.0+dfsg1-1~deb12u2"), Some(Version(1, 96, 0)));
        assert_eq!(Version::parse("1:22.1"), Some(Version(22, 1, 0)));
        assert_eq!(Version::parse(""), None);
        assert_eq!(Version::parse("nightly"), None);
    }

    #[test]
    fn rustc_tells_its_version_and_its_llvm() {
        let text = "rustc 1.96.0 (ac68faa20 2026-05-25)\nbinary: rustc\nrelease: 1.96.0\nLLVM version: 22.1.8\n";
        assert_eq!(parse_rustc(text), Some((Version(1, 96, 0), 22)));
        assert_eq!(parse_rustc("rustc 1.96.0\n"), None);
    }

    #[test]
    fn the_default_toolchain_comes_first_and_a_link_to_it_is_not_a_second_one() {
        let list = "nightly-x86_64 /r/nightly\nstable-x86_64 (active, default) /r/stable\n1.95.0 /r/stable\n";
        let names: Vec<_> = parse_toolchains(list).into_iter().map(|(name, _)| name).collect();
        assert_eq!(names, ["stable-x86_64", "nightly-x86_64"]);
        assert!(parse_toolchains("no installed toolchains\n").is_empty());
    }

    #[test]
    fn packages_without_a_candidate_are_not_offered() {
        let policy = "a:\n  Installed: (none)\n  Candidate: 1.2-3\n  Version table:\nb:\n  Candidate: (none)\n";
        assert_eq!(parse_policy(policy), BTreeMap::from([("a".to_owned(), "1.2-3".to_owned())]));
    }

    #[test]
    fn the_packaged_compilers_llvm_is_read_from_its_dependencies() {
        assert_eq!(parse_llvm_dependency("x\n  Depends: libc6\n  Depends: libllvm22\n"), Some(22));
        assert_eq!(parse_llvm_dependency("  Depends: libLLVM19t64\n"), Some(19));
        assert_eq!(parse_llvm_dependency("  Depends: libc6\n"), None);
    }
}
