//! How large the maps are made: settings that hold from load to load, checked before anything is created.

use anyhow::{Result, bail};
use lb_common::layout::MAX_DESTINATIONS_PER_SERVICE;

/// Load-time limits of `bpvs run`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sizes {
    /// Virtual services (one per address, port and protocol).
    pub services: u32,
    /// Real servers of all services together; a server of two services counts twice.
    pub destinations: u32,
    /// Places in destination sets and scheduler tables.
    pub slots: u32,
    /// Connections at one time.
    pub connections: u32,
    /// Real servers of one service.
    pub destinations_per_service: u32,
}

impl Default for Sizes {
    fn default() -> Self {
        Self {
            services: 65_536,
            destinations: 262_144,
            slots: 1_048_576,
            connections: 131_072,
            destinations_per_service: MAX_DESTINATIONS_PER_SERVICE,
        }
    }
}

/// Highest value of each of the first four settings: beyond it the kernel could not allocate the maps anyway.
pub const HIGHEST: u32 = 1 << 26;

impl Sizes {
    /// Checks the settings against what is allowed.
    ///
    /// # Errors
    ///
    /// Names the setting, its value and what is allowed.
    pub fn validate(&self) -> Result<()> {
        for (option, value) in [
            ("--max-services", self.services),
            ("--max-destinations", self.destinations),
            ("--max-slots", self.slots),
            ("--max-connections", self.connections),
        ] {
            if value == 0 || value > HIGHEST {
                bail!("{option} {value} is out of range: allowed are 1 to {HIGHEST}");
            }
        }
        let limit = self.destinations_per_service;
        if limit == 0 || limit > MAX_DESTINATIONS_PER_SERVICE {
            bail!(
                "--max-destinations-per-service {limit} is out of range: allowed are 1 to \
                 {MAX_DESTINATIONS_PER_SERVICE} (positions in a set are held in 16 bits)"
            );
        }
        if self.slots < limit.saturating_mul(2) {
            bail!(
                "--max-slots {} is too small: one service of --max-destinations-per-service {limit} needs {} while it \
                 changes, the old set and the new",
                self.slots,
                limit * 2
            );
        }
        Ok(())
    }

    /// Entries that a map must have, or `None` for maps whose size is not a setting.
    pub fn entries(&self, map: &str) -> Option<u32> {
        Some(match map {
            "services" => self.services,
            // A trie takes memory only for what is in it, so that it needs no setting of its own. One more than there can
            // be: before Linux 6.13 a full one refuses even to replace an entry.
            "service_prefixes" => self.services + 1,
            // Likewise: a cluster address of each service, and networks of clients, pods and node ports.
            "networks" => self.services + 16_384,
            // Ids count from 1, so that 0 can mean "none".
            "scheduler_state" | "service_retired" | "affinity_timeouts" => self.services + 1,
            "destination_slots" => self.slots,
            "destinations" | "destination_load" | "destination_traffic" | "sweep_recount" => self.destinations + 1,
            // A request and a reply entry each.
            "connections" => self.connections * 2,
            _ => return None,
        })
    }

    /// The option that a map's size comes from.
    pub fn option(map: &str) -> Option<&'static str> {
        Some(match map {
            "services" | "service_prefixes" | "networks" | "scheduler_state" | "service_retired"
            | "affinity_timeouts" => "--max-services",
            "destination_slots" => "--max-slots",
            "destinations" | "destination_load" | "destination_traffic" | "sweep_recount" => "--max-destinations",
            "connections" => "--max-connections",
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_valid() {
        Sizes::default().validate().unwrap();
    }

    #[test]
    fn errors_name_the_option_its_value_and_what_is_allowed() {
        let cases = [
            (Sizes { services: 0, ..Sizes::default() }, "--max-services 0"),
            (Sizes { destinations: HIGHEST + 1, ..Sizes::default() }, "--max-destinations 67108865"),
            (Sizes { connections: 0, ..Sizes::default() }, "--max-connections 0"),
            (Sizes { destinations_per_service: 16_385, ..Sizes::default() }, "--max-destinations-per-service 16385"),
            (Sizes { slots: 100, ..Sizes::default() }, "--max-slots 100"),
        ];
        for (sizes, expected) in cases {
            let text = sizes.validate().unwrap_err().to_string();
            assert!(text.starts_with(expected), "{text}");
        }
    }

    #[test]
    fn every_map_with_a_size_names_its_option() {
        for map in [
            "services",
            "service_prefixes",
            "networks",
            "scheduler_state",
            "destination_slots",
            "destinations",
            "connections",
            "settings",
        ] {
            assert_eq!(Sizes::default().entries(map).is_some(), Sizes::option(map).is_some(), "{map}");
        }
    }
}
