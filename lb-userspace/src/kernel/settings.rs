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

/// Linux's own value of `net.ipv4.ip_local_port_range`.
const LOCAL_PORTS: [u16; 2] = [32_768, 60_999];
/// The lowest port that a masqueraded client can have.
const FIRST_PORT: u16 = 1_024;
/// Where the node's own sockets take so much that fewer ports than this are left, the highest ones are taken all the same.
const FEWEST_PORTS: u16 = 4_096;

/// The ports that no client is masqueraded with, since the node's own sockets take them: as
/// `net.ipv4.ip_local_port_range` says, or Linux's own value where that cannot be read.
pub fn local_ports() -> [u16; 2] {
    let text = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap_or_default();
    usable(parse_local_ports(&text).unwrap_or(LOCAL_PORTS))
}

/// Leaves some ports for masqueraded clients.
fn usable([first, last]: [u16; 2]) -> [u16; 2] {
    let first = first.max(FIRST_PORT);
    let left = (first - FIRST_PORT).saturating_add(u16::MAX - last);
    [first, if left < FEWEST_PORTS { (u16::MAX - FEWEST_PORTS).max(first) } else { last.max(first) }]
}

fn parse_local_ports(text: &str) -> Option<[u16; 2]> {
    let mut numbers = text.split_whitespace().map(str::parse);
    match (numbers.next()?, numbers.next()?) {
        (Ok(first), Ok(last)) if first <= last => Some([first, last]),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_range_of_local_ports_is_two_numbers() {
        assert_eq!(parse_local_ports("32768\t60999\n"), Some([32_768, 60_999]));
        assert_eq!(parse_local_ports("1024 65535"), Some([1_024, 65_535]));
        for wrong in ["", "1024", "a b", "65536 65537", "-1 5", "9 8"] {
            assert_eq!(parse_local_ports(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn some_ports_are_always_left() {
        assert_eq!(usable(LOCAL_PORTS), LOCAL_PORTS);
        assert_eq!(usable([1_024, 65_535]), [1_024, 61_439]);
        assert_eq!(usable([1, 65_535]), [1_024, 61_439]);
        assert_eq!(usable([1, 500]), [1_024, 1_024]);
        assert_eq!(usable([65_000, 65_535]), [65_000, 65_535]);
    }
}
