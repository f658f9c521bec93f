//! The rows: who translates. A new one is an item of [`Row`] with a name, directions and a way to start it.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use bpvs_tests::agent::{Agent, Manifests};
use bpvs_tests::counters::forwarded;
use bpvs_tests::kube_proxy::{Cluster, iptables, nftables};
use bpvs_tests::namespace::Namespace;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::clients;
use super::network::{Direction, Network, PODS};

/// Who translates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Row {
    /// Nobody: clients ask the servers' own addresses. Every figure is compared with this one.
    NoProxy,
    /// bpvs by its tc programs, without those on sockets.
    Tc,
    /// The same, straight to the receiver's interface (`--forwarding direct`).
    Direct,
    /// bpvs by its programs on sockets.
    Socket,
    /// The rules of kube-proxy's iptables mode, by the kernel's nftables.
    IptablesNft,
    /// The same rules by the kernel's older x_tables.
    IptablesLegacy,
    /// The rules of kube-proxy's nftables mode.
    Nftables,
}

/// A program, Debian's package of it, and whether a row needs it.
type Program = (&'static str, &'static str, fn(Row) -> bool);

/// Why rules may be refused.
const NO_MODULES: &str = "the rules are refused; --rows leaves rows out that this kernel has no modules for";

const PROGRAMS: [Program; 5] = [
    ("ip", "iproute2", |_| true),
    ("nsenter", "util-linux", |_| true),
    ("iptables-nft-restore", "iptables", |row| row == Row::IptablesNft),
    ("iptables-legacy-restore", "iptables", |row| row == Row::IptablesLegacy),
    ("nft", "nftables", |row| row == Row::Nftables),
];

impl Row {
    /// In the order of the tables.
    pub(crate) const ALL: [Self; 7] =
        [Self::NoProxy, Self::Tc, Self::Direct, Self::Socket, Self::IptablesNft, Self::IptablesLegacy, Self::Nftables];

    /// In tables.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::NoProxy => "no proxy",
            Self::Tc => "bpvs, tc",
            Self::Direct => "bpvs, direct",
            Self::Socket => "bpvs, socket",
            Self::IptablesNft => "iptables (nft)",
            Self::IptablesLegacy => "iptables (legacy)",
            Self::Nftables => "nftables",
        }
    }

    /// On the command line and in JSON.
    pub(crate) fn key(self) -> &'static str {
        match self {
            Self::NoProxy => "none",
            Self::Tc => "tc",
            Self::Direct => "direct",
            Self::Socket => "socket",
            Self::IptablesNft => "iptables-nft",
            Self::IptablesLegacy => "iptables-legacy",
            Self::Nftables => "nftables",
        }
    }

    /// True for rows of bpvs.
    pub(crate) fn is_bpvs(self) -> bool {
        matches!(self, Self::Tc | Self::Direct | Self::Socket)
    }

    /// What it serves. Sockets are translated where they are made, which is on the node.
    pub(crate) fn directions(self) -> &'static [Direction] {
        match self {
            Self::NoProxy | Self::IptablesNft | Self::IptablesLegacy | Self::Nftables => &Direction::ALL,
            Self::Tc | Self::Direct => &[Direction::Pod, Direction::Outside],
            Self::Socket => &[Direction::Node],
        }
    }
}

/// Fails if a program is missing that a row needs, with the command that installs it.
pub(crate) fn require_programs(rows: &[Row]) -> Result<()> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    for (program, package, needed) in PROGRAMS {
        let row = rows.iter().find(|row| needed(**row));
        let is_here = std::env::split_paths(&path).any(|folder| folder.join(program).is_file());
        if let Some(row) = row.filter(|_| !is_here) {
            bail!(
                "no program `{program}` on PATH, which row `{}` needs: `apt-get install {package}` installs it; --rows \
                 leaves rows out",
                row.name()
            );
        }
    }
    Ok(())
}

/// A row whose proxy is set up.
pub(crate) struct Running<'a> {
    /// Where.
    pub(crate) network: &'a Network,
    // The agent goes before the manifests that it watches.
    agent: Option<Agent<'a>>,
    _manifests: Option<Manifests>,
}

impl<'a> Running<'a> {
    /// Sets it up; says how long that took.
    pub(crate) fn start(network: &'a Network, cluster: &Cluster) -> Result<(Self, Duration)> {
        let node = &network.topology.node.namespace;
        let begin = Instant::now();
        let mut running = Self { network, agent: None, _manifests: None };
        match network.row {
            Row::NoProxy => {}
            Row::Tc => running.bpvs(node, cluster, &["--socket-lb", "off"])?,
            Row::Direct => running.bpvs(node, cluster, &["--socket-lb", "off", "--forwarding", "direct"])?,
            Row::Socket => running.bpvs(node, cluster, &["--socket-lb", "host-only"])?,
            Row::IptablesNft => node.feed(&["iptables-nft-restore"], &iptables::rules(cluster)).context(NO_MODULES)?,
            Row::IptablesLegacy => {
                let rules = iptables::rules(cluster);
                node.feed(&["iptables-legacy-restore", "--wait", "60"], &rules).context(NO_MODULES)?;
            }
            Row::Nftables => {
                let rules = nftables::rules(cluster);
                rules.iter().try_for_each(|some| node.feed(&["nft", "-f", "-"], some)).context(NO_MODULES)?;
            }
        }
        let took = begin.elapsed();
        if let Some(agent) = &running.agent {
            signal(agent, Signal::SIGSTOP)?;
        }
        Ok((running, took))
    }

    fn bpvs(&mut self, node: &'a Namespace, cluster: &Cluster, arguments: &[&str]) -> Result<()> {
        let manifests = Manifests::new()?;
        manifests.write("services.yaml", &cluster.manifests())?;
        let agent = Agent::builder(node).manifests(&manifests).argument("--cluster-cidr").argument(PODS);
        let agent = arguments.iter().fold(agent, |agent, argument| agent.argument(argument));
        self.agent = Some(agent.start()?);
        self._manifests = Some(manifests);
        Ok(())
    }

    /// Lets its agent run until the answer is dropped. An agent sweeps its connections, which costs CPU time that other
    /// rows are not to pay.
    pub(crate) fn resume(&self) -> Result<AtWork<'_, 'a>> {
        if let Some(agent) = &self.agent {
            signal(agent, Signal::SIGCONT)?;
        }
        Ok(AtWork(self))
    }

    /// The way is the one that the row is named after.
    pub(crate) fn prove(&self, direction: Direction) -> Result<()> {
        let Some(agent) = &self.agent else { return Ok(()) };
        let node = &self.network.topology.node.namespace;
        let before = forwarded(node)?;
        let held = clients::hold(self.network, direction)?;
        let by_stack = forwarded(node)? - before;
        let listed = agent.command(&["connections"])?;
        drop(held);
        let by_socket = listed.contains("socket#");
        let wanted = self.network.row == Row::Socket;
        ensure!(
            by_socket == wanted,
            "row `{}`: `bpvs connections` shows {} socket of the node:\n{listed}",
            self.network.row.name(),
            if by_socket { "a" } else { "no" }
        );
        ensure!(
            (by_stack == 0) == (self.network.row != Row::Tc),
            "row `{}`: the node's stack forwarded {by_stack} packets of a connection",
            self.network.row.name()
        );
        Ok(())
    }
}

/// An agent that runs.
pub(crate) struct AtWork<'r, 'a>(&'r Running<'a>);

impl Drop for AtWork<'_, '_> {
    fn drop(&mut self) {
        // One that has ended is found by the next resume.
        if let Some(agent) = &self.0.agent {
            let _ended = signal(agent, Signal::SIGSTOP);
        }
    }
}

fn signal(agent: &Agent<'_>, signal: Signal) -> Result<()> {
    ensure!(agent.exit_status()?.is_none(), "the agent ended; its log:\n{}", agent.log().text(0));
    let process = agent.process().context("the agent does not run")?;
    kill(Pid::from_raw(process as i32), signal).with_context(|| format!("sending {signal} to the agent"))
}
