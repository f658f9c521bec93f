//! Network namespaces that remove themselves.
//!
//! Names are `bpvs-<pid>-<n>-<role>`, so a later run can tell the leftovers of a dead owner from the namespaces of a
//! test that runs beside it.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::JoinHandle;

use anyhow::{Context, Result, anyhow, bail, ensure};
use nix::sched::{CloneFlags, setns};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::cleanup::{self, Guard};

const PREFIX: &str = "bpvs-";
const NAMED: &str = "/run/netns";

static NUMBER: AtomicU32 = AtomicU32::new(0);

/// A network namespace of this process, visible to `ip netns`. Dropping it removes the name; the kernel removes the
/// namespace with the last socket and process in it.
#[derive(Debug)]
pub struct Namespace {
    name: String,
    handle: Arc<File>,
    _guard: Guard,
}

impl Namespace {
    /// Makes a namespace with its loopback up. `role` ends its name: `node`, `server-1`.
    pub fn new(role: &str) -> Result<Self> {
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("{PREFIX}{}-{number}-{role}", std::process::id());
        let removed = name.clone();
        let ((), guard) = cleanup::create(
            format!("namespace {name}"),
            || run(Command::new("ip").args(["netns", "add", &name])).map(drop),
            move || remove(&removed),
        )?;
        let path = Path::new(NAMED).join(&name);
        let handle = File::open(&path).with_context(|| format!("opening {}", path.display()))?;
        let namespace = Self { name, handle: Arc::new(handle), _guard: guard };
        namespace.ip(&["link set lo up".into()])?;
        Ok(namespace)
    }

    /// Name, as `ip netns` prints it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// File to give to `nsenter --net=`. (`ip netns exec` would hide the BPF file system.)
    pub fn path(&self) -> PathBuf {
        Path::new(NAMED).join(&self.name)
    }

    /// Runs a future to its end in this namespace, which must see its loopback for example.
    pub fn block_on<F: Future<Output: Send>>(&self, work: impl FnOnce() -> F + Send) -> F::Output {
        self.enter(|| {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.expect("a runtime can be made").block_on(work())
        })
    }

    /// Runs `work` in this namespace, on a thread of its own, and waits for it. A panic in `work` goes on here.
    pub fn enter<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        let joined = std::thread::scope(|scope| {
            scope
                .spawn(|| {
                    self.join().unwrap_or_else(|error| panic!("{error:#}"));
                    work()
                })
                .join()
        });
        match joined {
            Ok(value) => value,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }

    /// Starts a thread that lives in this namespace.
    pub fn thread<T: Send + 'static>(
        &self,
        name: &str,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<JoinHandle<T>> {
        let handle = Arc::clone(&self.handle);
        let label = self.name.clone();
        let builder = std::thread::Builder::new().name(name.to_owned());
        Ok(builder.spawn(move || {
            setns(&*handle, CloneFlags::CLONE_NEWNET)
                .unwrap_or_else(|error| panic!("entering namespace {label}: {error}"));
            work()
        })?)
    }

    /// Moves the calling thread into this namespace, for good.
    fn join(&self) -> Result<()> {
        setns(&*self.handle, CloneFlags::CLONE_NEWNET)
            .with_context(|| format!("entering namespace {}; this needs root", self.name))
    }

    /// Starts a process in this namespace. The mounts stay those of the caller, /sys/fs/bpf among them.
    pub fn spawn(&self, command: &mut Command) -> std::io::Result<Child> {
        self.enter(|| command.spawn())
    }

    /// Runs a program in this namespace and returns its output; an exit code other than 0 is an error with its stderr.
    pub fn run(&self, command: &mut Command) -> Result<Output> {
        self.enter(|| run(command)).with_context(|| format!("in namespace {}", self.name))
    }

    /// Runs a program with its arguments in this namespace and gives it `input`; an exit code other than 0 is an error with
    /// its stderr.
    pub fn feed(&self, line: &[&str], input: &str) -> Result<()> {
        let (program, arguments) = line.split_first().context("no program")?;
        let line = line.join(" ");
        let mut command = Command::new(program);
        command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = self.spawn(&mut command).with_context(|| format!("starting `{line}`"))?;
        // A failure to write shows as a failure of the program, which also says why.
        let written = child.stdin.take().context("it has no stdin")?.write_all(input.as_bytes());
        let output = child.wait_with_output()?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "`{line}` in {}: {}: {}", self.name, output.status, said.trim());
        written.with_context(|| format!("writing to `{line}`"))
    }

    /// Runs commands of `nft` in this namespace, as they stand in its files. Returns what it prints.
    pub fn nft(&self, commands: &str) -> Result<String> {
        let output = self.run(Command::new("nft").arg(commands))?;
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Runs `ip` commands in this namespace, without the leading `ip`: `link set eth0 up`.
    pub fn ip(&self, lines: &[String]) -> Result<()> {
        self.enter(|| ip(lines)).with_context(|| format!("in namespace {}", self.name))
    }

    /// Sets `net.*` settings: `("ipv4/ip_forward", "1")`.
    pub fn sysctls(&self, settings: &[(&str, &str)]) -> Result<()> {
        self.enter(|| {
            for (key, value) in settings {
                let path = Path::new("/proc/sys/net").join(key);
                fs::write(&path, value)
                    .with_context(|| format!("setting {} = {value} in {}", path.display(), self.name))?;
            }
            Ok(())
        })
    }

    /// Index of an interface of this namespace.
    pub fn interface_index(&self, interface: &str) -> Result<u32> {
        self.enter(|| nix::net::if_::if_nametoindex(interface))
            .with_context(|| format!("no interface {interface} in {}", self.name))
    }

    /// Process ids inside this namespace.
    pub fn processes(&self) -> Result<Vec<i32>> {
        processes_in(&self.name)
    }
}

/// One end of a veth pair.
#[derive(Debug, Clone, Copy)]
pub struct End<'a> {
    /// Namespace that it lives in.
    pub namespace: &'a Namespace,
    /// Interface name, up to 15 bytes.
    pub interface: &'a str,
    /// Fixed hardware address.
    pub mac: [u8; 6],
}

/// Makes a veth pair between two namespaces; both ends are left down.
pub fn veth(a: End<'_>, b: End<'_>, mtu: u32) -> Result<()> {
    ip(&[veth_command(a, b, mtu)])
}

/// The `ip` command of [`veth`], for a batch.
pub fn veth_command(a: End<'_>, b: End<'_>, mtu: u32) -> String {
    let end = |end: End<'_>| {
        format!("name {} mtu {mtu} address {} netns {}", end.interface, mac_text(end.mac), end.namespace.name)
    };
    format!("link add {} type veth peer {}", end(a), end(b))
}

/// Hardware address as `ip` reads it.
pub fn mac_text(mac: [u8; 6]) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}

/// Runs `ip -batch` over the lines in the caller's namespace.
pub fn ip(lines: &[String]) -> Result<()> {
    let mut child = Command::new("ip")
        .args(["-batch", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .context("starting `ip`; install iproute2")?;
    let mut input = child.stdin.take().ok_or_else(|| anyhow!("`ip` has no stdin"))?;
    // A failure to write shows as a failure of `ip`, which also says why.
    let written = lines.iter().try_for_each(|line| writeln!(input, "{line}"));
    drop(input);
    let output = child.wait_with_output()?;
    if !output.status.success() {
        bail!("`ip -batch` failed: {}\nits input was:\n{}", String::from_utf8_lossy(&output.stderr), lines.join("\n"));
    }
    written.context("writing to `ip -batch`")
}

/// Runs a program to its end; an exit code other than 0 is an error with its stderr.
pub fn run(command: &mut Command) -> Result<Output> {
    let output = command.output().with_context(|| format!("starting {command:?}"))?;
    if !output.status.success() {
        bail!("{command:?}: {}: {}", output.status, String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(output)
}

/// Removes the namespaces whose owner is dead, and ends the processes that the owner had left in them. Returns their
/// names. Namespaces of other programs and of living runs are not touched.
pub fn reap_leftovers() -> Result<Vec<String>> {
    let Ok(directory) = fs::read_dir(NAMED) else {
        return Ok(Vec::new());
    };
    let mut reaped = Vec::new();
    for entry in directory {
        let name = entry?.file_name().to_string_lossy().into_owned();
        let Some(owner) = owner(&name) else { continue };
        if is_alive(owner) {
            continue;
        }
        for process in processes_in(&name).unwrap_or_default() {
            // It may have ended since.
            let _gone = kill(Pid::from_raw(process), Signal::SIGKILL);
        }
        remove(&name);
        reaped.push(name);
    }
    Ok(reaped)
}

/// The process id in one of our names.
fn owner(name: &str) -> Option<u32> {
    let (pid, rest) = name.strip_prefix(PREFIX)?.split_once('-')?;
    let (number, _role) = rest.split_once('-')?;
    number.parse::<u32>().ok()?;
    pid.parse().ok()
}

/// True if a process of this id exists.
pub fn is_alive(process: u32) -> bool {
    Path::new(&format!("/proc/{process}")).exists()
}

fn processes_in(name: &str) -> Result<Vec<i32>> {
    let wanted = fs::metadata(Path::new(NAMED).join(name))?;
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let entry = entry?;
        let Some(process) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        // Processes end while we look, and kernel threads may not be readable.
        let Ok(net) = fs::metadata(entry.path().join("ns/net")) else {
            continue;
        };
        if (net.dev(), net.ino()) == (wanted.dev(), wanted.ino()) {
            found.push(process);
        }
    }
    Ok(found)
}

/// Removes a namespace by name; says so on stderr when that fails, because a destructor cannot return it.
fn remove(name: &str) {
    if !Path::new(NAMED).join(name).exists() {
        return;
    }
    if let Err(error) = run(Command::new("ip").args(["netns", "del", name])) {
        eprintln!("could not remove namespace {name}: {error:#}");
    }
}

#[cfg(test)]
mod tests {
    use super::owner;

    #[test]
    fn only_our_own_names_have_an_owner() {
        assert_eq!(owner("bpvs-123-0-node"), Some(123));
        assert_eq!(owner("bpvs-123-0-server-1"), Some(123));
        for foreign in ["bpvs", "bpvs-", "bpvs-x-0-node", "bpvs-1-node", "cni-1234", "bpvs-1-x-node"] {
            assert_eq!(owner(foreign), None, "{foreign}");
        }
    }
}
