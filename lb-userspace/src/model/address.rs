//! Addresses as old objects may hold them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// What [`parse`] accepts, for messages.
pub(crate) const ALLOWED: &str = "must be a usable IPv4 or IPv6 address, such as 10.96.0.10 or fd00:96::10";

/// An address that packets can be sent to.
///
/// Leading zeros of IPv4 are decimal, as Kubernetes always read them (`172.30.0.041`); v4-mapped IPv6 addresses are
/// IPv4 addresses. Unspecified, loopback, multicast and broadcast addresses are none that a service can have or send to.
pub(crate) fn parse(text: &str) -> Option<IpAddr> {
    let address = match text.parse::<Ipv6Addr>() {
        Ok(v6) => v6.to_canonical(),
        Err(_) => IpAddr::V4(parse_v4(text)?),
    };
    let broadcast = address == IpAddr::V4(Ipv4Addr::BROADCAST);
    let usable = !(address.is_unspecified() || address.is_loopback() || address.is_multicast() || broadcast);
    usable.then_some(address)
}

fn parse_v4(text: &str) -> Option<Ipv4Addr> {
    let mut octets = [0; 4];
    let mut parts = text.split('.');
    for octet in &mut octets {
        let part = parts.next()?;
        // `u8::from_str` takes a sign, which an address has not.
        if part.is_empty() || part.len() > 4 || !part.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        *octet = part.parse().ok()?;
    }
    parts.next().is_none().then(|| octets.into())
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn leading_zeros_are_decimal_and_mapped_addresses_are_ipv4() {
        for (text, canonical) in [
            ("10.96.0.10", "10.96.0.10"),
            ("172.30.0.041", "172.30.0.41"),
            ("::ffff:10.0.0.1", "10.0.0.1"),
            ("FD00:96:0::10", "fd00:96::10"),
        ] {
            assert_eq!(parse(text).map(|address| address.to_string()).as_deref(), Some(canonical), "{text}");
        }
    }

    #[test]
    fn what_is_no_usable_address_is_refused() {
        for text in [
            "",
            "none",
            "None",
            "10.0.0",
            "10.0.0.1.2",
            "10.0.0.256",
            "+1.2.3.4",
            "10.0.0.1/24",
            " 10.0.0.1",
            "0.0.0.0",
            "::",
            "127.0.0.1",
            "::1",
            "224.0.0.1",
            "ff02::1",
            "255.255.255.255",
            "fe80::1%eth0",
            "::ffff:127.0.0.1",
            "1.2.3.00001",
        ] {
            assert_eq!(parse(text), None, "{text:?}");
        }
    }
}
