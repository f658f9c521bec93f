//! The order in which `ipvsadm` lists (`ipvs_cmp_services`, `ipvs_cmp_dests` of its libipvs).
//!
//! It subtracts 32-bit numbers and looks at the sign of what is left, so that of two addresses which are half of all
//! addresses or more apart, the higher comes first: 192.168.0.1 before 10.0.0.1. Whoever compares listings finds the same
//! here. With three such addresses in one list there is no such order at all; then what comes out depends on how it is
//! sorted, and we sort as the C library did for ipvsadm.

use std::net::IpAddr;

use super::services::ServiceRow;
use crate::model::Scope;

/// Sorts services and the destinations of each.
pub fn sort(rows: &mut Vec<ServiceRow>) {
    // In a map they stand in no order: at least the same one each time.
    rows.sort_by_key(|row| (row.address.is_ipv6(), row.protocol, row.address, row.port, row.scope));
    merge_sort(rows, &|a, b| services(a, b));
    for row in rows {
        let servers = |address: &IpAddr, port: u16| words(*address).into_iter().chain([port.into()]);
        merge_sort(&mut row.destinations, &|a, b| compare(servers(&a.address, a.port), servers(&b.address, b.port)));
    }
}

fn services(a: &ServiceRow, b: &ServiceRow) -> i32 {
    let key = |row: &ServiceRow| {
        let mark = if let Scope::Mark(mark) = row.scope { mark } else { 0 };
        let protocol = row.frontend().map_or(u32::MAX, |frontend| frontend.protocol as u32);
        let prefix = if let Scope::Prefix(length) = row.scope { length.into() } else { 128 };
        let family = u32::from(row.address.is_ipv6());
        [mark, family, protocol].into_iter().chain(words(row.address)).chain([row.port.into(), prefix])
    };
    compare(key(a), key(b))
}

/// The first difference that is not 0.
fn compare(a: impl Iterator<Item = u32>, b: impl Iterator<Item = u32>) -> i32 {
    a.zip(b).map(|(a, b)| a.wrapping_sub(b) as i32).find(|difference| *difference != 0).unwrap_or(0)
}

/// An address in numbers of 32 bits. Of IPv4 the first one, as it stands in the union of both that ipvsadm compares: servers
/// in tunnels may be of either family.
fn words(address: IpAddr) -> [u32; 4] {
    match address {
        IpAddr::V4(v4) => [v4.to_bits(), 0, 0, 0],
        IpAddr::V6(v6) => [96, 64, 32, 0].map(|shift| (v6.to_bits() >> shift) as u32),
    }
}

/// Halves are sorted, then merged, the first one first where they are equal. `sort_by` wants an order that is one.
fn merge_sort<T>(items: &mut Vec<T>, compare: &impl Fn(&T, &T) -> i32) {
    if items.len() < 2 {
        return;
    }
    let mut second = items.split_off(items.len() / 2);
    let mut first = std::mem::take(items);
    merge_sort(&mut first, compare);
    merge_sort(&mut second, compare);
    let (mut first, mut second) = (first.into_iter().peekable(), second.into_iter().peekable());
    while let (Some(a), Some(b)) = (first.peek(), second.peek()) {
        let next = if compare(a, b) <= 0 { first.next() } else { second.next() };
        items.extend(next);
    }
    items.extend(first.chain(second));
}

#[cfg(test)]
mod tests {
    use lb_common::address::Protocol;
    use lb_common::scheduler::Scheduler;
    use proptest::prelude::*;

    use super::*;
    use crate::model::Frontend;
    use crate::view::services;
    use crate::view::testing::Memory;

    fn frontend(address: &str, protocol: Protocol, scope: Scope) -> Frontend {
        let port = if matches!(scope, Scope::Mark(_)) { 0 } else { 80 };
        Frontend { scope, ..Frontend::new(address.parse().unwrap(), port, protocol) }
    }

    #[test]
    fn marks_come_last_then_family_protocol_address_and_port_decide() {
        let mut memory = Memory::default();
        for (address, protocol, scope) in [
            ("::", Protocol::Tcp, Scope::Mark(1)),
            ("0.0.0.0", Protocol::Tcp, Scope::Mark(2)),
            ("0.0.0.0", Protocol::Tcp, Scope::Mark(1)),
            ("fd00::1", Protocol::Tcp, Scope::Address),
            ("10.0.0.1", Protocol::Sctp, Scope::Address),
            ("10.0.0.1", Protocol::Udp, Scope::Address),
            ("10.0.0.0", Protocol::Tcp, Scope::Prefix(8)),
            ("10.0.0.0", Protocol::Tcp, Scope::Prefix(16)),
            ("10.0.0.1", Protocol::Tcp, Scope::Address),
            ("192.168.0.1", Protocol::Tcp, Scope::Address),
        ] {
            let servers = [("10.1.0.2", 1), ("192.168.0.1", 1), ("10.1.0.1", 1)];
            memory.add(&frontend(address, protocol, scope), Scheduler::RoundRobin, &servers);
        }
        let rows = services::services(&memory, None).unwrap();
        let names: Vec<String> = rows.iter().map(|row| row.frontend().unwrap().to_string()).collect();
        let expected = [
            "TCP 192.168.0.1:80",
            "TCP 10.0.0.0/8:80",
            "TCP 10.0.0.0/16:80",
            "TCP 10.0.0.1:80",
            "UDP 10.0.0.1:80",
            "SCTP 10.0.0.1:80",
            "TCP [fd00::1]:80",
            "FWM 1",
            "FWM 1 IPv6",
            "FWM 2",
        ];
        assert_eq!(names, expected);
        let servers: Vec<String> = rows[0].destinations.iter().map(|row| row.address.to_string()).collect();
        assert_eq!(servers, ["192.168.0.1", "10.1.0.1", "10.1.0.2"]);
    }

    proptest! {
        #[test]
        fn what_has_an_order_is_in_it(mut numbers in prop::collection::vec(0_u32..50, 0..100)) {
            let mut expected = numbers.clone();
            expected.sort_unstable();
            merge_sort(&mut numbers, &|a, b| compare([*a].into_iter(), [*b].into_iter()));
            prop_assert_eq!(numbers, expected);
        }

        #[test]
        fn what_has_none_is_all_there(mut numbers in prop::collection::vec(any::<u32>(), 0..100)) {
            let mut expected = numbers.clone();
            merge_sort(&mut numbers, &|a, b| compare([*a].into_iter(), [*b].into_iter()));
            expected.sort_unstable();
            numbers.sort_unstable();
            prop_assert_eq!(numbers, expected);
        }
    }
}
