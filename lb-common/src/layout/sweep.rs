//! `sweep_recount` and `sweep_result`.

use bytemuck::{Pod, Zeroable};

/// Value of `sweep_recount`, by destination id: what the sweep counts while it runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Pod, Zeroable)]
#[repr(C)]
pub struct Recount {
    /// As [`DestinationLoad::connections`](super::DestinationLoad::connections), counted anew.
    pub connections: u64,
    /// [`DestinationLoad::changes`](super::DestinationLoad::changes) when the count began.
    pub changes: u32,
    /// Always 0.
    pub pad: u32,
}

/// Value of `sweep_result`, one entry: what the last sweep found, and what all sweeps did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Pod, Zeroable)]
#[repr(C)]
pub struct SweepResult {
    /// Entries of `connections` seen by the last sweep.
    pub entries: u64,
    /// Connections removed by all sweeps.
    pub expired: u64,
    /// Reply entries without their request entry, removed by all sweeps. Stays 0 unless the kernel lost a delete.
    pub orphans: u64,
    /// Destinations whose counts a recount had to correct, in all sweeps. Stays 0 unless a change was lost.
    pub corrections: u64,
    /// Recounts that were finished, by all sweeps.
    pub recounts: u64,
    /// Connected UDP sockets that the last sweep found to have lost their server since the one before.
    pub lost_sockets: u64,
    /// 1: the next sweep also recounts. Set by the agent, cleared by the sweep.
    pub recount_asked: u64,
}
