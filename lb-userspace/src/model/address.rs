//! Addresses as old objects may hold them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;

/// What [`parse`] accepts, for messages.
pub(crate) const ALLOWED: &str = "must be a usable IPv4 or IPv6 address, such as 10.96.0.10 or fd00:96::10";

/// An address that packets can be sent to.
///
/// Leading zeros of IPv4 are decimal, as Kubernetes always read them (`172.30.0.041`); v4-mapped IPv6 addresses are
/// IPv4 addresses. Unspecified, loopback, multicast and broadcast addresses are none that a service can have or send to.
pub(crate) fn parse(text: &str) -> Option<IpAddr> {
    let address = any(text)?.to_canonical();
    let broadcast = address == IpAddr::V4(Ipv4Addr::BROADCAST);
    let usable = !(address.is_unspecified() || address.is_loopback() || address.is_multicast() || broadcast);
    usable.then_some(address)
}

/// Any address, in the family that it is written in.
fn any(text: &str) -> Option<IpAddr> {
    match text.parse::<Ipv6Addr>() {
        Ok(v6) => Some(v6.into()),
        Err(_) => parse_v4(text).map(IpAddr::V4),
    }
}

/// What [`parse_network`] accepts, for messages.
pub(crate) const NETWORK_ALLOWED: &str = "must be a network, such as 203.0.113.0/24 or 2001:db8::/32";

/// A network, with the same tolerance: `203.0.113.000/025` is 203.0.113.0/25, bits behind the prefix count for nothing,
/// and networks of v4-mapped addresses are IPv4's (SV-11).
pub(crate) fn parse_network(text: &str) -> Option<IpNet> {
    let (address, length) = text.trim().split_once('/')?;
    let digits = (1..=3).contains(&length.len()) && length.bytes().all(|byte| byte.is_ascii_digit());
    let length: u8 = digits.then(|| length.parse().ok()).flatten()?;
    let network = match any(address)? {
        IpAddr::V6(v6) if v6.to_ipv4_mapped().is_some() => IpNet::new(v6.to_canonical(), length.checked_sub(96)?),
        address => IpNet::new(address, length),
    };
    network.ok().map(|network| network.trunc())
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
    use super::{parse, parse_network};

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

    #[test]
    fn networks_are_as_tolerant_as_addresses() {
        for (text, canonical) in [
            ("203.0.113.0/24", "203.0.113.0/24"),
            (" 203.0.113.000/025", "203.0.113.0/25"),
            ("203.0.113.7/24 ", "203.0.113.0/24"),
            ("0.0.0.0/0", "0.0.0.0/0"),
            ("127.0.0.0/8", "127.0.0.0/8"),
            ("2001:DB8::1/32", "2001:db8::/32"),
            ("::/0", "::/0"),
            ("::ffff:10.1.0.0/104", "10.0.0.0/8"),
        ] {
            assert_eq!(parse_network(text).map(|network| network.to_string()).as_deref(), Some(canonical), "{text}");
        }
    }

    #[test]
    fn what_is_no_network_is_refused() {
        for text in [
            "",
            "/",
            "10.0.0.0",
            "10.0.0.0/",
            "/8",
            "10.0.0.0/33",
            "10.0.0.0/+8",
            "10.0.0.0/0008",
            "10.0.0/8",
            "::/129",
            "10.0.0.0/255.0.0.0",
            "::ffff:0.0.0.0/95",
            "a.example/8",
            "10.0.0.0 /8",
        ] {
            assert_eq!(parse_network(text), None, "{text:?}");
        }
    }
}
