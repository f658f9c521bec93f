//! Every map, with its size as shipped. `bpvs run` sets the sizes at load time.
//!
//! Declared with BTF, so that `bpftool map dump` prints named fields.

use aya_ebpf::{
    bindings::BPF_F_MMAPABLE,
    btf_maps::{Array, HashMap, LpmTrie, LruHashMap, PerCpuArray},
    macros::btf_map,
};
use lb_common::{
    address::Address,
    drops::Drop,
    layout::{
        AffinityTimeout, Connection, ConnectionKey, Destination, DestinationLoad, DestinationSlot, FragmentKey,
        FragmentPorts, Locality, LocalityChunk, LocalityKey, NetworkKey, Recount, Service, ServiceKey, ServicePrefix,
        Settings, SocketConnection, SocketFlow, SocketFlowKey, SweepResult, Traffic,
    },
    nat::Rewrite,
    packet::Packet,
};

use crate::{
    create::Opened, dsr::Way, lookup::Wanted, masquerade::Passing, schedule::Request, shortcut::Hop, source::Asked,
    tunnel::Around,
};

const MAPPABLE: usize = BPF_F_MMAPABLE as usize;

const SERVICES: usize = 65_536;
const SLOTS: usize = 2_097_152;
const DESTINATIONS: usize = 262_144;
const CONNECTION_ENTRIES: usize = 262_144;

/// Words of a refused packet that move into its answer's quote at once: more than the answer's headers are long, so that
/// no part is written over before it has moved.
pub const QUOTE_WORDS: usize = 32;

/// Where tc and XDP programs keep what does not fit on their stack.
pub struct Scratch {
    /// The packet.
    pub packet: Packet,
    /// The packet that an ICMP error quotes.
    pub quoted: Packet,
    /// A part of what a refusal quotes.
    pub quote: [u32; QUOTE_WORDS],
    /// What the packet is for.
    pub wanted: Wanted,
    /// Its service, as it was when it was looked up.
    pub service: Service,
    /// What a scheduler is asked.
    pub request: Request,
    /// The connection that was opened.
    pub opened: Opened,
    /// What says which address of the node stands for its client.
    pub asked: Asked,
    /// Its second half, if it is masqueraded.
    pub passing: Passing,
    /// The connection that the one of the packet takes the place of.
    pub replaced: crate::connections::Replaced,
    /// What a packet becomes that takes the short way.
    pub onward: Rewrite,
    /// Where it goes then.
    pub hop: Hop,
    /// How a packet reaches a server that answers the client itself.
    pub way: Way,
    /// The header before a packet that came inside of another one.
    pub around: Around,
    /// Counts the packets in [`PASSAGES`].
    pub passages: u32,
}

/// A packet on its way from ingress to egress.
pub struct Passage {
    /// The number that is in its `tc_index`.
    pub number: u32,
    /// What ingress found.
    pub found: u32,
    /// The packet as it came.
    pub packet: Packet,
    /// What it becomes, if that is known already.
    pub onward: Rewrite,
    /// Destination id of the server that sent it, likewise.
    pub server: u32,
}

/// What was found for the last packet of a flow.
pub struct Recent {
    /// Its key.
    pub key: ConnectionKey,
    /// What it became.
    pub onward: Rewrite,
    /// Destination id of its server.
    pub server: u32,
    /// What it was, and which way it went.
    pub found: u32,
    /// [`DestinationLoad::changes`] of the server then.
    pub changes: u32,
    /// The short way: the length that fits it, in bytes.
    pub length: u32,
    /// When, in nanoseconds of the coarse clock.
    pub seen: u64,
    /// The short way: where it went.
    pub hop: Hop,
}

/// One for each CPU: tc and XDP programs run with bottom halves off, so that none interrupts another.
#[btf_map(name = "scratch")]
pub static SCRATCH: PerCpuArray<Scratch, 1> = PerCpuArray::new();

/// The last packets that went on as they came.
#[btf_map(name = "passages")]
pub static PASSAGES: PerCpuArray<Passage, { crate::passage::PLACES }> = PerCpuArray::new();

/// Busy flows.
#[btf_map(name = "recent")]
pub static RECENT: PerCpuArray<Recent, { crate::recent::PLACES }> = PerCpuArray::new();

/// Frontends.
#[btf_map(name = "services")]
pub static SERVICES_MAP: HashMap<ServiceKey, Service, SERVICES> = HashMap::new();

/// Frontends that are networks.
#[btf_map(name = "service_prefixes")]
pub static SERVICE_PREFIXES: LpmTrie<ServicePrefix, Service, 1_024> = LpmTrie::new();

/// Networks that clients, or node ports, are in: presence counts, values are 1.
#[btf_map(name = "networks")]
pub static NETWORKS: LpmTrie<NetworkKey, u32, 16_384> = LpmTrie::new();

/// The node's addresses by the interface that a packet leaves by and, of IPv4, its next hop, of IPv6 its destination.
#[btf_map(name = "source_addresses")]
pub static SOURCE_ADDRESSES: LpmTrie<NetworkKey, Address, 16_384> = LpmTrie::new();

/// Which kinds of frontends there are besides an address and a port
/// ([`LOOKUP_MARKS`](lb_common::layout::LOOKUP_MARKS)): what no service has is not looked for.
#[btf_map(name = "lookups")]
pub static LOOKUPS: Array<u32, 1> = Array::new();

/// Destination sets and scheduler tables.
#[btf_map(name = "destination_slots")]
pub static DESTINATION_SLOTS: Array<DestinationSlot, SLOTS, MAPPABLE> = Array::new();

/// Real servers.
#[btf_map(name = "destinations")]
pub static DESTINATIONS_MAP: Array<Destination, DESTINATIONS, MAPPABLE> = Array::new();

/// Their active and inactive connections.
#[btf_map(name = "destination_load")]
pub static DESTINATION_LOAD: Array<DestinationLoad, DESTINATIONS, MAPPABLE> = Array::new();

/// Their traffic.
#[btf_map(name = "destination_traffic")]
pub static DESTINATION_TRAFFIC: PerCpuArray<Traffic, DESTINATIONS> = PerCpuArray::new();

/// Traffic of a service's destinations whose ids are free again, by service id. The agent alone writes it, when it
/// frees an id: a service's totals are this and what its destinations have, those that drain among them.
#[btf_map(name = "service_retired")]
pub static SERVICE_RETIRED: Array<Traffic, { 2 * SERVICES }, MAPPABLE> = Array::new();

/// How long clients are bound, by service id, for services of affinity groups: what the sweep goes by. The agent alone
/// writes it.
#[btf_map(name = "affinity_timeouts")]
pub static AFFINITY_TIMEOUTS: Array<AffinityTimeout, { 2 * SERVICES }, MAPPABLE> = Array::new();

/// rr's and wrr's place in the list, by service id. Larger than `services`: a removed service keeps its id while its
/// connections last.
#[btf_map(name = "scheduler_state")]
pub static SCHEDULER_STATE: Array<u64, { 2 * SERVICES }, MAPPABLE> = Array::new();

/// Connections, two entries each. Not LRU: a flood of new connections must not push out an established one.
#[btf_map(name = "connections")]
pub static CONNECTIONS: HashMap<ConnectionKey, Connection, CONNECTION_ENTRIES> = HashMap::new();

/// Ports of fragmented datagrams on their way.
#[btf_map(name = "fragments")]
pub static FRAGMENTS: LruHashMap<FragmentKey, FragmentPorts, 8_192> = LruHashMap::new();

/// lblc's and lblcr's memory.
#[btf_map(name = "locality")]
pub static LOCALITY: LruHashMap<LocalityKey, Locality, 65_536> = LruHashMap::new();

/// lblcr's sets.
#[btf_map(name = "locality_sets")]
pub static LOCALITY_SETS: LruHashMap<LocalityKey, LocalityChunk, 65_536> = LruHashMap::new();

/// Connected sockets of the node's own processes, by socket cookie.
#[btf_map(name = "sockets")]
pub static SOCKETS: HashMap<u64, SocketConnection, 65_536> = HashMap::new();

/// Flows of their unconnected UDP sockets, two entries each, and one for each socket.
#[btf_map(name = "socket_flows")]
pub static SOCKET_FLOWS: HashMap<SocketFlowKey, SocketFlow, 65_536> = HashMap::new();

/// Interfaces that XDP serves and sends on, by index: the index of the interface that their packets are routed as, which is
/// their own, or that of the bond they are part of.
#[btf_map(name = "uplinks")]
pub static UPLINKS: HashMap<u32, u32, 1_024> = HashMap::new();

/// Interfaces that packets go to straight from tc ingress (`--forwarding direct`), by index:
/// [`DIRECT_NEIGHBOUR`](lb_common::layout::DIRECT_NEIGHBOUR) or [`DIRECT_PEER`](lb_common::layout::DIRECT_PEER).
#[btf_map(name = "direct")]
pub static DIRECT: HashMap<u32, u32, 8_192> = HashMap::new();

/// Interfaces that pods are behind, if that is how they are known: presence counts, values are 1.
#[btf_map(name = "pod_interfaces")]
pub static POD_INTERFACES: HashMap<u32, u32, 8_192> = HashMap::new();

/// Cgroups whose sockets, and those of all cgroups below, are not balanced, by id: presence counts, values are 1.
#[btf_map(name = "excluded_cgroups")]
pub static EXCLUDED_CGROUPS: HashMap<u64, u32, 1_024> = HashMap::new();

/// What the agent tells every program.
#[btf_map(name = "settings")]
pub static SETTINGS: Array<Settings, 1> = Array::new();

/// Packets dropped or refused, by [`Drop`].
#[btf_map(name = "drops")]
pub static DROPS: PerCpuArray<u64, { Drop::ALL.len() }> = PerCpuArray::new();

/// The recount in progress, by destination id.
#[btf_map(name = "sweep_recount")]
pub static SWEEP_RECOUNT: Array<Recount, DESTINATIONS> = Array::new();

/// What sweeps found and did.
#[btf_map(name = "sweep_result")]
pub static SWEEP_RESULT: Array<SweepResult, 1> = Array::new();
