//! Building for this machine with the cargo that runs xtask, and becoming a program that it built.

use std::collections::BTreeMap;
use std::env;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::progress::Progress;
use crate::setup::{self, Need};
use crate::{build_ebpf, process, workspace};

/// The cargo that runs xtask, at the root of the clone. What it builds embeds the object that this run has built, not
/// another one that the caller's environment happens to name.
pub(crate) fn cargo() -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(workspace::root()).env_remove("BPVS_BPF_OBJECT");
    command
}

/// Run a `cargo build` to the end and return the programs it made, by name.
pub(crate) fn build(arguments: &[&str]) -> Result<BTreeMap<String, PathBuf>> {
    let mut command = cargo();
    command.args(["build", "--locked", "--message-format", "json-render-diagnostics"]).args(arguments);
    let line = process::line(&command);
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot start `{line}`"))?;
    let mut messages = String::new();
    let mut stdout = child.stdout.take().context("cargo's output is not piped")?;
    stdout.read_to_string(&mut messages).with_context(|| format!("cannot read the output of `{line}`"))?;
    let status = child.wait().with_context(|| format!("cannot wait for `{line}`"))?;
    if !status.success() {
        bail!("`{line}` failed: {status}");
    }
    Ok(programs(&messages))
}

/// The name and path of each program (not test) in cargo's messages.
fn programs(messages: &str) -> BTreeMap<String, PathBuf> {
    let mut found = BTreeMap::new();
    for message in messages.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok()) {
        let is_test = message["profile"]["test"].as_bool().unwrap_or(false);
        let (name, path) = (message["target"]["name"].as_str(), message["executable"].as_str());
        if let (false, Some(name), Some(path)) = (is_test, name, path) {
            found.insert(name.to_owned(), PathBuf::from(path));
        }
    }
    found
}

/// Fail, with the command that works, unless we are root. `task` is the task's command line.
pub(crate) fn require_root(task: &str, why: &str) -> Result<()> {
    if workspace::is_root() {
        return Ok(());
    }
    // sudo replaces PATH and HOME, and with them would lose cargo, rustup's toolchains and the cached tools.
    bail!("{why}; run\n  sudo env \"PATH=$PATH\" \"HOME=$HOME\" cargo xtask {task}");
}

/// How a program is built.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Profile {
    /// As the tests, so that a fresh clone builds its dependencies once: where what counts is in the kernel.
    Tests,
    /// As it is shipped: where the program itself is measured.
    Release,
}

/// Prepare everything, build `bpvs` and the test kit's program `name`, and become it.
pub(crate) fn become_program(task: &str, name: &str, profile: Profile, arguments: &[String]) -> Result<()> {
    let line = std::iter::once(task).chain(arguments.iter().map(String::as_str)).collect::<Vec<_>>().join(" ");
    require_root(&line, "network namespaces and BPF programs take root")?;
    let mut progress = Progress::new(4);
    let chain = setup::prepare(&mut progress, Need::Everything)?;
    build_ebpf::build(&mut progress, &chain, "release")?;
    progress.step("building bpvs");
    let mut wanted = vec!["-p", "lb-userspace", "--bin", "bpvs", "-p", "bpvs-tests", "--bin", name];
    wanted.extend((profile == Profile::Release).then_some("--release"));
    let made = build(&wanted)?;
    let program = |name: &str| made.get(name).with_context(|| format!("cargo built no program called {name}"));
    let (bpvs, program) = (program("bpvs")?, program(name)?);
    progress.step(&format!("running {name}"));
    let mut command = Command::new(program);
    command.args(arguments).env("BPVS_BIN", bpvs).current_dir(workspace::root());
    replace_by(command)
}

/// Become `command`, in place of this process and not below it: an interrupt reaches the program that has something to
/// clean up, the terminal is not given back before it is done, and its exit status is ours.
pub(crate) fn replace_by(mut command: Command) -> Result<()> {
    let error = command.stdin(Stdio::null()).exec();
    Err(error).with_context(|| format!("cannot start `{}`", process::line(&command)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_programs_are_taken_from_cargos_messages() {
        let messages = concat!(
            r#"{"reason":"compiler-artifact","target":{"name":"bpvs"},"profile":{"test":false},"executable":"/t/bpvs"}"#,
            "\n",
            r#"{"reason":"compiler-artifact","target":{"name":"bpvs"},"profile":{"test":true},"executable":"/t/bpvs-1"}"#,
            "\n",
            r#"{"reason":"compiler-artifact","target":{"name":"lib"},"profile":{"test":false},"executable":null}"#,
            "\nnot json\n",
        );
        assert_eq!(programs(messages), BTreeMap::from([("bpvs".to_owned(), PathBuf::from("/t/bpvs"))]));
    }
}
