//! Addresses as the C library's `inet_ntop` writes them for `ipvsadm`.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

/// Address and port. Of an IPv6 address whose first 96 bits are 0 and the next 16 are not, the rest is written as IPv4:
/// `[::10.0.0.1]:80`. Rust writes so only what begins with `::ffff:`.
pub(super) fn endpoint(address: IpAddr, port: u16) -> String {
    match address {
        IpAddr::V6(v6) if matches!(v6.segments(), [0, 0, 0, 0, 0, 0, 1..=0xffff, _]) => {
            format!("[::{}]:{port}", Ipv4Addr::from_bits(v6.to_bits() as u32))
        }
        _ => SocketAddr::new(address, port).to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_written_as_the_c_library_does() {
        for (address, expected) in [
            ("10.0.0.1", "10.0.0.1:80"),
            ("::", "[::]:80"),
            ("::1", "[::1]:80"),
            ("::ffff", "[::ffff]:80"),
            ("::1:0", "[::0.1.0.0]:80"),
            ("::a00:1", "[::10.0.0.1]:80"),
            ("::ffff:a00:1", "[::ffff:10.0.0.1]:80"),
            ("::fffe:a00:1", "[::fffe:a00:1]:80"),
            ("::1:0:0", "[::1:0:0]:80"),
            ("64:ff9b::a00:1", "[64:ff9b::a00:1]:80"),
            ("fd00:0:0:1::1", "[fd00:0:0:1::1]:80"),
            ("fd00::1:0:0:1", "[fd00::1:0:0:1]:80"),
            ("1:0:2:3:4:5:6:7", "[1:0:2:3:4:5:6:7]:80"),
        ] {
            assert_eq!(endpoint(address.parse().unwrap(), 80), expected);
        }
    }
}
