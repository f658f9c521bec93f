//! Who translates.

use std::fmt::Write as _;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bpvs_tests::agent::binary;
use bpvs_tests::kube_proxy::{Cluster, Port, Protocol, Service, iptables, nftables};
use bpvs_tests::namespace::Namespace;
use lb_common::scheduler::Scheduler;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::network::{MORE, Network, PODS, TARGET};

/// Address of the services that are asked.
const FRONTEND: Ipv4Addr = Ipv4Addr::new(10, 96, 0, 1);
/// Port of the first of them.
const FIRST: u16 = 1_000;
/// Addresses of other services and of their servers, which nobody asks.
const OTHERS: (Ipv4Addr, Ipv4Addr) = (Ipv4Addr::new(10, 100, 0, 0), Ipv4Addr::new(10, 128, 0, 0));
/// Servers of each other service.
const OTHER_SERVERS: u32 = 5;

/// Who translates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// bpvs by its tc programs; the kernel routes (`--forwarding stack`).
    Bpvs,
    /// bpvs, straight to the receiver's interface (`--forwarding direct`).
    BpvsDirect,
    /// Linux IPVS by NAT, without connection tracking.
    Ipvs,
    /// The rules of kube-proxy's iptables mode, by x_tables.
    Iptables,
    /// The rules of kube-proxy's nftables mode.
    Nftables,
}

impl Way {
    /// All.
    pub(crate) const ALL: [Self; 5] = [Self::Bpvs, Self::BpvsDirect, Self::Ipvs, Self::Iptables, Self::Nftables];

    /// On the command line.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Bpvs => "bpvs",
            Self::BpvsDirect => "bpvs-direct",
            Self::Ipvs => "ipvs",
            Self::Iptables => "iptables",
            Self::Nftables => "nftables",
        }
    }

    /// Whether a scheduler can be chosen.
    pub(crate) fn has_schedulers(self) -> bool {
        matches!(self, Self::Bpvs | Self::BpvsDirect | Self::Ipvs)
    }
}

/// A service to be asked, among others.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Case {
    /// How many services there are.
    pub(crate) services: u32,
    /// How many servers it has.
    pub(crate) servers: u32,
    /// Who chooses, if that can be said.
    pub(crate) scheduler: Option<Scheduler>,
}

/// Services that are served until this is dropped.
pub(crate) struct Setup {
    agent: Option<(Child, PathBuf)>,
    network: PathBuf,
}

impl Setup {
    /// Serves a service for each case; the number of services is that of the first.
    pub(crate) fn start(way: Way, network: &mut Network, cases: &[Case]) -> Result<Self> {
        let node = &network.topology.node.namespace;
        let mut setup = Self { agent: None, network: node.path() };
        match way {
            Way::Bpvs => setup.agent = Some(agent(node, "stack", &rules(network, cases))?),
            Way::BpvsDirect => setup.agent = Some(agent(node, "direct", &rules(network, cases))?),
            Way::Ipvs => {
                // IPVS takes what is for the node itself.
                node.ip(&[format!("addr replace {FRONTEND}/32 dev lo")])?;
                node.feed(&["ipvsadm", "-C"], "")?;
                node.feed(&["ipvsadm", "-R"], &rules(network, cases))?;
            }
            Way::Iptables => {
                node.feed(&["iptables-legacy-restore"], &iptables::rules(&cluster(network, cases)))?;
            }
            Way::Nftables => {
                node.nft("add table ip kube-proxy; delete table ip kube-proxy")?;
                let transactions = nftables::rules(&cluster(network, cases));
                transactions.iter().try_for_each(|rules| node.feed(&["nft", "-f", "-"], rules))?;
            }
        }
        Ok(setup)
    }

    /// What clients ask.
    pub(crate) fn frontend(&self, case: usize) -> SocketAddr {
        SocketAddr::from((FRONTEND, FIRST + case as u16))
    }
}

impl Drop for Setup {
    fn drop(&mut self) {
        let Some((mut child, pins)) = self.agent.take() else { return };
        // The guest ends with its program: what stays would only be in the way of the next setup.
        let _ended = child.kill().and_then(|()| child.wait());
        let mut net = std::ffi::OsString::from("--net=");
        net.push(&self.network);
        let mut cleanup = Command::new("nsenter");
        if let Ok(binary) = binary() {
            let done = cleanup.arg(net).arg(binary).args(["cleanup", "--pin-path"]).arg(pins).output();
            if let Err(error) = done {
                println!("bpvs cleanup: {error}");
            }
        }
    }
}

/// Longest time for an agent to be ready, in the guest's own time.
const READY: Duration = Duration::from_secs(300);

/// Starts bpvs with these rules and without its programs on sockets, and stops it when it is ready: an agent at work hits
/// packets at random.
fn agent(node: &Namespace, forwarding: &str, rules: &str) -> Result<(Child, PathBuf)> {
    let folder = std::env::temp_dir();
    let (file, log, pins) = (folder.join("rules"), folder.join("agent.log"), PathBuf::from("/sys/fs/bpf/bpvs-cost"));
    std::fs::write(&file, rules)?;
    let mut command = Command::new(binary()?);
    command
        .args(["run", "--socket-lb", "off", "--forwarding", forwarding, "--ipvs-rules"])
        .arg(&file)
        .arg("--pin-path")
        .arg(&pins);
    command.env("NO_COLOR", "1").stdin(Stdio::null()).stdout(Stdio::null()).stderr(std::fs::File::create(&log)?);
    let mut child = node.spawn(&mut command).context("starting bpvs")?;
    let end = Instant::now() + READY;
    loop {
        let text = std::fs::read_to_string(&log)?;
        if text.contains("ready:") {
            break;
        }
        let ended = child.try_wait()?;
        ensure!(ended.is_none() && Instant::now() < end, "bpvs is not ready ({ended:?}); its log:\n{text}");
        std::thread::sleep(Duration::from_millis(20));
    }
    kill(Pid::from_raw(child.id() as i32), Signal::SIGSTOP)?;
    Ok((child, pins))
}

/// Addresses of so many servers: the pods' own, then more of the first.
fn servers(network: &Network, count: u32) -> Vec<Ipv4Addr> {
    let own = network.topology.servers.iter().map(|host| host.v4);
    let more = (1..=count.saturating_sub(u32::from(PODS))).map(|number| after(MORE, number));
    own.chain(more).take(count as usize).collect()
}

fn after(first: Ipv4Addr, by: u32) -> Ipv4Addr {
    Ipv4Addr::from(u32::from(first) + by)
}

/// Rules as `ipvsadm -S -n` writes them: the same for IPVS and for bpvs.
fn rules(network: &Network, cases: &[Case]) -> String {
    let mut text = String::new();
    let mut add = |frontend: SocketAddr, scheduler: Scheduler, servers: &[Ipv4Addr]| {
        writeln!(text, "-A -u {frontend} -s {}", scheduler.name())?;
        servers.iter().try_for_each(|server| writeln!(text, "-a -u {frontend} -r {server}:{TARGET} -m -w 1"))
    };
    let others = cases.first().map_or(0, |case| case.services.saturating_sub(1));
    for number in 0..others {
        let first = number * OTHER_SERVERS;
        let servers: Vec<Ipv4Addr> = (0..OTHER_SERVERS).map(|place| after(OTHERS.1, first + place)).collect();
        let frontend = SocketAddr::from((after(OTHERS.0, number), 53));
        add(frontend, Scheduler::RoundRobin, &servers).expect("writing to a String does not fail");
    }
    for (number, case) in cases.iter().enumerate() {
        let frontend = SocketAddr::from((FRONTEND, FIRST + number as u16));
        let scheduler = case.scheduler.unwrap_or(Scheduler::RoundRobin);
        let added = add(frontend, scheduler, &servers(network, case.servers));
        added.expect("writing to a String does not fail");
    }
    text
}

/// The same for kube-proxy's rules: the first case alone, as there are no schedulers.
fn cluster(network: &Network, cases: &[Case]) -> Cluster {
    let (count, servers_of) = cases.first().map_or((1, 1), |case| (case.services, case.servers));
    let asked = Service {
        name: "asked".to_owned(),
        address: FRONTEND,
        ports: vec![Port { protocol: Protocol::Udp, port: FIRST, target: TARGET, node_port: None }],
        endpoints: servers(network, servers_of),
    };
    Cluster::around(asked, count, OTHER_SERVERS, "10.1.0.0/16")
}
