//! Rows for tests of renderers.

use crate::model::{Method, Persistence, Scope, Thresholds};
use crate::plan::Access;
use crate::view::connections::{Client, ConnectionRow};
use crate::view::services::{Counters, DestinationRow, ServiceRow};

pub(super) fn counters(connections: u64, in_packets: u64, out_packets: u64, in_bytes: u64, out_bytes: u64) -> Counters {
    Counters { connections, in_packets, out_packets, in_bytes, out_bytes }
}

pub(super) fn destination(address: &str, weight: i32, active: u32, traffic: Counters) -> DestinationRow {
    DestinationRow {
        id: 1,
        address: address.parse().unwrap(),
        port: 8080,
        forward: Method::Nat,
        weight,
        thresholds: Thresholds::default(),
        active_connections: active,
        inactive_connections: 0,
        persistent_connections: None,
        traffic,
    }
}

/// A service with servers of each method.
pub(super) fn method_rows() -> Vec<ServiceRow> {
    let mut row = service_rows().remove(0);
    (row.scheduler, row.scheduler_flags) = ("rr", vec![]);
    let server = |(forward, last): (Method, u8)| DestinationRow {
        forward,
        port: 80,
        ..destination(&format!("192.168.60.{last}"), 1, 0, Counters::default())
    };
    row.destinations = Method::ALL.into_iter().zip(1..).map(server).collect();
    row.destinations[2].address = "fd00::3".parse().unwrap();
    row.destinations[3].thresholds = Thresholds { upper: 9, lower: 0 };
    vec![row]
}

pub(super) fn service_rows() -> Vec<ServiceRow> {
    let traffic = counters(44, 123_456_789, 7, 5_000_000_000, 1);
    vec![
        ServiceRow {
            protocol: "TCP",
            address: "10.96.0.1".parse().unwrap(),
            port: 80,
            scheduler: "sh",
            scheduler_flags: vec!["sh-fallback", "sh-port"],
            scope: Scope::Address,
            persistence: None,
            affinity: None,
            one_packet: false,
            access: Access::default(),
            traffic,
            destinations: vec![
                destination("192.168.60.1", 1, 2, traffic),
                destination("192.168.60.2", 2_147_483_647, 0, Counters::default()),
            ],
        },
        ServiceRow {
            protocol: "UDP",
            address: "fd00:10:96::a".parse().unwrap(),
            port: 53,
            scheduler: "rr",
            scheduler_flags: vec![],
            scope: Scope::Address,
            persistence: None,
            affinity: None,
            one_packet: false,
            access: Access::default(),
            traffic: Counters::default(),
            destinations: vec![destination("fd00:10:244:1234:5678:9abc:def0:1", 1, 0, Counters::default())],
        },
        ServiceRow {
            protocol: "SCTP",
            address: "10.96.0.9".parse().unwrap(),
            port: 9999,
            scheduler: "wlc",
            scheduler_flags: vec![],
            scope: Scope::Address,
            persistence: None,
            affinity: None,
            one_packet: false,
            access: Access::default(),
            traffic: Counters::default(),
            destinations: vec![],
        },
    ]
}

/// A service with a server, both at addresses whose last 32 bits alone are not 0.
pub(super) fn compatible_rows() -> Vec<ServiceRow> {
    let [_, mut row, _] = <[ServiceRow; 3]>::try_from(service_rows()).unwrap();
    row.address = "::1:2".parse().unwrap();
    row.destinations = vec![destination("::a01:1", 1, 0, Counters::default())];
    vec![row]
}

pub(super) fn connection_rows() -> Vec<ConnectionRow> {
    vec![
        ConnectionRow {
            protocol: "TCP",
            expires_seconds: Some(897),
            state: "ESTABLISHED",
            source: Client::Address("10.1.2.3:1006".parse().unwrap()),
            virtual_address: "10.96.0.1:80".parse().unwrap(),
            destination: "192.168.60.1:8080".parse().unwrap(),
            inactive: false,
        },
        ConnectionRow {
            protocol: "UDP",
            expires_seconds: None,
            state: "UDP",
            source: Client::Socket(77),
            virtual_address: "[fd00::1]:53".parse().unwrap(),
            destination: "[fd00::2]:5353".parse().unwrap(),
            inactive: true,
        },
    ]
}

/// What `ipvsadm` has options for.
pub(super) fn scoped_rows() -> Vec<ServiceRow> {
    let row =
        |protocol, address: &str, port, scope, scheduler, flags: &[&'static str], persistence: Option<(u32, u8)>| {
            ServiceRow {
                protocol,
                address: address.parse().unwrap(),
                port,
                scope,
                scheduler,
                scheduler_flags: flags.to_vec(),
                persistence: persistence.map(|(timeout, netmask)| Persistence { timeout, netmask }),
                affinity: None,
                one_packet: false,
                access: Access::default(),
                traffic: Counters::default(),
                destinations: vec![],
            }
        };
    let mut rows = vec![
        row("TCP", "10.96.0.1", 0, Scope::Address, "sh", &["sh-port"], Some((360, 24))),
        row("UDP", "10.96.0.1", 53, Scope::Address, "rr", &[], Some((10, 32))),
        row("UDP", "10.0.0.0", 80, Scope::Prefix(8), "dh", &[], None),
        row("TCP", "fd00::", 443, Scope::Prefix(64), "mh", &["mh-fallback", "mh-port"], Some((5, 48))),
        row("FWM", "0.0.0.0", 0, Scope::Mark(1), "rr", &[], None),
        row("FWM", "::", 0, Scope::Mark(8), "lc", &[], Some((360, 128))),
    ];
    rows[0].destinations.push(DestinationRow {
        port: 0,
        thresholds: Thresholds { upper: 100, lower: 80 },
        inactive_connections: 1,
        persistent_connections: Some(2),
        ..destination("10.1.0.1", 1, 3, Counters::default())
    });
    rows[1].one_packet = true;
    rows
}
