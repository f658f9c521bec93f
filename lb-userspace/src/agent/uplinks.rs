//! Uplinks: the interfaces whose packets XDP serves before the stack has them, and the map that tells the program of them.

use std::collections::BTreeMap;

use anyhow::Result;
use aya::Ebpf;
use lb_common::layout::UPLINK_REDIRECTS;
use tracing::{info, warn};

use super::once::Once;
use crate::kernel::attach::xdp::{self, Refused};
use crate::kernel::bpf::XdpMode;
use crate::kernel::by_interface;
use crate::kernel::interfaces::{DefaultRoute, Interface, glob};
use crate::kernel::pins::Pins;

/// Which interfaces are uplinks, and what became of them.
#[derive(Debug)]
pub struct Uplinks {
    mode: Option<XdpMode>,
    patterns: Vec<String>,
    refused: Refused,
    told: Once,
    tried: bool,
}

impl Uplinks {
    /// None served yet. Without patterns, interfaces with a default route are uplinks.
    pub fn new(mode: Option<XdpMode>, patterns: Vec<String>) -> Self {
        Self { mode, patterns, refused: Refused::new(), told: Once::default(), tried: false }
    }

    /// Gives the uplinks of now the program, and takes it from all other interfaces.
    ///
    /// # Errors
    /// If the pins or the map cannot be changed. An uplink that cannot have the program is told of, and served at tc.
    pub fn serve(&mut self, ebpf: &mut Ebpf, pins: &Pins, all: &[Interface], routes: &[DefaultRoute]) -> Result<()> {
        let (mut wanted, mut refused) = (Vec::new(), Vec::new());
        for uplink in self.select(all, routes) {
            match self.unfit(&uplink, all) {
                None => wanted.push(uplink),
                Some(why) => refused.push(format!("{} is served at tc, not by XDP: {why}", uplink.name)),
            }
        }
        let mut report = xdp::sync(ebpf, pins, self.mode, &wanted, &mut self.refused)?;
        by_interface::write(ebpf, "uplinks", &members(&report.served, all))?;
        if report.has_changes() {
            let names: Vec<&str> = report.served.iter().map(|interface| interface.name.as_str()).collect();
            info!(
                "uplinks served by XDP: {} ({} attached, {} replaced, {} released)",
                if names.is_empty() { "none".to_owned() } else { names.join(", ") },
                report.attached,
                report.replaced,
                report.removed
            );
        }
        report.refused.extend(refused);
        let nobody = wanted.is_empty() && report.refused.is_empty();
        for refusal in self.told.news(report.refused) {
            warn!("{refusal}");
        }
        if self.mode.is_some() && nobody && !self.tried {
            warn!("no uplink for XDP: no interface has a default route or a name of --uplinks; all is served at tc");
        }
        self.tried = true;
        Ok(())
    }

    fn select(&self, all: &[Interface], routes: &[DefaultRoute]) -> Vec<Interface> {
        let is_wanted = |interface: &&Interface| {
            let named = self.patterns.iter().any(|pattern| glob(pattern, &interface.name));
            let routed = self.patterns.is_empty() && routes.iter().any(|route| route.interface == interface.index);
            interface.ethernet && !interface.loopback && (named || routed)
        };
        let mut selected: Vec<Interface> = Vec::new();
        for interface in all.iter().filter(is_wanted) {
            // A bond's program runs in its members, which take none of their own beside it.
            let bond = interface.controller.filter(|_| interface.bonded);
            let uplink = bond.map_or(Some(interface), |index| all.iter().find(|other| other.index == index));
            selected.extend(uplink.filter(|one| !selected.iter().any(|known| known.index == one.index)).cloned());
        }
        selected
    }

    /// Why XDP would be wrong there, or of no use.
    fn unfit(&self, uplink: &Interface, all: &[Interface]) -> Option<&'static str> {
        if self.mode? == XdpMode::Native {
            return None;
        }
        if uplink.vlan_of.is_some() {
            return Some("it is a VLAN device, and what comes by it was translated on the interface beneath");
        }
        // A packet's tag is beside the packet, where XDP does not see it and the kernel sends it on with whatever XDP sends.
        let has_vlans = all.iter().any(|interface| interface.vlan_of == Some(uplink.index));
        has_vlans.then_some("it has VLAN devices, whose tags generic XDP neither sees nor takes off what it sends")
    }
}

/// What the program is told: each uplink as itself, and what is part of one as that, with [`UPLINK_REDIRECTS`] for veths. A
/// bond's program runs in its members.
fn members(served: &[Interface], all: &[Interface]) -> BTreeMap<u32, u32> {
    let is_in = |interface: &Interface, uplink: &Interface| {
        interface.index == uplink.index || interface.controller == Some(uplink.index)
    };
    let value = |uplink: &Interface| {
        let veth = all.iter().any(|interface| interface.veth && is_in(interface, uplink));
        uplink.index | if veth { UPLINK_REDIRECTS } else { 0 }
    };
    let mut entries: BTreeMap<u32, u32> = served.iter().map(|uplink| (uplink.index, value(uplink))).collect();
    for interface in all {
        if let Some(uplink) = served.iter().find(|uplink| interface.controller == Some(uplink.index)) {
            entries.entry(interface.index).or_insert(value(uplink));
        }
    }
    entries
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interfaces() -> Vec<Interface> {
        let interface = |index: u32, name: &str| Interface {
            index,
            name: name.into(),
            loopback: name == "lo",
            ethernet: !name.starts_with("tun"),
            ..Interface::default()
        };
        let member = Interface { controller: Some(4), bonded: true, ..interface(5, "eth1") };
        let vlan = Interface { vlan_of: Some(2), ..interface(6, "eth0.7") };
        vec![interface(1, "lo"), interface(2, "eth0"), interface(3, "tun0"), interface(4, "bond0"), member, vlan]
    }

    fn selected(patterns: &[&str], routed: &[u32]) -> Vec<u32> {
        let uplinks = Uplinks::new(None, patterns.iter().map(|&text| text.to_owned()).collect());
        let route = |interface: &u32| DefaultRoute { interface: *interface, source: None, metric: 0, v6: false };
        let routes: Vec<DefaultRoute> = routed.iter().map(route).collect();
        uplinks.select(&interfaces(), &routes).iter().map(|interface| interface.index).collect()
    }

    #[test]
    fn uplinks_are_what_is_named_else_what_has_a_default_route() {
        assert_eq!(selected(&[], &[2]), [2]);
        assert_eq!(selected(&[], &[3]), [0; 0], "without Ethernet headers");
        assert_eq!(selected(&["bond*"], &[2]), [4]);
        assert_eq!(selected(&["*"], &[]), [2, 4, 6], "never loopback, and no member beside its bond");
        assert_eq!(selected(&["eth1"], &[]), [4], "a member stands for its bond");
    }

    #[test]
    fn members_of_a_bond_are_routed_as_the_bond() {
        let all = interfaces();
        assert_eq!(members(&all[3..4], &all), BTreeMap::from([(4, 4), (5, 4)]));
        assert_eq!(members(&all[1..2], &all), BTreeMap::from([(2, 2)]));
    }

    #[test]
    fn a_veth_and_a_bond_of_one_redirect() {
        let mut all = interfaces();
        (all[1].veth, all[4].veth) = (true, true);
        assert_eq!(members(&all[1..2], &all), BTreeMap::from([(2, 2 | UPLINK_REDIRECTS)]));
        let bond = 4 | UPLINK_REDIRECTS;
        assert_eq!(members(&all[3..4], &all), BTreeMap::from([(4, bond), (5, bond)]));
    }

    #[test]
    fn generic_xdp_is_neither_for_a_vlan_device_nor_for_what_has_one() {
        let all = interfaces();
        let fits = |mode, place: usize| Uplinks::new(Some(mode), Vec::new()).unfit(&all[place], &all).is_none();
        let places: Vec<usize> = (1..6).filter(|place| fits(XdpMode::Generic, *place)).collect();
        assert_eq!(places, [2, 3, 4]);
        // The driver of a VLAN device says itself that it has none.
        assert!((1..6).all(|place| fits(XdpMode::Native, place)));
    }
}
