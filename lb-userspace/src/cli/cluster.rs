//! Arguments of `bpvs run` about the cluster that the node is in. Their names are kube-proxy's.

use std::net::IpAddr;

use anyhow::{Result, bail};
use clap::{Args, ValueEnum};
use ipnet::IpNet;

use crate::plan::{Detector, NodePortAddresses, Options};

/// How Services are served on this node.
#[derive(Debug, Args)]
pub(super) struct ClusterArgs {
    /// Networks of the cluster's pods, at most one of each family: other clients of cluster addresses come from the node's
    /// address then
    #[arg(long, value_name = "CIDR,...", value_delimiter = ',')]
    cluster_cidr: Vec<IpNet>,
    /// How pods are known [default: by --cluster-cidr, if that is given]
    #[arg(long, value_enum, value_name = "MODE")]
    detect_local_mode: Option<DetectArg>,
    /// Let all clients of cluster addresses come from the node's address
    #[arg(long)]
    masquerade_all: bool,
    /// Addresses of the node that serve node ports: networks, or `primary` [default: all but loopback]
    #[arg(long, value_name = "CIDR,...|primary", value_delimiter = ',', value_parser = place)]
    nodeport_addresses: Vec<Place>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum DetectArg {
    /// By --cluster-cidr
    #[value(name = "ClusterCIDR")]
    ClusterCidr,
    /// By the pod networks of this node's object at the API server
    #[value(name = "NodeCIDR")]
    NodeCidr,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Place {
    Primary,
    Network(IpNet),
}

fn place(text: &str) -> Result<Place, String> {
    match text.trim() {
        "primary" => Ok(Place::Primary),
        text => text.parse().map(Place::Network).map_err(|_| {
            format!("`{text}` is neither a network, such as 192.0.2.0/24 or 2001:db8::/64, nor `primary`")
        }),
    }
}

impl ClusterArgs {
    /// As the plan takes them; the node's addresses are to be found out.
    pub(super) fn options(&self) -> Result<Options> {
        for v4 in [true, false] {
            let of_family = self.cluster_cidr.iter().filter(|network| matches!(network.addr(), IpAddr::V4(_)) == v4);
            if of_family.count() > 1 {
                let family = if v4 { "IPv4" } else { "IPv6" };
                bail!("--cluster-cidr names two {family} networks: name the one that holds all pods");
            }
        }
        let detector = match self.detect_local_mode {
            Some(DetectArg::NodeCidr) => Detector::NodeNetworks,
            None if self.cluster_cidr.is_empty() => Detector::Unset,
            _ => Detector::ClusterNetworks(self.cluster_cidr.clone()),
        };
        let networks = self.nodeport_addresses.iter().filter_map(|place| match place {
            Place::Network(network) => Some(*network),
            Place::Primary => None,
        });
        let networks: Vec<IpNet> = networks.collect();
        let node_port_addresses = match self.nodeport_addresses.len() - networks.len() {
            0 => NodePortAddresses::Networks(networks),
            1 if networks.is_empty() => NodePortAddresses::Primary,
            _ => bail!("--nodeport-addresses: `primary` stands alone: leave the networks out, or it"),
        };
        Ok(Options { detector, masquerade_all: self.masquerade_all, node_port_addresses, ..Options::default() })
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Wrapper {
        #[command(flatten)]
        args: ClusterArgs,
    }

    fn parse(arguments: &[&str]) -> Result<Options, String> {
        let wrapper = Wrapper::try_parse_from(["run"].iter().chain(arguments)).map_err(|error| error.to_string())?;
        wrapper.args.options().map_err(|error| error.to_string())
    }

    #[test]
    fn without_arguments_nobody_is_told_apart() {
        assert_eq!(parse(&[]).unwrap(), Options::default());
    }

    #[test]
    fn networks_and_modes_are_taken_as_kube_proxy_takes_them() {
        let both = ["10.244.0.0/16".parse().unwrap(), "fd00:244::/56".parse().unwrap()];
        let options = parse(&["--cluster-cidr", "10.244.0.0/16,fd00:244::/56", "--masquerade-all"]).unwrap();
        assert_eq!(options.detector, Detector::ClusterNetworks(both.to_vec()));
        assert!(options.masquerade_all);
        let options = parse(&["--detect-local-mode", "NodeCIDR", "--nodeport-addresses", "primary"]).unwrap();
        assert_eq!(options.detector, Detector::NodeNetworks);
        assert_eq!(options.node_port_addresses, NodePortAddresses::Primary);
        // kube-proxy's mode without its network: nobody is known to be a pod.
        let options = parse(&["--detect-local-mode", "ClusterCIDR"]).unwrap();
        assert_eq!(options.detector, Detector::ClusterNetworks(Vec::new()));
        let options = parse(&["--nodeport-addresses", "192.0.2.0/24, 2001:db8::/64"]).unwrap();
        let networks = vec!["192.0.2.0/24".parse().unwrap(), "2001:db8::/64".parse().unwrap()];
        assert_eq!(options.node_port_addresses, NodePortAddresses::Networks(networks));
    }

    #[test]
    fn wrong_values_are_refused_with_what_is_allowed() {
        for (arguments, expected) in [
            (["--cluster-cidr", "10.0.0.0/8,10.1.0.0/16"], "two IPv4 networks"),
            (["--cluster-cidr", "10.0.0.1"], "--cluster-cidr"),
            (["--detect-local-mode", "Pods"], "NodeCIDR"),
            (["--nodeport-addresses", "eth0"], "nor `primary`"),
            (["--nodeport-addresses", "primary,10.0.0.0/8"], "stands alone"),
            (["--nodeport-addresses", "primary,primary"], "stands alone"),
        ] {
            let error = parse(&arguments).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }
}
