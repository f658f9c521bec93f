//! Services by mark and of networks, as rows.

use super::*;
use crate::view::testing::Memory;

#[test]
fn marks_and_networks_are_rows_of_their_own() {
    let mut memory = Memory::default();
    let frontend =
        |address: &str, port, scope| Frontend { scope, ..Frontend::new(address.parse().unwrap(), port, Protocol::Udp) };
    let all = [
        frontend("::", 0, Scope::Mark(9)),
        frontend("10.0.0.0", 80, Scope::Prefix(8)),
        frontend("10.0.0.0", 80, Scope::Prefix(16)),
        frontend("10.0.0.0", 80, Scope::Address),
        frontend("0.0.0.0", 0, Scope::Mark(10)),
        frontend("0.0.0.0", 0, Scope::Mark(9)),
    ];
    for (connections, frontend) in (1..).zip(&all) {
        let ids = memory.add(frontend, Scheduler::RoundRobin, &[("10.1.0.1", 1)]);
        memory.traffic.insert(ids[0], Traffic { connections, ..Traffic::default() });
    }
    let rows = with_totals(&memory, None).unwrap();
    let shown: Vec<_> = rows.iter().map(|row| (row.protocol, row.scope, row.traffic.connections)).collect();
    assert_eq!(
        shown,
        [
            ("FWM", Scope::Mark(9), 6),
            ("FWM", Scope::Mark(10), 5),
            ("UDP", Scope::Address, 4),
            ("UDP", Scope::Prefix(8), 2),
            ("UDP", Scope::Prefix(16), 3),
            ("FWM", Scope::Mark(9), 1),
        ]
    );
    assert_eq!(rows[0].frontend(), Some(Frontend { protocol: Protocol::Tcp, ..all[5] }));
    assert_eq!(rows[3].frontend(), Some(all[1]));
    // Each is compared with itself.
    assert!(rates(&rows, rows.clone(), 1.0).iter().all(|row| row.traffic == Counters::default()));
    // A network that is gone while it is read: the trie answers with a wider one, which is not it.
    let (key, mut gone) = memory.prefixes[1];
    gone.id = 77;
    assert_eq!(row(&memory, &Key::Prefix(key), &Virtual::from(&all[2]), gone, None).unwrap(), None);
}
