//! Maps -> rows. What is read here is what is in the kernel now; nothing here needs a running agent, or changes
//! anything.
//!
//! | module | rows of |
//! |---|---|
//! | [`services`] | `bpvs list` |
//! | [`connections`] | `bpvs connections` |
//! | [`maps`] | `bpvs maps` |
//! | [`traffic`] | traffic counters, and what they come to per second |
//! | [`tables`] | where they come from: the maps as a trait |
//! | [`pinned`] | that trait for pinned maps |
//! | [`order`] | in which order `ipvsadm` shows services |
//! | [`filter`] | which services are asked for |

pub mod connections;
pub mod filter;
pub mod maps;
pub mod order;
pub mod pinned;
pub mod services;
pub mod tables;
#[cfg(test)]
pub mod testing;
pub mod traffic;
