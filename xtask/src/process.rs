//! Running other programs: with their output passed through, a sign of life while they are silent, and an error that
//! says which command failed.

use std::env;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

/// A running command says so this often.
const HEARTBEAT: Duration = Duration::from_secs(20);

/// How often a running command is looked at.
const POLL: Duration = Duration::from_millis(20);

/// Settings that configure cargo itself; they are the user's and stay. Every other CARGO_* variable comes from the cargo
/// that runs xtask, and would bend the build of another workspace by another compiler.
const KEPT: [&str; 5] = ["CARGO_HOME", "CARGO_NET_", "CARGO_HTTP_", "CARGO_REGISTR", "CARGO_SOURCE_"];

/// Further variables of the outer cargo or rustup that would change the compiler or its flags.
const DROPPED: [&str; 8] = [
    "RUSTC",
    "RUSTC_WRAPPER",
    "RUSTC_WORKSPACE_WRAPPER",
    "RUSTDOC",
    "RUSTFLAGS",
    "RUSTUP_TOOLCHAIN",
    "RUST_RECURSION_COUNT",
    "__CARGO_DEFAULT_LIB_METADATA",
];

/// Run to the end with the output passed through; an error names the command and its exit status.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let line = line(command);
    let started = Instant::now();
    let mut child = command.stdin(Stdio::null()).spawn().with_context(|| format!("cannot start `{line}`"))?;
    let mut next = HEARTBEAT;
    loop {
        if let Some(status) = child.try_wait().with_context(|| format!("cannot wait for `{line}`"))? {
            if status.success() {
                return Ok(());
            }
            bail!("`{line}` failed: {status}");
        }
        if started.elapsed() >= next {
            eprintln!("      ... still running after {} s", started.elapsed().as_secs());
            next += HEARTBEAT;
        }
        thread::sleep(POLL);
    }
}

/// Run to the end and return what it wrote to stdout as text; an error carries what it wrote to stderr.
pub(crate) fn capture(command: &mut Command) -> Result<String> {
    output(command).map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
}

/// Run to the end and return what it wrote to stdout; an error carries what it wrote to stderr.
pub(crate) fn output(command: &mut Command) -> Result<Vec<u8>> {
    let line = line(command);
    let output = command.stdin(Stdio::null()).output().with_context(|| format!("cannot start `{line}`"))?;
    if !output.status.success() {
        bail!("`{line}` failed: {}\n{}", output.status, String::from_utf8_lossy(&output.stderr).trim_end());
    }
    Ok(output.stdout)
}

/// A command that knows nothing of the cargo and the toolchain that xtask itself runs under.
pub(crate) fn isolated(program: &Path) -> Command {
    let mut command = Command::new(program);
    for (name, _) in env::vars_os() {
        if is_outer(&name) {
            command.env_remove(name);
        }
    }
    // `cargo run` puts its own toolchain's libraries first; another compiler must load its own.
    if let Some(libraries) = env::var_os("LD_LIBRARY_PATH") {
        let foreign: Vec<PathBuf> = env::split_paths(&libraries).filter(|folder| !is_cargos(folder)).collect();
        match env::join_paths(&foreign) {
            Ok(joined) if !joined.is_empty() => command.env("LD_LIBRARY_PATH", joined),
            _ => command.env_remove("LD_LIBRARY_PATH"),
        };
    }
    command
}

/// PATH with `first` in front.
pub(crate) fn path_with(first: &[&Path]) -> Result<std::ffi::OsString> {
    let path = env::var_os("PATH").unwrap_or_default();
    let folders = first.iter().map(|folder| folder.to_path_buf()).chain(env::split_paths(&path));
    env::join_paths(folders).context("a folder of PATH has a colon in its name")
}

/// The command as one would type it.
pub(crate) fn line(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(quoted).collect::<Vec<_>>().join(" ")
}

fn quoted(word: &OsStr) -> String {
    let word = word.to_string_lossy();
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:,+@%".contains(c);
    if !word.is_empty() && word.chars().all(plain) { word.into_owned() } else { format!("'{word}'") }
}

fn is_outer(name: &OsStr) -> bool {
    let name = name.to_string_lossy();
    let cargos = name == "CARGO" || name.starts_with("CARGO_") && !KEPT.iter().any(|kept| name.starts_with(kept));
    cargos || DROPPED.contains(&name.as_ref())
}

fn is_cargos(folder: &Path) -> bool {
    let inside = |part: &str| folder.components().any(|component| component.as_os_str() == part);
    inside("toolchains") || inside("rustlib") || inside("deps") || inside("debug") || inside("release")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_outer_cargo_leaves_no_trace_but_the_users_settings_stay() {
        for outer in ["CARGO", "CARGO_MANIFEST_DIR", "CARGO_TARGET_DIR", "CARGO_ENCODED_RUSTFLAGS", "RUSTUP_TOOLCHAIN"]
        {
            assert!(is_outer(OsStr::new(outer)), "{outer}");
        }
        for users in ["CARGO_HOME", "CARGO_NET_OFFLINE", "CARGO_REGISTRIES_X_INDEX", "PATH", "RUSTUP_HOME", "CARGOES"] {
            assert!(!is_outer(OsStr::new(users)), "{users}");
        }
    }

    #[test]
    fn a_command_line_can_be_pasted_into_a_shell() {
        assert_eq!(line(Command::new("a").args(["b", "c d", ""])), "a b 'c d' ''");
    }

    #[test]
    fn a_failing_command_is_named_with_its_status() {
        let error = run(&mut Command::new("false")).unwrap_err().to_string();
        assert_eq!(error, "`false` failed: exit status: 1");
        let error = run(&mut Command::new("no-such-program-here")).unwrap_err().to_string();
        assert_eq!(error, "cannot start `no-such-program-here`");
    }
}
