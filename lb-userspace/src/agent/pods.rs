//! The interfaces that pods are behind, where pods are known by them (`detectLocalMode: BridgeInterface`,
//! `InterfaceNamePrefix`).

use anyhow::Result;
use aya::Ebpf;

use crate::kernel::by_interface;
use crate::kernel::interfaces::Interface;
use crate::plan::{Detector, PodInterfaces};

/// Tells the programs of the interfaces of now; of none, if pods are known otherwise.
///
/// # Errors
/// If the map cannot be changed.
pub(super) fn write(ebpf: &mut Ebpf, detector: &Detector, all: &[Interface]) -> Result<()> {
    let pods = match detector {
        Detector::Interfaces(pods) => select(pods, all),
        Detector::ClusterNetworks(_) | Detector::NodeNetworks => Vec::new(),
    };
    by_interface::write(ebpf, "pod_interfaces", &pods.into_iter().map(|index| (index, 1)).collect())
}

/// Indices of what packets of pods come in by: the programs see them at a bridge's ports, where netfilter sees the bridge.
fn select(pods: &PodInterfaces, all: &[Interface]) -> Vec<u32> {
    let known_as = |interface: &Interface| {
        let controller = all.iter().find(|one| Some(one.index) == interface.controller);
        controller.filter(|one| one.bridge).map_or(interface.name.clone(), |bridge| bridge.name.clone())
    };
    all.iter().filter(|interface| pods.contains(&known_as(interface))).map(|interface| interface.index).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_of_a_bridge_go_by_its_name_and_those_of_a_bond_by_their_own() {
        let interface = |index: u32, name: &str| Interface { index, name: name.into(), ..Interface::default() };
        let all = [
            interface(1, "lo"),
            interface(2, "eth0"),
            Interface { bridge: true, ..interface(3, "cni0") },
            Interface { controller: Some(3), ..interface(4, "veth4") },
            interface(5, "veth5"),
            interface(6, "cni01"),
            interface(7, "bond0"),
            Interface { controller: Some(7), ..interface(8, "veth8") },
        ];
        let selected = |pods| select(&pods, &all);
        assert_eq!(selected(PodInterfaces::Named("cni0".into())), [3, 4]);
        assert_eq!(selected(PodInterfaces::Prefixed("veth".into())), [5, 8]);
        assert_eq!(selected(PodInterfaces::Prefixed("cni".into())), [3, 4, 6]);
        assert_eq!(selected(PodInterfaces::Named("none".into())), [0; 0]);
    }
}
