//! Single values as kube-proxy writes them, in its file and behind its flags: each read with what is allowed instead.

use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;
use lb_common::scheduler::Scheduler;

use super::duration;
use crate::model::address::{NETWORK_ALLOWED, parse_network};
use crate::plan::{Detector, NodePortAddresses, PodInterfaces};

/// What kube-proxy would make rules of. Here it says which section of the file counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Mode {
    /// `iptables`, which is also what is meant where nothing is stated.
    #[default]
    Iptables,
    /// `ipvs`.
    Ipvs,
    /// `nftables`.
    Nftables,
}

impl Mode {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Iptables, Self::Ipvs, Self::Nftables];

    /// Its name, which is also that of its section.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Iptables => "iptables",
            Self::Ipvs => "ipvs",
            Self::Nftables => "nftables",
        }
    }

    /// A mode by its name.
    pub fn parse(text: &str) -> Result<Self, String> {
        match text {
            "" => Ok(Self::default()),
            "userspace" => {
                Err("kube-proxy itself has no such mode any more: state ipvs, iptables or nftables".to_owned())
            }
            text => Self::ALL
                .into_iter()
                .find(|mode| mode.name() == text)
                .ok_or_else(|| "must be ipvs, iptables, nftables or empty".to_owned()),
        }
    }
}

/// How pods are known.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum DetectLocalMode {
    /// By the networks of all pods of the cluster; also where nothing is stated.
    #[default]
    ClusterCidr,
    /// By the networks that the node's object states.
    NodeCidr,
    /// By the bridge that they are behind.
    BridgeInterface,
    /// By how the name of the interface begins that they are behind.
    InterfaceNamePrefix,
}

impl DetectLocalMode {
    /// A mode by its name.
    pub fn parse(text: &str) -> Result<Self, String> {
        match text {
            "" | "ClusterCIDR" => Ok(Self::ClusterCidr),
            "NodeCIDR" => Ok(Self::NodeCidr),
            "BridgeInterface" => Ok(Self::BridgeInterface),
            "InterfaceNamePrefix" => Ok(Self::InterfaceNamePrefix),
            _ => Err("must be ClusterCIDR, NodeCIDR, BridgeInterface, InterfaceNamePrefix or empty".to_owned()),
        }
    }
}

/// A scheduler by its name; kube-proxy's default is rr.
pub fn scheduler(text: &str) -> Result<Scheduler, String> {
    let text = if text.is_empty() { "rr" } else { text };
    Scheduler::from_name(text)
        .ok_or_else(|| format!("no such scheduler: allowed are {}", Scheduler::ALL.map(Scheduler::name).join(", ")))
}

/// Longest timeout of connections, in milliseconds; near what the maps hold.
const LONGEST_TIMEOUT: i64 = 3_600_000_000;

/// A timeout of connections in milliseconds; 0 leaves what there is.
pub fn timeout(text: &str) -> Result<u32, String> {
    let nanoseconds = duration::parse(text).ok_or(duration::ALLOWED)?;
    match (nanoseconds, nanoseconds / 1_000_000) {
        (0, _) => Ok(0),
        (_, time @ 10..=LONGEST_TIMEOUT) => Ok(time as u32),
        _ => Err("must be from 10ms to 1000h, or 0 to leave what there is".to_owned()),
    }
}

/// An address.
pub fn address(text: &str) -> Result<IpAddr, String> {
    text.parse().map_err(|_| "must be an address, such as 0.0.0.0 or ::".to_owned())
}

/// An address and port to listen at; an address alone gets `port`.
pub fn listen(text: &str, port: u16) -> Result<SocketAddr, String> {
    let address = text.parse::<IpAddr>().map(|address| SocketAddr::new(address, port));
    let address = address.or_else(|_| text.parse::<SocketAddr>()).ok().filter(|address| address.port() != 0);
    address.ok_or_else(|| format!("must be an address and a port, such as 0.0.0.0:{port} or [::]:{port}"))
}

/// Networks of pods, separated by commas, at most one of each family.
pub fn cluster_networks(text: &str) -> Result<Vec<IpNet>, String> {
    let mut networks: Vec<IpNet> = Vec::new();
    for text in text.split(',') {
        let network = parse_network(text)
            .ok_or_else(|| format!("{NETWORK_ALLOWED}, or one of each family, separated by a comma"))?;
        if networks.iter().any(|other| other.addr().is_ipv4() == network.addr().is_ipv4()) {
            let family = if network.addr().is_ipv4() { "IPv4" } else { "IPv6" };
            return Err(format!("names two {family} networks: name the one that holds all pods"));
        }
        networks.push(network);
    }
    Ok(networks)
}

/// Addresses that serve node ports.
pub fn node_port_addresses(texts: &[&str]) -> Result<NodePortAddresses, String> {
    match texts {
        ["primary"] => Ok(NodePortAddresses::Primary),
        texts if texts.contains(&"primary") => Err("`primary` stands alone: leave the networks out, or it".to_owned()),
        texts => {
            let network = |text: &&str| parse_network(text).ok_or_else(|| format!("{NETWORK_ALLOWED}, or `primary`"));
            texts.iter().map(network).collect::<Result<_, _>>().map(NodePortAddresses::Networks)
        }
    }
}

/// The same in a mode: nftables serves node ports at the node's primary addresses alone, unless something is stated (NP-1).
pub fn node_port_addresses_in(mode: Mode, texts: &[&str]) -> Result<NodePortAddresses, String> {
    match mode {
        Mode::Nftables if texts.is_empty() => Ok(NodePortAddresses::Primary),
        _ => node_port_addresses(texts),
    }
}

/// Whether node ports are served at loopback addresses: in mode iptables, where that is asked for. kube-proxy does so there
/// also where nothing is stated; here a process keeps its port at 127.0.0.1 unless somebody says otherwise.
pub fn localhost_node_ports(mode: Mode, stated: bool) -> bool {
    mode == Mode::Iptables && stated
}

/// What a mode of knowing pods goes by.
#[derive(Clone, Debug, Default)]
pub struct Local {
    /// Networks of all pods.
    pub networks: Vec<IpNet>,
    /// Name of their bridge.
    pub bridge: Option<String>,
    /// How the names of their interfaces begin.
    pub prefix: Option<String>,
}

/// Who knows the pods. Without networks nobody does, and then clients of cluster addresses keep theirs, as with kube-proxy.
///
/// # Errors
/// If the mode needs a name that is not stated: the mode. kube-proxy refuses that too.
pub fn detector(mode: DetectLocalMode, local: Local) -> Result<Detector, DetectLocalMode> {
    Ok(match mode {
        DetectLocalMode::NodeCidr => Detector::NodeNetworks,
        DetectLocalMode::ClusterCidr => Detector::ClusterNetworks(local.networks),
        DetectLocalMode::BridgeInterface => {
            Detector::Interfaces(PodInterfaces::Named(local.bridge.filter(|name| !name.is_empty()).ok_or(mode)?))
        }
        DetectLocalMode::InterfaceNamePrefix => {
            Detector::Interfaces(PodInterfaces::Prefixed(local.prefix.filter(|name| !name.is_empty()).ok_or(mode)?))
        }
    })
}

/// The feature gate that is of consequence here: whether `externalIPs` are served.
pub const EXTERNAL_ADDRESSES_GATE: &str = "AllowServiceExternalIPs";

/// A truth value as Go reads one behind a flag.
pub fn truth(text: &str) -> Result<bool, String> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
        _ => Err("must be true or false".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeouts_are_whole_milliseconds() {
        for (text, expected) in [("0", 0), ("0s", 0), ("10ms", 10), ("15m0s", 900_000), ("1000h", 3_600_000_000)] {
            assert_eq!(timeout(text), Ok(expected), "{text}");
        }
        for (text, expected) in [
            ("9ms", "10ms to 1000h"),
            ("1ns", "10ms to"),
            ("-1s", "10ms to"),
            ("1000h1s", "10ms to"),
            ("900", "duration"),
        ] {
            assert!(timeout(text).unwrap_err().contains(expected), "{text}");
        }
    }

    #[test]
    fn an_address_alone_gets_the_port() {
        for (text, expected) in [
            ("0.0.0.0", Some("0.0.0.0:10256")),
            ("::1", Some("[::1]:10256")),
            ("127.0.0.1:99", Some("127.0.0.1:99")),
            ("[fd00::1]:99", Some("[fd00::1]:99")),
            ("", None),
            ("10256", None),
            (":10256", None),
            ("localhost:10256", None),
            ("0.0.0.0:0", None),
            ("0.0.0.0:65536", None),
            ("0.0.0.0:-1", None),
            ("[::1]", None),
        ] {
            assert_eq!(listen(text, 10256).ok(), expected.map(|text| text.parse().unwrap()), "{text:?}");
        }
    }

    #[test]
    fn networks_of_pods_are_one_of_each_family() {
        let networks =
            |text| cluster_networks(text).map(|found| found.iter().map(IpNet::to_string).collect::<Vec<_>>());
        assert_eq!(networks("10.244.0.0/16").unwrap(), ["10.244.0.0/16"]);
        assert_eq!(networks("fd00:244::/56,10.244.7.7/16").unwrap(), ["fd00:244::/56", "10.244.0.0/16"]);
        for (text, expected) in [
            ("10.0.0.0/8,10.1.0.0/16", "two IPv4"),
            ("fd00::/8,fd01::/16", "two IPv6"),
            ("10.244.0.0", "must be a network"),
            ("10.244.0.0/16,", "must be a network"),
            (",", "must be a network"),
            ("10.0.0.0/8,fd00::/8,10.0.0.0/8", "two IPv4"),
        ] {
            assert!(networks(text).unwrap_err().contains(expected), "{text}");
        }
    }
}
