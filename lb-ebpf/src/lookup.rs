//! Which virtual service a packet is for: by its mark, its address and port, the port at an address of the node, its
//! address alone, or the network of it, in this order (`ip_vs_service_find`; networks and node ports are ours). And what
//! becomes of what is for none, at an address where there is nothing but services.

use aya_ebpf::btf_maps::lpm_trie::Key;
use lb_common::{
    address::{Address, Port},
    layout::{
        LOOKUP_ALL_PORTS, LOOKUP_CLUSTER_ADDRESSES, LOOKUP_MARKS, LOOKUP_NODE_PORTS, LOOKUP_PREFIXES,
        LOOKUP_SERVICE_NETWORKS, NETWORK_CLUSTER_ADDRESSES, NETWORK_NODE_PORTS, NETWORK_SERVICES, PREFIX_BASE,
        SERVICE_BY_ADDRESS, SERVICE_EXTERNAL, SERVICE_NODE_PORT, Service, ServiceKey, ServicePrefix,
    },
};

use crate::maps::{LOOKUPS, SERVICE_PREFIXES, SERVICES_MAP};
use crate::masquerade::is_in;

/// What a packet, or a socket that connects, is for.
#[derive(Clone, Copy)]
pub struct Wanted {
    /// Destination address.
    pub address: Address,
    /// Destination port, network order.
    pub port: Port,
    /// IANA protocol number.
    pub protocol: u8,
    /// Firewall mark.
    pub mark: u32,
}

/// Its service, of these kinds.
#[inline(always)]
fn service(wanted: &Wanted, kinds: u32) -> Option<&'static Service> {
    if kinds & LOOKUP_MARKS != 0
        && wanted.mark != 0
        && let Some(service) = exact(&ServiceKey::of_mark(wanted.mark, wanted.address.is_v4()))
    {
        return Some(service);
    }
    let key =
        ServiceKey { address: wanted.address, port: wanted.port, protocol: wanted.protocol, kind: SERVICE_BY_ADDRESS };
    match exact(&key) {
        Some(service) => Some(service),
        None if kinds & (LOOKUP_NODE_PORTS | LOOKUP_ALL_PORTS | LOOKUP_PREFIXES) != 0 => wider(&key, kinds),
        None => None,
    }
}

/// Copies a service to `place`: what is found in either map is in one place then, and the verifier follows what comes next
/// once. 0 if there is none. What is for no port of a cluster address is for a service without a server, which refuses it
/// (NE-7).
///
/// Of a packet: what comes from outside to a loopback address is for no node port (CVE-2020-8558).
#[inline(never)]
pub fn copy(wanted: &Wanted, place: &mut Service) -> u32 {
    let kinds = LOOKUPS.get(0).copied().unwrap_or(0);
    let node_ports = if wanted.address.is_v4_loopback() { LOOKUP_NODE_PORTS } else { 0 };
    find(wanted, kinds & !node_ports, place)
}

/// The same of a process of this node: node ports may be served at loopback addresses (NP-3).
#[inline(never)]
pub fn copy_of_process(wanted: &Wanted, place: &mut Service) -> u32 {
    find(wanted, LOOKUPS.get(0).copied().unwrap_or(0), place)
}

#[inline(always)]
fn find(wanted: &Wanted, kinds: u32, place: &mut Service) -> u32 {
    if let Some(found) = service(wanted, kinds) {
        *place = *found;
        return 1;
    }
    if !looks_for(LOOKUP_CLUSTER_ADDRESSES) || !is_in(NETWORK_CLUSTER_ADDRESSES, &wanted.address) {
        return 0;
    }
    *place = Service::default();
    1
}

/// Not 0 if an address is one that cluster addresses are taken from, so that nobody outside of this node has it.
#[inline(never)]
pub fn is_of_services(address: &Address) -> u32 {
    (looks_for(LOOKUP_SERVICE_NETWORKS) && is_in(NETWORK_SERVICES, address)).into()
}

/// True if there is any of this kind.
#[inline(always)]
fn looks_for(kind: u32) -> bool {
    LOOKUPS.get(0).copied().unwrap_or(0) & kind != 0
}

/// The service that external clients have in place of the one that was found: copied to the same place. 0 if it is not
/// there, as it may be for a moment while policies change.
#[inline(never)]
pub fn copy_external(wanted: &Wanted, place: &mut Service) -> u32 {
    let mut key = ServiceKey {
        address: wanted.address,
        port: wanted.port,
        protocol: wanted.protocol,
        kind: SERVICE_BY_ADDRESS | SERVICE_EXTERNAL,
    };
    let mut found = exact(&key);
    if found.is_none() {
        key.address = unspecified(&wanted.address);
        key.kind = SERVICE_NODE_PORT | SERVICE_EXTERNAL;
        found = exact(&key);
    }
    match found {
        Some(found) => {
            *place = *found;
            1
        }
        None => 0,
    }
}

/// The unspecified address of an address's family.
#[inline(always)]
const fn unspecified(address: &Address) -> Address {
    if address.is_v4() { Address::from_v4_word(0) } else { Address::UNSPECIFIED }
}

#[inline(always)]
fn exact(key: &ServiceKey) -> Option<&'static Service> {
    // SAFETY: user space replaces values whole, in a new element.
    unsafe { SERVICES_MAP.get(key) }
}

/// A service of a node port, of every port of the address, or of a network.
#[inline(never)]
fn wider(key: &ServiceKey, kinds: u32) -> Option<&'static Service> {
    if kinds & LOOKUP_NODE_PORTS != 0
        && let Some(service) =
            exact(&ServiceKey { address: unspecified(&key.address), kind: SERVICE_NODE_PORT, ..*key })
        && is_in(NETWORK_NODE_PORTS, &key.address)
    {
        return Some(service);
    }
    if kinds & LOOKUP_ALL_PORTS != 0
        && let Some(service) = exact(&ServiceKey { port: Port(0), ..*key })
    {
        return Some(service);
    }
    if kinds & LOOKUP_PREFIXES == 0 {
        return None;
    }
    let mut prefix = ServicePrefix { protocol: key.protocol, pad: 0, port: key.port, network: key.address };
    let found = SERVICE_PREFIXES.get(&Key::new(PREFIX_BASE + 128, prefix));
    if found.is_some() {
        return found;
    }
    prefix.port = Port(0);
    SERVICE_PREFIXES.get(&Key::new(PREFIX_BASE + 128, prefix))
}
