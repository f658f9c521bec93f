//! From a [`Plan`] to the BPF maps, and back after a restart.
//!
//! | module | idea |
//! |---|---|
//! | [`writer`] | [`Writer`]: what is programmed, and how it becomes what is desired |
//! | `restore` | reads what is programmed, heals what cannot be |
//! | [`compare`] | whether the maps still hold what was written |
//! | `named` | what services were called that were removed before it |
//! | `update`, `version` | one service: what to write, in which order |
//! | [`collect`] | removed destinations, until nothing refers to them |
//! | [`frontend`], [`entry`] | what packets match, and what the maps say of a service beside its destinations |
//! | `live` | how many services there are, of which kinds |
//! | [`networks`] | networks of clients and of node ports |
//! | `diff` | one service's edits, in IPVS's order |
//! | `word` | how those edits move rr's and wrr's place in the list |
//! | `write` | one map write as a value |
//! | [`state`] | what the writer remembers per service |
//! | [`allocate`] | ids and runs of slots |
//! | [`store`] | the maps as a trait: kernel, memory, faulty |
//! | [`dump`](mod@dump) | the maps as sorted text |
//! | [`error`] | what can go wrong, in words |
//!
//! Knows nothing about Kubernetes. Only [`store::kernel`] knows about aya.

pub mod allocate;
pub mod collect;
pub mod compare;
mod diff;
pub mod dump;
pub mod entry;
pub mod error;
pub mod frontend;
mod live;
mod named;
pub mod networks;
mod restore;
pub mod state;
pub mod store;
#[cfg(test)]
pub(crate) mod tests;
mod update;
mod version;
mod word;
mod write;
pub mod writer;

pub use crate::plan::{
    Access, AffinityGroup, DesiredDestination, DesiredService, Frontend, Masquerade, Method, Persistence, Plan, Scope,
    Thresholds,
};
pub use error::{ApplyError, Finding, RestoreError};
pub use frontend::{Key, PrefixKey, Virtual};
pub use networks::Network;
pub use store::{Capacity, MapStore, StoreError};
pub use writer::{Limits, Summary, Writer};
