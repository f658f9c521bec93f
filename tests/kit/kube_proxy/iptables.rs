//! The rules of kube-proxy's iptables mode, as `iptables-restore` reads them.

use std::fmt::Write;

use super::{Cluster, Port, Service, digits, endpoints};

/// Bit of the mark of packets that are to be masqueraded.
const MASQUERADE: &str = "0x4000";

/// Tables `nat` and `filter`.
pub fn rules(cluster: &Cluster) -> String {
    let mut out = String::new();
    write_rules(cluster, &mut out).expect("writing to a String does not fail");
    out
}

fn write_rules(cluster: &Cluster, out: &mut String) -> std::fmt::Result {
    write_filter(out)?;
    writeln!(out, "*nat")?;
    for chain in ["SERVICES", "NODEPORTS", "POSTROUTING", "MARK-MASQ"] {
        writeln!(out, ":KUBE-{chain} - [0:0]")?;
    }
    for (service, port, name) in cluster.ports() {
        writeln!(out, ":{} - [0:0]", chain("SVC", &name))?;
        if port.node_port.is_some() {
            writeln!(out, ":{} - [0:0]", chain("EXT", &name))?;
        }
        for endpoint in endpoints(service, port) {
            writeln!(out, ":{} - [0:0]", chain("SEP", &format!("{name} {endpoint}")))?;
        }
    }
    for from in ["PREROUTING", "OUTPUT"] {
        rule(out, from, "kubernetes service portals", "-j KUBE-SERVICES")?;
    }
    rule(out, "POSTROUTING", "kubernetes postrouting rules", "-j KUBE-POSTROUTING")?;
    writeln!(out, "-A KUBE-POSTROUTING -m mark ! --mark {MASQUERADE}/{MASQUERADE} -j RETURN")?;
    writeln!(out, "-A KUBE-POSTROUTING -j MARK --xor-mark {MASQUERADE}")?;
    let why = "kubernetes service traffic requiring SNAT";
    rule(out, "KUBE-POSTROUTING", why, "-j MASQUERADE --random-fully")?;
    writeln!(out, "-A KUBE-MARK-MASQ -j MARK --or-mark {MASQUERADE}")?;
    for (service, port, name) in cluster.ports() {
        write_port(cluster, service, port, &name, out)?;
    }
    // kube-proxy's last rule of this chain too: what is for the node itself may be for a node port.
    let why = "kubernetes service nodeports; NOTE: this must be the last rule in this chain";
    rule(out, "KUBE-SERVICES", why, "-m addrtype --dst-type LOCAL -j KUBE-NODEPORTS")?;
    writeln!(out, "COMMIT")
}

/// What kube-proxy has in `filter` when every Service has endpoints and nobody is refused.
fn write_filter(out: &mut String) -> std::fmt::Result {
    writeln!(out, "*filter")?;
    for chain in ["SERVICES", "EXTERNAL-SERVICES", "NODEPORTS", "FORWARD", "PROXY-FIREWALL"] {
        writeln!(out, ":KUBE-{chain} - [0:0]")?;
    }
    let new = "-m conntrack --ctstate NEW";
    for from in ["INPUT", "FORWARD", "OUTPUT"] {
        rule(out, from, "kubernetes load balancer firewall", &format!("{new} -j KUBE-PROXY-FIREWALL"))?;
    }
    rule(out, "INPUT", "kubernetes health check service ports", "-j KUBE-NODEPORTS")?;
    rule(out, "FORWARD", "kubernetes forwarding rules", "-j KUBE-FORWARD")?;
    for from in ["FORWARD", "OUTPUT"] {
        rule(out, from, "kubernetes service portals", &format!("{new} -j KUBE-SERVICES"))?;
    }
    for from in ["INPUT", "FORWARD"] {
        let why = "kubernetes externally-visible service portals";
        rule(out, from, why, &format!("{new} -j KUBE-EXTERNAL-SERVICES"))?;
    }
    writeln!(out, "-A KUBE-FORWARD -m conntrack --ctstate INVALID -j DROP")?;
    let why = "kubernetes forwarding rules";
    rule(out, "KUBE-FORWARD", why, &format!("-m mark --mark {MASQUERADE}/{MASQUERADE} -j ACCEPT"))?;
    let why = "kubernetes forwarding conntrack rule";
    rule(out, "KUBE-FORWARD", why, "-m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT")?;
    writeln!(out, "COMMIT")
}

fn write_port(cluster: &Cluster, service: &Service, port: &Port, name: &str, out: &mut String) -> std::fmt::Result {
    let (protocol, to_service) = (port.protocol.name(), chain("SVC", name));
    let frontend = format!("-d {}/32 -p {protocol} -m {protocol} --dport {}", service.address, port.port);
    rule(out, "KUBE-SERVICES", &format!("{name} cluster IP"), &format!("{frontend} -j {to_service}"))?;
    if let Some(node_port) = port.node_port {
        let external = chain("EXT", name);
        let matching = format!("-p {protocol} -m {protocol} --dport {node_port} -j {external}");
        rule(out, "KUBE-NODEPORTS", name, &matching)?;
        rule(out, &external, &format!("masquerade traffic for {name} external destinations"), "-j KUBE-MARK-MASQ")?;
        writeln!(out, "-A {external} -j {to_service}")?;
    }
    let outsiders = format!("! -s {} {frontend} -j KUBE-MARK-MASQ", cluster.pods);
    rule(out, &to_service, &format!("{name} cluster IP"), &outsiders)?;
    let count = service.endpoints.len();
    for (place, endpoint) in endpoints(service, port).enumerate() {
        let to_endpoint = chain("SEP", &format!("{name} {endpoint}"));
        let left = count - place;
        // Each has an even chance among those that are left; the last one takes what remains.
        let chance = if left > 1 {
            format!("-m statistic --mode random --probability {:.10} ", 1.0 / left as f64)
        } else {
            String::new()
        };
        rule(out, &to_service, &format!("{name} -> {endpoint}"), &format!("{chance}-j {to_endpoint}"))?;
        rule(out, &to_endpoint, name, &format!("-s {}/32 -j KUBE-MARK-MASQ", endpoint.ip()))?;
        let translation = format!("-p {protocol} -m {protocol} -j DNAT --to-destination {endpoint}");
        rule(out, &to_endpoint, name, &translation)?;
    }
    Ok(())
}

fn rule(out: &mut String, chain: &str, comment: &str, rest: &str) -> std::fmt::Result {
    writeln!(out, "-A {chain} -m comment --comment \"{comment}\" {rest}")
}

fn chain(kind: &str, name: &str) -> String {
    format!("KUBE-{kind}-{}", digits(name, 16))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::kube_proxy::tests::cluster;

    /// The rules of a chain, without comments.
    fn of_chain(rules: &str, chain: &str) -> Vec<String> {
        let of_chain = rules.lines().filter_map(|line| line.strip_prefix(&format!("-A {chain} ")));
        let bare = of_chain.map(|rule| match rule.split_once("--comment \"") {
            Some((before, rest)) => {
                let after = rest.split_once("\" ").unwrap().1;
                format!("{}{after}", before.trim_end_matches("-m comment "))
            }
            None => rule.to_owned(),
        });
        bare.collect()
    }

    fn target(rule: &str) -> &str {
        rule.rsplit_once("-j ").unwrap().1.split(' ').next().unwrap()
    }

    #[test]
    fn a_packet_finds_its_endpoint_by_service_and_by_node_port() {
        let nat = rules(&cluster(1));
        let nat = nat.split_once("*nat").unwrap().1;
        let services = of_chain(nat, "KUBE-SERVICES");
        assert_eq!(services.len(), 3, "{services:?}");
        assert!(services[0].starts_with("-d 10.96.0.1/32 -p tcp -m tcp --dport 80 -j KUBE-SVC-"), "{services:?}");
        assert!(services[1].starts_with("-d 10.96.0.1/32 -p udp -m udp --dport 53 -j KUBE-SVC-"), "{services:?}");
        assert_eq!(services[2], "-m addrtype --dst-type LOCAL -j KUBE-NODEPORTS");

        let service = of_chain(nat, target(&services[0]));
        assert_eq!(service[0], "! -s 10.1.0.0/16 -d 10.96.0.1/32 -p tcp -m tcp --dport 80 -j KUBE-MARK-MASQ");
        let chances: Vec<&str> = service[1..].iter().map(|rule| rule.split(" -j ").next().unwrap()).collect();
        let chance = "-m statistic --mode random --probability ";
        assert_eq!(chances[..2], [format!("{chance}0.3333333333"), format!("{chance}0.5000000000")]);
        assert!(chances[2].starts_with("-j KUBE-SEP-"), "{chances:?}");
        for (number, rule) in (1..).zip(&service[1..]) {
            let endpoint = of_chain(nat, target(rule));
            assert_eq!(
                endpoint,
                [
                    format!("-s 10.1.1.{number}/32 -j KUBE-MARK-MASQ"),
                    format!("-p tcp -m tcp -j DNAT --to-destination 10.1.1.{number}:8080"),
                ]
            );
        }

        let node_ports = of_chain(nat, "KUBE-NODEPORTS");
        assert_eq!(node_ports.len(), 1);
        let external = of_chain(nat, target(&node_ports[0]));
        assert_eq!(external, ["-j KUBE-MARK-MASQ".to_owned(), format!("-j {}", target(&services[0]))]);
    }

    #[test]
    fn every_chain_that_is_jumped_to_is_declared_once() {
        let rules = rules(&cluster(200));
        for table in rules.split("COMMIT\n").filter(|table| !table.is_empty()) {
            let declared: Vec<&str> =
                table.lines().filter_map(|line| line.strip_prefix(':')?.split(' ').next()).collect();
            let unique: BTreeSet<&str> = declared.iter().copied().collect();
            assert_eq!(unique.len(), declared.len());
            let used = table.lines().filter(|line| line.contains(" -j KUBE-")).map(target);
            for chain in used {
                assert!(unique.contains(chain), "{chain} is not declared");
            }
        }
    }
}
