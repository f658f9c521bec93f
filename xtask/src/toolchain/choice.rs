//! From what a machine has to the next thing to do. Pure: the caller acts, looks again and asks again.

use std::path::PathBuf;

use super::Chain;
use super::facts::{Compiler, Facts, Packages, Version};
use super::linker;

/// The oldest compiler that builds the programs: `lb-common` is shared with user space and follows its minimum.
pub(crate) const OLDEST_RUST: Version = Version(1, 95, 0);

/// Packages of a compiler with the sources of `core`, the best first. Debian's stable releases carry a current compiler
/// under the names with `web`; the plain names are current in testing and unstable only.
const COMPILER_PACKAGES: [[&str; 3]; 2] = [["rustc-web", "cargo-web", "rust-web-src"], ["rustc", "cargo", "rust-src"]];

/// What to do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Nothing: this builds BPF.
    Ready(Chain),
    /// Build bpf-linker against the LLVM under `prefix`.
    BuildLinker {
        /// Major version of that LLVM.
        llvm: u32,
        /// Where it is installed.
        prefix: PathBuf,
    },
    /// Find out what the package manager offers.
    AskPackages,
    /// Fetch the package lists: the ones here do not know what is needed.
    RefreshLists,
    /// Install these packages.
    Install(Vec<String>),
    /// Nothing can be done here; the text says what a person can do.
    Stuck(String),
}

/// The packages worth asking apt about.
pub(crate) fn interesting_packages() -> Vec<String> {
    let compilers = COMPILER_PACKAGES.iter().flatten().map(|name| (*name).to_owned());
    compilers.chain(linker::LLVM_MAJORS.iter().map(|major| llvm_package(*major))).collect()
}

/// The next step towards a working chain and every needed program.
pub(crate) fn next_step(facts: &Facts) -> Step {
    let usable: Vec<&Compiler> = facts.compilers.iter().filter(|c| c.has_source && c.version >= OLDEST_RUST).collect();
    let chain = usable.iter().find_map(|compiler| {
        let linker = facts.linkers.iter().find(|linker| linker.reads.contains(&compiler.name))?;
        Some(Chain { compiler: (*compiler).clone(), linker: linker.path.clone() })
    });
    let llvm = usable.iter().find_map(|compiler| {
        facts.llvms.iter().find(|llvm| llvm.major == compiler.llvm && linker::LLVM_MAJORS.contains(&llvm.major))
    });
    let tools = facts.missing_tools.iter().map(|package| (*package).to_owned());
    match (chain, llvm) {
        (Some(chain), _) if facts.missing_tools.is_empty() => return Step::Ready(chain),
        (None, Some(llvm)) if facts.missing_tools.is_empty() => {
            return Step::BuildLinker { llvm: llvm.major, prefix: llvm.prefix.clone() };
        }
        (Some(_), _) | (None, Some(_)) => return install(facts, tools.collect()),
        (None, None) => {}
    }
    let (candidates, compiler_llvm, refreshed) = match &facts.packages {
        Packages::NotAsked => return Step::AskPackages,
        Packages::Unknown => return Step::Stuck(advice(facts)),
        Packages::Offered { candidates, compiler_llvm, refreshed } => (candidates, *compiler_llvm, *refreshed),
    };
    let offered = |package: &str| candidates.contains_key(package);
    // Least to install first: a compiler that is here already needs only its LLVM.
    if let Some(compiler) = usable.iter().find(|compiler| offered(&llvm_package(compiler.llvm))) {
        return Step::Install([llvm_package(compiler.llvm)].into_iter().chain(tools).collect());
    }
    let current = |version: &String| Version::parse(version).is_some_and(|version| version >= OLDEST_RUST);
    for names in COMPILER_PACKAGES {
        let installed = facts.compilers.iter().any(|compiler| compiler.name == "system" && compiler.has_source);
        if candidates.get(names[0]).is_some_and(current) && names.iter().all(|name| offered(name)) && !installed {
            let llvm = compiler_llvm.map(llvm_package).filter(|package| offered(package));
            return Step::Install(names.map(str::to_owned).into_iter().chain(llvm).chain(tools).collect());
        }
    }
    if refreshed { Step::Stuck(advice(facts)) } else { Step::RefreshLists }
}

/// The step that installs `packages`, or says who has to.
fn install(facts: &Facts, packages: Vec<String>) -> Step {
    match facts.packages {
        Packages::NotAsked => Step::AskPackages,
        Packages::Unknown => Step::Stuck(format!(
            "programs are missing; install the packages that your distribution calls (Debian's names): {}",
            packages.join(" ")
        )),
        Packages::Offered { .. } => Step::Install(packages),
    }
}

fn llvm_package(major: u32) -> String {
    format!("llvm-{major}-dev")
}

/// What a person can do where we cannot.
fn advice(facts: &Facts) -> String {
    let mut text = format!(
        "no way found to build BPF here: it takes a Rust compiler of {OLDEST_RUST} or newer with the sources of `core`, \
         and a bpf-linker {} or newer that reads its bitcode.\n",
        linker::VERSION
    );
    for compiler in &facts.compilers {
        let why = if compiler.version < OLDEST_RUST {
            "too old"
        } else if !compiler.has_source {
            "without the sources of `core`"
        } else {
            "no bpf-linker reads its bitcode, and no LLVM development files of its version are installed"
        };
        text.push_str(&format!("  seen: {}: {why}\n", compiler.describe()));
    }
    text.push_str(
        "One of these helps:\n  \
         rustup component add rust-src --toolchain stable\n  \
         rustup toolchain install nightly --component rust-src\n\
         and, for the linker, one of:\n  \
         cargo binstall bpf-linker\n  \
         your distribution's LLVM development files (`llvm-<version>-dev`), then `cargo xtask setup` builds it",
    );
    text
}

#[cfg(test)]
mod tests;
