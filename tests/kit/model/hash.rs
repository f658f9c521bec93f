//! dh and sh: 256 cells, indexed by a hash of an address (spec 3.11, 3.12, 4).

use std::net::IpAddr;

use super::{Flags, Id, Packet, Servers};

/// The cells; empty without servers.
pub(super) type Table = Vec<Id>;

/// An address as one number: IPv4 as it is, IPv6 as the XOR of its four 32-bit words.
pub fn fold(address: IpAddr) -> u32 {
    match address {
        IpAddr::V4(v4) => u32::from(v4),
        IpAddr::V6(v6) => {
            let whole = u128::from(v6);
            (whole >> 96) as u32 ^ (whole >> 64) as u32 ^ (whole >> 32) as u32 ^ whole as u32
        }
    }
}

/// The kernel's multiplicative hash: the top `bits` bits, 1 to 32, of `value` times 2^32 divided by the golden ratio.
pub fn hash_32(value: u32, bits: u32) -> u32 {
    let product = u64::from(value) * 0x61C8_8647 % (1 << 32);
    (product >> (32 - bits)) as u32
}

pub(super) fn dh_table(servers: &Servers) -> Table {
    let list = servers.list();
    if list.is_empty() {
        return Vec::new();
    }
    (0..256).map(|cell| list[cell % list.len()].id).collect()
}

pub(super) fn sh_table(servers: &Servers) -> Table {
    let list = servers.list();
    let mut table = Vec::new();
    if list.is_empty() {
        return table;
    }
    let (mut place, mut taken) = (0, 0);
    while table.len() < 256 {
        let server = list[place % list.len()];
        table.push(server.id);
        taken += 1;
        if taken >= server.weight {
            place += 1;
            taken = 0;
        }
    }
    table
}

/// The server of a cell, if it takes connections.
pub(super) fn usable(table: &Table, cell: u32, servers: &Servers) -> Option<Id> {
    let server = servers.get(table[cell as usize])?;
    (server.available && server.weight > 0).then_some(server.id)
}

pub(super) fn dh(table: &Table, servers: &Servers, packet: Packet) -> Option<Id> {
    if table.is_empty() {
        return None;
    }
    usable(table, hash_32(fold(packet.destination), 8), servers)
}

pub(super) fn sh(table: &Table, servers: &Servers, packet: Packet, flags: Flags) -> Option<Id> {
    if table.is_empty() {
        return None;
    }
    let port = if flags.port { u32::from(packet.client_port) } else { 0 };
    let hash = hash_32(fold(packet.client).wrapping_add(port), 8);
    let cell = |offset: u32| (offset + hash) % 256;
    let first = usable(table, cell(0), servers);
    if first.is_some() || !flags.fallback {
        return first;
    }
    (0..256).find_map(|offset| usable(table, cell((offset + cell(0)) % 256), servers))
}
