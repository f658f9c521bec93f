//! The real agent: the `bpvs` binary in a node's namespace, with its own pins, log and manifests.

mod footprint;
mod listing;
mod log;
mod manifests;
mod pins;
mod process;
mod service;

pub use footprint::{Footprint, assert_clean, attached, check_clean};
pub use listing::{ListedServer, ListedService, Listing};
pub use log::Log;
pub use manifests::Manifests;
pub use pins::{Folder as PinFolder, reap_leftovers};
pub use service::ServiceManifest;

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::cleanup::{self, Guard};
use crate::namespace::Namespace;

use process::{output, wait};

/// Longest time from start to `ready`: loading and verifying all programs on a busy machine.
const READY: Duration = Duration::from_secs(60);
/// Longest time for a subcommand and for the end after SIGTERM.
const COMMAND: Duration = Duration::from_secs(20);

/// The binary under test: `BPVS_BIN`, or `bpvs` beside this program's folder in the target directory.
pub fn binary() -> Result<PathBuf> {
    if let Some(path) = std::env::var_os("BPVS_BIN") {
        let path = PathBuf::from(path);
        ensure!(path.is_file(), "BPVS_BIN is {}, where there is no file", path.display());
        return Ok(path);
    }
    let here = std::env::current_exe().context("finding this program's own path")?;
    // target/debug/deps/test-123 or target/debug/bpvs-demo.
    let candidates: Vec<_> = here.ancestors().skip(1).take(2).map(|folder| folder.join("bpvs")).collect();
    candidates.iter().find(|path| path.is_file()).cloned().ok_or_else(|| {
        anyhow!(
            "no bpvs binary at {}; build it (`cargo build -p lb-userspace`) or set BPVS_BIN",
            candidates[0].display()
        )
    })
}

/// How to run the agent.
#[derive(Debug)]
pub struct Builder<'a> {
    node: &'a Namespace,
    binary: Option<PathBuf>,
    arguments: Vec<OsString>,
    environment: Vec<(OsString, OsString)>,
}

impl<'a> Builder<'a> {
    /// Takes Services and EndpointSlices from a folder.
    pub fn manifests(self, manifests: &Manifests) -> Self {
        self.argument("--manifests").argument(manifests.path())
    }

    /// Takes them from an API server.
    pub fn kubeconfig(self, file: &Path) -> Self {
        self.argument("--kubeconfig").argument(file)
    }

    /// Takes virtual services from a file of rules.
    pub fn rules(self, file: &Path) -> Self {
        self.argument("--ipvs-rules").argument(file)
    }

    /// Runs another binary than [`binary`] finds.
    pub fn binary(mut self, binary: impl Into<PathBuf>) -> Self {
        self.binary = Some(binary.into());
        self
    }

    /// Adds an argument to `bpvs run`.
    pub fn argument(mut self, argument: impl Into<OsString>) -> Self {
        self.arguments.push(argument.into());
        self
    }

    /// Sets an environment variable of the agent.
    pub fn environment(mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        self.environment.push((name.into(), value.into()));
        self
    }

    /// Prepares everything but starts nothing.
    pub fn build(self) -> Result<Agent<'a>> {
        let binary = self.binary.map_or_else(binary, Ok)?;
        pins::mount()?;
        for left in pins::reap_leftovers()? {
            eprintln!("removed {}, left behind by a killed run", left.display());
        }
        let pin_path = pins::new_path();
        let child: Arc<Mutex<Option<Child>>> = Arc::default();
        let undo = {
            let (child, binary) = (Arc::clone(&child), binary.clone());
            let (namespace, pin_path) = (self.node.path(), pin_path.clone());
            move || remove(&child, &binary, &namespace, &pin_path)
        };
        let what = format!("agent with pins in {}", pin_path.display());
        let ((), guard) = cleanup::create(what, || Ok(()), undo)?;
        let (node, arguments, environment) = (self.node, self.arguments, self.environment);
        Ok(Agent { node, binary, arguments, environment, pin_path, child, log: Log::default(), _guard: guard })
    }

    /// Starts it and waits until its first complete state is programmed.
    pub fn start(self) -> Result<Agent<'a>> {
        let agent = self.build()?;
        agent.start()?;
        Ok(agent)
    }
}

/// An agent of a node. Dropping it ends it, runs `bpvs cleanup` and removes its pins.
#[derive(Debug)]
pub struct Agent<'a> {
    node: &'a Namespace,
    binary: PathBuf,
    arguments: Vec<OsString>,
    environment: Vec<(OsString, OsString)>,
    pin_path: PathBuf,
    child: Arc<Mutex<Option<Child>>>,
    log: Log,
    _guard: Guard,
}

impl<'a> Agent<'a> {
    /// An agent for this node. Say where its Services come from, then start it.
    pub fn builder(node: &'a Namespace) -> Builder<'a> {
        Builder { node, binary: None, arguments: Vec::new(), environment: Vec::new() }
    }

    /// Its pin folder, on a BPF file system.
    pub fn pin_path(&self) -> &Path {
        &self.pin_path
    }

    /// All it said on stderr, over all its starts.
    pub fn log(&self) -> &Log {
        &self.log
    }

    /// Starts it (again) and waits for `ready`.
    pub fn start(&self) -> Result<()> {
        let mark = self.launch()?;
        self.wait_for_log(mark, "it to be ready", READY, log::says_ready)
    }

    /// Starts it and does not wait. Returns the log's length before: what it says now comes after.
    pub fn launch(&self) -> Result<usize> {
        let mut child = self.child();
        ensure!(child.is_none(), "the agent already runs");
        let mark = self.log.len();
        let mut command = Command::new(&self.binary);
        command.arg("run").args(&self.arguments).arg("--pin-path").arg(&self.pin_path);
        command.envs(self.environment.iter().map(|(name, value)| (name, value))).env("NO_COLOR", "1");
        // Its own process group: Ctrl-C in a terminal is for us, and we end it in order.
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).process_group(0);
        let mut started = self.node.spawn(&mut command).with_context(|| format!("starting {command:?}"))?;
        let stderr = started.stderr.take().ok_or_else(|| anyhow!("the agent has no stderr"))?;
        self.log.follow(stderr)?;
        *child = Some(started);
        Ok(mark)
    }

    /// Waits for a line after `mark` for which `wanted` is true. The agent's end is an error, with its log.
    pub fn wait_for_log(
        &self,
        mark: usize,
        what: &str,
        deadline: Duration,
        wanted: impl Fn(&str) -> bool,
    ) -> Result<()> {
        let end = Instant::now() + deadline;
        loop {
            // Asked first: a line that came before the end must still be found after it.
            let ended = self.exit_status()?;
            if self.log.wait(mark, Duration::from_millis(50), &wanted) {
                return Ok(());
            }
            if let Some(status) = ended {
                bail!("the agent ended ({status}) while waiting for {what}; its log:\n{}", self.log.text(mark));
            }
            if Instant::now() >= end {
                bail!("waited {deadline:?} in vain for {what}; the agent's log:\n{}", self.log.text(mark));
            }
        }
    }

    /// Has other arguments when it is started next.
    pub fn set_arguments(&mut self, arguments: impl IntoIterator<Item: Into<OsString>>) {
        self.arguments = arguments.into_iter().map(Into::into).collect();
    }

    /// Process id while it runs.
    pub fn process(&self) -> Option<u32> {
        self.child().as_ref().map(Child::id)
    }

    /// How it ended, if it did by itself. It can then be started again.
    pub fn exit_status(&self) -> Result<Option<ExitStatus>> {
        let mut child = self.child();
        let status = match child.as_mut() {
            None => None,
            Some(running) => running.try_wait()?,
        };
        if status.is_some() {
            *child = None;
        }
        Ok(status)
    }

    /// Ends it with SIGTERM and expects exit code 0. Pins and links stay.
    pub fn stop(&self) -> Result<()> {
        let mark = self.log.len();
        let child = self.child().take();
        let mut child = child.ok_or_else(|| anyhow!("the agent does not run"))?;
        kill(Pid::from_raw(child.id() as i32), Signal::SIGTERM)?;
        let status =
            wait(&mut child, COMMAND).with_context(|| format!("after SIGTERM; log:\n{}", self.log.text(mark)))?;
        ensure!(status.success(), "the agent ended with {status} after SIGTERM; its log:\n{}", self.log.text(mark));
        Ok(())
    }

    /// Ends it with SIGKILL.
    pub fn kill(&self) -> Result<()> {
        let child = self.child().take();
        let mut child = child.ok_or_else(|| anyhow!("the agent does not run"))?;
        child.kill()?;
        child.wait()?;
        Ok(())
    }

    /// Runs `bpvs <arguments> --pin-path ...` in the node's namespace and returns its stdout. An exit code other than
    /// 0 is an error with its stderr.
    pub fn command(&self, arguments: &[&str]) -> Result<String> {
        let output = self.output(arguments)?;
        let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
        if !output.status.success() {
            let stderr = String::from_utf8_lossy(&output.stderr);
            bail!("bpvs {}: {}: {}{stdout}", arguments.join(" "), output.status, stderr);
        }
        Ok(stdout)
    }

    /// The same, whatever the exit code.
    pub fn output(&self, arguments: &[&str]) -> Result<Output> {
        let mut command = Command::new(&self.binary);
        command.args(arguments).arg("--pin-path").arg(&self.pin_path).env("NO_COLOR", "1");
        self.node.enter(|| output(&mut command, COMMAND)).with_context(|| format!("bpvs {}", arguments.join(" ")))
    }

    /// What of it is in the kernel now.
    pub fn footprint(&self) -> Result<Footprint> {
        Footprint::read(&self.pin_path)
    }

    /// Ends the agent if it runs, runs `bpvs cleanup`, and fails unless everything of it is gone from the kernel.
    pub fn cleanup(&self) -> Result<()> {
        if self.process().is_some() {
            self.stop()?;
        }
        let footprint = self.footprint()?;
        self.command(&["cleanup"])?;
        check_clean(&self.pin_path, self.node, &footprint)
    }

    fn child(&self) -> MutexGuard<'_, Option<Child>> {
        self.child.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The undo of an agent: never fails, says on stderr what it could not do.
fn remove(child: &Mutex<Option<Child>>, binary: &Path, namespace: &Path, pin_path: &Path) {
    if let Some(mut child) = child.lock().unwrap_or_else(PoisonError::into_inner).take()
        && let Err(error) = child.kill().and_then(|()| child.wait())
    {
        eprintln!("could not end agent {}: {error}", child.id());
    }
    if pin_path.exists() {
        let mut net = OsString::from("--net=");
        net.push(namespace);
        let mut nsenter = Command::new("nsenter");
        nsenter.arg(net).arg(binary).args(["cleanup", "--pin-path"]).arg(pin_path).env("NO_COLOR", "1");
        match output(&mut nsenter, COMMAND) {
            Ok(output) if output.status.success() => {}
            Ok(output) => eprintln!("bpvs cleanup: {}", String::from_utf8_lossy(&output.stderr).trim()),
            Err(error) => eprintln!("bpvs cleanup: {error:#}"),
        }
    }
    if let Err(error) = pins::unpin(pin_path) {
        eprintln!("{error:#}");
    }
}
