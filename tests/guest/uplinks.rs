//! XDP on what uplinks are made of: a link, bonds, VLAN devices. Real traffic through node ports to a server that is on another
//! host, and how much of it the node's stack has forwarded.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use bpvs_tests::agent::{Agent, Listing, Manifests, ServiceManifest, attached};
use bpvs_tests::namespace::run;
use bpvs_tests::traffic::{DEADLINE, Dial, UdpClient};
use bpvs_tests::world::{CHANGE, TCP, TCP_TARGET, UDP, UDP_TARGET, wait_for};
use serde_json::Value;

use crate::lan::{Lan, Link, Net};
use crate::load;

/// A step: what it finds.
type Step = fn() -> Result<String>;

/// In this order, each on a network of its own.
pub(crate) const STEPS: [(&str, Step); 8] = [
    ("native", native),
    ("generic", generic),
    ("bond", bond),
    ("bond-generic", || by_xdp(Link::Bond("active-backup"), "generic", "bond0")),
    ("bond-lacp", bond_lacp),
    ("vlan", vlan),
    ("vlan-direct", vlan_direct),
    ("vlan-on-bond", vlan_on_bond),
];

/// Node ports of the services whose server is in a network.
const PORTS: [(Net, u16); 2] = [(Net::Plain, 30_080), (Net::Tagged, 30_081)];
/// Bytes of an exchange: several segments.
const BYTES: usize = 20_001;
/// Datagrams of a flow.
const DATAGRAMS: u64 = 3;

/// The services, the agent.
struct Served<'a> {
    lan: &'a Lan,
    agent: Agent<'a>,
    _manifests: Manifests,
}

impl<'a> Served<'a> {
    fn start(lan: &'a Lan, arguments: &[&str]) -> Result<Self> {
        let manifests = Manifests::new()?;
        for (net, port) in PORTS {
            let number = port - 30_000;
            let service = ServiceManifest::new(&format!("at-{port}"), &bpvs_tests::world::virtual_addresses(number))
                .node_port("TCP", TCP, TCP_TARGET, port)
                .node_port("UDP", UDP, UDP_TARGET, port)
                .server(net.server(), &net.addresses(net.server()), 1);
            manifests.write(&format!("at-{port}.yaml"), &service.yaml())?;
        }
        let builder = Agent::builder(&lan.node).manifests(&manifests).argument("--socket-lb=off");
        let agent = arguments.iter().fold(builder, |builder, argument| builder.argument(*argument)).start()?;
        Ok(Self { lan, agent, _manifests: manifests })
    }

    /// Interfaces with the XDP program, as `name program`.
    fn uplinks(&self) -> Result<Vec<String>> {
        let found = attached(&self.lan.node)?;
        Ok(found.iter().filter(|hook| hook.contains(" xdp ")).map(|hook| hook.replace(" xdp ", " ")).collect())
    }

    /// Fails unless these have it, and no others.
    fn expect_uplinks(&self, wanted: &[&str]) -> Result<()> {
        let found = self.uplinks()?;
        ensure!(found == wanted, "XDP is on {found:?}, not {wanted:?}; the agent's log:\n{}", self.agent.log().text(0));
        Ok(())
    }

    /// The client asks the node at its addresses in a network, for a service: connections and flows of both families, each
    /// packet of which is counted once. How many packets the stack has forwarded meanwhile.
    fn ask(&self, at: Net, port: u16) -> Result<u64> {
        self.lan.announce()?;
        let before = self.lan.forwarded()?;
        for node in at.addresses(1) {
            self.ask_at(SocketAddr::new(node, port)).with_context(|| {
                format!("asking {node} port {port}; the agent's log:\n{}", self.agent.log().text(0))
            })?;
        }
        Ok(self.lan.forwarded()? - before)
    }

    fn ask_at(&self, to: SocketAddr) -> Result<()> {
        let client = &self.lan.client;
        for _ in 0..2 {
            let mut held = Dial::new(client, to).open()?;
            held.exchange(&[0x5a; BYTES])?;
            self.came_from_the_node(held.seen_peer.ip())?;
            held.close()?;
        }
        // A node port is listed once for all addresses of the node.
        let any = SocketAddr::new(
            if to.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() },
            to.port(),
        );
        let counted = || -> Result<[u64; 2]> {
            let listing = Listing::read(&self.agent)?;
            let service = listing.service("UDP", any).with_context(|| format!("`bpvs list` has no UDP {any}"))?;
            let [_, packets_in, packets_out, ..] = service.servers[0].traffic;
            Ok([packets_in, packets_out])
        };
        let before = counted()?;
        let socket = UdpClient::connected(client, None, to)?;
        for _ in 0..DATAGRAMS {
            self.came_from_the_node(socket.request(100, DEADLINE)?.seen_peer.ip())?;
        }
        let after = counted()?;
        let counted = [after[0] - before[0], after[1] - before[1]];
        ensure!(counted == [DATAGRAMS; 2], "of {DATAGRAMS} datagrams each way {counted:?} were counted");
        Ok(())
    }

    /// Whoever is outside comes from the node.
    fn came_from_the_node(&self, seen: IpAddr) -> Result<()> {
        let own = [Net::Plain, Net::Tagged].into_iter().flat_map(|net| net.addresses(1));
        ensure!(own.into_iter().any(|address| address == seen), "the server sees {seen}, which is not the node");
        Ok(())
    }

    /// Traffic without tags is served, and the stack forwards nothing of it.
    fn goes_by_xdp(&self, when: &str) -> Result<()> {
        let forwarded = self.ask(Net::Plain, PORTS[0].1).context(when.to_owned())?;
        ensure!(
            forwarded == 0,
            "{when}: the stack forwarded {forwarded} packets; the agent's log:\n{}",
            self.agent.log().text(0)
        );
        Ok(())
    }

    /// The same of traffic that the stack forwards.
    fn goes_by_the_stack(&self, at: Net, port: u16) -> Result<()> {
        let forwarded = self.ask(at, port)?;
        ensure!(forwarded > 0, "the stack forwarded nothing of what is not XDP's");
        Ok(())
    }

    fn end(self) -> Result<()> {
        self.agent.cleanup()
    }
}

/// The kernel's name of the program for a mode: fifteen characters.
fn program(mode: &str) -> &'static str {
    if mode == "native" { "bpvs_uplink" } else { "bpvs_uplink_gen" }
}

/// Everything by XDP, on the uplink and nowhere else.
fn by_xdp(link: Link, mode: &str, uplinks: &str) -> Result<String> {
    let lan = Lan::new(link, false, Net::Plain)?;
    let served = Served::start(&lan, &["--xdp", mode, "--uplinks", uplinks])?;
    served.expect_uplinks(&[&format!("{} {}", lan.uplink(), program(mode))])?;
    served.goes_by_xdp("at once")?;
    served.end()?;
    Ok("connections and flows, both families; the stack forwarded nothing".to_owned())
}

/// A veth, whose driver says from 6.3 on whether it sends.
fn native() -> Result<String> {
    if load::kernel()? >= (6, 3) {
        return by_xdp(Link::One, "native", "up0");
    }
    let lan = Lan::new(Link::One, false, Net::Plain)?;
    let served = Served::start(&lan, &["--xdp", "native"])?;
    served.expect_uplinks(&[])?;
    served.goes_by_the_stack(Net::Plain, PORTS[0].1)?;
    served.end()?;
    Ok("a veth is served at tc before Linux 6.3".to_owned())
}

fn generic() -> Result<String> {
    by_xdp(Link::One, "generic", "up?")
}

/// Members of an active-backup bond fail, come back, leave and join.
fn bond() -> Result<String> {
    let lan = Lan::new(Link::Bond("active-backup"), false, Net::Plain)?;
    let served = Served::start(&lan, &["--xdp", "native"])?;
    served.expect_uplinks(&["bond0 bpvs_uplink"])?;
    served.goes_by_xdp("with both members")?;
    for member in lan.members() {
        let other = if *member == "m0" { "m1" } else { "m0" };
        lan.change(&[&format!("link set {member} down")])?;
        served.goes_by_xdp(&format!("{member} down"))?;
        lan.change(&[&format!("link set {member} up")])?;
        wait_for_member(&lan, member)?;
        lan.change(&[&format!("link set {member} nomaster")])?;
        wait_for_map(&served, &["bond0", other])?;
        served.goes_by_xdp(&format!("without {member}"))?;
        lan.change(&[&format!("link set {member} down"), &format!("link set {member} master bond0")])?;
        wait_for_member(&lan, member)?;
        wait_for_map(&served, &["bond0", "m0", "m1"])?;
        served.goes_by_xdp(&format!("{member} is back"))?;
    }
    served.expect_uplinks(&["bond0 bpvs_uplink"])?;
    served.end()?;
    Ok("members fail, come back, leave and join; the stack forwarded nothing".to_owned())
}

/// Waits until the bond uses a member.
fn wait_for_member(lan: &Lan, member: &str) -> Result<()> {
    let state =
        || lan.node.enter(|| std::fs::read_to_string("/proc/thread-self/net/bonding/bond0")).unwrap_or_default();
    let is_up = || {
        let text = state();
        let part = text.split("Slave Interface: ").find(|part| part.starts_with(member));
        Ok(part.is_some_and(|part| part.contains("MII Status: up")).then_some(()))
    };
    wait_for(&format!("{member} in the bond"), CHANGE, is_up, state)
}

/// Waits until the programs are told of these interfaces as uplinks.
fn wait_for_map(served: &Served<'_>, names: &[&str]) -> Result<()> {
    let mut wanted = Vec::new();
    for name in names {
        wanted.push(u64::from(served.lan.node.interface_index(name)?));
    }
    wanted.sort_unstable();
    let found = || -> Result<Vec<u64>> {
        let mut bpftool = Command::new("bpftool");
        bpftool.args(["-j", "map", "dump", "pinned"]).arg(served.agent.pin_path().join("uplinks"));
        let entries: Vec<Value> = serde_json::from_slice(&run(&mut bpftool)?.stdout).context("reading a map")?;
        let mut found: Vec<u64> =
            entries.iter().filter_map(|entry| entry["formatted"]["key"].as_u64().or(entry["key"].as_u64())).collect();
        found.sort_unstable();
        Ok(found)
    };
    let is_there = || Ok((found()? == wanted).then_some(()));
    wait_for(&format!("uplinks {wanted:?}"), CHANGE, is_there, || format!("{:?}", found()))
}

/// Members that are all in use; names that fit members, too, mean the bond.
fn bond_lacp() -> Result<String> {
    by_xdp(Link::Bond("802.3ad"), "native", "*")
}

/// Who asks for the service of which server, and how many packets of it the stack has forwarded.
fn everybody(served: &Served<'_>) -> Result<[u64; 4]> {
    let mut forwarded = [0; 4];
    for (place, at) in [Net::Plain, Net::Tagged].into_iter().enumerate() {
        for (other, (server, port)) in PORTS.into_iter().enumerate() {
            let asked = served.ask(at, port).with_context(|| format!("{at:?} to the server of {server:?}"))?;
            forwarded[2 * place + other] = asked;
        }
    }
    Ok(forwarded)
}

/// A VLAN on the uplink: what comes with a tag or leaves with one goes by tc. Generic XDP would not see the tags.
fn vlan() -> Result<String> {
    let lan = Lan::new(Link::Bond("active-backup"), true, Net::Plain)?;
    for (mode, uplinks) in [("native", &["bond0 bpvs_uplink"][..]), ("generic", &[])] {
        let served = Served::start(&lan, &["--xdp", mode])?;
        served.expect_uplinks(uplinks)?;
        let forwarded = everybody(&served).context(mode)?;
        let by_stack = forwarded.map(|count| count > 0);
        ensure!(by_stack[3], "{mode}: the stack forwarded nothing from tag to tag");
        ensure!(by_stack[0] == uplinks.is_empty(), "{mode}: without tags the stack forwarded {}", forwarded[0]);
        let said = served.agent.log().text(0);
        ensure!(
            (mode == "generic") == said.contains("bond0 is served at tc, not by XDP: it has VLAN devices"),
            "{said}"
        );
        served.end()?;
    }
    Ok("with and without tags, each to servers with and without".to_owned())
}

/// The same with `--forwarding direct`, where tags must not stay on what leaves without.
fn vlan_direct() -> Result<String> {
    let lan = Lan::new(Link::One, true, Net::Plain)?;
    let served = Served::start(&lan, &["--forwarding", "direct"])?;
    let forwarded = everybody(&served)?;
    ensure!(forwarded[0] == 0, "without tags the stack forwarded {}", forwarded[0]);
    served.end()?;
    Ok("with and without tags, each to servers with and without".to_owned())
}

/// The uplink is a VLAN on a bond: served at tc, and the log says why.
fn vlan_on_bond() -> Result<String> {
    let lan = Lan::new(Link::Bond("active-backup"), true, Net::Tagged)?;
    for (mode, why) in [("native", "its driver has no native XDP"), ("generic", "it is a VLAN device")] {
        let served = Served::start(&lan, &["--xdp", mode])?;
        served.expect_uplinks(&[])?;
        let said = served.agent.log().text(0);
        ensure!(said.contains(&format!("bond0.100 is served at tc, not by XDP: {why}")), "{mode}: {said}");
        served.goes_by_the_stack(Net::Tagged, PORTS[1].1).context(mode)?;
        served.end()?;
    }
    Ok("served at tc".to_owned())
}
