//! Where things are, and who is asking.

use std::env;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The root of this clone.
pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask is a folder of the workspace")
}

/// The folder of the BPF programs, a workspace of its own.
pub(crate) fn ebpf_folder() -> PathBuf {
    root().join("lb-ebpf")
}

/// The BPF object that `lb-userspace` embeds. Fixed, whatever `CARGO_TARGET_DIR` says, so that its build script finds it.
pub(crate) fn bpf_object() -> PathBuf {
    root().join("target/bpf/bpvs.o")
}

/// The programs that `cargo xtask bench` measures with.
pub(crate) fn bench_object() -> PathBuf {
    root().join("target/bpf/bench.o")
}

/// Whether this process may do as it likes here: root's effective user id owns its entry under /proc.
pub(crate) fn is_root() -> bool {
    std::fs::metadata("/proc/self").is_ok_and(|own| own.uid() == 0)
}

/// The first `name` on PATH, or in the folders of system programs that a user's PATH often lacks.
pub(crate) fn find_program(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path)
        .chain(["/usr/local/sbin", "/usr/sbin", "/sbin"].map(PathBuf::from))
        .map(|folder| folder.join(name))
        .find(|file| is_executable(file))
}

/// Whether `file` is a file with an execute bit.
pub(crate) fn is_executable(file: &Path) -> bool {
    std::fs::metadata(file).is_ok_and(|facts| facts.is_file() && facts.mode() & 0o111 != 0)
}
