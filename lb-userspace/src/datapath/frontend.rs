//! What packets match: virtual services as the maps name them.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
};

use ipnet::IpNet;
use lb_common::{
    address::{Address, Port, Protocol},
    layout::{
        LOOKUP_ALL_PORTS, LOOKUP_MARKS, LOOKUP_NODE_PORTS, LOOKUP_PREFIXES, LOOKUP_TUNNELS, PREFIX_BASE,
        SERVICE_BY_ADDRESS, SERVICE_BY_MARK, SERVICE_EXTERNAL, SERVICE_NODE_PORT, SERVICE_TUNNELS, Service, ServiceKey,
        ServicePrefix,
    },
};

use super::{Frontend, Scope};

/// A frontend as the maps know it: an IPv4 address and its v4-mapped IPv6 form are one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Virtual {
    /// Virtual address; a network's first; by mark: the family's unspecified address.
    pub address: IpAddr,
    /// Virtual port; 0 for every port. By mark: 0.
    pub port: u16,
    /// Transport protocol. By mark: TCP, which stands for all.
    pub protocol: Protocol,
    /// What besides.
    pub scope: Scope,
}

/// Where a virtual service stands in the maps.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Key {
    /// In `services`.
    Service(ServiceKey),
    /// In `service_prefixes`.
    Prefix(PrefixKey),
}

/// Key of `service_prefixes`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct PrefixKey {
    /// How many bits of `prefix` must match, [`PREFIX_BASE`] among them.
    pub length: u32,
    /// What must match.
    pub prefix: ServicePrefix,
}

/// The IPv4 addresses among IPv6's: `::ffff:0:0/96`.
const MAPPED: Ipv6Addr = Ipv4Addr::UNSPECIFIED.to_ipv6_mapped();
/// Bits of an [`Address`] before an IPv4 address.
const MAPPED_BITS: u8 = 96;

/// Bits of an [`Address`] before an address of a family.
pub(super) const fn bits_before(v4: bool) -> u8 {
    if v4 { MAPPED_BITS } else { 0 }
}

impl Key {
    /// The kind of lookup that finds this entry, as map `lookups` holds it. An address with its port is always looked for.
    pub fn lookups(&self) -> u32 {
        match self {
            Self::Service(key) if key.kind == SERVICE_BY_MARK => LOOKUP_MARKS,
            Self::Service(key) if key.kind & SERVICE_NODE_PORT != 0 => LOOKUP_NODE_PORTS,
            Self::Service(key) if key.port == Port(0) => LOOKUP_ALL_PORTS,
            Self::Service(_) => 0,
            Self::Prefix(_) => LOOKUP_PREFIXES,
        }
    }

    /// The same, and the kind that its destinations need, as its value says.
    pub(super) fn lookups_with(&self, value: &Service) -> u32 {
        self.lookups() | if value.flags & SERVICE_TUNNELS != 0 { LOOKUP_TUNNELS } else { 0 }
    }

    /// An order of all keys.
    pub(super) fn order(&self) -> (u8, u32, [u32; 4], u16, u8) {
        match self {
            Self::Service(key) => (key.kind, 0, key.address.words, key.port.0, key.protocol),
            Self::Prefix(PrefixKey { length, prefix }) => {
                (u8::MAX, *length, prefix.network.words, prefix.port.0, prefix.protocol)
            }
        }
    }
}

impl Virtual {
    /// Where it stands in the maps.
    pub fn key(&self) -> Key {
        let (address, port) = (Address::from(self.address), Port::new(self.port));
        let protocol = self.protocol as u8;
        let of_kind = |kind| Key::Service(ServiceKey { address, port, protocol, kind });
        match self.scope {
            Scope::Address => of_kind(SERVICE_BY_ADDRESS),
            Scope::NodePort => of_kind(SERVICE_NODE_PORT),
            Scope::External => of_kind(SERVICE_BY_ADDRESS | SERVICE_EXTERNAL),
            Scope::ExternalNodePort => of_kind(SERVICE_NODE_PORT | SERVICE_EXTERNAL),
            Scope::Mark(mark) => Key::Service(ServiceKey::of_mark(mark, self.address.is_ipv4())),
            Scope::Prefix(bits) => {
                let before = PREFIX_BASE + u32::from(bits_before(self.address.is_ipv4()));
                let prefix = ServicePrefix { protocol, pad: 0, port, network: address };
                Key::Prefix(PrefixKey { length: before + u32::from(bits), prefix })
            }
        }
    }

    /// From a key of the maps; `None` for one that no service has.
    pub fn from_key(key: &Key) -> Option<Self> {
        let found = match key {
            Key::Service(key) if key.kind == SERVICE_BY_MARK => Self {
                address: unspecified(key.address.is_v4()),
                port: 0,
                protocol: Protocol::Tcp,
                scope: Scope::Mark(key.mark()),
            },
            Key::Service(key) => Self {
                address: key.address.into(),
                port: key.port.number(),
                protocol: Protocol::from_number(key.protocol)?,
                scope: match (key.kind & !SERVICE_EXTERNAL, key.kind & SERVICE_EXTERNAL != 0) {
                    (SERVICE_BY_ADDRESS, false) => Scope::Address,
                    (SERVICE_BY_ADDRESS, true) => Scope::External,
                    (SERVICE_NODE_PORT, false) => Scope::NodePort,
                    (SERVICE_NODE_PORT, true) => Scope::ExternalNodePort,
                    _ => return None,
                },
            },
            Key::Prefix(PrefixKey { length, prefix }) => {
                let before = PREFIX_BASE + u32::from(bits_before(prefix.network.is_v4()));
                Self {
                    address: prefix.network.into(),
                    port: prefix.port.number(),
                    protocol: Protocol::from_number(prefix.protocol)?,
                    scope: Scope::Prefix(length.checked_sub(before)?.try_into().ok()?),
                }
            }
        };
        (found.problem().is_none() && found.key() == *key).then_some(found)
    }

    /// The frontends that packets take for this: its own, and an IPv4 one's v4-mapped form.
    pub(super) fn frontends(&self) -> impl Iterator<Item = Frontend> + use<> {
        let Self { address, port, protocol, scope } = *self;
        let own = Frontend { address, port, protocol, scope };
        let mapped = match (address, scope) {
            (IpAddr::V4(v4), Scope::Prefix(bits)) => Some((v4, Scope::Prefix(bits + MAPPED_BITS))),
            (IpAddr::V4(v4), scope) => Some((v4, scope)),
            (IpAddr::V6(_), _) => None,
        };
        let mapped = mapped.map(|(v4, scope)| Frontend { address: v4.to_ipv6_mapped().into(), scope, ..own });
        [own].into_iter().chain(mapped)
    }

    /// True for one that stands in `service_prefixes`.
    pub(super) const fn is_prefix(&self) -> bool {
        matches!(self.scope, Scope::Prefix(_))
    }

    /// True for one that takes more than one address and port.
    pub(super) const fn is_wide(&self) -> bool {
        self.port == 0 || !matches!(self.scope, Scope::Address | Scope::External)
    }

    /// Why no packet, or more than what was meant, would match this.
    pub fn problem(&self) -> Option<String> {
        match self.scope {
            Scope::Address => None,
            Scope::External if self.port != 0 => None,
            Scope::NodePort | Scope::ExternalNodePort if self.address.is_unspecified() && self.port != 0 => None,
            Scope::External => Some("a service for external clients has a port: name it".to_owned()),
            Scope::NodePort | Scope::ExternalNodePort => {
                Some("a node port has a port and no address of its own: name 0.0.0.0 or ::, and the port".to_owned())
            }
            Scope::Mark(0) => Some("firewall mark 0 is what packets without a mark have: name another".to_owned()),
            Scope::Mark(_) => None,
            Scope::Prefix(bits) => {
                let longest = if self.address.is_ipv4() { 32 } else { 128 };
                let Ok(network) = IpNet::new(self.address, bits) else {
                    return Some(format!("a prefix of {bits} bits: {} has {longest}", self.address));
                };
                if network.trunc() != network {
                    return Some(format!("{network} has bits set after its prefix: write {}", network.trunc()));
                }
                // Every address of the maps is an IPv6 one: the longest prefix that an IPv4 packet finds may be this.
                (self.address.is_ipv6() && network.contains(&IpAddr::V6(MAPPED))).then(|| {
                    format!("{network} holds the IPv4-mapped addresses, and so all of IPv4: name a longer prefix, as 2000::/3")
                })
            }
        }
    }
}

const fn unspecified(v4: bool) -> IpAddr {
    if v4 { IpAddr::V4(Ipv4Addr::UNSPECIFIED) } else { IpAddr::V6(Ipv6Addr::UNSPECIFIED) }
}

impl From<&Frontend> for Virtual {
    fn from(frontend: &Frontend) -> Self {
        let address: IpAddr = Address::from(frontend.address).into();
        let Frontend { port, protocol, scope, .. } = *frontend;
        match scope {
            Scope::Address | Scope::External | Scope::NodePort | Scope::ExternalNodePort => {
                Self { address, port, protocol, scope }
            }
            Scope::Mark(_) => Self { address: unspecified(address.is_ipv4()), port: 0, protocol: Protocol::Tcp, scope },
            Scope::Prefix(bits) => match bits.checked_sub(MAPPED_BITS) {
                Some(bits) if frontend.address.is_ipv6() && address.is_ipv4() => {
                    Self { address, port, protocol, scope: Scope::Prefix(bits) }
                }
                _ => Self { address: frontend.address, port, protocol, scope },
            },
        }
    }
}

impl fmt::Display for Virtual {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, port) = (self.protocol.name(), self.port);
        match (self.scope, self.address) {
            (Scope::Address | Scope::NodePort, address) => write!(f, "{name} {}", SocketAddr::new(address, port)),
            (Scope::External | Scope::ExternalNodePort, address) => {
                write!(f, "{name} {} for external clients", SocketAddr::new(address, port))
            }
            (Scope::Prefix(bits), IpAddr::V4(address)) => write!(f, "{name} {address}/{bits}:{port}"),
            (Scope::Prefix(bits), IpAddr::V6(address)) => write!(f, "{name} [{address}/{bits}]:{port}"),
            (Scope::Mark(mark), IpAddr::V4(_)) => write!(f, "FWM {mark}"),
            (Scope::Mark(mark), IpAddr::V6(_)) => write!(f, "FWM {mark} IPv6"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frontend(address: &str, port: u16, scope: Scope) -> Frontend {
        Frontend { scope, ..Frontend::new(address.parse().unwrap(), port, Protocol::Tcp) }
    }

    #[test]
    fn every_scope_has_a_key_of_its_own_and_comes_back_from_it() {
        let all = [
            ("10.96.0.1", 80, Scope::Address, "TCP 10.96.0.1:80", 0),
            ("10.96.0.1", 0, Scope::Address, "TCP 10.96.0.1:0", LOOKUP_ALL_PORTS),
            ("10.96.0.1", 80, Scope::External, "TCP 10.96.0.1:80 for external clients", 0),
            ("0.0.0.0", 30_080, Scope::NodePort, "TCP 0.0.0.0:30080", LOOKUP_NODE_PORTS),
            ("::", 30_080, Scope::NodePort, "TCP [::]:30080", LOOKUP_NODE_PORTS),
            ("0.0.0.0", 30_080, Scope::ExternalNodePort, "TCP 0.0.0.0:30080 for external clients", LOOKUP_NODE_PORTS),
            ("fd00::1", 80, Scope::Address, "TCP [fd00::1]:80", 0),
            ("10.96.0.0", 80, Scope::Prefix(16), "TCP 10.96.0.0/16:80", LOOKUP_PREFIXES),
            ("0.0.0.0", 0, Scope::Prefix(0), "TCP 0.0.0.0/0:0", LOOKUP_PREFIXES),
            ("10.96.0.1", 80, Scope::Prefix(32), "TCP 10.96.0.1/32:80", LOOKUP_PREFIXES),
            ("2000::", 443, Scope::Prefix(3), "TCP [2000::/3]:443", LOOKUP_PREFIXES),
            ("0.0.0.0", 0, Scope::Mark(7), "FWM 7", LOOKUP_MARKS),
            ("::", 0, Scope::Mark(7), "FWM 7 IPv6", LOOKUP_MARKS),
            ("::", 0, Scope::Mark(u32::MAX), "FWM 4294967295 IPv6", LOOKUP_MARKS),
        ];
        let mut keys = Vec::new();
        for (address, port, scope, name, lookups) in all {
            let service = Virtual::from(&frontend(address, port, scope));
            assert_eq!((service.to_string().as_str(), service.problem()), (name, None));
            assert_eq!(Virtual::from_key(&service.key()), Some(service));
            assert_eq!(service.key().lookups(), lookups, "{name}");
            assert!(service.frontends().all(|frontend| Virtual::from(&frontend) == service), "{name}");
            assert!(!keys.contains(&service.key()), "{name}");
            keys.push(service.key());
        }
    }

    #[test]
    fn an_ipv4_network_and_its_mapped_form_are_one() {
        let mapped = Virtual::from(&frontend("::ffff:10.0.0.0", 80, Scope::Prefix(104)));
        assert_eq!(mapped, Virtual::from(&frontend("10.0.0.0", 80, Scope::Prefix(8))));
        let Key::Prefix(key) = mapped.key() else { panic!("{mapped:?}") };
        assert_eq!((key.length, key.prefix.network.is_v4()), (32 + 96 + 8, true));
    }

    #[test]
    fn what_would_match_nothing_or_too_much_is_named() {
        for (address, scope, expected) in [
            ("10.96.0.1", Scope::Prefix(16), "10.96.0.1/16 has bits set after its prefix: write 10.96.0.0/16"),
            ("10.96.0.0", Scope::Prefix(33), "a prefix of 33 bits: 10.96.0.0 has 32"),
            ("fd00::", Scope::Prefix(129), "a prefix of 129 bits: fd00:: has 128"),
            ("::", Scope::Prefix(0), "::/0 holds the IPv4-mapped addresses"),
            ("::", Scope::Prefix(80), "::/80 holds the IPv4-mapped addresses"),
            ("::ffff:0:0", Scope::Prefix(95), "bits set after its prefix"),
            ("0.0.0.0", Scope::Mark(0), "firewall mark 0"),
            ("10.0.0.1", Scope::NodePort, "no address of its own"),
        ] {
            let problem = Virtual::from(&frontend(address, 80, scope)).problem().unwrap_or_default();
            assert!(problem.contains(expected), "{address} {scope:?}: {problem}");
        }
    }

    #[test]
    fn a_key_that_no_service_has_is_none() {
        let mark = ServiceKey::of_mark(7, true);
        let Key::Prefix(prefix) = Virtual::from(&frontend("10.0.0.0", 80, Scope::Prefix(8))).key() else { panic!() };
        let network = Address::from(Ipv4Addr::new(10, 1, 0, 0));
        for key in [
            Key::Service(ServiceKey { protocol: 99, kind: SERVICE_BY_ADDRESS, ..mark }),
            Key::Service(ServiceKey { protocol: 6, kind: 3, ..mark }),
            Key::Service(ServiceKey { protocol: 6, ..mark }),
            Key::Service(ServiceKey { port: Port::new(80), ..mark }),
            Key::Service(ServiceKey::of_mark(0, true)),
            Key::Prefix(PrefixKey { length: 20, ..prefix }),
            Key::Prefix(PrefixKey { length: 161, ..prefix }),
            Key::Prefix(PrefixKey { prefix: ServicePrefix { protocol: 1, ..prefix.prefix }, ..prefix }),
            Key::Prefix(PrefixKey { prefix: ServicePrefix { network, ..prefix.prefix }, ..prefix }),
            Key::Prefix(PrefixKey {
                length: 32,
                prefix: ServicePrefix { network: Address::UNSPECIFIED, ..prefix.prefix },
            }),
        ] {
            assert_eq!(Virtual::from_key(&key), None, "{key:?}");
        }
    }
}
