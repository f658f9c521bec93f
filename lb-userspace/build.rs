//! Tells the crate where the BPF object is that it embeds: `BPVS_BPF_OBJECT`, or what `cargo xtask build-ebpf` made.

use std::env;
use std::path::{Path, PathBuf};

fn main() {
    const VARIABLE: &str = "BPVS_BPF_OBJECT";
    println!("cargo::rerun-if-env-changed={VARIABLE}");
    let own = env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from).unwrap_or_default();
    // The same place whatever CARGO_TARGET_DIR says: xtask and this script agree on it without asking cargo.
    let default = own.parent().unwrap_or(Path::new("..")).join("target/bpf/bpvs.o");
    let named = env::var_os(VARIABLE).filter(|value| !value.is_empty()).map(PathBuf::from);
    let object = named.clone().unwrap_or(default);
    println!("cargo::rerun-if-changed={}", object.display());
    if object.is_file() {
        println!("cargo::rustc-env={VARIABLE}={}", object.display());
    } else if named.is_some() {
        println!("cargo::error={VARIABLE} names {}, which is not a file", object.display());
    } else {
        println!("cargo::error=the BPF object {} is missing; run `cargo xtask build-ebpf`", object.display());
    }
}
