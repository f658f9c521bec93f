//! Looking at the machine. Reads, and compiles two lines in a scratch folder; changes nothing.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use super::facts::{self, Compiler, Facts, Linker, Llvm, Packages, Version};
use super::linker;
use crate::{process, workspace};

/// Programs that tests and demo call, and Debian's packages of them.
const TOOLS: [(&str, &str); 7] = [
    ("ip", "iproute2"),
    ("tc", "iproute2"),
    ("bpftool", "bpftool"),
    ("ethtool", "ethtool"),
    ("nsenter", "util-linux"),
    ("nft", "nftables"),
    ("iptables-restore", "iptables"),
];

/// What is here. `tools` asks for the programs that tests and demo call, too.
pub(crate) fn look(tools: bool, packages: Packages) -> Result<Facts> {
    let compilers = compilers();
    let linkers = linkers(&compilers)?;
    let mut missing_tools: Vec<&str> = Vec::new();
    for (program, package) in TOOLS {
        if tools && workspace::find_program(program).is_none() && !missing_tools.contains(&package) {
            missing_tools.push(package);
        }
    }
    Ok(Facts { compilers, linkers, llvms: llvms(), missing_tools, packages })
}

/// rustup's toolchains, then the system's compiler. One that does not run is not a compiler.
fn compilers() -> Vec<Compiler> {
    let list = process::capture(Command::new("rustup").args(["toolchain", "list", "-v"])).unwrap_or_default();
    let rustups = facts::parse_toolchains(&list).into_iter().map(|(name, folder)| (name, folder.join("bin")));
    let system = [("system".to_owned(), PathBuf::from("/usr/bin"))];
    rustups.chain(system).filter_map(|(name, folder)| compiler(name, &folder)).collect()
}

fn compiler(name: String, folder: &Path) -> Option<Compiler> {
    let (rustc, cargo) = (folder.join("rustc"), folder.join("cargo"));
    if !workspace::is_executable(&rustc) || !workspace::is_executable(&cargo) || is_shim(&rustc) {
        return None;
    }
    let verbose = process::capture(process::isolated(&rustc).arg("-vV")).ok()?;
    let (version, llvm) = facts::parse_rustc(&verbose)?;
    let sysroot = process::capture(process::isolated(&rustc).args(["--print", "sysroot"])).ok()?;
    let library = Path::new(sysroot.trim_end()).join("lib/rustlib/src/rust/library/core/src/lib.rs");
    Some(Compiler { name, rustc, cargo, version, llvm, has_source: library.exists() })
}

/// A distribution's rustup puts its shims into /usr/bin: those are no compiler of the system.
fn is_shim(rustc: &Path) -> bool {
    fs::canonicalize(rustc).is_ok_and(|target| target.file_name().is_some_and(|name| name == "rustup"))
}

/// The linkers that were built by setup, then the one on PATH if it is new enough.
fn linkers(compilers: &[Compiler]) -> Result<Vec<Linker>> {
    let mut files: Vec<PathBuf> = linker::built().into_iter().filter(|file| workspace::is_executable(file)).collect();
    if let Some(file) = workspace::find_program("bpf-linker").filter(|file| is_new_enough(file)) {
        files.push(file);
    }
    let with_source: Vec<&Compiler> = compilers.iter().filter(|compiler| compiler.has_source).collect();
    if files.is_empty() || with_source.is_empty() {
        return Ok(Vec::new());
    }
    let scratch = Scratch::new()?;
    let mut bitcode = Vec::new();
    for compiler in with_source {
        if let Some(file) = scratch.compile(compiler)? {
            bitcode.push((compiler.name.clone(), file));
        }
    }
    let reads = |linker: &Path| {
        let read = bitcode.iter().filter(|(_, file)| scratch.links(linker, file));
        read.map(|(name, _)| name.clone()).collect()
    };
    Ok(files.into_iter().map(|path| Linker { reads: reads(&path), path }).collect())
}

fn is_new_enough(linker: &Path) -> bool {
    let version = process::capture(Command::new(linker).arg("--version")).unwrap_or_default();
    let version = version.split_whitespace().nth(1).and_then(Version::parse);
    version.is_some() && version >= Version::parse(linker::VERSION)
}

/// LLVM's development files, where Debian and its like put them, and where `LLVM_PREFIX` says.
fn llvms() -> Vec<Llvm> {
    let known = linker::LLVM_MAJORS.map(|major| PathBuf::from(format!("/usr/lib/llvm-{major}")));
    let named = std::env::var_os("LLVM_PREFIX").map(PathBuf::from);
    named.into_iter().chain(known).filter_map(llvm).collect()
}

fn llvm(prefix: PathBuf) -> Option<Llvm> {
    // The headers tell development files from a mere run-time library.
    if !prefix.join("include/llvm-c").exists() {
        return None;
    }
    let version = process::capture(Command::new(prefix.join("bin/llvm-config")).arg("--version")).ok()?;
    Some(Llvm { major: Version::parse(&version)?.0, prefix })
}

/// A folder for trying whether a linker reads a compiler's bitcode: versions alone do not tell (a distribution's linker
/// may carry any LLVM inside), an attempt does, in a tenth of a second.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Result<Self> {
        let folder = std::env::temp_dir().join(format!("bpvs-xtask-{}", std::process::id()));
        fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
        let source = "#![no_std]\n#[unsafe(no_mangle)]\npub extern \"C\" fn probe(x: u32) -> u32 {\n    x + 1\n}\n";
        let file = folder.join("probe.rs");
        fs::write(&file, source).with_context(|| format!("cannot write {}", file.display()))?;
        Ok(Self(folder))
    }

    /// Bitcode of the probe, or none if this compiler cannot build it.
    fn compile(&self, compiler: &Compiler) -> Result<Option<PathBuf>> {
        let bitcode = self.0.join(format!("{}.bc", compiler.name));
        let mut command = process::isolated(&compiler.rustc);
        command.args(["--edition", "2024", "--crate-type", "lib", "--emit", "llvm-bc", "-o"]);
        let done = process::capture(command.arg(&bitcode).arg(self.0.join("probe.rs")).current_dir(&self.0));
        Ok(done.is_ok().then_some(bitcode))
    }

    fn links(&self, linker: &Path, bitcode: &Path) -> bool {
        let mut command = Command::new(linker);
        command.args(["--target", "bpfel-unknown-none", "--export", "probe", "-o"]).arg(self.0.join("probe.o"));
        process::capture(command.arg(bitcode).current_dir(&self.0)).is_ok()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // Nothing depends on it; the system's own clean-up of its temporary folder is the fallback.
        let _ = fs::remove_dir_all(&self.0);
    }
}
