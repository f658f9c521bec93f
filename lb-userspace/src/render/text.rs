//! Text in the layouts of `ipvsadm`: whoever reads or parses those can read and parse these.

use std::fmt::Write;
use std::net::{IpAddr, SocketAddr};

use super::number::{bytes, large};
use crate::kernel::probe::Probe;
use crate::view::connections::{Client, ConnectionRow};
use crate::view::maps::MapRow;
use crate::view::services::{Counters, DestinationRow, ServiceRow};

/// Which columns `bpvs list` shows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Columns {
    /// Weight and connections.
    Connections,
    /// Traffic since the start (`--stats`).
    Totals,
    /// Traffic per second (`--rate`).
    Rates,
}

/// `bpvs list`. `size` is given for a listing of everything, which has the title line.
pub fn services(rows: &[ServiceRow], size: Option<u32>, columns: Columns) -> String {
    let mut out = String::new();
    if let Some(size) = size {
        out.push_str(&format!("BPF Virtual Server version {} (size={size})\n", env!("CARGO_PKG_VERSION")));
    }
    match columns {
        Columns::Connections => out.push_str("Prot LocalAddress:Port Scheduler Flags\n"),
        Columns::Totals => traffic_title(&mut out, ["Conns", "InPkts", "OutPkts", "InBytes", "OutBytes"]),
        Columns::Rates => traffic_title(&mut out, ["CPS", "InPPS", "OutPPS", "InBPS", "OutBPS"]),
    }
    out.push_str("  -> RemoteAddress:Port");
    out.push_str(if columns == Columns::Connections {
        "           Forward Weight ActiveConn InActConn\n"
    } else {
        "\n"
    });
    for row in rows {
        service(&mut out, row, columns);
    }
    out
}

fn traffic_title(out: &mut String, columns: [&str; 5]) {
    out.push_str(&format!("{:<33}", "Prot LocalAddress:Port"));
    for column in columns {
        out.push_str(&format!(" {column:>8}"));
    }
    out.push('\n');
}

fn service(out: &mut String, row: &ServiceRow, columns: Columns) {
    let name = format!("{:<4} {}", row.protocol, endpoint(row.address, row.port));
    if columns == Columns::Connections {
        let flags = row.scheduler_flags.join(",");
        let flags = if flags.is_empty() { flags } else { format!(" ({flags})") };
        out.push_str(&format!("{name} {}{flags}\n", row.scheduler));
    } else {
        out.push_str(&format!("{name:<33}"));
        traffic(out, &row.traffic);
    }
    for row in &row.destinations {
        destination(out, row, columns);
    }
}

fn destination(out: &mut String, row: &DestinationRow, columns: Columns) {
    out.push_str(&format!("  -> {:<28}", endpoint(row.address, row.port)));
    if columns == Columns::Connections {
        out.push_str(&format!(
            " {:<7} {:<6} {:<10} {:<10}\n",
            row.forward, row.weight, row.active_connections, row.inactive_connections
        ));
    } else {
        traffic(out, &row.traffic);
    }
}

fn traffic(out: &mut String, counters: &Counters) {
    for number in
        [counters.connections, counters.in_packets, counters.out_packets, counters.in_bytes, counters.out_bytes]
    {
        out.push_str(&large(number));
    }
    out.push('\n');
}

fn endpoint(address: IpAddr, port: u16) -> String {
    SocketAddr::new(address, port).to_string()
}

/// `bpvs connections`.
pub fn connections(rows: &[ConnectionRow]) -> String {
    let mut out = "IPVS connection entries\n\
                   pro expire state       source             virtual            destination\n"
        .to_owned();
    for row in rows {
        let expires =
            row.expires_seconds.map_or_else(|| "-".to_owned(), |left| format!("{:02}:{:02}", left / 60, left % 60));
        let source = match row.source {
            Client::Address(address) => address.to_string(),
            Client::Socket(cookie) => format!("socket#{cookie}"),
        };
        out.push_str(&format!(
            "{:<3} {expires:<6} {:<11} {source:<18} {:<18} {}\n",
            row.protocol, row.state, row.virtual_address, row.destination
        ));
    }
    out
}

/// `bpvs maps`.
pub fn maps(rows: &[MapRow]) -> String {
    let mut out = format!(
        "{:<20} {:<13} {:>5} {:>6} {:>9} {:>9} {:>10}\n",
        "Map", "Type", "Key", "Value", "Max", "Used", "Memory"
    );
    let mut total = 0;
    for row in rows {
        let used = row.used_entries.map_or_else(|| "-".to_owned(), |used| used.to_string());
        let memory = row.memory_bytes.map_or_else(|| "-".to_owned(), bytes);
        total += row.memory_bytes.unwrap_or(0);
        let _infallible = writeln!(
            out,
            "{:<20} {:<13} {:>5} {:>6} {:>9} {used:>9} {memory:>10}",
            row.name, row.map_type, row.key_bytes, row.value_bytes, row.max_entries
        );
    }
    let _infallible = writeln!(out, "{:<20} {:>57}", "total", bytes(total));
    out
}

/// `bpvs check`.
pub fn probes(rows: &[Probe]) -> String {
    let mut out = format!("{:<26} {:<38} {:<9} {}\n", "Feature", "Since", "Status", "Detail");
    for row in rows {
        let status = row.status.name();
        let _infallible = writeln!(out, "{:<26} {:<38} {status:<9} {}", row.feature, row.since, row.detail);
    }
    out
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::datapath::{Scope, Thresholds};
    use crate::kernel::probe::Status;

    fn counters(connections: u64, in_packets: u64, out_packets: u64, in_bytes: u64, out_bytes: u64) -> Counters {
        Counters { connections, in_packets, out_packets, in_bytes, out_bytes }
    }

    fn destination(address: &str, weight: i32, active: u32, traffic: Counters) -> DestinationRow {
        DestinationRow {
            address: address.parse().unwrap(),
            port: 8080,
            forward: "Masq",
            weight,
            thresholds: Thresholds::default(),
            active_connections: active,
            inactive_connections: 0,
            traffic,
        }
    }

    pub(crate) fn service_rows() -> Vec<ServiceRow> {
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
                one_packet: false,
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
                one_packet: false,
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
                one_packet: false,
                traffic: Counters::default(),
                destinations: vec![],
            },
        ]
    }

    pub(crate) fn connection_rows() -> Vec<ConnectionRow> {
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

    #[test]
    fn the_list_has_the_layout_of_ipvsadm() {
        let expected = format!(
            "BPF Virtual Server version {} (size=4096)\n\
             Prot LocalAddress:Port Scheduler Flags\n\
             \x20 -> RemoteAddress:Port           Forward Weight ActiveConn InActConn\n\
             TCP  10.96.0.1:80 sh (sh-fallback,sh-port)\n\
             \x20 -> 192.168.60.1:8080            Masq    1      2          0         \n\
             \x20 -> 192.168.60.2:8080            Masq    2147483647 0          0         \n\
             UDP  [fd00:10:96::a]:53 rr\n\
             \x20 -> [fd00:10:244:1234:5678:9abc:def0:1]:8080 Masq    1      0          0         \n\
             SCTP 10.96.0.9:9999 wlc\n",
            env!("CARGO_PKG_VERSION")
        );
        assert_eq!(services(&service_rows(), Some(4096), Columns::Connections), expected);
    }

    #[test]
    fn statistics_have_the_layout_of_ipvsadm() {
        let expected = "Prot LocalAddress:Port               Conns   InPkts  OutPkts  InBytes OutBytes\n\
                        \x20 -> RemoteAddress:Port\n\
                        TCP  10.96.0.1:80                       44  123456K        7    5000M        1\n\
                        \x20 -> 192.168.60.1:8080                  44  123456K        7    5000M        1\n\
                        \x20 -> 192.168.60.2:8080                   0        0        0        0        0\n";
        assert_eq!(services(&service_rows()[..1], None, Columns::Totals), expected);
    }

    #[test]
    fn rates_differ_in_their_title_only() {
        let expected = "Prot LocalAddress:Port                 CPS    InPPS   OutPPS    InBPS   OutBPS\n\
                        \x20 -> RemoteAddress:Port\n\
                        SCTP 10.96.0.9:9999                      0        0        0        0        0\n";
        assert_eq!(services(&service_rows()[2..], None, Columns::Rates), expected);
    }

    #[test]
    fn connections_have_the_layout_of_ipvsadm() {
        let expected = "IPVS connection entries\n\
                        pro expire state       source             virtual            destination\n\
                        TCP 14:57  ESTABLISHED 10.1.2.3:1006      10.96.0.1:80       192.168.60.1:8080\n\
                        UDP -      UDP         socket#77          [fd00::1]:53       [fd00::2]:5353\n";
        assert_eq!(connections(&connection_rows()), expected);
    }

    #[test]
    fn minutes_go_beyond_an_hour() {
        let mut row = connection_rows().remove(0);
        row.expires_seconds = Some(432_000);
        assert!(connections(&[row]).contains("TCP 7200:00 ESTABLISHED "));
    }

    #[test]
    fn maps_show_size_use_and_memory() {
        let row = |name: &str, used, memory| MapRow {
            name: name.into(),
            map_type: "hash".into(),
            key_bytes: 20,
            value_bytes: 32,
            max_entries: 65_536,
            used_entries: used,
            memory_bytes: memory,
        };
        let expected = "\
Map                  Type            Key  Value       Max      Used     Memory
services             hash             20     32     65536         3    5.0 MiB
fragments            hash             20     32     65536         -          -
total                                                                  5.0 MiB
";
        assert_eq!(maps(&[row("services", Some(3), Some(5 << 20)), row("fragments", None, None)]), expected);
    }

    #[test]
    fn the_check_names_what_is_missing() {
        let probe = |status| Probe {
            feature: "TCX",
            since: "Linux 6.6",
            status,
            detail: "absent: clsact filters are used instead".into(),
        };
        let text = probes(&[Status::Ok, Status::Missing, Status::Absent, Status::Unknown].map(probe));
        let statuses: Vec<&str> =
            text.lines().skip(1).filter_map(|line| line[66..].split_whitespace().next()).collect();
        assert_eq!(statuses, ["ok", "missing", "absent", "unknown"]);
    }
}
