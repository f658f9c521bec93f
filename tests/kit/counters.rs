//! What a network namespace's stack has counted.

use std::fs;

use anyhow::{Context, Result};

use crate::namespace::Namespace;

/// Packets that it has forwarded, of both families.
///
/// # Errors
/// If the kernel does not tell.
pub fn forwarded(namespace: &Namespace) -> Result<u64> {
    namespace.enter(|| Ok(counter("snmp", of_snmp)? + counter("snmp6", of_snmp6)?))
}

/// A number of this thread's network namespace; `/proc/net` would be the process's.
fn counter(file: &str, find: impl Fn(&str) -> Option<u64>) -> Result<u64> {
    let path = format!("/proc/thread-self/net/{file}");
    let text = fs::read_to_string(&path).with_context(|| format!("reading {path}"))?;
    find(&text).with_context(|| format!("{path} has no count of forwarded packets:\n{text}"))
}

/// Of IPv4: a line of names, and one of values.
fn of_snmp(text: &str) -> Option<u64> {
    let mut lines = text.lines().filter(|line| line.starts_with("Ip:")).map(str::split_whitespace);
    let (names, values) = (lines.next()?, lines.next()?);
    names.zip(values).find(|(name, _)| *name == "ForwDatagrams")?.1.parse().ok()
}

/// Of IPv6: a name and a value in each line.
fn of_snmp6(text: &str) -> Option<u64> {
    let line = text.lines().find(|line| line.starts_with("Ip6OutForwDatagrams"))?;
    line.split_whitespace().nth(1)?.parse().ok()
}
