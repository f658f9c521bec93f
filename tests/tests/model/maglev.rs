//! mh: the vectors of the specification (4.4), and what happens to the table when servers come, go and drain.

use std::net::IpAddr;

use bpvs_tests::model::{CLIENT_KEY, Director, Flags, SKIP_KEY, fold, sip_hash};

use crate::{address, director, packet};

fn shares(director: &Director) -> [usize; 3] {
    let table = director.table();
    [1, 2, 3].map(|server| table.iter().filter(|&&cell| cell == server).count())
}

#[test]
fn hashes_are_the_specifications() {
    for (number, key, hash) in [
        (0, CLIENT_KEY, 492_468_162),
        (1, CLIENT_KEY, 384_591_538),
        (u32::MAX, CLIENT_KEY, 583_391_001),
        (0, SKIP_KEY, 4_169_286_463),
    ] {
        assert_eq!(sip_hash(number, key), hash, "{number}");
    }
    for (server, port, offset, skip) in
        [("10.0.0.1", 80, 3167, 700), ("192.168.60.1", 8080, 3725, 77), ("fd00:60::1", 80, 3949, 358)]
    {
        let number = fold(server.parse().unwrap()) + port;
        assert_eq!((sip_hash(number, CLIENT_KEY) % 4093, sip_hash(number, SKIP_KEY) % 4092 + 1), (offset, skip));
        // The first of the list claims its first cell first.
        let mut mh = director("mh", &[1, 1]);
        mh.add(7, server.parse().unwrap(), port as u16, 1).unwrap();
        assert_eq!(mh.table()[offset as usize], 7, "{server}");
    }
}

#[test]
fn tables_are_the_specifications() {
    for (weights, begin, expected) in [
        ([1, 1, 1], "122333111111112233333331111233", [1364, 1364, 1365]),
        ([1, 2, 3], "122333333331112233333333331233", [682, 1364, 2047]),
    ] {
        let mh = director("mh", &weights);
        let cells: String = mh.table()[..30].iter().map(u32::to_string).collect();
        assert_eq!((cells.as_str(), mh.table().len(), shares(&mh)), (begin, 4093, expected), "{weights:?}");
    }
}

#[test]
fn clients_have_the_specifications_cells() {
    for (client, plain, with_port) in [
        ("10.0.0.1", 3711, 2940),
        ("10.1.2.3", 1263, 2589),
        ("192.168.1.77", 3943, 2189),
        ("203.0.113.9", 1189, 1917),
        ("fd00:1:2::3", 1711, 1410),
        ("2001:db8::1", 3457, 3517),
    ] {
        let folded = fold(client.parse::<IpAddr>().unwrap());
        assert_eq!(sip_hash(folded, CLIENT_KEY) % 4093, plain, "{client}");
        assert_eq!(sip_hash(folded.wrapping_add(40_000), CLIENT_KEY) % 4093, with_port, "{client}");
        let mut mh = director("mh", &[3, 1, 2]);
        let table = mh.table();
        assert_eq!(mh.pick(packet(client, 40_000, "::"), 0), Some(table[plain as usize]), "{client}");
        mh.switch("mh", Flags { port: true, fallback: false }).unwrap();
        assert_eq!(mh.pick(packet(client, 40_000, "::"), 0), Some(table[with_port as usize]), "{client}");
    }
}

#[test]
fn a_server_that_drains_keeps_its_cells_and_one_that_was_added_empty_has_none() {
    let mut mh = director("mh", &[1, 2, 3]);
    let full = mh.table();
    mh.edit(2, 0).unwrap();
    assert_eq!(mh.table(), full);
    let client = packet("10.1.2.3", 0, "::");
    assert_eq!((mh.pick(client, 0), full[1263]), (None, 2), "the client of this test is server 2's");
    mh.switch("mh", Flags { port: false, fallback: true }).unwrap();
    assert!(mh.pick(client, 0).is_some_and(|server| server != 2));
    mh.edit(2, 2).unwrap();
    assert_eq!((mh.table(), mh.pick(client, 0)), (full, Some(2)));
    mh.delete(2).unwrap();
    mh.add(2, address(2), 80, 0).unwrap();
    assert_eq!(shares(&mh)[1], 0);
    // Shares of 1 and 3: with the first in the list, three cells in a turn against one.
    assert_eq!(shares(&mh), [1023, 0, 3070]);
    for server in [1, 3] {
        mh.delete(server).unwrap();
    }
    assert_eq!((mh.table(), mh.pick(client, 0)), (vec![], None));
}
