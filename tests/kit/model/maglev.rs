//! mh: 4093 cells that the servers claim, each in an order of its own (spec 3.13, 4.3).

use super::{Flags, Id, Packet, Servers, fold, hash};

const CELLS: u32 = 4093;

/// Both halves of the key that clients, and servers' first cells, are hashed with.
pub const CLIENT_KEY: u64 = 0x9e37_79b1;
/// Both halves of the key for the distances between a server's cells.
pub const SKIP_KEY: u64 = 0x9e37_a52c;

/// The low 32 bits of SipHash-1-3 over the four bytes of a number, little-endian; `key` is each half of the key.
pub fn sip_hash(number: u32, key: u64) -> u32 {
    let mut state = Vec::new();
    for &word in b"somepseudorandomlygeneratedbytes".as_chunks::<8>().0 {
        state.push(u64::from_be_bytes(word) ^ key);
    }
    let mut bytes = [0; 8];
    bytes[..4].copy_from_slice(&number.to_le_bytes());
    bytes[7] = 4;
    let message = u64::from_le_bytes(bytes);
    state[3] ^= message;
    round(&mut state);
    state[0] ^= message;
    state[2] ^= 0xff;
    (0..3).for_each(|_| round(&mut state));
    let mixed = state.iter().fold(0, |mixed, word| mixed ^ word);
    (mixed % (1 << 32)) as u32
}

fn round(v: &mut [u64]) {
    // (sum, with, rotation of `with`, whether the sum is turned round)
    for (sum, with, rotation, turned) in [(0, 1, 13, true), (2, 3, 16, false), (0, 3, 21, false), (2, 1, 17, true)] {
        v[sum] = v[sum].wrapping_add(v[with]);
        v[with] = v[with].rotate_left(rotation) ^ v[sum];
        if turned {
            v[sum] = v[sum].rotate_left(32);
        }
    }
}

fn greatest_common_divisor(a: i32, b: i32) -> i32 {
    if b == 0 { a } else { greatest_common_divisor(b, a % b) }
}

/// The cells; empty if no server ever had a weight.
pub(super) fn table(servers: &Servers) -> hash::Table {
    let list = servers.list();
    let divisor = list.iter().fold(0, |divisor, server| greatest_common_divisor(server.last_weight, divisor));
    if divisor == 0 {
        return Vec::new();
    }
    let mut highest = list.iter().map(|server| server.last_weight / divisor).max().unwrap_or(0);
    // Only the six highest binary digits of the largest share count.
    let mut scale = 1;
    while highest >= 64 {
        highest /= 2;
        scale *= 2;
    }
    let mut orders: Vec<_> = list
        .iter()
        .map(|server| {
            let number = fold(server.address).wrapping_add(server.port.into());
            let first = u64::from(sip_hash(number, CLIENT_KEY) % CELLS);
            let skip = u64::from(sip_hash(number, SKIP_KEY) % (CELLS - 1) + 1);
            (0..).map(move |n: u64| ((first + n * skip) % u64::from(CELLS)) as usize)
        })
        .collect();
    let mut table = vec![None; CELLS as usize];
    let mut free = CELLS;
    loop {
        for (server, order) in list.iter().zip(&mut orders) {
            let turns = match server.last_weight / divisor / scale {
                0 if server.last_weight > 0 => 1,
                turns => turns,
            };
            for _ in 0..turns {
                let Some(cell) = order.find(|&cell| table[cell].is_none()) else { continue };
                table[cell] = Some(server.id);
                free -= 1;
                if free == 0 {
                    return table.into_iter().flatten().collect();
                }
            }
        }
    }
}

pub(super) fn pick(table: &hash::Table, servers: &Servers, packet: Packet, flags: Flags) -> Option<Id> {
    if table.is_empty() {
        return None;
    }
    let port = if flags.port { u32::from(packet.client_port) } else { 0 };
    let client = fold(packet.client).wrapping_add(port);
    let cell = |offset: u32| sip_hash(client.wrapping_add(offset), CLIENT_KEY) % CELLS;
    let first = hash::usable(table, cell(0), servers);
    if first.is_some() || !flags.fallback {
        return first;
    }
    (0..CELLS).find_map(|offset| hash::usable(table, cell((offset + cell(0)) % CELLS), servers))
}
