//! Arguments of `bpvs run` about the cluster that the node is in. Their names are kube-proxy's.

use std::net::IpAddr;

use anyhow::{Result, anyhow};
use clap::{ArgAction, Args};
use ipnet::IpNet;

use crate::kube_proxy::node_address;
use crate::kube_proxy::values::{self, DetectLocalMode, Local, Mode};
use crate::plan::Options;

/// How Services are served on this node.
#[derive(Debug, Args)]
pub(super) struct ClusterArgs {
    /// Networks of the cluster's pods, at most one of each family: other clients of cluster addresses come from the node's
    /// address then
    #[arg(long, value_name = "CIDR,...", value_parser = networks)]
    cluster_cidr: Option<Networks>,
    /// How pods are known: ClusterCIDR, by --cluster-cidr if that is given; NodeCIDR, by the networks of this node's object
    /// at the API server; BridgeInterface or InterfaceNamePrefix, by the interface that their packets come in by
    #[arg(long, value_name = "MODE", default_value = "ClusterCIDR", value_parser = DetectLocalMode::parse)]
    detect_local_mode: DetectLocalMode,
    /// Bridge that pods are behind, for BridgeInterface
    #[arg(long, value_name = "NAME")]
    pod_bridge_interface: Option<String>,
    /// How the names of the interfaces begin that pods are behind, for InterfaceNamePrefix
    #[arg(long, value_name = "PREFIX")]
    pod_interface_name_prefix: Option<String>,
    /// Let all clients of cluster addresses come from the node's address
    #[arg(long, action = ArgAction::Set, num_args = 0..=1, require_equals = true, default_value = "false",
          default_missing_value = "true", hide_default_value = true, value_parser = values::truth, value_name = "BOOL")]
    masquerade_all: bool,
    /// Addresses of the node that serve node ports: networks, or `primary` [default: all but loopback]
    #[arg(long, value_name = "CIDR,...|primary", value_delimiter = ',', value_parser = place)]
    nodeport_addresses: Vec<String>,
    /// Serve node ports at 127.0.0.0/8 too, for processes of the node; not in modes ipvs and nftables
    #[arg(long, action = ArgAction::Set, num_args = 0..=1, require_equals = true, default_value = "false",
          default_missing_value = "true", hide_default_value = true, value_parser = values::truth, value_name = "BOOL")]
    iptables_localhost_nodeports: bool,
    /// What stands for the node, whatever its object at the API server says; 0.0.0.0 and :: say nothing
    #[arg(long, value_name = "ADDRESS", value_parser = values::address)]
    bind_address: Option<IpAddr>,
}

/// A type of its own, since an argument that is a vector may be given several times.
#[derive(Clone, Debug)]
struct Networks(Vec<IpNet>);

fn networks(text: &str) -> Result<Networks, String> {
    let found = if text.is_empty() { Ok(Vec::new()) } else { values::cluster_networks(text) };
    found.map(Networks)
}

/// One network or `primary`; nothing says that nothing is stated.
fn place(text: &str) -> Result<String, String> {
    let text = text.trim();
    if !text.is_empty() {
        values::node_port_addresses(&[text])?;
    }
    Ok(text.to_owned())
}

impl ClusterArgs {
    /// As the plan takes them; the node's addresses are to be found out.
    pub(super) fn options(&self, mode: Mode) -> Result<Options> {
        let networks = self.cluster_cidr.as_ref().map_or_else(Vec::new, |networks| networks.0.clone());
        let places: Vec<&str> =
            self.nodeport_addresses.iter().map(String::as_str).filter(|text| !text.is_empty()).collect();
        let node_port_addresses = values::node_port_addresses_in(mode, &places)
            .map_err(|message| anyhow!("--nodeport-addresses: {message}"))?;
        let (bridge, prefix) = (self.pod_bridge_interface.clone(), self.pod_interface_name_prefix.clone());
        let detector =
            values::detector(self.detect_local_mode, Local { networks, bridge, prefix }).map_err(|mode| {
                let (mode, option) = match mode {
                    DetectLocalMode::BridgeInterface => ("BridgeInterface", "--pod-bridge-interface NAME"),
                    _ => ("InterfaceNamePrefix", "--pod-interface-name-prefix PREFIX"),
                };
                anyhow!("--detect-local-mode {mode}: state {option} too: which interfaces pods are behind")
            })?;
        Ok(Options {
            detector,
            masquerade_all: self.masquerade_all,
            node_port_addresses,
            localhost_node_ports: values::localhost_node_ports(mode, self.iptables_localhost_nodeports),
            node_address: self.bind_address.and_then(node_address),
            ..Options::default()
        })
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::plan::{Detector, NodePortAddresses};

    #[derive(Debug, Parser)]
    struct Wrapper {
        #[command(flatten)]
        args: ClusterArgs,
    }

    fn parse(arguments: &[&str]) -> Result<Options, String> {
        let wrapper = Wrapper::try_parse_from(["run"].iter().chain(arguments)).map_err(|error| error.to_string())?;
        wrapper.args.options(Mode::default()).map_err(|error| error.to_string())
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
        // kube-proxy's mode without its network: nobody is known to be a pod, and everybody keeps their address.
        for arguments in
            [&["--detect-local-mode", "ClusterCIDR"] as &[&str], &["--cluster-cidr="], &["--nodeport-addresses="]]
        {
            assert_eq!(parse(arguments).unwrap(), Options::default(), "{arguments:?}");
        }
        assert!(parse(&["--masquerade-all=true"]).unwrap().masquerade_all);
        assert!(!parse(&["--masquerade-all=false"]).unwrap().masquerade_all);
        let addresses = ["192.0.2.1", "2001:db8::1", "0.0.0.0", "::"]
            .map(|text| parse(&["--bind-address", text]).unwrap().node_address.map(|address| address.to_string()));
        assert_eq!(addresses, [Some("192.0.2.1".to_owned()), Some("2001:db8::1".to_owned()), None, None]);
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
            (["--detect-local-mode", "BridgeInterface"], "state --pod-bridge-interface NAME too"),
            (["--detect-local-mode", "InterfaceNamePrefix"], "state --pod-interface-name-prefix PREFIX too"),
            (["--nodeport-addresses", "eth0"], "or `primary`"),
            (["--bind-address", "node-a"], "must be an address"),
            (["--masquerade-all=maybe", "--bind-address=::"], "true or false"),
            (["--nodeport-addresses", "primary,10.0.0.0/8"], "stands alone"),
            (["--nodeport-addresses", "primary,primary"], "stands alone"),
        ] {
            let error = parse(&arguments).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }
}
