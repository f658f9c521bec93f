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

/// What `lb-ebpf` is compiled with: BTF for named map fields, and the instruction set that has 32-bit compare-and-exchange
/// (LLVM's default of v1 cannot select it). Kernels have v3 since 5.12; ours start at 6.1.
///
/// bpf-linker asks LLVM to expand `memcpy` in order, which also turns every `memset` into a call, of three bytes of
/// padding too: a loop to run, and a frame that Linux 6.1 counts as 32 bytes of a stack of 512.
const FLAGS: [&str; 8] = [
    "-C",
    "debuginfo=2",
    "-C",
    "target-cpu=v3",
    "-C",
    "link-arg=--btf",
    "-C",
    "link-arg=--disable-expand-memcpy-in-order",
];

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
        self.command(&self.compiler.cargo)
    }

    /// The same for a program that calls cargo, such as `cargo-clippy`. Started by its path: cargo looks for subcommands
    /// in rustup's folder of shims first where PATH lacks that folder, and the shim belongs to another compiler.
    pub(crate) fn command(&self, program: &Path) -> Result<Command> {
        let parent = |file: &'static str, path: &Path| {
            path.parent().map(Path::to_path_buf).ok_or_else(|| anyhow::anyhow!("the path of {file} has no folder"))
        };
        let linker = parent("bpf-linker", &self.linker)?;
        let compiler = parent("rustc", &self.compiler.rustc)?;
        let mut command = process::isolated(program);
        command
            .env("CARGO", &self.compiler.cargo)
            .env("RUSTC", &self.compiler.rustc)
            .env("PATH", process::path_with(&[&linker, &compiler])?)
            .env("RUSTC_BOOTSTRAP", "1")
            .env("CARGO_ENCODED_RUSTFLAGS", FLAGS.join("\u{1f}"));
        Ok(command)
    }

    /// One line for people: which compiler, which linker.
    pub(crate) fn describe(&self) -> String {
        format!("{}, {}", self.compiler.describe(), self.linker.display())
    }
}
