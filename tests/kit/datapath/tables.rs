//! The maps that the writer does not own, as values.

use anyhow::{Context, Result};
use aya::{
    Ebpf,
    maps::{Array, HashMap, Map, MapData, PerCpuArray},
};
use bytemuck::Pod;

/// Gives a type of `lb-common` to aya. Both crates mean the same by `Pod`, but each has a trait of its own.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(super) struct Plain<T>(pub(super) T);

// SAFETY: bytemuck's `Pod` says that every bit pattern is a value and that there is no padding, which is what aya asks
// for; the wrapper is transparent.
unsafe impl<T: Pod> aya::Pod for Plain<T> {}

fn map<'a>(object: &'a Ebpf, name: &str) -> Result<&'a Map> {
    object.map(name).with_context(|| format!("the BPF object has no map `{name}`"))
}

fn map_mut<'a>(object: &'a mut Ebpf, name: &str) -> Result<&'a mut Map> {
    object.map_mut(name).with_context(|| format!("the BPF object has no map `{name}`"))
}

/// All entries of a hash map, in no order.
pub(super) fn entries<K: Pod, V: Pod>(object: &Ebpf, name: &str) -> Result<Vec<(K, V)>> {
    let map: HashMap<&MapData, Plain<K>, Plain<V>> =
        map(object, name)?.try_into().with_context(|| format!("map `{name}`"))?;
    map.iter()
        .map(|entry| entry.map(|(key, value)| (key.0, value.0)))
        .collect::<Result<_, _>>()
        .with_context(|| format!("reading map `{name}`"))
}

/// Writes an entry of a hash map.
pub(super) fn insert<K: Pod, V: Pod>(object: &mut Ebpf, name: &str, key: K, value: V) -> Result<()> {
    let mut map: HashMap<&mut MapData, Plain<K>, Plain<V>> =
        map_mut(object, name)?.try_into().with_context(|| format!("map `{name}`"))?;
    map.insert(Plain(key), Plain(value), 0).with_context(|| format!("writing map `{name}`"))
}

/// Deletes an entry of a hash map.
pub(super) fn remove<K: Pod, V: Pod>(object: &mut Ebpf, name: &str, key: K) -> Result<()> {
    let mut map: HashMap<&mut MapData, Plain<K>, Plain<V>> =
        map_mut(object, name)?.try_into().with_context(|| format!("map `{name}`"))?;
    map.remove(&Plain(key)).with_context(|| format!("deleting from map `{name}`"))
}

/// Reads a value of an array.
pub(super) fn get<V: Pod>(object: &Ebpf, name: &str, index: u32) -> Result<V> {
    let map: Array<&MapData, Plain<V>> = map(object, name)?.try_into().with_context(|| format!("map `{name}`"))?;
    Ok(map.get(&index, 0).with_context(|| format!("reading entry {index} of map `{name}`"))?.0)
}

/// Writes a value of an array.
pub(super) fn set<V: Pod>(object: &mut Ebpf, name: &str, index: u32, value: V) -> Result<()> {
    let mut map: Array<&mut MapData, Plain<V>> =
        map_mut(object, name)?.try_into().with_context(|| format!("map `{name}`"))?;
    map.set(index, Plain(value), 0).with_context(|| format!("writing entry {index} of map `{name}`"))
}

/// Reads a value of a per-CPU array: one for each CPU.
pub(super) fn get_per_cpu<V: Pod>(object: &Ebpf, name: &str, index: u32) -> Result<Vec<V>> {
    let map: PerCpuArray<&MapData, Plain<V>> =
        map(object, name)?.try_into().with_context(|| format!("map `{name}`"))?;
    let values = map.get(&index, 0).with_context(|| format!("reading entry {index} of map `{name}`"))?;
    Ok(values.iter().map(|value| value.0).collect())
}

/// Pins every named map of the object into a folder of a BPF file system; their names, sorted.
pub(super) fn pin_all(object: &Ebpf, folder: &std::path::Path) -> Result<Vec<String>> {
    let mut names = Vec::new();
    // The compiler's constants are a map too, with a name that no pin can have.
    for (name, map) in object.maps().filter(|(name, _)| !name.starts_with('.')) {
        let data = match map {
            Map::Array(data)
            | Map::HashMap(data)
            | Map::LpmTrie(data)
            | Map::LruHashMap(data)
            | Map::PerCpuArray(data) => data,
            _ => anyhow::bail!("map `{name}` is of a type that this kit does not know: add it"),
        };
        let path = folder.join(name);
        data.pin(&path).with_context(|| format!("pinning map `{name}` as {}", path.display()))?;
        names.push(name.to_owned());
    }
    names.sort();
    Ok(names)
}
