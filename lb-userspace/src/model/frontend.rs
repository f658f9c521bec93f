//! What a virtual service is known by, and what `ipvsadm` calls its options.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use lb_common::address::Protocol;
use lb_common::layout::{DESTINATION_LOCAL, DESTINATION_ROUTE, DESTINATION_TUNNEL};
use serde::Serialize;

/// Key of a virtual service: what a packet must match, exactly.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Frontend {
    /// Virtual address; a network's first address; by mark and for node ports: the family's unspecified address.
    pub address: IpAddr,
    /// Virtual port. 0: every port that has no service of its own. By mark: 0.
    pub port: u16,
    /// Protocol. By mark: TCP, which stands for all of them, as in IPVS.
    pub protocol: Protocol,
    /// What besides.
    pub scope: Scope,
}

/// How much a virtual service takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Scope {
    /// One address, for clients outside the cluster, where others have a service of their own
    /// ([`Access::split`](crate::plan::Access::split)). In this order it is programmed before that one.
    External,
    /// [`Self::NodePort`], likewise.
    ExternalNodePort,
    /// One address.
    #[default]
    Address,
    /// A port of each of the node's addresses that node ports are served on. [`Frontend::address`] is the family's
    /// unspecified address. What has a service of its own is not taken.
    NodePort,
    /// A network: length of its prefix, from 0 to 32 or 128. What has a service of its own is not taken.
    Prefix(u8),
    /// All packets of the family that carry this firewall mark, which is not 0 (`ipvsadm -f`).
    Mark(u32),
}

impl Frontend {
    /// One address and port.
    pub const fn new(address: IpAddr, port: u16, protocol: Protocol) -> Self {
        Self { address, port, protocol, scope: Scope::Address }
    }

    /// Address and port as `ipvsadm` writes them, with the length of a prefix: `10.0.0.1:80`, `[fd00::]/64:80`.
    pub fn place(&self) -> String {
        match (self.scope, self.address) {
            (Scope::Prefix(length), IpAddr::V4(v4)) => format!("{v4}/{length}:{}", self.port),
            (Scope::Prefix(length), IpAddr::V6(v6)) => format!("[{v6}]/{length}:{}", self.port),
            _ => SocketAddr::new(self.address, self.port).to_string(),
        }
    }
}

/// `TCP 10.96.0.1:80`, as messages name a frontend; `FWM 1` and `FWM 1 IPv6` for firewall marks.
impl fmt::Display for Frontend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.scope {
            Scope::Mark(mark) => write!(f, "FWM {mark}{}", if self.address.is_ipv6() { " IPv6" } else { "" }),
            Scope::External | Scope::ExternalNodePort => {
                write!(f, "{} {} for external clients", self.protocol.name(), self.place())
            }
            _ => write!(f, "{} {}", self.protocol.name(), self.place()),
        }
    }
}

/// New connections of a client go where its last one went (`ipvsadm -p`, `-M`; Kubernetes' `sessionAffinity: ClientIP`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct Persistence {
    /// Seconds after the last new connection, from 1 to [`Self::LONGEST`].
    #[serde(rename = "timeout_seconds")]
    pub timeout: u32,
    /// Clients with the same first bits of their address count as one: 1 to 32, or 128 for IPv6.
    pub netmask: u8,
}

impl Persistence {
    /// Longest timeout, in seconds: the maps hold milliseconds in 32 bits.
    pub const LONGEST: u32 = u32::MAX / 1000;
}

/// Which virtual services share what they remember of clients that keep their server: the frontends of one port of a
/// Service. A number that follows from the names, so that it is the same for every agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AffinityGroup(std::num::NonZeroU64);

impl AffinityGroup {
    /// The group of a port of a Service. Two of the same number would share clients that are bound to a server that both
    /// have, and nothing else.
    pub fn of_port(namespace: &str, name: &str, port: &str) -> Self {
        // FNV-1a of 64 bits; `/` is in none of the three.
        const BASIS: u64 = 0xcbf2_9ce4_8422_2325;
        const PRIME: u64 = 0x0000_0100_0000_01b3;
        let text = namespace.bytes().chain(*b"/").chain(name.bytes()).chain(*b"/").chain(port.bytes());
        let hash = text.fold(BASIS, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(PRIME));
        Self(std::num::NonZeroU64::new(hash).unwrap_or(std::num::NonZeroU64::MIN))
    }

    /// As the maps have it, where zeros are no group.
    pub const fn words(self) -> [u32; 2] {
        let number = self.0.get();
        [(number >> 32) as u32, number as u32]
    }

    /// From the maps.
    pub fn from_words([high, low]: [u32; 2]) -> Option<Self> {
        std::num::NonZeroU64::new(u64::from(high) << 32 | u64::from(low)).map(Self)
    }
}

/// How many connections a real server takes (`ipvsadm -x`, `-y`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct Thresholds {
    /// With this many, active and inactive, it takes no new ones. 0 for no limit.
    pub upper: u32,
    /// With fewer than this it takes new ones again; at most `upper`. 0 for three quarters of it.
    pub lower: u32,
}

/// How packets reach a real server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Method {
    /// Their destination becomes the server, and its answers come back through here (`ipvsadm -m`).
    #[default]
    Nat,
    /// As they are, by the server's hardware address; it answers the client itself (`-g`).
    Route,
    /// Inside of other packets, which the server's node unwraps; it answers the client itself (`-i`).
    Tunnel,
    /// [`Self::Tunnel`], and the server is of this node: reached as by NAT, and what comes for it in a tunnel is unwrapped. Only
    /// the plan can tell; whatever is stated says `Tunnel`.
    OwnTunnel,
}

impl Method {
    /// All of them; what can be stated first.
    pub const ALL: [Self; 4] = [Self::Nat, Self::Route, Self::Tunnel, Self::OwnTunnel];

    /// As `ipvsadm -L` names it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Nat => "Masq",
            Self::Route => "Route",
            Self::Tunnel | Self::OwnTunnel => "Tunnel",
        }
    }

    /// As `ipvsadm -a` takes it.
    pub const fn option(self) -> &'static str {
        match self {
            Self::Nat => "-m",
            Self::Route => "-g",
            Self::Tunnel | Self::OwnTunnel => "-i",
        }
    }

    /// In [`Destination::flags`](lb_common::layout::Destination::flags).
    pub const fn flags(self) -> u16 {
        match self {
            Self::Nat => 0,
            Self::Route => DESTINATION_ROUTE,
            Self::Tunnel => DESTINATION_TUNNEL,
            Self::OwnTunnel => DESTINATION_TUNNEL | DESTINATION_LOCAL,
        }
    }

    /// From there. What no agent writes counts as NAT, as programs take it.
    pub fn of(flags: u16) -> Self {
        let mask = DESTINATION_ROUTE | DESTINATION_TUNNEL | DESTINATION_LOCAL;
        Self::ALL.into_iter().find(|method| method.flags() == flags & mask).unwrap_or_default()
    }
}

impl Serialize for Method {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use lb_common::layout::{DESTINATION_AVAILABLE, DESTINATION_WIDE};

    use super::*;

    #[test]
    fn a_group_is_of_the_three_names_and_comes_back_from_its_words() {
        let names =
            [("a", "b", "c"), ("a", "b", ""), ("a", "c", "b"), ("ab", "", "c"), ("", "ab", "c"), ("b", "a", "c")];
        let groups = names.map(|(namespace, name, port)| AffinityGroup::of_port(namespace, name, port));
        for (index, group) in groups.iter().enumerate() {
            assert_eq!(groups.iter().position(|other| other == group), Some(index));
            assert_eq!(AffinityGroup::from_words(group.words()), Some(*group));
        }
        assert_eq!(AffinityGroup::from_words([0, 0]), None);
        // Agents of every version: whoever is bound by one stays bound by the next.
        assert_eq!(AffinityGroup::of_port("default", "web", "http").words(), [0x808e_4c10, 0x3046_e49c]);
    }

    #[test]
    fn a_method_comes_back_from_its_flags_whatever_stands_beside_it() {
        for method in Method::ALL {
            assert_eq!(Method::of(method.flags()), method);
            assert_eq!(Method::of(method.flags() | DESTINATION_AVAILABLE | DESTINATION_WIDE), method);
        }
        assert_eq!(Method::of(DESTINATION_ROUTE | DESTINATION_TUNNEL), Method::Nat);
        assert_eq!(Method::of(DESTINATION_LOCAL), Method::Nat);
    }

    #[test]
    fn frontends_are_shown_as_ipvsadm_writes_them() {
        let of =
            |address: &str, scope| Frontend { scope, ..Frontend::new(address.parse().unwrap(), 80, Protocol::Udp) };
        for (frontend, expected) in [
            (of("10.0.0.1", Scope::Address), "UDP 10.0.0.1:80"),
            (of("fd00::1", Scope::Address), "UDP [fd00::1]:80"),
            (of("10.0.0.0", Scope::Prefix(8)), "UDP 10.0.0.0/8:80"),
            (of("fd00::", Scope::Prefix(64)), "UDP [fd00::]/64:80"),
            (of("0.0.0.0", Scope::Mark(7)), "FWM 7"),
            (of("0.0.0.0", Scope::NodePort), "UDP 0.0.0.0:80"),
            (of("10.0.0.1", Scope::External), "UDP 10.0.0.1:80 for external clients"),
            (of("::", Scope::Mark(7)), "FWM 7 IPv6"),
        ] {
            assert_eq!(frontend.to_string(), expected);
        }
    }
}
