//! `locality` and `locality_sets`: the memory of lblc and lblcr.

use bytemuck::{Pod, Zeroable};

use crate::address::Address;

/// Key of `locality` (lblc, lblcr): a virtual service and the packet's destination address.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Pod, Zeroable)]
#[repr(C)]
pub struct LocalityKey {
    /// The packet's destination address.
    pub address: Address,
    /// Service id.
    pub service: u32,
    /// 0 for the entry itself; lblcr: 1 + number of the chunk of its set in `locality_sets`.
    pub chunk: u32,
}

/// Value of `locality`. lblc uses `server` alone; lblcr has a set of `count` servers in `locality_sets`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Pod, Zeroable)]
#[repr(C)]
pub struct Locality {
    /// Last use, nanoseconds of the monotonic clock.
    pub last_used: u64,
    /// lblcr: last change of the set, same clock.
    pub last_modified: u64,
    /// lblc: the server.
    pub server: ServerReference,
    /// lblcr: places in use at the end of the set, holes included.
    pub length: u32,
    /// lblcr: servers in the set.
    pub count: u32,
}

/// Servers in one value of `locality_sets`.
pub const LOCALITY_CHUNK: usize = 16;

/// Value of `locality_sets`: sixteen servers of an lblcr set, oldest first; a reference of id 0 is a hole.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Pod, Zeroable)]
#[repr(C)]
pub struct LocalityChunk {
    /// The servers.
    pub servers: [ServerReference; LOCALITY_CHUNK],
}

/// A destination as a cache remembers it: id and the epoch it was valid in.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Pod, Zeroable)]
#[repr(C)]
pub struct ServerReference {
    /// Destination id; 0 for none.
    pub destination: u32,
    /// [`Destination::epoch`](super::Destination::epoch) when it was stored.
    pub epoch: u32,
}
