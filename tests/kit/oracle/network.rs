//! The network of one director: clients and servers are frames on two wires, so that nothing but the director answers.
//!
//! ```text
//!  ends:client -- in:director:out -- ends:server
//! ```
//!
//! The director's interfaces do without neighbours (`arp off`): each address behind them is there. Virtual addresses are
//! its own, as IPVS needs it; what no service takes is answered by its stack, as behind IPVS.
//!
//! What came of a frame is known without waiting: all work for it is done on one CPU ([`pin`]) in order, so that a second
//! frame, which only passes through, arrives after everything that the first one caused.

use std::cell::Cell;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use aya::util::KernelVersion;
use nix::sched::{CpuSet, sched_getcpu, sched_setaffinity};
use nix::unistd::Pid;

use super::marks;
use crate::foreign::{Pinned, on_tcx_with};
use crate::namespace::{End, Namespace, veth};
use crate::packets::{Packet, RawSocket, Summary, Transport, protocol, verify};
use crate::topology::offload_off;

/// The director's interface towards the clients.
pub const CLIENT_SIDE: &str = "in";
/// The director's interface towards the servers.
pub const SERVER_SIDE: &str = "out";

const CLIENT_MAC: [u8; 6] = [2, 0, 0, 0, 1, 1];
const IN_MAC: [u8; 6] = [2, 0, 0, 0, 1, 2];
const OUT_MAC: [u8; 6] = [2, 0, 0, 0, 2, 2];
const SERVER_MAC: [u8; 6] = [2, 0, 0, 0, 2, 1];

/// Ends of the frames that only pass through.
const NOBODY: [(Ipv4Addr, Ipv6Addr); 2] = [
    (Ipv4Addr::new(10, 8, 255, 254), Ipv6Addr::new(0xfd08, 0, 0xffff, 0, 0, 0, 0, 1)),
    (Ipv4Addr::new(10, 20, 255, 254), Ipv6Addr::new(0xfd20, 0, 0xffff, 0, 0, 0, 0, 1)),
];
/// Their ports.
const PASSING: u16 = 9;

/// For a frame that is on its way. Nothing waits that long unless something is wrong.
const DEADLINE: Duration = Duration::from_secs(20);

/// Keeps the calling thread on the CPU where it is: what it sends is processed there, one after the other.
pub fn pin() -> Result<()> {
    let mut here = CpuSet::new();
    here.set(sched_getcpu()?)?;
    sched_setaffinity(Pid::from_raw(0), &here).context("staying on one CPU")
}

/// What became of a frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It, or an answer to it, came out towards the servers.
    ToServer(Box<Summary>),
    /// It, or an answer to it, came out towards the clients.
    ToClient(Box<Summary>),
    /// Nothing came out.
    Nothing,
}

/// A director's network. It disappears when dropped.
#[derive(Debug)]
pub struct Network {
    client: RawSocket,
    server: RawSocket,
    /// Number of the last frame that only passes through.
    passed: Cell<u32>,
    director: Namespace,
    _marking: Option<OwnedFd>,
    _ends: Namespace,
}

impl Network {
    /// Builds one; the calling thread should be [`pin`]ned.
    pub fn new(role: &str) -> Result<Self> {
        let (director, ends) = (Namespace::new(role)?, Namespace::new(&format!("{role}-ends"))?);
        // Before there are interfaces: `default` is copied to each.
        let quiet = [("ipv6/conf/all/disable_ipv6", "1"), ("ipv6/conf/default/disable_ipv6", "1")];
        ends.sysctls(&quiet)?;
        director.sysctls(&[
            ("ipv4/ip_forward", "1"),
            ("ipv4/conf/all/rp_filter", "0"),
            ("ipv4/conf/default/rp_filter", "0"),
            ("ipv4/conf/all/send_redirects", "0"),
            ("ipv4/conf/default/send_redirects", "0"),
            ("ipv6/conf/all/forwarding", "1"),
            ("ipv6/conf/default/forwarding", "1"),
            ("ipv6/conf/default/accept_dad", "0"),
            ("ipv6/conf/default/router_solicitations", "0"),
            ("ipv6/conf/default/addr_gen_mode", "1"),
            // Each refusal counts: no limit on any type of ICMP.
            ("ipv4/icmp_ratemask", "0"),
            ("ipv4/icmp_ratelimit", "0"),
            ("ipv6/icmp/ratelimit", "0"),
        ])?;
        let end = |namespace, interface, mac| End { namespace, interface, mac };
        veth(end(&director, CLIENT_SIDE, IN_MAC), end(&ends, "client", CLIENT_MAC), 1500)?;
        veth(end(&director, SERVER_SIDE, OUT_MAC), end(&ends, "server", SERVER_MAC), 1500)?;
        for (namespace, interface) in
            [(&director, CLIENT_SIDE), (&director, SERVER_SIDE), (&ends, "client"), (&ends, "server")]
        {
            // The stack leaves checksums to the device otherwise, and a raw socket sees them unfinished.
            offload_off(namespace, interface)?;
            namespace.ip(&[format!("link set {interface} arp off up")])?;
        }
        director.ip(&[
            // Sources of what the director itself says.
            format!("addr add 10.8.255.253/32 dev {CLIENT_SIDE}"),
            format!("addr add fd08:0:ffff::2/128 dev {CLIENT_SIDE} nodad"),
            format!("route add 10.8.0.0/16 dev {CLIENT_SIDE}"),
            format!("route add fd08::/16 dev {CLIENT_SIDE}"),
            format!("route add 10.20.0.0/16 dev {SERVER_SIDE}"),
            format!("route add fd20::/16 dev {SERVER_SIDE}"),
            "route add local 10.64.0.0/10 dev lo".into(),
            "route add local fd64::/16 dev lo".into(),
        ])?;
        for (first, bits) in [marks::network(false), marks::network(true)] {
            director.ip(&[format!("route add local {first}/{bits} dev lo")])?;
        }
        let marking = set_marks(&director)?;
        let network = Self {
            client: RawSocket::open(&ends, "client")?,
            server: RawSocket::open(&ends, "server")?,
            passed: Cell::new(0),
            director,
            _marking: marking,
            _ends: ends,
        };
        network.wait_for_links()?;
        Ok(network)
    }

    /// Where the director runs.
    pub fn director(&self) -> &Namespace {
        &self.director
    }

    /// A packet from a client; `sent` makes the transport part.
    pub fn from_client(&self, packet: Packet, sent: impl FnOnce(&Packet) -> Transport) -> Result<Outcome> {
        let packet = packet.macs(CLIENT_MAC, IN_MAC);
        self.client.send(&packet.frame(&sent(&packet)))?;
        if let Some(found) = ready(&self.server)? {
            return Ok(Outcome::ToServer(found));
        }
        if let Some(found) = ready(&self.client)? {
            return Ok(Outcome::ToClient(found));
        }
        // Rarely, and for what gets no answer at all.
        let before = self.pass(&self.client, &self.server)?;
        match (before, ready(&self.client)?) {
            (Some(found), None) => Ok(Outcome::ToServer(found)),
            (None, Some(found)) => Ok(Outcome::ToClient(found)),
            (None, None) => Ok(Outcome::Nothing),
            (Some(there), Some(here)) => bail!("one packet made two: {there:?} and {here:?}"),
        }
    }

    /// A packet from a server.
    pub fn from_server(&self, packet: Packet, sent: impl FnOnce(&Packet) -> Transport) -> Result<Outcome> {
        let packet = packet.macs(SERVER_MAC, OUT_MAC);
        self.server.send(&packet.frame(&sent(&packet)))?;
        if let Some(found) = ready(&self.client)? {
            return Ok(Outcome::ToClient(found));
        }
        let before = self.pass(&self.server, &self.client)?;
        match (before, ready(&self.server)?) {
            (Some(found), None) => Ok(Outcome::ToClient(found)),
            (None, Some(found)) => Ok(Outcome::ToServer(found)),
            (None, None) => Ok(Outcome::Nothing),
            (Some(there), Some(here)) => bail!("one packet made two: {there:?} and {here:?}"),
        }
    }

    /// True if nothing is on its way or unread: to be looked at where a script ends.
    pub fn is_quiet(&self) -> Result<bool> {
        let left = self.pass(&self.client, &self.server)?.or(self.pass(&self.server, &self.client)?);
        Ok(left.or(ready(&self.client)?).or(ready(&self.server)?).is_none())
    }

    /// Sends a frame through the director that nobody looks at, and returns what came out before it, if anything did.
    fn pass(&self, from: &RawSocket, to: &RawSocket) -> Result<Option<Box<Summary>>> {
        let number = self.passed.get().wrapping_add(1);
        self.passed.set(number);
        let forward = std::ptr::eq(from, &self.client);
        let macs = if forward { (CLIENT_MAC, IN_MAC) } else { (SERVER_MAC, OUT_MAC) };
        let ends = if forward { NOBODY } else { [NOBODY[1], NOBODY[0]] };
        let [source, destination] = ends.map(|(v4, _)| SocketAddr::new(IpAddr::V4(v4), PASSING));
        let packet = Packet::new(source, destination).macs(macs.0, macs.1);
        from.send(&packet.frame(&packet.udp(&number.to_be_bytes())))?;
        let mut before = None;
        loop {
            let frame = to.receive(DEADLINE)?.context("a frame that only passes through the director was lost")?;
            let Some(found) = wanted(&frame)? else { continue };
            if found.to == destination && found.payload == number.to_be_bytes() {
                return Ok(before);
            }
            ensure!(found.to != destination, "a frame that only passes came late: {found:?}");
            ensure!(before.is_none(), "one packet made two: {before:?} and {found:?}");
            before = Some(found);
        }
    }

    /// The kernel notices a new carrier a moment after both ends are up, and drops packets until then.
    fn wait_for_links(&self) -> Result<()> {
        let end = Instant::now() + DEADLINE;
        for interface in [CLIENT_SIDE, SERVER_SIDE] {
            loop {
                // /sys shows the namespace that it was mounted in, so the question goes by netlink.
                let mut ip = Command::new("ip");
                let output = self.director.run(ip.args(["-o", "link", "show", "dev", interface]))?;
                if String::from_utf8_lossy(&output.stdout).contains("LOWER_UP") {
                    break;
                }
                ensure!(Instant::now() < end, "{interface} of {} has no carrier", self.director.name());
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        Ok(())
    }
}

/// Preference of the filter that sets marks, where it is a filter: others come after it.
pub const MARKS: u32 = 1;

/// Puts the program that sets marks before those that will come to the clients' interface; what keeps it there.
fn set_marks(director: &Namespace) -> Result<Option<OwnedFd>> {
    let (program, interface) = (marks::program(), director.interface_index(CLIENT_SIDE)?);
    // TCX came with Linux 6.6; before it, programs need a qdisc.
    if KernelVersion::current()? >= KernelVersion::new(6, 6, 0) {
        return director.enter(|| on_tcx_with(interface, &program)).map(Some);
    }
    let pinned = Pinned::classifier_with(format!("/sys/fs/bpf/{}", director.name()).into(), &program)?;
    require_clsact(director)?;
    let filter = format!("filter add dev {CLIENT_SIDE} ingress pref {MARKS} bpf direct-action object-pinned");
    director.run(tc(&filter).arg(pinned.path()))?;
    Ok(None)
}

/// The clients' interface can have filters: it may have the qdisc for them already.
pub fn require_clsact(director: &Namespace) -> Result<()> {
    let there = director.run(&mut tc(&format!("qdisc show dev {CLIENT_SIDE}")))?;
    if !String::from_utf8_lossy(&there.stdout).contains("clsact") {
        director.run(&mut tc(&format!("qdisc add dev {CLIENT_SIDE} clsact")))?;
    }
    Ok(())
}

/// A command of tc.
pub fn tc(words: &str) -> Command {
    let mut command = Command::new("tc");
    command.args(words.split(' '));
    command
}

/// The next frame that is there already and says something.
fn ready(socket: &RawSocket) -> Result<Option<Box<Summary>>> {
    while let Some(frame) = socket.ready()? {
        if let Some(found) = wanted(&frame)? {
            return Ok(Some(found));
        }
    }
    Ok(None)
}

/// Reads a frame; none for the talk of interfaces among themselves. A wrong length or checksum is an error.
fn wanted(frame: &[u8]) -> Result<Option<Box<Summary>>> {
    if !matches!(frame.get(12..14), Some([0x08, 0x00] | [0x86, 0xdd])) {
        return Ok(None);
    }
    let found = verify(frame).with_context(|| format!("{frame:02x?}"))?;
    // Group membership, neighbours.
    let talk = found.protocol == 2 || (found.protocol == protocol::ICMPV6 && found.kind >= 128);
    Ok((!talk).then(|| Box::new(found)))
}
