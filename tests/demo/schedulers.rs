//! Every scheduler: TCP by the recorded script, UDP, IPv6, clients in a pod, outside and on the node.

use std::net::{IpAddr, SocketAddr};

use anyhow::{Context, Result, anyhow, bail, ensure};
use bpvs_tests::agent::Agent;
use bpvs_tests::model::SCHEDULERS;
use bpvs_tests::namespace::Namespace;
use bpvs_tests::sequences::{self, Edit, Script, Step, Target};
use bpvs_tests::topology::{Host, Topology};
use bpvs_tests::traffic::{DEADLINE, Dial, DialError, Held, UdpClient};

use crate::expected::{self, Model};
use crate::listing::{Listing, wait_for};
use crate::screen::Screen;

/// Ports of the virtual services.
pub(crate) const TCP: u16 = 80;
pub(crate) const UDP: u16 = 53;
/// Source port of the first client of the first service, below the range that the kernel chooses from. Every connection
/// of the demo has its own: two services share the servers, and a server cannot tell two connections from one port.
const SOURCE: u16 = 20_000;
/// Connections to the service of twos.
const RANDOM_CONNECTIONS: u16 = 90;

/// Its service is full at the end of its script: only connections that end make room.
const FULL: &str = "ovf";
/// Random by design: nothing was recorded, and no model says which server comes next.
pub(crate) const RANDOM: &str = "twos";

/// Place of a scheduler's Service among those of `examples/manifests`.
fn place(scheduler: &str) -> Result<u16> {
    let place = SCHEDULERS.iter().chain([&RANDOM]).position(|name| *name == scheduler);
    place.map(|place| place as u16).with_context(|| format!("examples/manifests have no Service for {scheduler}"))
}

/// Virtual addresses of a scheduler's Service in `examples/manifests`.
pub(crate) fn addresses(scheduler: &str) -> Result<(IpAddr, IpAddr)> {
    let number = 11 + place(scheduler)?;
    Ok((format!("10.96.0.{number}").parse()?, format!("fd00:96::{number}").parse()?))
}

/// Gives the client pod the client addresses of the recordings.
pub(crate) fn add_recorded_clients(topology: &Topology) -> Result<()> {
    let client = &topology.clients[0];
    let mut lines = Vec::new();
    for last in 2..=21 {
        lines.push(format!("addr add 10.10.0.{last}/32 dev eth0"));
    }
    client.namespace.ip(&lines)?;
    topology
        .node
        .namespace
        .ip(&[format!("route add 10.10.0.0/24 via {} dev {} onlink", client.v4, client.node_interface)])
}

/// Connections that stay open, by virtual address.
pub(crate) type HeldSet = Vec<(SocketAddr, Held)>;

/// Runs all; returns the connections that are still open.
pub(crate) fn run(topology: &Topology, agent: &Agent<'_>, screen: &mut Screen) -> Result<HeldSet> {
    let scripts = sequences::recorded()?;
    let mut held = Vec::new();
    screen.heading("each scheduler: requests per server 1 2 3 4 5, bpvs | IPVS, and the servers in order");
    for scheduler in SCHEDULERS {
        let script = scripts.iter().find(|script| script.scheduler == scheduler);
        let script = script.with_context(|| format!("{scheduler} is not recorded"))?;
        tcp(topology, script, screen, &mut held)?;
        udp(topology, scheduler, screen)?;
        ipv6(topology, scheduler, screen, &mut held)?;
    }
    random(topology, screen, &mut held)?;
    recorded_clients(topology, agent, &scripts, screen)?;
    node(topology, screen)?;
    Ok(held)
}

/// Real connections from one namespace to one virtual address.
struct Live<'a> {
    from: &'a Namespace,
    to: SocketAddr,
    /// Source port of its first connection.
    port: u16,
    held: Vec<Option<Held>>,
}

impl Target for Live<'_> {
    fn open(&mut self, connection: usize, client: IpAddr, _destination: IpAddr) -> Result<Option<u32>> {
        let source = SocketAddr::new(client, self.port + connection as u16);
        match Dial::new(self.from, self.to).source(source).open() {
            Ok(held) => {
                ensure!(held.seen_peer == source, "the server saw {} instead of {source}", held.seen_peer);
                let server = held.server;
                self.held.push(Some(held));
                Ok(Some(server.into()))
            }
            Err(DialError::Refused(_)) => {
                self.held.push(None);
                Ok(None)
            }
            Err(error) => Err(anyhow!("connection {connection} from {source} to {}: {error}", self.to)),
        }
    }

    fn close(&mut self, connection: usize) -> Result<()> {
        match self.held.get_mut(connection).and_then(Option::take) {
            Some(held) => held.close().with_context(|| format!("closing connection {connection} to {}", self.to)),
            None => bail!("the script closes connection {connection}, which is not open"),
        }
    }

    fn edit(&mut self, edit: Edit) -> Result<()> {
        bail!("the demo's scripts have no edits, this one has {edit:?}")
    }
}

fn tcp(topology: &Topology, script: &Script, screen: &mut Screen, held: &mut HeldSet) -> Result<()> {
    let to = SocketAddr::new(addresses(&script.scheduler)?.0, TCP);
    let (expected, known) = expected::answers(script, to.ip())?;
    let port = SOURCE + 100 * place(&script.scheduler)?;
    let mut live = Live { from: &topology.clients[0].namespace, to, port, held: Vec::new() };
    let found = script.replay(&mut live)?;
    held.extend(live.held.into_iter().flatten().map(|connection| (to, connection)));
    compare(screen, &format!("{:6} TCP ", script.scheduler), &found, &expected, &groups(script), known);
    Ok(())
}

fn udp(topology: &Topology, scheduler: &str, screen: &mut Screen) -> Result<()> {
    let to = SocketAddr::new(addresses(scheduler)?.0, UDP);
    let mut model = Model::new(scheduler, to.ip(), false)?;
    let (mut found, mut expected) = (Vec::new(), Vec::new());
    for (index, length) in (0..15).zip([20, 500, 1472, 1473, 8192].into_iter().cycle()) {
        let client = &topology.external;
        let source = SocketAddr::new(client.v4.into(), SOURCE + 100 * place(scheduler)? + index);
        let udp = UdpClient::connected(&client.namespace, Some(source), to)?;
        let answer = udp.request(length, DEADLINE).with_context(|| format!("{length} bytes of UDP to {to}"))?;
        found.push(Some(answer.server.into()));
        expected.push(model.connect(client.v4.into()));
    }
    compare(screen, &format!("{scheduler:6} UDP "), &found, &expected, &[15], "from outside, up to 8,192 bytes");
    Ok(())
}

fn ipv6(topology: &Topology, scheduler: &str, screen: &mut Screen, held: &mut HeldSet) -> Result<()> {
    let to = SocketAddr::new(addresses(scheduler)?.1, TCP);
    let mut model = Model::new(scheduler, to.ip(), true)?;
    let (mut found, mut expected) = (Vec::new(), Vec::new());
    for index in 0..15 {
        let client: &Host = if index % 2 == 0 { &topology.clients[0] } else { &topology.external };
        let source = SocketAddr::new(client.v6.into(), SOURCE + 100 * place(scheduler)? + index);
        let connection = Dial::new(&client.namespace, to).source(source).open();
        let connection = connection.with_context(|| format!("connecting to {to}"))?;
        found.push(Some(connection.server.into()));
        expected.push(model.connect(client.v6.into()));
        held.push((to, connection));
    }
    compare(screen, &format!("{scheduler:6} TCP6"), &found, &expected, &[15], "from a pod and from outside");
    Ok(())
}

/// twos: no order can be told beforehand, but twice the weights' connections spread by weight, nearly.
fn random(topology: &Topology, screen: &mut Screen, held: &mut HeldSet) -> Result<()> {
    let to = SocketAddr::new(addresses(RANDOM)?.0, TCP);
    let client = &topology.clients[0];
    let mut found = Vec::new();
    for index in 0..RANDOM_CONNECTIONS {
        let source = SocketAddr::new(client.v4.into(), SOURCE + 100 * place(RANDOM)? + index);
        let connection = Dial::new(&client.namespace, to).source(source).open();
        let connection = connection.with_context(|| format!("connecting to {to}"))?;
        found.push(Some(connection.server.into()));
        held.push((to, connection));
    }
    let count = |server: u32| found.iter().filter(|answer| **answer == Some(server)).count();
    // The heaviest has a third of the weight, the lightest a fifteenth: 30 and 6 expected. With so many connections
    // open the less loaded of two draws keeps them close to it.
    let right = (1..5).all(|server| count(server) > 0) && count(5) > count(1);
    let what = format!("twos   TCP {} of {RANDOM_CONNECTIONS}, at random by weight 1 2 3 4 5", counts(&found));
    screen.check(right, &what);
    Ok(())
}

/// sh once more, from the twenty clients that were recorded: another scheduler's row cannot show that it spreads.
fn recorded_clients(topology: &Topology, agent: &Agent<'_>, scripts: &[Script], screen: &mut Screen) -> Result<()> {
    let many = |script: &&Script| {
        let clients = script.steps.iter().filter_map(|step| match step {
            Step::Open { client, .. } => Some(*client),
            _ => None,
        });
        script.scheduler == "sh" && clients.collect::<std::collections::BTreeSet<_>>().len() > 1
    };
    let script = scripts.iter().find(many).context("sh from many clients is not recorded")?;
    let to = SocketAddr::new(addresses("sh")?.0, TCP);
    let from = &topology.clients[0].namespace;
    let mut found = Vec::new();
    for step in &script.steps {
        // Other ports than the first run's, whose connections are still open.
        let Step::Open { client, .. } = step else { continue };
        let source = SocketAddr::new(*client, SOURCE + 2000);
        let connection = Dial::new(from, to).source(source).open().with_context(|| format!("{source} to {to}"))?;
        found.push(Some(connection.server.into()));
        connection.close()?;
    }
    compare(screen, "sh     TCP ", &found, &script.recorded(), &[20], "as IPVS answered 20 clients");
    // The list must agree that all these are closed again.
    wait_for(agent, "the service of sh in `bpvs list`", |listing: &Listing| listing.service("TCP", to).is_some())
}

fn node(topology: &Topology, screen: &mut Screen) -> Result<()> {
    let mut failed = Vec::new();
    let all = SCHEDULERS.into_iter().filter(|scheduler| *scheduler != FULL).chain([RANDOM]);
    let mut sent = 0;
    for scheduler in all {
        let (v4, v6) = addresses(scheduler)?;
        for address in [v4, v6] {
            sent += 3;
            let to = SocketAddr::new(address, TCP);
            let from = &topology.node.namespace;
            let mut named = true;
            let result = Dial::new(from, to).open().and_then(|mut held| {
                named = held.peer().is_ok_and(|peer| peer == to);
                held.exchange(b"from the node")?;
                held.close()
            });
            if let Err(error) = result {
                failed.push(format!("TCP {to}: {error}"));
            } else if !named {
                failed.push(format!("TCP {to}: the socket names another peer"));
            }
            let to = SocketAddr::new(address, UDP);
            for udp in [UdpClient::connected(from, None, to)?, UdpClient::unconnected(from, None, to)?] {
                if let Err(error) = udp.request(100, DEADLINE) {
                    failed.push(format!("UDP {to}: {error}"));
                }
            }
        }
    }
    let what = format!("{sent} requests of the node itself, TCP and UDP, IPv4 and IPv6: {} failed", failed.len());
    screen.check(failed.is_empty(), &what);
    for line in failed.iter().take(5) {
        screen.plain(line);
    }
    Ok(())
}

/// Sizes of the script's runs of opens between its edits, for the eye.
fn groups(script: &Script) -> Vec<usize> {
    let mut groups = vec![0];
    for step in &script.steps {
        match step {
            Step::Open { .. } => *groups.last_mut().expect("never empty") += 1,
            Step::Bar => groups.push(0),
            _ => {}
        }
    }
    groups
}

fn compare(
    screen: &mut Screen,
    label: &str,
    found: &[Option<u32>],
    expected: &[Option<u32>],
    groups: &[usize],
    known: &str,
) {
    let right = found == expected;
    let line = |answers: &[Option<u32>]| order(answers, groups);
    screen.check(right, &format!("{label}{} |{}   {:44} {known}", counts(found), counts(expected), line(found)));
    if !right {
        screen.plain(&format!("{:>47} {}   is what IPVS does", "", line(expected)));
    }
}

fn counts(answers: &[Option<u32>]) -> String {
    (1..=5).map(|server| format!("{:3}", answers.iter().filter(|answer| **answer == Some(server)).count())).collect()
}

fn order(answers: &[Option<u32>], groups: &[usize]) -> String {
    let mut answers = answers.iter().map(|answer| answer.map_or("R".to_owned(), |server| server.to_string()));
    let runs: Vec<String> = groups.iter().map(|&size| answers.by_ref().take(size).collect()).collect();
    runs.join(" ")
}
