//! Real traffic through the frontends.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail, ensure};
use bpvs_tests::agent::{Agent, attached};
use bpvs_tests::namespace::Namespace;
use bpvs_tests::traffic::{DEADLINE, Dial, UdpClient};
use lb_common::scheduler::Scheduler;

use crate::world::{SERVERS, World, frontends, nobodys_frontends};

/// Connections of each family: as many to each server.
const ROUNDS: u16 = 3;
/// Bytes of an exchange: several segments, and not a multiple of one.
const BYTES: usize = 20_001;
/// Bytes of a datagram that goes in fragments.
const FRAGMENTED: usize = 4_000;

/// Whatever a counter of servers by address says: each server `ROUNDS` times.
fn ensure_even(served: &BTreeMap<u16, u16>, what: &str) -> Result<()> {
    let even = (1..=SERVERS).map(|server| (server, ROUNDS)).collect();
    ensure!(
        *served == even,
        "{what}: round robin gave each server's number its connections as {served:?}, not {even:?}"
    );
    Ok(())
}

/// Connections of a client pod, in turn to each server; `bpvs list` counts those that are open.
pub(crate) fn tcp(world: &mut World<'_>) -> Result<String> {
    let client = &world.topology.clients[0];
    let mut open = Vec::new();
    for to in frontends(Scheduler::RoundRobin)?.0 {
        let mut served = BTreeMap::new();
        for _ in 0..ROUNDS * SERVERS {
            let mut held = Dial::new(&client.namespace, to).open().with_context(|| format!("connecting to {to}"))?;
            held.exchange(&vec![0x5a; BYTES]).with_context(|| format!("talking to {to}"))?;
            ensure!(held.seen_peer.ip() == client.address_like(to.ip()), "the server sees {}", held.seen_peer);
            *served.entry(held.server).or_default() += 1;
            open.push(held);
        }
        ensure_even(&served, &to.to_string())?;
        let list = world.agent()?.command(&["list", &format!("tcp/{to}")])?;
        let active: Vec<_> = list.lines().filter(|line| line.contains("Masq")).map(active).collect();
        let wanted = [Some(ROUNDS); SERVERS as usize];
        ensure!(active == wanted, "`bpvs list` shows {active:?} active connections, not {wanted:?}:\n{list}");
    }
    let count = open.len();
    for held in open {
        held.close()?;
    }
    Ok(format!("{count} connections, {BYTES} bytes each way"))
}

/// The active connections in a line of `bpvs list`.
fn active(line: &str) -> Option<u16> {
    // -> address Masq weight active inactive
    line.split_whitespace().nth(4)?.parse().ok()
}

/// Flows of a client pod, and a datagram in fragments.
pub(crate) fn udp(world: &mut World<'_>) -> Result<String> {
    let client = &world.topology.clients[0];
    let mut flows = 0;
    for to in frontends(Scheduler::RoundRobin)?.1 {
        let mut served = BTreeMap::new();
        for _ in 0..ROUNDS * SERVERS {
            let socket = UdpClient::connected(&client.namespace, None, to)?;
            let first = socket.request(100, DEADLINE).with_context(|| format!("asking {to}"))?;
            let second = socket.request(FRAGMENTED, DEADLINE).with_context(|| format!("asking {to} in fragments"))?;
            ensure!(first.server == second.server, "one flow, servers {} and {}", first.server, second.server);
            *served.entry(first.server).or_default() += 1;
            flows += 1;
        }
        ensure_even(&served, &to.to_string())?;
    }
    Ok(format!("{flows} flows, datagrams of 100 and {FRAGMENTED} bytes"))
}

/// A connection through every scheduler.
pub(crate) fn schedulers(world: &mut World<'_>) -> Result<String> {
    let client = &world.topology.clients[0];
    for scheduler in Scheduler::ALL {
        for to in frontends(scheduler)?.0 {
            let opened = Dial::new(&client.namespace, to).open();
            opened.with_context(|| format!("{}: connecting to {to}", scheduler.name()))?;
        }
    }
    let names: Vec<_> = Scheduler::ALL.iter().map(|scheduler| scheduler.name()).collect();
    Ok(names.join(" "))
}

/// Processes of the node itself: the server is chosen at connect() and sendmsg(), the peer stays the frontend.
pub(crate) fn local(world: &mut World<'_>) -> Result<String> {
    let node = &world.topology.node.namespace;
    let (tcp, udp) = frontends(Scheduler::RoundRobin)?;
    // Held: a closed socket is no connection any more.
    let mut open = Vec::new();
    for to in tcp {
        let mut held = Dial::new(node, to).open().with_context(|| format!("connecting to {to}"))?;
        held.exchange(&[0x5a; BYTES])?;
        let peer = held.peer()?;
        ensure!(peer == to, "getpeername() says {peer}, not {to}");
        open.push(held);
    }
    for to in udp {
        let request = |socket: UdpClient| socket.request(100, DEADLINE).with_context(|| format!("asking {to}"));
        request(UdpClient::connected(node, None, to)?)?;
        request(UdpClient::unconnected(node, None, to)?)?;
    }
    let listed = world.agent()?.command(&["connections"])?;
    ensure!(listed.contains("socket#"), "`bpvs connections` shows no socket of the node:\n{listed}");
    Ok("connect, sendmsg, recvmsg, getpeername; both families".to_owned())
}

/// A service without servers refuses at once, pods and the node's own processes alike.
pub(crate) fn refuse(world: &mut World<'_>) -> Result<String> {
    let topology = world.topology;
    for to in nobodys_frontends() {
        for from in [&topology.clients[0].namespace, &topology.node.namespace] {
            match Dial::new(from, to).open() {
                Err(error) if error.is_refused() => {}
                Err(error) => bail!("{to} from {}: {error}, not refused", from.name()),
                Ok(held) => bail!("{to} from {}: server {} answered", from.name(), held.server),
            }
        }
    }
    Ok("no server: ICMP port unreachable, ECONNREFUSED".to_owned())
}

/// The agent is killed: what is open stays open, new connections are served, and the next agent adopts all of it.
pub(crate) fn restart(world: &mut World<'_>) -> Result<String> {
    let (topology, agent) = (world.topology, world.agent()?);
    let (node, client) = (&topology.node.namespace, &topology.clients[0].namespace);
    let tcp = frontends(Scheduler::RoundRobin)?.0;
    let mut open = Vec::new();
    for to in tcp {
        open.push(Dial::new(client, to).open()?);
    }
    let (hooks, before) = (attached(node)?, agent.footprint()?);
    for state in ["killed", "started again"] {
        match state {
            "killed" => agent.kill()?,
            _ => agent.start()?,
        }
        for held in &mut open {
            held.exchange(&[0x5a; BYTES]).with_context(|| format!("an open connection, agent {state}"))?;
        }
        connect(client, &tcp).with_context(|| format!("new connections, agent {state}"))?;
        same(agent, node, &hooks, &before).with_context(|| format!("agent {state}"))?;
    }
    Ok("SIGKILL; open and new connections went on; adopted".to_owned())
}

fn connect(client: &Namespace, frontends: &[std::net::SocketAddr]) -> Result<()> {
    for &to in frontends {
        Dial::new(client, to).open().with_context(|| format!("connecting to {to}"))?.close()?;
    }
    Ok(())
}

/// Hooks, maps and links are those of before; programs are the new agent's own.
fn same(agent: &Agent<'_>, node: &Namespace, hooks: &[String], before: &bpvs_tests::agent::Footprint) -> Result<()> {
    let (now, hooks_now) = (agent.footprint()?, attached(node)?);
    ensure!(hooks_now == hooks, "the hooks were {hooks:?} and are {hooks_now:?}");
    ensure!(now.maps == before.maps && now.links == before.links, "other maps or links: {before:?}, then {now:?}");
    Ok(())
}
