//! `bpvs list` in the layouts of `ipvsadm -Ln`, byte for byte but for the first line: whoever reads or parses those can
//! read and parse these.

use std::fmt::Write;

use super::address::endpoint;
use super::number::{exact, large};
use super::save::{netmask, place};
use crate::model::{Method, Scope};
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
    /// Upper and lower thresholds and connections (`--thresholds`).
    Thresholds,
    /// Weight, clients that keep the server, and connections (`--persistent-conn`).
    Persistent,
    /// Type of the tunnel, weight and connections (`--tun-info`).
    Tunnels,
}

/// How it is shown.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Style {
    /// Which columns.
    pub columns: Columns,
    /// Large numbers of traffic in full (`--exact`).
    pub exact: bool,
}

/// The listing. `size` is given for one of everything, which has the title line.
pub fn services(rows: &[ServiceRow], size: Option<u32>, style: Style) -> String {
    let mut out = String::new();
    if let Some(size) = size {
        out.push_str(&format!("BPF Virtual Server version {} (size={size})\n", env!("CARGO_PKG_VERSION")));
    }
    let traffic = |columns: [&str; 5]| columns.map(|column| format!(" {column:>8}")).concat();
    let counts = |[a, b]: [&str; 2], widths: [usize; 2]| {
        format!(" {a:<0$} {b:<1$} {2:<10} {3:<10}", widths[0], widths[1], "ActiveConn", "InActConn")
    };
    let columns = match style.columns {
        Columns::Connections => {
            out.push_str("Prot LocalAddress:Port Scheduler Flags\n");
            out.push_str("  -> RemoteAddress:Port           Forward Weight ActiveConn InActConn\n");
            None
        }
        Columns::Tunnels => {
            out.push_str("Prot LocalAddress:Port Scheduler Flags\n");
            out.push_str("  -> RemoteAddress:Port           Forward TunnelInfo    Weight ActiveConn InActConn\n");
            None
        }
        Columns::Totals => Some(traffic(["Conns", "InPkts", "OutPkts", "InBytes", "OutBytes"])),
        Columns::Rates => Some(traffic(["CPS", "InPPS", "OutPPS", "InBPS", "OutBPS"])),
        Columns::Thresholds => Some(counts(["Uthreshold", "Lthreshold"], [10, 10])),
        Columns::Persistent => Some(counts(["Weight", "PersistConn"], [9, 11])),
    };
    if let Some(columns) = columns {
        out.push_str(&format!("{:<33}{columns}\n  -> RemoteAddress:Port\n", "Prot LocalAddress:Port"));
    }
    for row in rows {
        service(&mut out, row, style);
    }
    out
}

fn service(out: &mut String, row: &ServiceRow, style: Style) {
    let name = match row.scope {
        Scope::Mark(mark) => format!("FWM  {mark}{}", if row.address.is_ipv6() { " IPv6" } else { "" }),
        _ => format!("{:<4} {}", row.protocol, place(row)),
    };
    // What IPVS has no services of.
    let word = match row.scope {
        Scope::Address | Scope::Prefix(_) | Scope::Mark(_) => "",
        Scope::External => " external",
        Scope::NodePort => " node-port",
        Scope::ExternalNodePort => " node-port external",
    };
    if matches!(style.columns, Columns::Totals | Columns::Rates) {
        out.push_str(&format!("{:<33}", format!("{name}{word}")));
        traffic(out, &row.traffic, style.exact);
    } else {
        out.push_str(&format!("{name} {}", row.scheduler));
        if !row.scheduler_flags.is_empty() {
            let _infallible = write!(out, " ({})", row.scheduler_flags.join(","));
        }
        if let Some(persistence) = row.persistence {
            let _infallible = write!(out, " persistent {}", persistence.timeout);
            if let Some(mask) = netmask(&persistence, row.address) {
                let _infallible = write!(out, " mask {mask}");
            }
        }
        if row.one_packet {
            out.push_str(" ops");
        }
        out.push_str(word);
        out.push('\n');
    }
    for row in &row.destinations {
        destination(out, row, style);
    }
}

fn destination(out: &mut String, row: &DestinationRow, style: Style) {
    out.push_str(&format!("  -> {:<28}", endpoint(row.address, row.port)));
    let (active, inactive) = (row.active_connections, row.inactive_connections);
    let columns = match style.columns {
        Columns::Totals | Columns::Rates => return traffic(out, &row.traffic, style.exact),
        Columns::Connections => format!(" {:<7} {:<6}", row.forward.name(), row.weight),
        Columns::Tunnels => {
            let tunnel = if matches!(row.forward, Method::Tunnel | Method::OwnTunnel) { "ipip" } else { "n/a" };
            format!(" {:<7} {tunnel:<13} {:<6}", row.forward.name(), row.weight)
        }
        Columns::Thresholds => format!(" {:<10} {:<10}", row.thresholds.upper, row.thresholds.lower),
        Columns::Persistent => {
            format!(" {:<9} {:<11}", row.weight, row.persistent_connections.unwrap_or_default())
        }
    };
    out.push_str(&format!("{columns} {active:<10} {inactive:<10}\n"));
}

fn traffic(out: &mut String, counters: &Counters, in_full: bool) {
    let shown = if in_full { exact } else { large };
    for number in
        [counters.connections, counters.in_packets, counters.out_packets, counters.in_bytes, counters.out_bytes]
    {
        out.push_str(&shown(number));
    }
    out.push('\n');
}

#[cfg(test)]
mod tests {
    use super::super::testing::{compatible_rows, method_rows, scoped_rows, service_rows};
    use super::*;

    fn shown(rows: &[ServiceRow], columns: Columns) -> String {
        services(rows, None, Style { columns, exact: false })
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
        assert_eq!(
            services(&service_rows(), Some(4096), Style { columns: Columns::Connections, exact: false }),
            expected
        );
    }

    #[test]
    fn methods_and_tunnels_have_the_words_of_ipvsadm() {
        let expected = "Prot LocalAddress:Port Scheduler Flags\n\
                        \x20 -> RemoteAddress:Port           Forward Weight ActiveConn InActConn\n\
                        TCP  10.96.0.1:80 rr\n\
                        \x20 -> 192.168.60.1:80              Masq    1      0          0         \n\
                        \x20 -> 192.168.60.2:80              Route   1      0          0         \n\
                        \x20 -> [fd00::3]:80                 Tunnel  1      0          0         \n\
                        \x20 -> 192.168.60.4:80              Tunnel  1      0          0         \n";
        assert_eq!(shown(&method_rows(), Columns::Connections), expected);
        let expected = "Prot LocalAddress:Port Scheduler Flags\n\
                        \x20 -> RemoteAddress:Port           Forward TunnelInfo    Weight ActiveConn InActConn\n\
                        TCP  10.96.0.1:80 rr\n\
                        \x20 -> 192.168.60.1:80              Masq    n/a           1      0          0         \n\
                        \x20 -> 192.168.60.2:80              Route   n/a           1      0          0         \n\
                        \x20 -> [fd00::3]:80                 Tunnel  ipip          1      0          0         \n\
                        \x20 -> 192.168.60.4:80              Tunnel  ipip          1      0          0         \n";
        assert_eq!(shown(&method_rows(), Columns::Tunnels), expected);
    }

    #[test]
    fn addresses_have_the_form_of_ipvsadm() {
        let expected = "Prot LocalAddress:Port Scheduler Flags\n\
                        \x20 -> RemoteAddress:Port           Forward Weight ActiveConn InActConn\n\
                        UDP  [::0.1.0.2]:53 rr\n\
                        \x20 -> [::10.1.0.1]:8080            Masq    1      0          0         \n";
        assert_eq!(shown(&compatible_rows(), Columns::Connections), expected);
    }

    #[test]
    fn statistics_have_the_layout_of_ipvsadm() {
        let expected = "Prot LocalAddress:Port               Conns   InPkts  OutPkts  InBytes OutBytes\n\
                        \x20 -> RemoteAddress:Port\n\
                        TCP  10.96.0.1:80                       44  123456K        7    5000M        1\n\
                        \x20 -> 192.168.60.1:8080                  44  123456K        7    5000M        1\n\
                        \x20 -> 192.168.60.2:8080                   0        0        0        0        0\n";
        assert_eq!(shown(&service_rows()[..1], Columns::Totals), expected);
    }

    #[test]
    fn rates_differ_in_their_title_only() {
        let expected = "Prot LocalAddress:Port                 CPS    InPPS   OutPPS    InBPS   OutBPS\n\
                        \x20 -> RemoteAddress:Port\n\
                        SCTP 10.96.0.9:9999                      0        0        0        0        0\n";
        assert_eq!(shown(&service_rows()[2..], Columns::Rates), expected);
    }

    #[test]
    fn persistence_flags_marks_and_networks_have_the_words_of_ipvsadm() {
        let expected = "Prot LocalAddress:Port Scheduler Flags\n\
                        \x20 -> RemoteAddress:Port           Forward Weight ActiveConn InActConn\n\
                        TCP  10.96.0.1:0 sh (sh-port) persistent 360 mask 255.255.255.0\n\
                        \x20 -> 10.1.0.1:0                   Masq    1      3          1         \n\
                        UDP  10.96.0.1:53 rr persistent 10 ops\n\
                        UDP  10.0.0.0/8:80 dh\n\
                        TCP  [fd00::]/64:443 mh (mh-fallback,mh-port) persistent 5 mask 48\n\
                        FWM  1 rr\n\
                        FWM  8 IPv6 lc persistent 360\n";
        assert_eq!(shown(&scoped_rows(), Columns::Connections), expected);
    }

    #[test]
    fn what_ipvs_has_no_services_of_says_what_it_is() {
        let mut lines = Vec::new();
        for columns in [Columns::Connections, Columns::Totals] {
            for scope in [Scope::External, Scope::NodePort, Scope::ExternalNodePort] {
                let row = ServiceRow { scope, ..service_rows()[2].clone() };
                lines.push(shown(&[row], columns).lines().nth(2).unwrap().to_owned());
            }
        }
        let zeros = "        0        0        0        0        0";
        let expected = [
            "SCTP 10.96.0.9:9999 wlc external".to_owned(),
            "SCTP 10.96.0.9:9999 wlc node-port".to_owned(),
            "SCTP 10.96.0.9:9999 wlc node-port external".to_owned(),
            format!("{:<33}{zeros}", "SCTP 10.96.0.9:9999 external"),
            format!("{:<33}{zeros}", "SCTP 10.96.0.9:9999 node-port"),
            format!("{:<33}{zeros}", "SCTP 10.96.0.9:9999 node-port external"),
        ];
        assert_eq!(lines, expected);
    }

    #[test]
    fn marks_and_networks_have_statistics_too() {
        let expected = "Prot LocalAddress:Port               Conns   InPkts  OutPkts  InBytes OutBytes\n\
                        \x20 -> RemoteAddress:Port\n\
                        FWM  1                                   0        0        0        0        0\n\
                        FWM  8 IPv6                              0        0        0        0        0\n";
        assert_eq!(shown(&scoped_rows()[4..], Columns::Totals), expected);
    }

    #[test]
    fn exact_numbers_are_not_shortened() {
        let expected = "Prot LocalAddress:Port               Conns   InPkts  OutPkts  InBytes OutBytes\n\
                        \x20 -> RemoteAddress:Port\n\
                        TCP  10.96.0.1:80                       44 123456789        7 5000000000        1\n\
                        \x20 -> 192.168.60.1:8080                  44 123456789        7 5000000000        1\n\
                        \x20 -> 192.168.60.2:8080                   0        0        0        0        0\n";
        assert_eq!(services(&service_rows()[..1], None, Style { columns: Columns::Totals, exact: true }), expected);
    }

    #[test]
    fn thresholds_have_the_layout_of_ipvsadm() {
        let expected = "Prot LocalAddress:Port            Uthreshold Lthreshold ActiveConn InActConn \n\
                        \x20 -> RemoteAddress:Port\n\
                        TCP  10.96.0.1:0 sh (sh-port) persistent 360 mask 255.255.255.0\n\
                        \x20 -> 10.1.0.1:0                   100        80         3          1         \n";
        assert_eq!(shown(&scoped_rows()[..1], Columns::Thresholds), expected);
    }

    #[test]
    fn persistent_connections_have_the_layout_of_ipvsadm() {
        let expected = "Prot LocalAddress:Port            Weight    PersistConn ActiveConn InActConn \n\
                        \x20 -> RemoteAddress:Port\n\
                        TCP  10.96.0.1:0 sh (sh-port) persistent 360 mask 255.255.255.0\n\
                        \x20 -> 10.1.0.1:0                   1         2           3          1         \n";
        assert_eq!(shown(&scoped_rows()[..1], Columns::Persistent), expected);
    }
}
