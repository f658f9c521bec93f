//! A world whose packets go by one hook, and the proof that they did.

use std::net::SocketAddr;

use bpvs_tests::agent::Agent;
use bpvs_tests::exposition;
use bpvs_tests::http;
use bpvs_tests::topology::{Host, Topology};
use bpvs_tests::world::World;

use super::Case;

/// Where the agent tells its metrics, inside the node's namespace.
const METRICS: &str = "127.0.0.1:10249";
/// The node's name.
pub(crate) const HERE: &str = "here";
/// Server pods.
const SERVERS: u16 = 4;

/// Where connections get their server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Hook {
    /// tc of the interfaces that packets come by.
    Tc,
    /// tc, and straight to the interface of the receiver (`--forwarding direct`).
    TcDirect,
    /// XDP in the driver of the same interfaces.
    XdpNative,
    /// Generic XDP there.
    XdpGeneric,
    /// connect() and sendmsg() of processes of the node.
    Socket,
}

impl Hook {
    /// A network with servers. For native XDP every end takes frames, which a veth does that has GRO.
    pub(crate) fn world(self) -> World {
        let world = World::new(Topology::builder().servers(SERVERS).build().unwrap()).unwrap();
        if self == Self::XdpNative {
            world.topology.take_frames().unwrap();
        }
        // What goes by the stack passes here; what XDP sends does not.
        world.topology.node.namespace.nft(COUNTERS).unwrap();
        world
    }

    /// The services of all cases, each under its number.
    pub(crate) fn publish(self, world: &World, cases: &[Case]) {
        for (number, case) in (1..).zip(cases) {
            world.manifests.write(&format!("case-{number}.yaml"), &(case.service)(world, number)).unwrap();
        }
    }

    /// How the agent is told. Every interface is an uplink here: clients and servers are behind some of them.
    fn arguments(self) -> &'static [&'static str] {
        match self {
            Self::Tc => &["--socket-lb", "off"],
            Self::TcDirect => &["--socket-lb", "off", "--forwarding", "direct"],
            Self::XdpNative => &["--socket-lb", "off", "--xdp", "native", "--uplinks", "*"],
            Self::XdpGeneric => &["--socket-lb", "off", "--xdp", "generic", "--uplinks", "*"],
            Self::Socket => &[],
        }
    }

    /// True for a hook that sees packets.
    pub(crate) fn on_the_wire(self) -> bool {
        self != Self::Socket
    }
}

/// Counts TCP segments with data, of which one connection has many and which no case has fragmented.
const COUNTERS: &str = "
table inet seen {
  chain forward { type filter hook forward priority filter; policy accept; tcp flags & (syn|fin|rst|psh) == psh counter; }
}";

/// An agent on a world, whose connections go by one hook.
pub(crate) struct On<'a> {
    pub(crate) hook: Hook,
    pub(crate) world: &'a World,
    pub(crate) agent: Agent<'a>,
}

impl<'a> On<'a> {
    /// Starts the agent.
    pub(crate) fn start(hook: Hook, world: &'a World) -> Self {
        Self::start_with(hook, world, &[])
    }

    /// Starts it with more arguments.
    pub(crate) fn start_with(hook: Hook, world: &'a World, more: &[&'a str]) -> Self {
        let builder = Agent::builder(&world.topology.node.namespace).manifests(&world.manifests);
        let common = [
            "--node-name",
            HERE,
            "--cluster-cidr",
            "10.1.0.0/16,fd00:1::/32",
            "--metrics-bind-address",
            METRICS,
            "--sweep-interval=100ms",
        ];
        let arguments = common.iter().chain(hook.arguments()).chain(more);
        let agent = arguments.fold(builder, |builder, argument| builder.argument(*argument)).start().unwrap();
        Self { hook, world, agent }
    }

    /// Whose connections go by the hook.
    pub(crate) fn clients(&self) -> Vec<(&'static str, &'a Host)> {
        let world = self.world;
        world.clients().into_iter().filter(|(who, _)| (*who == "node") != self.hook.on_the_wire()).collect()
    }

    /// Packets dropped or refused for this reason until now.
    pub(crate) fn drops(&self, reason: &str) -> u64 {
        let at: SocketAddr = METRICS.parse().unwrap();
        let answer = http::get(&self.world.topology.node.namespace, at, "/metrics").unwrap();
        let families = exposition::parse(&answer.body).unwrap_or_else(|error| panic!("{error:#}\n{}", answer.body));
        families["bpvs_dropped_packets_total"]
            .value(&[("reason", reason)])
            .unwrap_or_else(|| panic!("no drop reason {reason}")) as u64
    }

    /// Fails unless the connections of the cases went by the hook, and by no other.
    pub(crate) fn went_by_the_hook(&self) {
        let rules = self.world.topology.node.namespace.nft("list table inet seen").unwrap();
        let forwarded: u64 = rules
            .split_once("counter packets ")
            .and_then(|(_, rest)| rest.split(' ').next())
            .and_then(|count| count.parse().ok())
            .unwrap_or_else(|| panic!("no counter in {rules}"));
        let log = self.agent.log().text(0);
        match self.hook {
            Hook::Tc => assert!(forwarded > 0, "nothing was forwarded by the stack:\n{rules}"),
            Hook::TcDirect | Hook::XdpNative | Hook::XdpGeneric => {
                assert_eq!(forwarded, 0, "segments were forwarded by the stack:\n{rules}\n{log}");
            }
            // A process's packets are never forwarded.
            Hook::Socket => assert_eq!(forwarded, 0, "{rules}"),
        }
    }
}
