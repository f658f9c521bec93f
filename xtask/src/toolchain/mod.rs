//! What builds BPF on this machine: a compiler with the sources of `core`, and a bpf-linker that reads its bitcode.
//!
//! `probe` looks, `choice` decides from what was seen and touches nothing, `linker` and `apt` act.

pub(crate) mod apt;
pub(crate) mod choice;
pub(crate) mod facts;
pub(crate) mod linker;
pub(crate) mod probe;

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use crate::process;
use facts::Compiler;

/// A compiler and a linker that fit together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Chain {
    /// Compiles the programs to LLVM bitcode.
    pub(crate) compiler: Compiler,
    /// Makes a BPF object of the bitcode.
    pub(crate) linker: PathBuf,
}

impl Chain {
    /// A cargo of this chain, free of the outer cargo's variables, with `lb-ebpf`'s flags set.
    ///
    /// `RUSTC_BOOTSTRAP` because a stable compiler refuses `-Z build-std` otherwise: BPF has no prebuilt `core`. PATH
    /// because cargo asks it for bpf-linker, and because rustup's shims must not answer for this compiler's tools.
    pub(crate) fn cargo(&self) -> Result<Command> {
        let parent = |file: &'static str, path: &Path| {
            path.parent().map(Path::to_path_buf).ok_or_else(|| anyhow::anyhow!("the path of {file} has no folder"))
        };
        let linker = parent("bpf-linker", &self.linker)?;
        let compiler = parent("rustc", &self.compiler.rustc)?;
        let mut command = process::isolated(&self.compiler.cargo);
        command
            .env("RUSTC", &self.compiler.rustc)
            .env("PATH", process::path_with(&[&linker, &compiler])?)
            .env("RUSTC_BOOTSTRAP", "1")
            .env(
                "CARGO_ENCODED_RUSTFLAGS",
                ["-C", "target-cpu=v3", "-C", "debuginfo=2", "-C", "link-arg=--btf"].join("\u{1f}"),
            );
        Ok(command)
    }

    /// One line for people: which compiler, which linker.
    pub(crate) fn describe(&self) -> String {
        format!("{}, {}", self.compiler.describe(), self.linker.display())
    }
}
