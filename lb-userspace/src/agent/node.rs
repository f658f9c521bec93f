//! The node itself: its interfaces get the programs, its addresses stand in the settings.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use aya::Ebpf;
use aya::maps::{Array, HashMap, Map, MapError};
use lb_common::address::Address;
use lb_common::layout::{SETTING_EXCLUDED_CGROUPS, SETTING_POD_INTERFACES, Settings, SocketConnection, VERSION};
use lb_common::timeouts::Timeouts;
use tracing::{info, warn};

use super::direct;
use super::once::Once;
use super::pods;
use super::uplinks::Uplinks;
use super::{Config, TimeoutChange};
use crate::datapath::Network;
use crate::kernel::attach::tc::{self, Mode, Report};
use crate::kernel::attach::{self, Forwarding};
use crate::kernel::excluded;
use crate::kernel::interfaces::{self, HostAddress, Interface, Selection};
use crate::kernel::namespace;
use crate::kernel::object::Loaded;
use crate::kernel::pins::{LinkName, Pins};
use crate::kernel::raw::Raw;
use crate::kernel::settings;
use crate::kernel::sources;
use crate::plan::Detector;

/// How often the interfaces are listed until a list is complete.
const LISTS: u32 = 10;

/// The programs on this node, and what they are told about it.
#[derive(Debug)]
pub struct Node {
    /// The loaded object.
    pub ebpf: Ebpf,
    netlink: rtnetlink::Handle,
    pins: Pins,
    mode: Mode,
    forwarding: Forwarding,
    detector: Detector,
    selection: Selection,
    /// What this node is, without timeouts: whoever runs `bpvs set-timeouts` may change those at any time.
    settings: Settings,
    timeouts: TimeoutChange,
    written: Option<Settings>,
    /// What the map `source_addresses` holds, once it was written.
    sources: Option<BTreeMap<Network, IpAddr>>,
    excluded: Vec<PathBuf>,
    absent: Vec<PathBuf>,
    addresses: Vec<IpAddr>,
    attached: Vec<Interface>,
    uplinks: Uplinks,
    errors: Once,
}

impl Node {
    /// Takes a loaded object over. Nothing is attached yet.
    pub fn new(config: &Config, loaded: Loaded, mode: Mode) -> Result<Self> {
        let netlink = connect()?;
        let settings = Settings {
            version: VERSION,
            max_destinations: loaded.entries.get("destinations").copied().unwrap_or(0),
            // Without it no socket is one of this node's, which is what `--socket-lb off` means.
            namespace_cookie: if config.sockets.is_on() {
                namespace::network_namespace_cookie().context("cannot read the network namespace cookie")?
            } else {
                0
            },
            switches: config.switches
                | config.sockets.switches()
                | if config.excluded_cgroups.is_empty() { 0 } else { SETTING_EXCLUDED_CGROUPS }
                | if matches!(config.services.detector, Detector::Interfaces(_)) { SETTING_POD_INTERFACES } else { 0 },
            ..Settings::default()
        };
        Ok(Self {
            ebpf: loaded.ebpf,
            netlink,
            pins: config.pins.clone(),
            mode,
            forwarding: config.forwarding,
            detector: config.services.detector.clone(),
            selection: config.selection.clone(),
            settings,
            timeouts: config.timeouts,
            written: None,
            sources: None,
            excluded: config.excluded_cgroups.clone(),
            absent: Vec::new(),
            addresses: Vec::new(),
            attached: Vec::new(),
            uplinks: Uplinks::new(config.xdp, config.uplinks.clone()),
            errors: Once::default(),
        })
    }

    /// Asks the kernel over a new socket from now on: one that had an error answers nothing any more.
    pub fn reconnect(&mut self) -> Result<()> {
        self.netlink = connect()?;
        Ok(())
    }

    /// The node's addresses, as they were found last; of each family the one that stands for the node comes first.
    pub fn addresses(&self) -> &[IpAddr] {
        &self.addresses
    }

    /// Number of interfaces that have the programs.
    pub fn interfaces(&self) -> usize {
        self.attached.len()
    }

    /// Looks for the cgroups that are left out: those of pods come and go.
    pub fn refresh_excluded(&mut self) -> Result<()> {
        let absent = excluded::sync(&mut self.ebpf, &self.excluded)?;
        for path in absent.iter().filter(|path| !self.absent.contains(path)) {
            info!("--socket-lb-exclude-cgroup {}: it is not there yet, and is looked for again", path.display());
        }
        self.absent = absent;
        Ok(())
    }

    /// Looks for the node's addresses, and writes the settings if they differ from what is written.
    ///
    /// # Errors
    /// After one the addresses are those of before. A list without any is not believed once there were some (NP-6).
    pub async fn refresh_settings(&mut self) -> Result<()> {
        let addresses = interfaces::addresses(&self.netlink).await?;
        if addresses.is_empty() && !self.addresses.is_empty() {
            bail!("the kernel lists no address of this node any more: what was known of them stays");
        }
        let routes = interfaces::default_routes(&self.netlink).await?;
        let own = |v6| interfaces::node_address(&addresses, &routes, v6);
        self.settings.node_v4 = own(false).map_or(Address::UNSPECIFIED, Address::from);
        self.settings.node_v6 = own(true).map_or(Address::UNSPECIFIED, Address::from);
        // What stands for the node comes first of its family.
        let first = [own(false), own(true)].into_iter().flatten();
        self.addresses = first.chain(addresses.iter().map(|found| found.address)).collect();
        [self.settings.local_ports_first, self.settings.local_ports_last] = settings::local_ports();
        // What a full map does not take keeps nothing else from being told.
        let told = self.tell_sources(&addresses);
        self.write_settings()?;
        told
    }

    /// Which address clients come from where a packet leaves by an interface.
    fn tell_sources(&mut self, addresses: &[HostAddress]) -> Result<()> {
        let sources = sources::entries(addresses);
        if self.sources.as_ref() != Some(&sources) {
            sources::write(&mut self.ebpf, &sources)?;
            self.sources = Some(sources);
        }
        Ok(())
    }

    fn write_settings(&mut self) -> Result<()> {
        if self.written == Some(self.settings) {
            return Ok(());
        }
        let map = self.ebpf.map_mut("settings").context("the BPF object has no map `settings`")?;
        let (node, first, change) = (self.settings, self.written.is_none(), self.timeouts);
        settings::edit(&self.pins, &mut settings_array(map)?, |pinned| {
            // A map that was just made holds no timeouts.
            let timeouts = if pinned.version == VERSION { pinned.timeouts } else { Timeouts::IPVS };
            Settings { timeouts: if first { change.of(timeouts) } else { timeouts }, ..node }
        })?;
        self.written = Some(self.settings);
        let name = |address: Address| match address {
            Address::UNSPECIFIED => "none".to_owned(),
            address => IpAddr::from(address).to_string(),
        };
        info!("node addresses: IPv4 {}, IPv6 {}", name(self.settings.node_v4), name(self.settings.node_v6));
        Ok(())
    }

    /// Attaches to the interfaces of now, and takes back what an earlier agent left elsewhere.
    pub async fn attach_first(&mut self) -> Result<()> {
        let all = self.all_interfaces().await?;
        // Before they have the programs: a pod is one from its first packet on.
        pods::write(&mut self.ebpf, &self.detector, &all)?;
        let wanted = self.selection.select(&all);
        let mut report = self.attach_to(&wanted).await?;
        tc::release_filters(self.mode, &all, &wanted, &mut report);
        self.tell(wanted, report);
        self.serve_uplinks(&all).await?;
        if self.attached.is_empty() {
            warn!("no interface to attach to: only local sockets are balanced until one comes");
        }
        Ok(())
    }

    /// Attaches to interfaces that came, releases those that went.
    pub async fn refresh_interfaces(&mut self) -> Result<()> {
        let all = self.all_interfaces().await?;
        // Before they have the programs: a pod is one from its first packet on.
        pods::write(&mut self.ebpf, &self.detector, &all)?;
        let wanted = self.selection.select(&all);
        let mut report = self.attach_to(&wanted).await?;
        // Links go with their pins. Filters would stay on what is wanted no more though it is there: a bond's new member.
        let was_attached = |interface: &&Interface| self.attached.iter().any(|known| known.index == interface.index);
        let attached: Vec<Interface> = all.iter().filter(was_attached).cloned().collect();
        if self.mode == Mode::Clsact {
            tc::release_filters(self.mode, &attached, &wanted, &mut report);
        }
        self.tell(wanted, report);
        self.serve_uplinks(&all).await
    }

    /// All interfaces. Before Linux 6.9 a list may lack one that is there, if others go while it is read: it is asked
    /// for again, as an interface that is taken for gone loses its programs.
    async fn all_interfaces(&self) -> Result<Vec<Interface>> {
        for _ in 0..LISTS {
            let all = interfaces::interfaces(&self.netlink).await?;
            let pinned = self.pins.link_names().context("cannot read the pinned links")?;
            if !lacks_any(&all, &pinned, has_name) {
                return Ok(all);
            }
        }
        bail!("the network interfaces change faster than they can be listed")
    }

    /// Forgets the connected sockets of the node's processes, whose end nobody tells any more without the programs on
    /// the cgroup. A recount gives their counts back.
    pub fn forget_sockets(&mut self) -> Result<usize> {
        let map = self.ebpf.map_mut("sockets").context("the BPF object has no map `sockets`")?;
        let mut sockets =
            HashMap::<_, u64, Raw<SocketConnection>>::try_from(map).context("the map `sockets` has another layout")?;
        let cookies = sockets.keys().collect::<Result<Vec<_>, _>>().context("cannot read the map `sockets`")?;
        for cookie in &cookies {
            match sockets.remove(cookie) {
                Ok(()) | Err(MapError::KeyNotFound) => {}
                Err(error) => return Err(error).context("cannot clear the map `sockets`"),
            }
        }
        Ok(cookies.len())
    }

    /// XDP on the uplinks among all interfaces.
    async fn serve_uplinks(&mut self, all: &[Interface]) -> Result<()> {
        let routes = interfaces::default_routes(&self.netlink).await?;
        self.uplinks.serve(&mut self.ebpf, &self.pins, all, &routes)
    }

    async fn attach_to(&mut self, wanted: &[Interface]) -> Result<Report> {
        attach::follow_renames(&self.pins, wanted)?;
        let report = tc::sync(&mut self.ebpf, &self.pins, (self.mode, self.forwarding), &self.netlink, wanted).await?;
        direct::write(&mut self.ebpf, self.forwarding, wanted)?;
        Ok(report)
    }

    fn tell(&mut self, wanted: Vec<Interface>, report: Report) {
        if report.has_changes() {
            let names: Vec<&str> = wanted.iter().map(|interface| interface.name.as_str()).collect();
            info!(
                "interfaces: {} ({} hooks attached, {} replaced, {} released)",
                if names.is_empty() { "none".to_owned() } else { names.join(", ") },
                report.attached,
                report.replaced,
                report.removed
            );
        }
        for error in self.errors.news(report.errors.iter().map(|error| format!("{error:#}"))) {
            warn!("{error}");
        }
        self.attached = wanted;
    }
}

fn connect() -> Result<rtnetlink::Handle> {
    let (connection, netlink, _) = rtnetlink::new_connection().context("cannot open a netlink socket")?;
    tokio::spawn(connection);
    Ok(netlink)
}

/// True if an interface with this index is there.
fn has_name(index: u32) -> bool {
    // nix takes libc's NULL for a success and gives the empty name, which no interface has.
    nix::net::if_::if_indextoname(index).is_ok_and(|name| !name.is_empty())
}

/// True if an interface that has a pinned link is there and not in the list.
fn lacks_any(all: &[Interface], pinned: &[LinkName], is_there: impl Fn(u32) -> bool) -> bool {
    pinned.iter().any(|name| match name.interface() {
        Some((index, _)) => !all.iter().any(|one| one.index == index) && is_there(index),
        None => false,
    })
}

fn settings_array(map: &mut Map) -> Result<Array<&mut aya::maps::MapData, Raw<Settings>>> {
    Array::try_from(map).context("the map `settings` has another layout")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::attach::Direction;

    #[test]
    fn an_index_that_nothing_has_is_not_there() {
        assert!(has_name(1), "loopback");
        assert!(!has_name(i32::MAX as u32));
    }

    #[test]
    fn a_list_without_an_interface_that_is_there_is_not_believed() {
        let interface =
            |index: u32| Interface { index, name: format!("v{index}"), ethernet: true, ..Interface::default() };
        let pinned = [
            LinkName::Interface { index: 2, name: "v2".into(), direction: Direction::Ingress },
            LinkName::Interface { index: 3, name: "v3".into(), direction: Direction::Egress },
            LinkName::Cgroup { program: "bpvs_connect4".into() },
        ];
        let lacks = |listed: &[u32], there: &[u32]| {
            let all: Vec<Interface> = listed.iter().map(|index| interface(*index)).collect();
            lacks_any(&all, &pinned, |index| there.contains(&index))
        };
        assert!(!lacks(&[2, 3, 4], &[2, 3, 4]));
        assert!(lacks(&[2, 4], &[2, 3, 4]));
        // Gone, or moved to another namespace.
        assert!(!lacks(&[2], &[2, 4]));
    }
}
