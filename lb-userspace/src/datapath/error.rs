//! What can go wrong, in words: what, where, and what to do.

use super::{
    StoreError,
    frontend::{Key, Virtual},
};

/// Why one service was not brought to what is desired. What was programmed for it stays; the next apply tries again.
#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    /// More destinations than a service may have.
    #[error(
        "{origin} ({service}): {count} destinations, at most {limit} are allowed \
         (setting max-destinations-per-service, which goes up to 16384)"
    )]
    TooManyDestinations {
        /// The object that asked.
        origin: String,
        /// The frontend.
        service: Virtual,
        /// Destinations asked for.
        count: usize,
        /// The limit.
        limit: u32,
    },
    /// More destinations than cells of mh's table.
    #[error(
        "{origin} ({service}): {count} destinations, but mh serves at most {cells}, the cells of its table: name fewer, or \
         another scheduler (sh has no such limit)"
    )]
    TooManyForTable {
        /// The object that asked.
        origin: String,
        /// The frontend.
        service: Virtual,
        /// Destinations asked for.
        count: usize,
        /// The limit.
        cells: usize,
    },
    /// Something that cannot be served as it was meant.
    #[error("{origin} ({service}): {problem}")]
    Refused {
        /// The object that asked.
        origin: String,
        /// The frontend.
        service: Virtual,
        /// What is wrong, and what is allowed.
        problem: String,
    },
    /// No run of slots is long enough.
    #[error(
        "{origin} ({service}): needs {needed} destination slots in a row; {free} of {total} are free, {longest} in a \
         row, and {resting} more within a second: raise setting max-slots"
    )]
    NoSlots {
        /// The object that asked.
        origin: String,
        /// The frontend.
        service: Virtual,
        /// Slots needed.
        needed: u32,
        /// Slots free.
        free: u32,
        /// The longest free run.
        longest: u32,
        /// Slots that become free soon.
        resting: u32,
        /// All slots.
        total: u32,
    },
    /// All destination ids are taken.
    #[error(
        "{origin} ({service}): needs {needed} new destinations; {free} of {total} are free and {draining} drain: \
         raise setting max-destinations"
    )]
    NoDestinations {
        /// The object that asked.
        origin: String,
        /// The frontend.
        service: Virtual,
        /// Destinations needed.
        needed: u32,
        /// Ids free.
        free: u32,
        /// Ids of removed destinations that connections may still refer to.
        draining: u32,
        /// All ids.
        total: u32,
    },
    /// All service ids are taken.
    #[error(
        "{origin} ({service}): all {total} services are taken ({removed} of them removed, with connections that still \
         drain): raise setting max-services"
    )]
    NoServices {
        /// The object that asked.
        origin: String,
        /// The frontend.
        service: Virtual,
        /// Removed services whose destinations drain.
        removed: u32,
        /// All ids.
        total: u32,
    },
    /// An IPv4 frontend and its v4-mapped IPv6 form are the same to packets.
    #[error("{origin} ({service}): this frontend is already taken by {other}; write the address in its IPv4 form once")]
    SameFrontend {
        /// The object that asked.
        origin: String,
        /// The frontend.
        service: Virtual,
        /// Who has it.
        other: String,
    },
    /// A map write failed.
    #[error("{origin} ({service}): failed to {write}; what is programmed stays, and the next apply tries again")]
    Store {
        /// The object that asked; for a removal the service itself.
        origin: String,
        /// The frontend.
        service: String,
        /// What was being written.
        write: String,
        /// Why it failed.
        source: Box<StoreError>,
    },
}

impl ApplyError {
    /// The families that it concerns: IPv4, IPv6. A write that failed may be any's.
    pub fn families(&self) -> [bool; 2] {
        match self {
            Self::TooManyDestinations { service, .. }
            | Self::TooManyForTable { service, .. }
            | Self::Refused { service, .. }
            | Self::NoSlots { service, .. }
            | Self::NoDestinations { service, .. }
            | Self::NoServices { service, .. }
            | Self::SameFrontend { service, .. } => [service.address.is_ipv4(), service.address.is_ipv6()],
            Self::Store { .. } => [true, true],
        }
    }
}

/// Why a writer could not start.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    /// The maps cannot be read.
    #[error("what is programmed cannot be read")]
    Read(#[from] StoreError),
    /// A limit that the maps cannot hold.
    #[error("setting {setting} is {wanted}, but map `{map}` holds {held}: lower it, or recreate the maps with it")]
    Limit {
        /// The setting.
        setting: &'static str,
        /// Its value.
        wanted: u32,
        /// The map.
        map: &'static str,
        /// What it can hold.
        held: u32,
    },
}

/// Something inconsistent that a restore met in the maps. Named for the log; the next apply heals it.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Finding {
    /// Entry of a protocol, mark or prefix that services do not have: it will be deleted.
    #[error("entry {key:?}: no service has this key: it will be deleted")]
    Key {
        /// The entry.
        key: Key,
    },
    /// Kinds of services that packets do not look for.
    #[error("map `lookups` lacks bits {missing:#b}: services of these kinds are not found until it is rewritten")]
    Lookups {
        /// The bits.
        missing: u32,
    },
    /// Id 0, beyond the map, or taken: the entry is replaced or deleted.
    #[error("service {service}: its id {id} is {problem}: it will get another")]
    ServiceId {
        /// The service.
        service: Virtual,
        /// The id.
        id: u32,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// Number of no scheduler.
    #[error("service {service}: scheduler number {number} is unknown: it will be rewritten")]
    Scheduler {
        /// The service.
        service: Virtual,
        /// The number.
        number: u8,
    },
    /// Slots beyond the map, or in use by another service.
    #[error("service {service}: slots {base} to {end} are {problem}: it will be rewritten")]
    Slots {
        /// The service.
        service: Virtual,
        /// First slot.
        base: u32,
        /// After the last slot.
        end: u64,
        /// What is wrong with them.
        problem: &'static str,
    },
    /// A slot that names no destination of its service.
    #[error("service {service}: position {position} names destination {id}, which {problem}: it will be rewritten")]
    Slot {
        /// The service.
        service: Virtual,
        /// Position in the set.
        position: u32,
        /// The id in the slot.
        id: u32,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// A table that does not belong to the set.
    #[error("service {service}: its hash table does not follow from its destinations: it will be rewritten")]
    Table {
        /// The service.
        service: Virtual,
    },
    /// A scheduler word from the future.
    #[error("service {service}: scheduler word of version {word}, but the service is at {version}: it will be reset")]
    Word {
        /// The service.
        service: Virtual,
        /// Version in the word.
        word: u16,
        /// Version in the service.
        version: u16,
    },
    /// A destination of a service id that cannot exist.
    #[error("destination {id} belongs to service id {service}, which cannot exist: it will be freed when idle")]
    Destination {
        /// The destination.
        id: u32,
        /// The service id in it.
        service: u32,
    },
    /// Two destinations with one address.
    #[error("destination {id} has the address of destination {other} of the same service: it will be freed when idle")]
    Twin {
        /// The one that goes.
        id: u32,
        /// The one that stays.
        other: u32,
    },
}
