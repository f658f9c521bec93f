//! Text in the layouts of `ipvsadm`: whoever reads or parses those can read and parse these.

use std::fmt::Write;

use lb_common::layout::Settings;
use lb_common::tcp::State;

use super::address::endpoint;
use super::number::bytes;
use crate::kernel::probe::Probe;
use crate::model::Rules;
use crate::view::connections::{Client, ConnectionRow};
use crate::view::maps::MapRow;

/// `bpvs connections`.
pub fn connections(rows: &[ConnectionRow]) -> String {
    let mut out = "IPVS connection entries\n\
                   pro expire state       source             virtual            destination\n"
        .to_owned();
    for row in rows {
        let expires =
            row.expires_seconds.map_or_else(|| "-".to_owned(), |left| format!("{:02}:{:02}", left / 60, left % 60));
        let source = match row.source {
            Client::Address(address) => endpoint(address.ip(), address.port()),
            Client::Socket(cookie) => format!("socket#{cookie}"),
        };
        let [to, destination] =
            [row.virtual_address, row.destination].map(|address| endpoint(address.ip(), address.port()));
        out.push_str(&format!(
            "{:<3} {expires:<6} {:<11} {source:<18} {to:<18} {destination}\n",
            row.protocol, row.state
        ));
    }
    out
}

/// `bpvs list --timeout`: whole seconds, rounded up, so that what is not 0 is not shown as 0.
pub fn timeouts(settings: &Settings) -> String {
    let timeouts = &settings.timeouts;
    let [tcp, fin, udp] =
        [timeouts.tcp[State::Established as usize], timeouts.tcp[State::FinWait as usize], timeouts.udp]
            .map(|milliseconds| milliseconds.div_ceil(1000));
    format!("Timeout (tcp tcpfin udp): {tcp} {fin} {udp}\n")
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

/// `bpvs check`, with what it found in a file of rules.
pub fn check(rows: &[Probe], rules: Option<&Rules>) -> String {
    let mut out = probes(rows);
    if let Some(rules) = rules {
        let servers: usize = rules.services.iter().map(|service| service.servers.len()).sum();
        let (services, problems) = (rules.services.len(), rules.problems.len());
        let _infallible = writeln!(out, "\nRules: {services} services, {servers} real servers, {problems} problems");
        for problem in &rules.problems {
            let _infallible = writeln!(out, "{problem}");
        }
    }
    out
}

fn probes(rows: &[Probe]) -> String {
    let mut out = format!("{:<26} {:<38} {:<9} {}\n", "Feature", "Since", "Status", "Detail");
    for row in rows {
        let status = row.status.name();
        let _infallible = writeln!(out, "{:<26} {:<38} {status:<9} {}", row.feature, row.since, row.detail);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::super::testing::connection_rows;
    use super::*;
    use crate::kernel::probe::Status;
    use crate::model::Problem;
    use lb_common::timeouts::Timeouts;

    #[test]
    fn connections_have_the_layout_of_ipvsadm() {
        let expected = "IPVS connection entries\n\
                        pro expire state       source             virtual            destination\n\
                        TCP 14:57  ESTABLISHED 10.1.2.3:1006      10.96.0.1:80       192.168.60.1:8080\n\
                        UDP -      UDP         socket#77          [fd00::1]:53       [fd00::2]:5353\n";
        assert_eq!(connections(&connection_rows()), expected);
    }

    #[test]
    fn addresses_have_the_form_of_ipvsadm() {
        let mut row = connection_rows().remove(0);
        row.source = Client::Address("[::a01:203]:1006".parse().unwrap());
        (row.virtual_address, row.destination) = ("[::1:2]:80".parse().unwrap(), "[::a01:1]:8080".parse().unwrap());
        let expected = "TCP 14:57  ESTABLISHED [::10.1.2.3]:1006  [::0.1.0.2]:80     [::10.1.0.1]:8080";
        assert_eq!(connections(&[row]).lines().last(), Some(expected));
    }

    #[test]
    fn minutes_go_beyond_an_hour() {
        let mut row = connection_rows().remove(0);
        row.expires_seconds = Some(432_000);
        assert!(connections(&[row]).contains("TCP 7200:00 ESTABLISHED "));
    }

    #[test]
    fn timeouts_have_the_layout_of_ipvsadm() {
        let of = |timeouts| timeouts_of(timeouts);
        assert_eq!(of(Timeouts::IPVS), "Timeout (tcp tcpfin udp): 900 120 300\n");
        assert_eq!(of(Timeouts::IPVS.set(500, 4_294_967_000, 1)), "Timeout (tcp tcpfin udp): 1 4294967 1\n");
    }

    fn timeouts_of(timeouts: Timeouts) -> String {
        super::timeouts(&Settings { timeouts, ..Settings::default() })
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
    fn the_check_names_what_is_wrong_in_rules() {
        let problem = Problem {
            object: "rule TCP 10.0.0.1:80".into(),
            location: Some("rules:3".into()),
            field: "-w".into(),
            value: "\"x\"".into(),
            message: "must be a number".into(),
        };
        let rules = Rules { problems: vec![problem], ..Rules::default() };
        let text = check(&[], Some(&rules));
        let lines: Vec<&str> = text.lines().skip(1).collect();
        let expected = [
            "",
            "Rules: 0 services, 0 real servers, 1 problems",
            "rules:3: rule TCP 10.0.0.1:80: -w: \"x\": must be a number",
        ];
        assert_eq!(lines, expected);
        assert_eq!(check(&[], None).lines().count(), 1);
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
