//! The node's address that stands for a client: of the interface that the packet leaves by, as `MASQUERADE` has it.
//!
//! The way is asked for as the stack will look for it, from the client to the server; what the agent knows of the
//! interface's addresses says which one it is (`source_addresses`).

use core::{ffi::c_void, mem};

use aya_ebpf::{
    bindings::{BPF_FIB_LKUP_RET_FRAG_NEEDED, BPF_FIB_LKUP_RET_NO_NEIGH, BPF_FIB_LKUP_RET_SUCCESS, bpf_fib_lookup},
    btf_maps::lpm_trie::Key,
    helpers::generated,
};
use lb_common::{
    address::Address,
    layout::{DESTINATION_ROUTE, DESTINATION_TUNNEL, NETWORK_BASE, NetworkKey, Service},
    packet::Packet,
};

use crate::{
    create::method,
    maps::{DESTINATIONS_MAP, SOURCE_ADDRESSES, Scratch},
    masquerade,
    route::{INTERNET, between},
    settings::{node_address, scratch, settings},
};

/// What the kernel's routes and the agent's map are asked. In the scratch space, since stacks are small.
pub struct Asked {
    route: bpf_fib_lookup,
    key: Key<NetworkKey>,
}

/// Whether the connection that a server was chosen for is a hairpin or masqueraded, and then which address of the node
/// stands for its client: what [`create::open`] is told in the scratch space.
///
/// [`create::open`]: crate::create::open
#[inline(never)]
pub fn choose(context: *mut c_void, packet: &Packet, service: &Service, server: u32) -> u32 {
    let (Some(settings), Some(Scratch { opened, asked: Asked { route, key }, .. })) = (settings(), scratch()) else {
        return 0;
    };
    let Some(destination) = DESTINATIONS_MAP.get(server) else { return 0 };
    let (client, server) = (&packet.key.source, &destination.address);
    opened.hairpin = method(destination) == 0 && server == client;
    opened.masqueraded = 0;
    if !opened.hairpin && destination.flags & (DESTINATION_ROUTE | DESTINATION_TUNNEL) == 0 {
        opened.masqueraded = masquerade::flag(service, client, opened.came_by);
    }
    if !opened.hairpin && opened.masqueraded == 0 {
        return 0;
    }
    opened.node = *node_address(settings, server.is_v4());
    *route = between(packet.family, client, server);
    route.l4_protocol = packet.key.protocol;
    route.sport = packet.key.source_port.0;
    route.dport = destination.port.0;
    route.ifindex = opened.came_by;
    // SAFETY: the context is valid during the program, and the helper is told how large the question is.
    let answer =
        unsafe { generated::bpf_fib_lookup(context, &raw mut *route, mem::size_of::<bpf_fib_lookup>() as i32, 0) };
    // Whether the packet fits, and who the neighbour is, does not matter here.
    if !matches!(answer as u32, BPF_FIB_LKUP_RET_SUCCESS | BPF_FIB_LKUP_RET_NO_NEIGH | BPF_FIB_LKUP_RET_FRAG_NEEDED) {
        return 0;
    }
    key.prefix_len = NETWORK_BASE + 128;
    key.data.owner = route.ifindex;
    key.data.network = *server;
    if server.is_v4() && route.family == INTERNET {
        // SAFETY: all members of the union are integers, and the kernel wrote this one: the next hop.
        key.data.network = Address::from_v4_word(unsafe { route.__bindgen_anon_4.ipv4_dst });
    }
    if let Some(address) = SOURCE_ADDRESSES.get(key) {
        opened.node = *address;
    }
    0
}
