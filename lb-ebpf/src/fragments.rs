//! Fragments: only the first has ports, the others find them by the datagram's identification.

use aya_ebpf::bindings::BPF_ANY;
use lb_common::{
    address::Protocol,
    layout::{FragmentKey, FragmentPorts},
    packet::{Kind, Packet},
};

use crate::maps::FRAGMENTS;

#[inline(always)]
fn key(packet: &Packet) -> FragmentKey {
    FragmentKey {
        source: packet.key.source,
        destination: packet.key.destination,
        identification: packet.identification,
        protocol: packet.key.protocol,
        pad: [0; 3],
    }
}

/// Remembers the ports of a first fragment that is about to be translated.
#[inline(always)]
pub fn remember(packet: &Packet) {
    if !matches!(packet.kind, Kind::FirstFragment) {
        return;
    }
    let ports = FragmentPorts { source_port: packet.key.source_port, destination_port: packet.key.destination_port };
    // LRU: inserting cannot fail for want of room; a lost entry costs this datagram.
    let _ = FRAGMENTS.insert(key(packet), ports, u64::from(BPF_ANY));
}

/// Gives a later fragment the ports of its first, and its protocol if only that tells; false if that was not seen.
#[inline(always)]
pub fn recall(packet: &mut Packet) -> bool {
    if Protocol::from_number(packet.key.protocol).is_some() {
        return recall_ports(packet);
    }
    // Behind an extension header: the protocol is one of three.
    let named = packet.key.protocol;
    for protocol in Protocol::ALL {
        packet.key.protocol = protocol as u8;
        if recall_ports(packet) {
            return true;
        }
    }
    packet.key.protocol = named;
    false
}

#[inline(always)]
fn recall_ports(packet: &mut Packet) -> bool {
    // SAFETY: the value is copied at once; a concurrent reuse of the slot could only give another datagram's ports,
    // whose key would not have matched.
    match unsafe { FRAGMENTS.get(key(packet)) } {
        Some(ports) => {
            packet.key.source_port = ports.source_port;
            packet.key.destination_port = ports.destination_port;
            true
        }
        None => false,
    }
}
