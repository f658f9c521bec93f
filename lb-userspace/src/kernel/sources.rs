//! Map `source_addresses`: which of the node's addresses stands for a client where a packet leaves by an interface, as
//! `MASQUERADE` chooses it.
//!
//! IPv4 (`inet_select_addr`): the first primary address whose network the next hop is in, else the interface's first.
//! IPv6 (`ipv6_dev_get_saddr`): the one that has most bits of its prefix in common with the destination (RFC 6724, rule
//! 8; rule 6 follows from it, as unique local addresses share no bit with others), else the first. Addresses of link
//! scope, secondary, temporary, deprecated and tentative ones stand for nobody.

use std::collections::BTreeMap;
use std::net::IpAddr;

use anyhow::{Context, Result};
use aya::Ebpf;
use aya::maps::MapError;
use aya::maps::lpm_trie::{Key, LpmTrie};
use ipnet::IpNet;
use lb_common::address::Address;
use lb_common::layout::NetworkKey;

use super::interfaces::HostAddress;
use super::raw::Raw;
use crate::datapath::Network;

/// What the map should hold for these addresses, which are in the kernel's order.
pub fn entries(addresses: &[HostAddress]) -> BTreeMap<Network, IpAddr> {
    let mut of_interface: BTreeMap<u32, Vec<&HostAddress>> = BTreeMap::new();
    for host in addresses.iter().filter(|host| !host.secondary) {
        of_interface.entry(host.interface).or_default().push(host);
    }
    let mut entries = BTreeMap::new();
    for (interface, hosts) in of_interface {
        let (v4, v6): (Vec<&HostAddress>, Vec<&HostAddress>) =
            hosts.into_iter().partition(|host| host.address.is_ipv4());
        let chosen = by_next_hop(&v4).into_iter().chain(by_destination(&v6));
        entries.extend(chosen.map(|(network, address)| (Network::new(interface, network), address)));
    }
    entries
}

/// IPv4: in order, so that a network inside of an earlier one is never reached.
fn by_next_hop(hosts: &[&HostAddress]) -> BTreeMap<IpNet, IpAddr> {
    let mut chosen: BTreeMap<IpNet, IpAddr> = BTreeMap::new();
    for host in hosts {
        if !chosen.keys().any(|network| network.contains(&host.network)) {
            chosen.insert(host.network, host.address);
        }
    }
    if let Some(first) = hosts.first() {
        chosen.entry(whole(host_network(first))).or_insert(first.address);
    }
    chosen
}

/// IPv6: each address has all prefixes of its network that no earlier one has; where a longer one says the same as the
/// next shorter, it is left out.
fn by_destination(hosts: &[&HostAddress]) -> BTreeMap<IpNet, IpAddr> {
    let mut all: BTreeMap<IpNet, IpAddr> = BTreeMap::new();
    for host in hosts {
        let prefixes = std::iter::successors(Some(host_network(host)), IpNet::supernet);
        for prefix in prefixes {
            all.entry(prefix).or_insert(host.address);
        }
    }
    let says_more =
        |network: &IpNet, address: &IpAddr| network.supernet().is_none_or(|shorter| all.get(&shorter) != Some(address));
    all.iter().filter(|(network, address)| says_more(network, address)).map(|(key, value)| (*key, *value)).collect()
}

/// The address's own bits, as long as its network's prefix.
fn host_network(host: &HostAddress) -> IpNet {
    IpNet::new(host.address, host.network.prefix_len()).map_or_else(|_| host.address.into(), |network| network.trunc())
}

/// All addresses of the network's family.
fn whole(network: IpNet) -> IpNet {
    std::iter::successors(Some(network), IpNet::supernet).last().unwrap_or(network)
}

/// Makes the map hold exactly this.
///
/// # Errors
/// If there is no such map, or it cannot be read or written: it is full, for example.
pub fn write(ebpf: &mut Ebpf, wanted: &BTreeMap<Network, IpAddr>) -> Result<()> {
    let map = ebpf.map_mut("source_addresses").context("the BPF object has no map `source_addresses`")?;
    let mut map = LpmTrie::<_, Raw<NetworkKey>, Raw<Address>>::try_from(map)
        .context("the map `source_addresses` has another layout")?;
    let unread = "cannot read the map `source_addresses`";
    let unwritten = "cannot write the map `source_addresses`: clients may come from another address of the node";
    let keys = map.keys().collect::<Result<Vec<_>, _>>().context(unread)?;
    let present: Vec<Network> = keys.iter().map(|key| Network::from_key(key.prefix_len(), &key.data().0)).collect();
    let key = |network: &Network| Key::new(network.length, Raw(network.key()));
    // Those of interfaces that are gone make room first.
    for network in present.iter().filter(|network| !wanted.contains_key(network)) {
        match map.remove(&key(network)) {
            Ok(()) | Err(MapError::KeyNotFound) => {}
            Err(error) => return Err(error).context(unwritten),
        }
    }
    for (network, address) in wanted {
        map.insert(&key(network), Raw(Address::from(*address)), 0).context(unwritten)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(interface: u32, text: &str) -> HostAddress {
        let network: IpNet = text.parse().unwrap();
        HostAddress { interface, address: network.addr(), network: network.trunc(), secondary: false }
    }

    /// What the programs would find.
    fn chosen(addresses: &[HostAddress], interface: u32, towards: &str) -> Option<String> {
        let towards: IpAddr = towards.parse().unwrap();
        let all = entries(addresses);
        let found = all.iter().filter(|(network, _)| network.owner == interface);
        let found = found.filter_map(|(network, address)| Some((network.network()?, address)));
        let longest = found.filter(|(network, _)| network.contains(&towards)).max_by_key(|(net, _)| net.prefix_len());
        longest.map(|(_, address)| address.to_string())
    }

    #[test]
    fn of_ipv4_the_network_of_the_next_hop_decides_in_the_kernels_order() {
        let mut all =
            vec![host(2, "10.1.0.1/16"), host(2, "10.0.0.1/8"), host(2, "10.2.0.1/16"), host(3, "192.0.2.1/24")];
        all.insert(0, HostAddress { secondary: true, ..host(2, "10.1.0.9/16") });
        for (towards, expected) in [
            ("10.1.7.7", "10.1.0.1"),
            ("10.9.0.1", "10.0.0.1"),
            // In an earlier address's network too, which is looked at first.
            ("10.2.0.7", "10.0.0.1"),
            ("203.0.113.1", "10.1.0.1"),
        ] {
            assert_eq!(chosen(&all, 2, towards).as_deref(), Some(expected), "{towards}");
        }
        assert_eq!(chosen(&all, 3, "10.1.7.7").as_deref(), Some("192.0.2.1"));
        assert_eq!(chosen(&all, 4, "10.1.7.7"), None);
        assert_eq!(chosen(&all, 2, "2001:db8::1"), None, "of the other family");
    }

    #[test]
    fn the_other_end_of_a_point_to_point_interface_is_the_network() {
        let pair = HostAddress { network: "10.3.0.2/32".parse().unwrap(), ..host(5, "10.3.0.1/32") };
        let all = [host(5, "192.0.2.1/24"), pair];
        assert_eq!(chosen(&all, 5, "10.3.0.2").as_deref(), Some("10.3.0.1"));
        assert_eq!(chosen(&all, 5, "10.3.0.1").as_deref(), Some("192.0.2.1"));
    }

    #[test]
    fn of_ipv6_the_address_with_most_bits_in_common_is_chosen_and_the_first_of_those_that_have_as_many() {
        let all = [host(2, "fd00:1::1/64"), host(2, "2001:db8:1::1/64"), host(2, "2001:db8:ff::1/48")];
        for (towards, expected) in [
            ("fd00:1::77", "fd00:1::1"),
            ("fdff::1", "fd00:1::1"),
            ("2001:db8:1::77", "2001:db8:1::1"),
            // More bits in common than the first has.
            ("2001:db8:fe::1", "2001:db8:ff::1"),
            ("2001:db8:2::1", "2001:db8:1::1"),
            // As many as both of these have.
            ("2a00::1", "2001:db8:1::1"),
            ("::1", "2001:db8:1::1"),
        ] {
            assert_eq!(chosen(&all, 2, towards).as_deref(), Some(expected), "{towards}");
        }
    }

    #[test]
    fn an_interface_with_one_address_of_a_family_takes_few_entries() {
        assert_eq!(entries(&[host(2, "fd00:1::1/64")]).len(), 1);
        assert_eq!(entries(&[host(2, "10.1.0.1/16")]).len(), 2);
    }
}
