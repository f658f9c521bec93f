//! Addresses and ports as `ipvsadm` writes them: `10.0.0.1:80`, `[fd00::1]:80`; networks, which ipvsadm has not: `10.0.0.0/8:80`.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::Scope;

const ADDRESS: &str = "must be a number address and port such as 10.96.0.10:80 or [fd00::10]:80: names of hosts and ports \
                       are not looked up; write the file with `ipvsadm -S -n`";
const PORT: &str = "the port must be a number from 0 to 65535: names are not looked up; write the file with \
                    `ipvsadm -S -n`";

/// An address with what is written behind it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Place {
    pub(crate) address: IpAddr,
    pub(crate) scope: Scope,
    /// None if there is none.
    pub(crate) port: Option<u16>,
}

/// Reads an address, perhaps a network, perhaps with a port.
pub(crate) fn parse(text: &str) -> Result<Place, String> {
    let (address, length, port) = split(text)?;
    let port = port.map(|port| number::<u16>(port).ok_or(PORT)).transpose()?;
    let Some(length) = length else {
        return Ok(Place { address: usable(address)?, scope: Scope::Address, port });
    };
    let full = if address.is_ipv4() { 32 } else { 128 };
    let length = number::<u8>(length).filter(|length| *length <= full);
    let length = length.ok_or_else(|| format!("the length of a prefix must be a number from 0 to {full}"))?;
    if length == full {
        return Ok(Place { address: usable(address)?, scope: Scope::Address, port });
    }
    let network = masked(address, length);
    if network != address {
        return Err(format!("has bits behind its prefix of {length}: write {network}/{length}"));
    }
    if let IpAddr::V6(v6) = address
        && masked(Ipv6Addr::new(0, 0, 0, 0, 0, 0xffff, 0, 0).into(), length.min(96))
            == masked(v6.into(), length.min(96))
    {
        return Err("holds ::ffff:0:0/96, which is IPv4: write 2000::/3 for all of the internet".to_owned());
    }
    Ok(Place { address, scope: Scope::Prefix(length), port })
}

/// Address, length of the prefix, and port as they stand there. `[fd00::/64]:80` is `[fd00::]/64:80`.
fn split(text: &str) -> Result<(IpAddr, Option<&str>, Option<&str>), String> {
    if let Some(rest) = text.strip_prefix('[') {
        let (inside, behind) = rest.split_once(']').ok_or("has no `]`")?;
        let (address, mut length) = inside.split_once('/').map_or((inside, None), |(a, l)| (a, Some(l)));
        let mut behind = behind;
        if let (Some(rest), None) = (behind.strip_prefix('/'), length) {
            let end = rest.find(':').unwrap_or(rest.len());
            length = Some(&rest[..end]);
            behind = &rest[end..];
        }
        let port = match behind.strip_prefix(':') {
            Some(port) => Some(port),
            None if behind.is_empty() => None,
            None => return Err(ADDRESS.to_owned()),
        };
        return Ok((address.parse::<Ipv6Addr>().map_err(|_| ADDRESS)?.into(), length, port));
    }
    // An IPv6 address without brackets has no port.
    let (bare, length) = text.split_once('/').map_or((text, None), |(a, l)| (a, Some(l)));
    if let Ok(v6) = bare.parse::<Ipv6Addr>() {
        return Ok((v6.into(), length, None));
    }
    let (place, port) = text.split_once(':').map_or((text, None), |(place, port)| (place, Some(port)));
    let (address, length) = place.split_once('/').map_or((place, None), |(a, l)| (a, Some(l)));
    Ok((address.parse::<Ipv4Addr>().map_err(|_| ADDRESS)?.into(), length, port))
}

/// An address that packets can be sent to.
fn usable(address: IpAddr) -> Result<IpAddr, String> {
    if let IpAddr::V6(v6) = address
        && let Some(v4) = v6.to_ipv4_mapped()
    {
        return Err(format!("is an IPv4 address: write {v4}"));
    }
    let broadcast = address == IpAddr::V4(Ipv4Addr::BROADCAST);
    if address.is_unspecified() || address.is_loopback() || address.is_multicast() || broadcast {
        return Err(
            "must be an address that packets can be sent to: not unspecified, loopback, multicast or broadcast; \
                    for a whole network write its prefix, as in 10.0.0.0/8:80"
                .to_owned(),
        );
    }
    Ok(address)
}

fn masked(address: IpAddr, length: u8) -> IpAddr {
    match address {
        IpAddr::V4(v4) => {
            let mask = u32::MAX.checked_shl(32 - u32::from(length)).unwrap_or(0);
            Ipv4Addr::from_bits(v4.to_bits() & mask).into()
        }
        IpAddr::V6(v6) => {
            let mask = u128::MAX.checked_shl(128 - u32::from(length)).unwrap_or(0);
            Ipv6Addr::from_bits(v6.to_bits() & mask).into()
        }
    }
}

/// The length of a netmask: `255.255.255.0` for IPv4, `64` for IPv6, as `ipvsadm -M` has them.
pub(crate) fn netmask(text: &str, v6: bool) -> Result<u8, String> {
    if v6 {
        let length = number::<u8>(text).filter(|length| (1..=128).contains(length));
        return length.ok_or_else(|| "must be a prefix length from 1 to 128, as the service is IPv6".to_owned());
    }
    let wrong =
        || "must be a netmask such as 255.255.255.0: at least one bit of 1, none of them behind a bit of 0".to_owned();
    let bits = text.parse::<Ipv4Addr>().map_err(|_| wrong())?.to_bits();
    let length = bits.leading_ones();
    if length == 0 || length != bits.count_ones() { Err(wrong()) } else { Ok(length as u8) }
}

/// A number in digits, without a sign.
pub(crate) fn number<T: std::str::FromStr>(text: &str) -> Option<T> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    digits.then(|| text.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_networks_and_ports_are_read() {
        let address = |text: &str| text.parse::<IpAddr>().unwrap();
        for (text, expected, scope, port) in [
            ("10.0.0.1:80", "10.0.0.1", Scope::Address, Some(80)),
            ("10.0.0.1", "10.0.0.1", Scope::Address, None),
            ("10.0.0.1:0", "10.0.0.1", Scope::Address, Some(0)),
            ("[fd00::1]:65535", "fd00::1", Scope::Address, Some(65535)),
            ("[fd00::1]", "fd00::1", Scope::Address, None),
            ("fd00::1:80", "fd00::1:80", Scope::Address, None),
            ("10.0.0.0/8:80", "10.0.0.0", Scope::Prefix(8), Some(80)),
            ("0.0.0.0/0:80", "0.0.0.0", Scope::Prefix(0), Some(80)),
            ("10.0.0.1/32:80", "10.0.0.1", Scope::Address, Some(80)),
            ("[fd00::]/64:80", "fd00::", Scope::Prefix(64), Some(80)),
            ("[fd00::/64]:80", "fd00::", Scope::Prefix(64), Some(80)),
            ("[fd00::]/64", "fd00::", Scope::Prefix(64), None),
            ("fd00::/64", "fd00::", Scope::Prefix(64), None),
            ("[fd00::1]/128:80", "fd00::1", Scope::Address, Some(80)),
            ("[2000::]/3:80", "2000::", Scope::Prefix(3), Some(80)),
        ] {
            assert_eq!(parse(text), Ok(Place { address: address(expected), scope, port }), "{text}");
        }
    }

    #[test]
    fn what_is_no_place_is_refused_with_what_to_write() {
        for (text, expected) in [
            ("", "must be a number address"),
            ("web:80", "ipvsadm -S -n"),
            ("10.0.0.1:http", "ipvsadm -S -n"),
            ("10.0.0.1:", "the port must be"),
            ("10.0.0.1:65536", "the port must be"),
            ("10.0.0.1:+80", "the port must be"),
            ("10.0.0.1:80:80", "the port must be"),
            ("010.0.0.1:80", "must be a number address"),
            ("10.1:80", "must be a number address"),
            ("[fd00::1:80", "no `]`"),
            ("[fd00::1]80", "must be a number address"),
            ("[10.0.0.1]:80", "must be a number address"),
            ("0.0.0.0:80", "10.0.0.0/8:80"),
            ("127.0.0.1:80", "loopback"),
            ("224.0.0.1:80", "multicast"),
            ("[::ffff:10.0.0.1]:80", "write 10.0.0.1"),
            ("10.0.0.1/8:80", "write 10.0.0.0/8"),
            ("10.0.0.0/33:80", "from 0 to 32"),
            ("10.0.0.0/:80", "from 0 to 32"),
            ("[fd00::]/129:80", "from 0 to 128"),
            ("[::]/0:80", "2000::/3"),
            ("[::ffff:0:0]/100:80", "2000::/3"),
            ("[::/64]/64:80", "must be a number address"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }

    #[test]
    fn netmasks_are_ones_and_then_zeros() {
        for (text, v6, length) in
            [("255.255.255.255", false, 32), ("255.255.254.0", false, 23), ("128.0.0.0", false, 1), ("64", true, 64)]
        {
            assert_eq!(netmask(text, v6), Ok(length));
        }
        for (text, v6) in [
            ("0.0.0.0", false),
            ("255.0.255.0", false),
            ("24", false),
            ("", false),
            ("0", true),
            ("129", true),
            ("ffff::", true),
        ] {
            assert!(netmask(text, v6).is_err(), "{text}");
        }
    }
}
