//! `bpvs save`: rules as `ipvsadm -S -n` writes them, which `bpvs run --ipvs-rules` and `ipvsadm -R` read.

use std::fmt::Write;
use std::net::{IpAddr, Ipv4Addr};

use super::address::endpoint;
use crate::model::{Method, Persistence, Scope, Thresholds};
use crate::view::services::ServiceRow;

/// One line for each service and each real server. What ipvsadm has no word for, it would not print: networks as
/// services; and what it forgets to print: thresholds. What rules [cannot state](is_stated_by_rules) is left out.
pub fn rules(rows: &[ServiceRow]) -> String {
    let mut out = String::new();
    for row in rows.iter().filter(|row| is_stated_by_rules(row)) {
        let service = service(row);
        out.push_str(&format!("-A {service} -s {}", row.scheduler));
        if let Some(persistence) = row.persistence {
            out.push_str(&format!(" -p {}", persistence.timeout));
            if let Some(mask) = netmask(&persistence, row.address) {
                out.push_str(&format!(" -M {mask}"));
            }
        }
        if row.one_packet {
            out.push_str(" -o");
        }
        if !row.scheduler_flags.is_empty() {
            out.push_str(&format!(" -b {}", row.scheduler_flags.join(",")));
        }
        out.push('\n');
        for server in &row.destinations {
            let address = endpoint(server.address, server.port);
            out.push_str(&format!("-a {service} -r {address} {} -w {}", server.forward.option(), server.weight));
            if matches!(server.forward, Method::Tunnel | Method::OwnTunnel) {
                out.push_str(" --tun-type ipip");
            }
            let Thresholds { upper, lower } = server.thresholds;
            for (option, threshold) in [("-x", upper), ("-y", lower)] {
                if threshold > 0 {
                    let _infallible = write!(out, " {option} {threshold}");
                }
            }
            out.push('\n');
        }
    }
    out
}

/// False for node ports and for what is there for external clients alone, which come from Kubernetes: another address of the
/// node, or another client, is another matter, and no rule says so.
pub fn is_stated_by_rules(row: &ServiceRow) -> bool {
    matches!(row.scope, Scope::Address | Scope::Prefix(_) | Scope::Mark(_))
}

/// The option that names a service.
fn service(row: &ServiceRow) -> String {
    if let Scope::Mark(mark) = row.scope {
        return format!("-f {mark}{}", if row.address.is_ipv6() { " -6" } else { "" });
    }
    let option = match row.protocol {
        "TCP" => "-t",
        "UDP" => "-u",
        _ => "--sctp-service",
    };
    format!("{option} {}", place(row))
}

/// Where a service is reached: an address and a port, or what ipvsadm has no word for.
pub(super) fn place(row: &ServiceRow) -> String {
    if row.scope == Scope::Address { endpoint(row.address, row.port) } else { row.place() }
}

/// The netmask of persistence as `ipvsadm` writes it; none if every address is for itself.
pub(super) fn netmask(persistence: &Persistence, address: IpAddr) -> Option<String> {
    let length = persistence.netmask;
    match address {
        IpAddr::V4(_) if length >= 32 => None,
        IpAddr::V4(_) => {
            let mask = u32::MAX.checked_shl(32 - u32::from(length)).unwrap_or(0);
            Some(Ipv4Addr::from_bits(mask).to_string())
        }
        IpAddr::V6(_) => (length < 128).then(|| length.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{compatible_rows, method_rows, scoped_rows, service_rows};
    use super::*;
    use crate::source::rules::RulesFile;

    #[test]
    fn rules_are_written_as_ipvsadm_writes_them() {
        let expected = "-A -t 10.96.0.1:80 -s sh -b sh-fallback,sh-port\n\
                        -a -t 10.96.0.1:80 -r 192.168.60.1:8080 -m -w 1\n\
                        -a -t 10.96.0.1:80 -r 192.168.60.2:8080 -m -w 2147483647\n\
                        -A -u [fd00:10:96::a]:53 -s rr\n\
                        -a -u [fd00:10:96::a]:53 -r [fd00:10:244:1234:5678:9abc:def0:1]:8080 -m -w 1\n\
                        -A --sctp-service 10.96.0.9:9999 -s wlc\n";
        assert_eq!(rules(&service_rows()), expected);
    }

    #[test]
    fn methods_are_written_as_ipvsadm_writes_them() {
        let expected = "-A -t 10.96.0.1:80 -s rr\n\
                        -a -t 10.96.0.1:80 -r 192.168.60.1:80 -m -w 1\n\
                        -a -t 10.96.0.1:80 -r 192.168.60.2:80 -g -w 1\n\
                        -a -t 10.96.0.1:80 -r [fd00::3]:80 -i -w 1 --tun-type ipip\n\
                        -a -t 10.96.0.1:80 -r 192.168.60.4:80 -i -w 1 --tun-type ipip -x 9\n";
        assert_eq!(rules(&method_rows()), expected);
    }

    #[test]
    fn addresses_have_the_form_of_ipvsadm() {
        let expected = "-A -u [::0.1.0.2]:53 -s rr\n-a -u [::0.1.0.2]:53 -r [::10.1.0.1]:8080 -m -w 1\n";
        assert_eq!(rules(&compatible_rows()), expected);
    }

    #[test]
    fn options_are_written_in_the_order_of_ipvsadm() {
        let expected = "-A -t 10.96.0.1:0 -s sh -p 360 -M 255.255.255.0 -b sh-port\n\
                        -a -t 10.96.0.1:0 -r 10.1.0.1:0 -m -w 1 -x 100 -y 80\n\
                        -A -u 10.96.0.1:53 -s rr -p 10 -o\n\
                        -A -u 10.0.0.0/8:80 -s dh\n\
                        -A -t [fd00::]/64:443 -s mh -p 5 -M 48 -b mh-fallback,mh-port\n\
                        -A -f 1 -s rr\n\
                        -A -f 8 -6 -s lc -p 360\n";
        assert_eq!(rules(&scoped_rows()), expected);
    }

    #[test]
    fn what_rules_cannot_state_is_left_out() {
        let mut rows = service_rows();
        let of_rules = rules(&rows);
        for scope in [Scope::NodePort, Scope::External, Scope::ExternalNodePort] {
            rows.push(ServiceRow { scope, ..rows[0].clone() });
        }
        assert_eq!(rules(&rows), of_rules);
        assert_eq!(rows.iter().filter(|row| !is_stated_by_rules(row)).count(), 3);
    }

    #[test]
    fn what_is_written_is_read_as_what_it_was() {
        let methods = method_rows().into_iter().map(|row| ServiceRow { port: 81, ..row });
        let methods = methods.map(|mut row| {
            row.destinations.iter_mut().for_each(|server| server.port = 81);
            row
        });
        let mut rows: Vec<_> = [service_rows(), compatible_rows(), scoped_rows()].concat();
        rows.extend(methods);
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("rules");
        std::fs::write(&file, rules(&rows)).unwrap();
        let read = RulesFile::new(&file).read_once().unwrap();
        assert_eq!((read.problems, read.services.len()), (vec![], rows.len()));
        for (rule, row) in read.services.iter().zip(&rows) {
            assert_eq!(Some(rule.frontend), row.frontend());
            assert_eq!(rule.options.scheduler.name(), row.scheduler);
            assert_eq!((rule.options.persistence, rule.options.one_packet), (row.persistence, row.one_packet));
            let [port, fallback] = rule.options.scheduler.flag_names().map(|name| row.scheduler_flags.contains(&name));
            assert_eq!((rule.options.hash_port, rule.options.hash_fallback), (port, fallback));
            let shown = row.destinations.iter().map(|row| (row.address, row.port, row.weight, row.thresholds));
            let stated =
                rule.servers.iter().map(|server| (server.address, server.port, server.weight, server.thresholds));
            assert!(shown.eq(stated), "{row:?}");
            let shown = row.destinations.iter().map(|row| row.forward.option());
            assert!(shown.eq(rule.servers.iter().map(|server| server.method.option())), "{row:?}");
        }
    }
}
