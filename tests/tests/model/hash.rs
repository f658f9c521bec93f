//! dh and sh.

use bpvs_tests::model::{Flags, fold, hash_32};

use crate::{director, packet, picks};

#[test]
fn hashes_are_the_specifications() {
    for (address, folded, eight, ten, with_port) in [
        ("10.0.0.1", 0x0a00_0001, 39, 159, 203),
        ("10.1.2.3", 0x0a01_0203, 2, 10, 166),
        ("192.168.1.77", 0xc0a8_014d, 144, 577, 52),
        ("203.0.113.9", 0xcb00_7109, 64, 257, 228),
        ("fd00:1:2::3", 0xfd02_0002, 251, 1004, 159),
        ("2001:db8::1", 0x2001_0db9, 63, 252, 226),
    ] {
        let fold = fold(address.parse().unwrap());
        assert_eq!(fold, folded, "{address}");
        assert_eq!((hash_32(fold, 8), hash_32(fold, 10)), (eight, ten), "{address}");
        // 256 servers of weight 1: the server's number says which cell was hit.
        let mut sh = director("sh", &[1; 256]);
        let mut dh = director("dh", &[1; 256]);
        assert_eq!(sh.pick(packet(address, 40000, "::"), 0), Some(256 - eight), "sh {address}");
        assert_eq!(dh.pick(packet("::", 40000, address), 0), Some(256 - eight), "dh {address}");
        sh.switch("sh", Flags { port: true, fallback: false }).unwrap();
        assert_eq!(sh.pick(packet(address, 40000, "::"), 0), Some(256 - with_port), "sh-port {address}");
    }
}

#[test]
fn sh_tables_are_the_specifications() {
    for (weights, begin, shares) in [
        ([1, 1, 1], &[3, 2, 1, 3, 2, 1][..], [85, 85, 86]),
        ([1, 2, 4], &[3, 3, 3, 3, 2, 2, 1], [36, 72, 148]),
        ([0, 2, 0], &[3, 2, 2, 1], [64, 128, 64]),
    ] {
        let table = director("sh", &weights).table();
        assert_eq!(table.len(), 256);
        assert!(table.starts_with(begin), "{weights:?}: {table:?}");
        assert_eq!([1, 2, 3].map(|server| table.iter().filter(|&&cell| cell == server).count()), shares);
    }
}

#[test]
fn sh_refuses_the_clients_of_a_drained_server_unless_it_falls_back() {
    // 10.1.2.3 hashes to cell 2, server 1; the fallback begins at cell 4, not at 3.
    let mut sh = director("sh", &[1, 1, 1]);
    assert_eq!(picks(&mut sh, 1), "1");
    sh.edit(1, 0).unwrap();
    assert_eq!(picks(&mut sh, 1), "R");
    sh.switch("sh", Flags { port: false, fallback: true }).unwrap();
    assert_eq!(sh.table()[..5], [3, 2, 1, 3, 2]);
    assert_eq!(picks(&mut sh, 1), "2");
    // With cell 4 drained too, and cell 5 of the drained server 1 again, cell 6 answers.
    sh.edit(2, 0).unwrap();
    assert_eq!(picks(&mut sh, 1), "3");
}
