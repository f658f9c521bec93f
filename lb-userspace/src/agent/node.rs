//! The node itself: its interfaces get the programs, its addresses stand in the settings.

use anyhow::{Context, Result};
use aya::Ebpf;
use aya::maps::{Array, Map};
use lb_common::address::Address;
use lb_common::layout::{Settings, VERSION};
use tracing::{info, warn};

use super::Config;
use super::once::Once;
use crate::kernel::attach::tc::{self, Mode, Report};
use crate::kernel::interfaces::{self, Interface, Selection};
use crate::kernel::namespace;
use crate::kernel::object::Loaded;
use crate::kernel::pins::Pins;
use crate::kernel::raw::Raw;

/// The programs on this node, and what they are told about it.
#[derive(Debug)]
pub struct Node {
    /// The loaded object.
    pub ebpf: Ebpf,
    netlink: rtnetlink::Handle,
    pins: Pins,
    mode: Mode,
    selection: Selection,
    settings: Settings,
    written: Option<Settings>,
    attached: Vec<Interface>,
    errors: Once,
}

impl Node {
    /// Takes a loaded object over. Nothing is attached yet.
    pub fn new(config: &Config, loaded: Loaded, mode: Mode) -> Result<Self> {
        let (connection, netlink, _) = rtnetlink::new_connection().context("cannot open a netlink socket")?;
        tokio::spawn(connection);
        let settings = Settings {
            version: VERSION,
            max_destinations: loaded.entries.get("destinations").copied().unwrap_or(0),
            // Without it no socket is one of this node's, which is what `--socket-lb off` means.
            namespace_cookie: if config.sockets {
                namespace::network_namespace_cookie().context("cannot read the network namespace cookie")?
            } else {
                0
            },
            timeouts: config.timeouts,
            ..Settings::default()
        };
        Ok(Self {
            ebpf: loaded.ebpf,
            netlink,
            pins: config.pins.clone(),
            mode,
            selection: config.selection.clone(),
            settings,
            written: None,
            attached: Vec::new(),
            errors: Once::default(),
        })
    }

    /// Number of interfaces that have the programs.
    pub fn interfaces(&self) -> usize {
        self.attached.len()
    }

    /// Looks for the node's addresses, and writes the settings if they differ from what is written.
    pub async fn refresh_settings(&mut self) -> Result<()> {
        let addresses = interfaces::addresses(&self.netlink).await?;
        let routes = interfaces::default_routes(&self.netlink).await?;
        let own = |v6| interfaces::node_address(&addresses, &routes, v6);
        self.settings.node_v4 = own(false).map_or(Address::UNSPECIFIED, Address::from);
        self.settings.node_v6 = own(true).map_or(Address::UNSPECIFIED, Address::from);
        if self.written == Some(self.settings) {
            return Ok(());
        }
        let map = self.ebpf.map_mut("settings").context("the BPF object has no map `settings`")?;
        settings_array(map)?.set(0, Raw(self.settings), 0).context("cannot write the map `settings`")?;
        self.written = Some(self.settings);
        let name = |address: Option<std::net::IpAddr>| address.map_or_else(|| "none".to_owned(), |a| a.to_string());
        info!("node addresses: IPv4 {}, IPv6 {}", name(own(false)), name(own(true)));
        Ok(())
    }

    /// Attaches to the interfaces of now, and takes back what an earlier agent left elsewhere.
    pub async fn attach_first(&mut self) -> Result<()> {
        let all = interfaces::interfaces(&self.netlink).await?;
        let wanted = self.selection.select(&all);
        let mut report = self.attach_to(&wanted).await?;
        tc::release_filters(self.mode, &all, &wanted, &mut report);
        self.tell(wanted, report);
        if self.attached.is_empty() {
            warn!("no interface to attach to: only local sockets are balanced until one comes");
        }
        Ok(())
    }

    /// Attaches to interfaces that came, releases those that went.
    pub async fn refresh_interfaces(&mut self) -> Result<()> {
        let all = interfaces::interfaces(&self.netlink).await?;
        let wanted = self.selection.select(&all);
        let report = self.attach_to(&wanted).await?;
        self.tell(wanted, report);
        Ok(())
    }

    async fn attach_to(&mut self, wanted: &[Interface]) -> Result<Report> {
        tc::sync(&mut self.ebpf, &self.pins, self.mode, &self.netlink, wanted).await
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

fn settings_array(map: &mut Map) -> Result<Array<&mut aya::maps::MapData, Raw<Settings>>> {
    Array::try_from(map).context("the map `settings` has another layout")
}
