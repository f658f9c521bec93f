//! The one value of map `settings`: the agent writes what it knows of the node, `bpvs set-timeouts` the timeouts.

use std::borrow::BorrowMut;

use anyhow::{Context, Result};
use aya::maps::{Array, MapData};
use lb_common::layout::Settings;

use super::lock;
use super::pins::Pins;
use super::raw::Raw;

/// Replaces the settings by what `edit` makes of them, and returns those. Nobody else changes them meanwhile: the kernel
/// knows no write of a part of a value.
pub fn edit<T: BorrowMut<MapData>>(
    pins: &Pins,
    map: &mut Array<T, Raw<Settings>>,
    edit: impl FnOnce(Settings) -> Settings,
) -> Result<Settings> {
    let _lock = lock::wait(&pins.links())?;
    let old = map.get(&0, 0).context("cannot read the map `settings`")?.0;
    let new = edit(old);
    if new != old {
        map.set(0, Raw(new), 0).context("cannot write the map `settings`")?;
    }
    Ok(new)
}
