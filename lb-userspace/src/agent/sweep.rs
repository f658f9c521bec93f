//! Runs the sweep and reads what it found.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use aya::Ebpf;
use aya::maps::Array;
use lb_common::layout::SweepResult;
use tracing::{debug, warn};

use crate::kernel::raw::Raw;
use crate::kernel::sweep;

/// When to recount, and what sweeps have told.
#[derive(Debug)]
pub struct Sweeper {
    recount_interval: Duration,
    recounted: Option<Instant>,
    last: Option<SweepResult>,
}

impl Sweeper {
    /// A sweeper that asks for a recount this often.
    pub fn new(recount_interval: Duration) -> Self {
        Self { recount_interval, recounted: None, last: None }
    }

    /// What the last sweep found, and what all sweeps since the maps were made did.
    pub fn last(&self) -> Option<&SweepResult> {
        self.last.as_ref()
    }

    /// Sweeps once. Returns how many connected UDP sockets have lost their server since the last sweep.
    pub fn run(&mut self, ebpf: &mut Ebpf, now: Instant) -> Result<u64> {
        let due = self.recounted.is_none_or(|last| now.duration_since(last) >= self.recount_interval);
        if due {
            // Nothing else writes the value between sweeps.
            let asked = SweepResult { recount_asked: 1, ..read(ebpf)? };
            write(ebpf, asked)?;
        }
        let returned = sweep::run(ebpf)?;
        anyhow::ensure!(returned == 0, "the sweep failed with {returned}");
        let result = read(ebpf)?;
        if due {
            self.recounted = Some(now);
        }
        self.tell(&result);
        self.last = Some(result);
        Ok(result.lost_sockets)
    }

    fn tell(&self, result: &SweepResult) {
        let Some(last) = &self.last else { return };
        let corrected = result.corrections.saturating_sub(last.corrections);
        let orphans = result.orphans.saturating_sub(last.orphans);
        if corrected > 0 {
            warn!("the recount corrected the connection counts of {corrected} destinations");
        }
        if orphans > 0 {
            warn!("the sweep removed {orphans} reply entries without a connection");
        }
        let expired = result.expired.saturating_sub(last.expired);
        if expired > 0 {
            debug!("{expired} connections expired, {} entries are left", result.entries);
        }
    }
}

fn read(ebpf: &Ebpf) -> Result<SweepResult> {
    let map = ebpf.map("sweep_result").context("the BPF object has no map `sweep_result`")?;
    Ok(Array::<_, Raw<SweepResult>>::try_from(map)?.get(&0, 0).context("cannot read the map `sweep_result`")?.0)
}

fn write(ebpf: &mut Ebpf, value: SweepResult) -> Result<()> {
    let map = ebpf.map_mut("sweep_result").context("the BPF object has no map `sweep_result`")?;
    let mut array = Array::<_, Raw<SweepResult>>::try_from(map)?;
    array.set(0, Raw(value), 0).context("cannot write the map `sweep_result`")
}
