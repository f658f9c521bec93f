//! Uplinks: the interfaces whose packets XDP serves before the stack has them, and the map that tells the program of them.

use std::collections::BTreeMap;

use anyhow::Result;
use aya::Ebpf;
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
        let wanted = self.select(all, routes);
        let report = xdp::sync(ebpf, pins, self.mode, &wanted, &mut self.refused)?;
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
        for refusal in self.told.news(report.refused) {
            warn!("{refusal}");
        }
        if self.mode.is_some() && wanted.is_empty() && !self.tried {
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
        all.iter().filter(is_wanted).cloned().collect()
    }
}

/// What the program is told: each uplink as itself, and what is part of one as that. A bond's program runs in its members.
fn members(served: &[Interface], all: &[Interface]) -> BTreeMap<u32, u32> {
    let mut entries: BTreeMap<u32, u32> = served.iter().map(|uplink| (uplink.index, uplink.index)).collect();
    for interface in all {
        if let Some(controller) =
            interface.controller.filter(|index| served.iter().any(|uplink| uplink.index == *index))
        {
            entries.entry(interface.index).or_insert(controller);
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
        let member = Interface { controller: Some(4), ..interface(5, "eth1") };
        vec![interface(1, "lo"), interface(2, "eth0"), interface(3, "tun0"), interface(4, "bond0"), member]
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
        assert_eq!(selected(&["*"], &[]), [2, 4, 5], "never loopback");
    }

    #[test]
    fn members_of_a_bond_are_routed_as_the_bond() {
        let all = interfaces();
        assert_eq!(members(&all[3..4], &all), BTreeMap::from([(4, 4), (5, 4)]));
        assert_eq!(members(&all[1..2], &all), BTreeMap::from([(2, 2)]));
    }
}
