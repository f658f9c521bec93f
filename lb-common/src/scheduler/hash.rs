//! The hashes that IPVS's dh, sh and lblc use (spec 4; `include/linux/hash.h`).

use crate::address::Address;

/// Linux's `hash_32`: multiply by the golden ratio, keep the top `bits` (1 to 32) bits. Kernels since 4.7.
#[inline(always)]
pub const fn hash_32(value: u32, bits: u32) -> u32 {
    value.wrapping_mul(0x61C8_8647) >> (32 - bits)
}

/// dh's cell for a packet's destination address.
#[inline(always)]
pub const fn destination_cell(destination: &Address) -> u32 {
    hash_32(destination.fold(), 8)
}

/// sh's cell for a source, `offset` cells on. `source_port` is the host-order port with `sh-port`, else 0.
#[inline(always)]
pub const fn source_cell(source: &Address, source_port: u16, offset: u32) -> u32 {
    offset.wrapping_add(hash_32((source_port as u32).wrapping_add(source.fold()), 8)) & 255
}

#[cfg(test)]
mod tests {
    use core::net::IpAddr;

    use super::*;

    #[test]
    fn cells_are_those_of_the_kernel() {
        // Vectors of spec 4.4: address, dh/sh cell, sh-port cell for port 40000.
        for (address, plain, with_port) in [
            ("10.0.0.1", 39, 203),
            ("10.1.2.3", 2, 166),
            ("192.168.1.77", 144, 52),
            ("203.0.113.9", 64, 228),
            ("fd00:1:2::3", 251, 159),
            ("2001:db8::1", 63, 226),
        ] {
            let address = Address::from(address.parse::<IpAddr>().expect("vector address"));
            assert_eq!(destination_cell(&address), plain);
            assert_eq!(source_cell(&address, 0, 0), plain);
            assert_eq!(source_cell(&address, 40000, 0), with_port);
        }
    }
}
