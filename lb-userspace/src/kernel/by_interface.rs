//! Maps that hold a number for some of the interfaces, by index.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use aya::Ebpf;
use aya::maps::{HashMap, MapError};

/// Makes a map of the object hold exactly this.
///
/// # Errors
/// If there is no such map, or it cannot be read or written.
pub fn write(ebpf: &mut Ebpf, name: &str, wanted: &BTreeMap<u32, u32>) -> Result<()> {
    let map = ebpf.map_mut(name).with_context(|| format!("the BPF object has no map `{name}`"))?;
    let mut map =
        HashMap::<_, u32, u32>::try_from(map).with_context(|| format!("the map `{name}` has another layout"))?;
    let present = map.iter().collect::<Result<BTreeMap<u32, u32>, _>>();
    let present = present.with_context(|| format!("cannot read the map `{name}`"))?;
    let unwritten = || format!("cannot write the map `{name}`");
    for (index, value) in wanted.iter().filter(|(index, value)| present.get(index) != Some(value)) {
        map.insert(index, value, 0).with_context(unwritten)?;
    }
    for index in present.keys().filter(|index| !wanted.contains_key(index)) {
        match map.remove(index) {
            Ok(()) | Err(MapError::KeyNotFound) => {}
            Err(error) => return Err(error).with_context(unwritten),
        }
    }
    Ok(())
}
